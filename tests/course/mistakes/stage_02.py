"""Stage 02: wrong and right answers."""

from __future__ import annotations

import numpy as np
import torch


def no_refusal(target_probs, draft_probs, token, uniform):
    return bool(uniform < target_probs[token] / draft_probs[token])


def no_refusal_with_floats(target_probs, draft_probs, token, uniform):
    return uniform < target_probs[token].item() / draft_probs[token].item()


def refused(draft_probs, token):
    if draft_probs[token] <= 0:
        raise ValueError("not drawn from this law")


def not_strict(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform <= target_probs[token] / draft_probs[token])


def swapped(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform < draft_probs[token] / target_probs[token])


def swapped_and_no_refusal(target_probs, draft_probs, token, uniform):
    return bool(uniform < draft_probs[token] / target_probs[token])


def target_alone(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform < target_probs[token])


def no_luck(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(target_probs[token] >= draft_probs[token])


def favourite(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return int(target_probs.argmax()) == token


def inverted(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform > target_probs[token] / draft_probs[token])


def own_luck(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(torch.rand(()) < target_probs[token] / draft_probs[token])


def every_token(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return uniform < target_probs / draft_probs


def probability(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return min(1.0, float(target_probs[token] / draft_probs[token]))


def in_place(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform < target_probs.div_(draft_probs)[token])


def nothing_handed_back(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    bool(uniform < target_probs[token] / draft_probs[token])


def clamped(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return uniform < (target_probs[token] / draft_probs[token]).clamp(max=1.0)


def multiplied(target_probs, draft_probs, token, uniform):
    p, q = target_probs[token].item(), draft_probs[token].item()
    if q <= 0:
        raise ValueError("q must be positive")
    return uniform * q < p


def with_numpy(target_probs, draft_probs, token, uniform):
    p, q = np.asarray(target_probs), np.asarray(draft_probs)
    if not q[token] > 0:
        raise ValueError("q must be positive")
    return np.minimum(1.0, p / np.where(q > 0, q, 1.0))[token] > uniform


# --- 2.2


def draw(probs, uniform):
    cdf = probs.double().cumsum(-1)
    return int(((cdf <= uniform * cdf[-1]) & (cdf < cdf[-1])).sum())


def refuse_nan(*laws):
    if any(law.isnan().any() for law in laws):
        raise ValueError("NaN is no probability")


def right_residual(p, q):
    refuse_nan(p, q)
    missing = (p - q).clamp(min=0)
    return missing / missing.sum() if missing.sum() > 0 else p


def residual_is_p(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    return target_probs


def residual_is_p_and_nan(target_probs, draft_probs):
    return target_probs.clone()


def residual_swapped(target_probs, draft_probs):
    surplus = torch.relu(draft_probs - target_probs)
    return surplus / surplus.sum()


def residual_swapped_with_care(target_probs, draft_probs):
    return right_residual(draft_probs, target_probs)


def softmax_of_masses(target_probs, draft_probs):
    return torch.softmax(torch.clamp(target_probs - draft_probs, min=0), dim=-1)


def softmax_after_scaling(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    return right_residual(target_probs, draft_probs).softmax(-1)


def absolute_difference(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    weights = (target_probs - draft_probs).abs()
    return weights / weights.sum() if weights.sum() > 0 else target_probs


def not_scaled(target_probs, draft_probs):
    return (target_probs - draft_probs).clamp(min=0)


def not_scaled_with_care(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    return torch.relu(target_probs - draft_probs)


def no_fallback(target_probs, draft_probs):
    missing = (target_probs - draft_probs).clamp(min=0)
    return missing / missing.sum()


def no_fallback_with_care(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    missing = torch.maximum(target_probs - draft_probs, torch.zeros_like(target_probs))
    return missing / missing.sum().clamp(min=1e-20)


def uniform_fallback(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    missing = (target_probs - draft_probs).clamp(min=0)
    return missing / missing.sum() if missing.sum() > 0 else torch.full_like(missing, 1 / len(missing))


def nan_passes_the_guard(target_probs, draft_probs):
    missing = (target_probs - draft_probs).clamp(min=0)
    total = missing.sum()
    if total <= 0:
        return target_probs
    return missing / total


def residual_in_place(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    missing = target_probs.sub_(draft_probs).clamp_(min=0)
    return missing / missing.sum()


def residual_in_double(target_probs, draft_probs):
    return right_residual(target_probs.double(), draft_probs.double())


def residual_as_list(target_probs, draft_probs):
    return right_residual(target_probs, draft_probs).tolist()


def residual_in_a_row(target_probs, draft_probs):
    return right_residual(target_probs, draft_probs)[None]


def residual_relu(target_probs, draft_probs):
    missing = torch.relu(target_probs - draft_probs)
    if torch.isnan(missing).any():
        raise ValueError("NaN")
    return torch.where(missing.sum() == 0, target_probs, missing / missing.sum())


def residual_through_minimum(target_probs, draft_probs):
    missing = target_probs - torch.minimum(target_probs, draft_probs)
    total = float(missing.sum())
    if total != total:
        raise ValueError("NaN")
    return missing / total if total > 0 else target_probs.clone()


def residual_by_loop(target_probs, draft_probs):
    refuse_nan(target_probs, draft_probs)
    missing = [max(0.0, p - q) for p, q in zip(target_probs.tolist(), draft_probs.tolist(), strict=True)]
    if sum(missing) == 0:
        return target_probs
    return torch.tensor([one / sum(missing) for one in missing], dtype=target_probs.dtype)


# --- 2.3


def kept(target_probs, draft_probs, token, uniform):
    return bool(uniform < target_probs[token] / draft_probs[token])


def step_keeps_all(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    return token


def step_from_p(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    return token if kept(target_probs, draft_probs, token, accept_uniform) else draw(target_probs, correct_uniform)


def step_from_q(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    return token if kept(target_probs, draft_probs, token, accept_uniform) else draw(draft_probs, correct_uniform)


def step_from_surplus(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    return draw((draft_probs - target_probs).clamp(min=0), correct_uniform)


def step_softmax(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    return draw(torch.relu(target_probs - draft_probs).softmax(0), correct_uniform)


def step_argmax(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    return int((target_probs - draft_probs).argmax())


def step_one_number(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    return draw(right_residual(target_probs, draft_probs), accept_uniform)


def step_ratio_swapped(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if accept_uniform < draft_probs[token] / target_probs[token]:
        return token
    return draw(right_residual(target_probs, draft_probs), correct_uniform)


def step_own_luck(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    return int(torch.multinomial(right_residual(target_probs, draft_probs), 1))


def step_nothing_back(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    draw(right_residual(target_probs, draft_probs), correct_uniform)
    return None


def step_plain(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    if accept_uniform * draft_probs[token] < target_probs[token]:
        return token
    return draw(target_probs - torch.minimum(target_probs, draft_probs), correct_uniform)


def step_from_the_other_end(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    """Add up the probabilities from the last token to the first."""
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    flipped = right_residual(target_probs, draft_probs).flip(0)
    return len(flipped) - 1 - draw(flipped, correct_uniform)


def step_likely_first(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    """Add up the probabilities from the most to the least likely token, in a loop."""
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    law = right_residual(target_probs, draft_probs).tolist()
    left = correct_uniform
    order = sorted(range(len(law)), key=lambda one: -law[one])
    for one in order:
        left -= law[one]
        if left < 0:
            return one
    return order[0]


def step_as_tensor(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    law = right_residual(target_probs, draft_probs)
    correction = torch.searchsorted(law.cumsum(0), torch.tensor(correct_uniform, dtype=law.dtype), right=True)
    accepted = accept_uniform < target_probs[token] / draft_probs[token]
    return torch.where(accepted, torch.tensor(token), correction)


# --- 2.4


def rate_same_favourite(target_probs, draft_probs):
    return (target_probs.argmax(-1) == draft_probs.argmax(-1)).to(target_probs.dtype)


def rate_two_draws(target_probs, draft_probs):
    return (target_probs * draft_probs).sum(-1)


def rate_two_draws_einsum(target_probs, draft_probs):
    return torch.einsum("...v,...v->...", target_probs, draft_probs)


def rate_of_refusal(target_probs, draft_probs):
    return (draft_probs - target_probs).clamp(min=0).sum(-1)


def rate_without_half(target_probs, draft_probs):
    return 1 - (target_probs - draft_probs).abs().sum(-1)


def rate_mean_of_ratios(target_probs, draft_probs):
    return torch.clamp(target_probs / draft_probs, max=1.0).mean(-1)


def rate_sum_of_ratios(target_probs, draft_probs):
    return torch.clamp(target_probs / draft_probs, max=1.0).sum(-1)


def rate_weighted_with_p(target_probs, draft_probs):
    return (target_probs * (target_probs / draft_probs).clamp(max=1)).sum(-1)


def rate_over_everything(target_probs, draft_probs):
    return torch.minimum(target_probs, draft_probs).sum()


def rate_of_first_dimension(target_probs, draft_probs):
    return torch.minimum(target_probs, draft_probs).sum(0)


def rate_weighted(target_probs, draft_probs):
    return (draft_probs * (target_probs / draft_probs).clamp(max=1)).sum(-1)


def rate_by_distance(target_probs, draft_probs):
    return 1 - 0.5 * torch.linalg.vector_norm(target_probs - draft_probs, ord=1, dim=-1)


def rate_by_loop(target_probs, draft_probs):
    if target_probs.dim() > 1:
        return torch.stack([rate_by_loop(p, q) for p, q in zip(target_probs, draft_probs, strict=True)])
    total = torch.zeros((), dtype=target_probs.dtype)
    for p, q in zip(target_probs, draft_probs, strict=True):
        total = total + min(p, q)
    return total


# --- 2.5


def argmax_keeps_all(target_probs, draft_probs, accept_uniform, correct_uniform):
    return int(draft_probs.argmax())


def argmax_as_sampled(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    return draw(right_residual(target_probs, draft_probs), correct_uniform)


def argmax_same_favourite(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    if int(target_probs.argmax()) == token:
        return token
    rest = target_probs.clone()
    rest[token] = 0
    return draw(rest, correct_uniform)


def argmax_favourite_of_the_target(target_probs, draft_probs, accept_uniform, correct_uniform):
    return int(target_probs.argmax())


def argmax_soft_residual(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    if accept_uniform < target_probs[token]:
        return token
    return draw(right_residual(target_probs, draft_probs), correct_uniform)


def argmax_soft_acceptance(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    if kept(target_probs, draft_probs, token, accept_uniform):
        return token
    rest = target_probs.clone()
    rest[token] = 0
    return draw(rest, correct_uniform)


def argmax_from_p(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    return token if accept_uniform < target_probs[token] else draw(target_probs, correct_uniform)


def argmax_ignored(target_probs, draft_probs, accept_uniform, correct_uniform):
    return draw(target_probs, correct_uniform)


def argmax_in_place(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    if accept_uniform < target_probs[token]:
        return token
    target_probs[token] = 0
    return draw(target_probs, correct_uniform)


def argmax_one_hot(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = int(draft_probs.argmax())
    point = torch.nn.functional.one_hot(torch.tensor(token), len(target_probs)).double()
    if kept(target_probs, point, token, accept_uniform):
        return token
    return draw(right_residual(target_probs, point), correct_uniform)


def argmax_by_hand(target_probs, draft_probs, accept_uniform, correct_uniform):
    q = draft_probs.tolist()
    token = q.index(max(q))
    if accept_uniform < target_probs[token].item():
        return token
    rest = [0.0 if place == token else p for place, p in enumerate(target_probs.tolist())]
    left = correct_uniform * sum(rest)
    for place in reversed(range(len(rest))):
        left -= rest[place]
        if left < 0:
            return place
    return rest.index(max(rest))


def argmax_masked(target_probs, draft_probs, accept_uniform, correct_uniform):
    token = draft_probs.argmax()
    if accept_uniform < target_probs[token]:
        return token
    others = torch.arange(len(target_probs)) != token
    rest = target_probs[others] / target_probs[others].sum()
    return torch.arange(len(target_probs))[others][draw(rest, correct_uniform)]


# --- 2.6


def verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms):
    rows = torch.arange(len(draft_tokens))
    return accept_uniforms < target_probs[rows, draft_tokens] / draft_probs[rows, draft_tokens]


def law_after(target_probs, draft_probs, count):
    if count == len(draft_probs):
        return target_probs[count]
    return right_residual(target_probs[count], draft_probs[count])


def leading_run(mask):
    return int(mask.long().cumprod(0).sum())


def finished(target_probs, draft_probs, draft_tokens, count, correct_uniform):
    return [*draft_tokens[:count].tolist(), draw(law_after(target_probs, draft_probs, count), correct_uniform)]


def block_sum(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    count = int(verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms).sum())
    return finished(target_probs, draft_probs, draft_tokens, count, correct_uniform)


def block_skips(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    mask = verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms)
    law = law_after(target_probs, draft_probs, int(mask.sum()))
    return [*draft_tokens[mask].tolist(), draw(law, correct_uniform)]


def block_shifted(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    mask = verdicts(target_probs[1:], draft_probs, draft_tokens, accept_uniforms)
    return finished(target_probs, draft_probs, draft_tokens, leading_run(mask), correct_uniform)


def block_first_unseen(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    mask = verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms)
    mask[0] = True
    return finished(target_probs, draft_probs, draft_tokens, leading_run(mask), correct_uniform)


def block_one_number(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    mask = verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms[:1])
    return finished(target_probs, draft_probs, draft_tokens, leading_run(mask), correct_uniform)


def block_last_row(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    count = leading_run(verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms))
    return [*draft_tokens[:count].tolist(), draw(target_probs[-1], correct_uniform)]


def block_no_bonus(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    out = []
    for p, q, token, uniform in zip(target_probs, draft_probs, draft_tokens, accept_uniforms, strict=False):
        if uniform >= p[token] / q[token]:
            return [*out, draw(right_residual(p, q), correct_uniform)]
        out.append(int(token))
    return out


def block_bonus_residual(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    count = leading_run(verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms))
    q = draft_probs[min(count, len(draft_probs) - 1)]
    return [*draft_tokens[:count].tolist(), draw(right_residual(target_probs[count], q), correct_uniform)]


def block_from_p(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    count = leading_run(verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms))
    return [*draft_tokens[:count].tolist(), draw(target_probs[count], correct_uniform)]


def block_count_only(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    return leading_run(verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms))


def block_vectorised(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    mask = verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms)
    return finished(target_probs, draft_probs, draft_tokens, leading_run(mask), correct_uniform)


def block_by_loop(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    out = block_no_bonus(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform)
    if out == draft_tokens.tolist():
        out.append(draw(target_probs[-1], correct_uniform))
    return out


def block_padded(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    """A row of zeros after q makes the bonus a residual too; the pieces are laid out from the last token on."""
    mask = verdicts(target_probs, draft_probs, draft_tokens, accept_uniforms).tolist()
    count = [*mask, False].index(False)
    q = torch.cat([draft_probs, torch.zeros_like(draft_probs[:1])])
    law = right_residual(target_probs[count], q[count]).flip(0)
    return (*draft_tokens[:count].tolist(), len(law) - 1 - draw(law, correct_uniform))


FROM_P = "replacement drawn from p instead of the residual"

MUTANTS = {
    "2.1": {
        "q = 0 is not refused": [no_refusal, no_refusal_with_floats],
        "a token with p = 0 is kept when u = 0": [not_strict],
        "p and q swapped": [swapped, swapped_and_no_refusal],
        "u compared with p(x) alone": [target_alone],
        "kept only where p(x) >= q(x)": [no_luck],
        "kept only if it is the target's favourite": [favourite],
        "kept and refused mixed up": [inverted],
        "wrong random generator": [own_luck],
        "wrong shape": [every_token],
        "wrong type": [probability],
        "changed input": [in_place],
        "missing return": [nothing_handed_back],
    },
    "2.2": {
        "p returned instead of the residual": [residual_is_p, residual_is_p_and_nan],
        "p and q swapped": [residual_swapped, residual_swapped_with_care],
        "softmax of max(0, p - q)": [softmax_of_masses],
        "softmax of the residual": [softmax_after_scaling],
        "|p - q| instead of max(0, p - q)": [absolute_difference],
        "not divided by its sum": [not_scaled, not_scaled_with_care],
        "p = q is not handled": [no_fallback, no_fallback_with_care, uniform_fallback],
        "NaN is let through": [nan_passes_the_guard],
        "changed input": [residual_in_place],
        "wrong dtype": [residual_in_double],
        "wrong type": [residual_as_list],
        "wrong shape": [residual_in_a_row],
    },
    "2.3": {
        "the draft token is always kept": [step_keeps_all],
        FROM_P: [step_from_p],
        "replacement drawn from q": [step_from_q],
        "replacement drawn from max(0, q - p)": [step_from_surplus],
        "softmax of max(0, p - q)": [step_softmax],
        "the token that is missing most is taken, without luck": [step_argmax],
        "one uniform number used twice": [step_one_number],
        "kept with q/p instead of p/q": [step_ratio_swapped],
        "wrong random generator": [step_own_luck],
        "missing return": [step_nothing_back],
    },
    "2.4": {
        "whether both favour the same token": [rate_same_favourite],
        "the chance that two separate draws agree": [rate_two_draws, rate_two_draws_einsum],
        "the total variation itself": [rate_of_refusal],
        "1 - sum |p - q|, without the half": [rate_without_half],
        "the mean of min(1, p/q), not weighted with q": [rate_mean_of_ratios],
        "the sum of min(1, p/q), not weighted with q": [rate_sum_of_ratios],
        "min(1, p/q) weighted with p": [rate_weighted_with_p],
        "wrong shape": [rate_over_everything, rate_of_first_dimension],
    },
    "2.5": {
        "the draft token is always kept": [argmax_keeps_all],
        "argmax draft judged as if it were sampled": [argmax_as_sampled],
        "kept only if it is the target's favourite": [argmax_same_favourite, argmax_favourite_of_the_target],
        "the point mass is forgotten in the residual": [argmax_soft_residual],
        "the point mass is forgotten in the acceptance": [argmax_soft_acceptance],
        FROM_P: [argmax_from_p],
        "the draft is ignored": [argmax_ignored],
        "changed input": [argmax_in_place],
    },
    "2.6": {
        "the accept mask is summed instead of its leading run": [block_sum],
        "tokens after a refused one are kept": [block_skips],
        "draft token i judged by row i + 1": [block_shifted],
        "the first draft token is not judged": [block_first_unseen],
        "one uniform number for all draft tokens": [block_one_number],
        "the correction comes from the last row": [block_last_row],
        "no bonus token": [block_no_bonus],
        "the bonus is drawn from a residual": [block_bonus_residual],
        FROM_P: [block_from_p],
        "wrong type": [block_count_only],
    },
}

CORRECT = {
    "2.1": {"clamped": clamped, "multiplied": multiplied, "with numpy": with_numpy},
    "2.2": {"relu": residual_relu, "through the minimum": residual_through_minimum, "by loop": residual_by_loop},
    "2.3": {
        "not scaled before the draw": step_plain,
        "drawn from the other end": step_from_the_other_end,
        "likely tokens first": step_likely_first,
        "as a tensor": step_as_tensor,
    },
    "2.4": {"weighted with q": rate_weighted, "by distance": rate_by_distance, "by loop": rate_by_loop},
    "2.5": {"one-hot": argmax_one_hot, "by hand": argmax_by_hand, "masked": argmax_masked},
    "2.6": {"vectorised": block_vectorised, "by loop": block_by_loop, "padded with zeros": block_padded},
}
