"""Stage 09: wrong and right answers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

# --- 9.1 distillation_losses


def right_losses(target_logits, draft_logits, mask, temperature):
    log_p = (target_logits[mask] / temperature).log_softmax(-1)
    log_q = (draft_logits[mask] / temperature).log_softmax(-1)
    return {
        "forward_kl": float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
        "reverse_kl": float((log_q.exp() * (log_q - log_p)).sum(-1).mean()),
        "tv": float(0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1).mean()),
    }


def with_kl_div(target_logits, draft_logits, mask, temperature):
    log_p, log_q = ((rows / temperature).log_softmax(-1)[mask] for rows in (target_logits, draft_logits))
    forward = functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    reverse = functional.kl_div(log_p, log_q, log_target=True, reduction="batchmean")
    tv = 1 - torch.minimum(log_p.exp(), log_q.exp()).sum(1).mean()
    return {"forward_kl": forward, "reverse_kl": reverse, "tv": tv}


def loss_by_loss(target_logits, draft_logits, mask, temperature):
    totals, count = [0.0, 0.0, 0.0], 0
    for row in range(mask.shape[0]):
        for place in range(mask.shape[1]):
            if not mask[row, place]:
                continue
            count += 1
            p = (target_logits[row, place] / temperature).softmax(0).tolist()
            q = (draft_logits[row, place] / temperature).softmax(0).tolist()
            totals[0] += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            totals[1] += sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
            totals[2] += sum(max(0.0, a - b) for a, b in zip(p, q, strict=True))
    return dict(zip(("forward_kl", "reverse_kl", "tv"), [total / count for total in totals], strict=True))


def masked_sums(target_logits, draft_logits, mask, temperature):
    p, q = (target_logits / temperature).softmax(-1), (draft_logits / temperature).softmax(-1)
    weight = mask.double() / mask.sum()
    each = ((p * (p / q).log()).sum(-1), (q * (q / p).log()).sum(-1), (p - q).abs().sum(-1) / 2)
    return dict(zip(("forward_kl", "reverse_kl", "tv"), [(weight * one).sum() for one in each], strict=True))


def with_log2(target_logits, draft_logits, mask, temperature):
    losses = right_losses(target_logits, draft_logits, mask, temperature)
    return {name: value if name == "tv" else value * math.log2(math.e) for name, value in losses.items()}


def swapped(*arguments):
    losses = right_losses(*arguments)
    return {"forward_kl": losses["reverse_kl"], "reverse_kl": losses["forward_kl"], "tv": losses["tv"]}


def kl_div_as_it_reads(target_logits, draft_logits, mask, temperature):
    log_p, log_q = ((rows / temperature).log_softmax(-1)[mask] for rows in (target_logits, draft_logits))
    forward = functional.kl_div(log_p, log_q, log_target=True, reduction="batchmean")  # "from p to q", it seems
    reverse = functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    return {"forward_kl": forward, "reverse_kl": reverse, "tv": 0.5 * (log_p.exp() - log_q.exp()).abs().sum(1).mean()}


def forward_twice(*arguments):
    losses = right_losses(*arguments)
    return {**losses, "reverse_kl": losses["forward_kl"]}


def reverse_twice(*arguments):
    losses = right_losses(*arguments)
    return {**losses, "forward_kl": losses["reverse_kl"]}


def whole_distance(*arguments):
    losses = right_losses(*arguments)
    return {**losses, "tv": 2 * losses["tv"]}


def everywhere(target_logits, draft_logits, mask, temperature):
    return right_losses(target_logits, draft_logits, torch.ones_like(mask), temperature)


def everywhere_flat(target_logits, draft_logits, mask, temperature):
    vocab = target_logits.shape[-1]
    rows = target_logits.reshape(-1, vocab), draft_logits.reshape(-1, vocab)
    return loss_by_loss(rows[0][None], rows[1][None], torch.ones(1, len(rows[0]), dtype=torch.bool), temperature)


def masked_but_not_divided(target_logits, draft_logits, mask, temperature):
    share = float(mask.double().mean())
    return {name: value * share for name, value in right_losses(target_logits, draft_logits, mask, temperature).items()}


def row_by_row(target_logits, draft_logits, mask, temperature):
    rows = [
        right_losses(target_logits[row : row + 1], draft_logits[row : row + 1], mask[row : row + 1], temperature)
        for row in range(len(mask))
    ]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def summed(target_logits, draft_logits, mask, temperature):
    count = int(mask.sum())
    return {name: value * count for name, value in right_losses(target_logits, draft_logits, mask, temperature).items()}


def one_place_late(target_logits, draft_logits, mask, temperature):
    return right_losses(target_logits, draft_logits, mask.roll(1, 1), temperature)


def student_at_one(target_logits, draft_logits, mask, temperature):
    return right_losses(target_logits, draft_logits * temperature, mask, temperature)


def target_at_one(target_logits, draft_logits, mask, temperature):
    return right_losses(target_logits * temperature, draft_logits, mask, temperature)


def both_at_one(target_logits, draft_logits, mask, temperature):
    return right_losses(target_logits, draft_logits, mask, 1.0)


def multiplied(target_logits, draft_logits, mask, temperature):
    return right_losses(target_logits, draft_logits, mask, 1 / temperature)


def kl_div_default(target_logits, draft_logits, mask, temperature):
    log_p, log_q = ((rows / temperature).log_softmax(-1)[mask] for rows in (target_logits, draft_logits))
    forward = (log_p.exp() * (log_p - log_q)).mean()
    reverse = (log_q.exp() * (log_q - log_p)).mean()
    return {"forward_kl": forward, "reverse_kl": reverse, "tv": 0.5 * (log_p.exp() - log_q.exp()).abs().mean()}


def losses_as_tuple(*arguments):
    return tuple(right_losses(*arguments).values())


def cools_in_place(target_logits, draft_logits, mask, temperature):
    target_logits /= temperature
    draft_logits /= temperature
    return right_losses(target_logits, draft_logits, mask, 1.0)


# --- 9.2 choose_student


def alpha_of(p, q):
    return float(torch.minimum(p, q).sum(-1).mean())


def by_score(score, value=alpha_of):
    def answer(target_probs, students):
        best = max(students, key=lambda name: score(target_probs, students[name]))
        return best, value(target_probs, students[best])

    return answer


def by_distance(target_probs, students):
    best, most = "", -1.0
    for name, laws in students.items():
        alpha = 1 - float((target_probs - laws).abs().sum(-1).mean()) / 2
        if alpha > most:
            best, most = name, alpha
    return best, most


def by_acceptance_of_draws(target_probs, students):
    ratio = {name: (target_probs / q).clamp(max=1) for name, q in students.items()}
    return max(
        ((name, float((q * ratio[name]).sum() / len(q))) for name, q in students.items()), key=lambda one: one[1]
    )


def with_numpy(target_probs, students):
    p = target_probs.numpy()
    alphas = {name: np.minimum(p, q.numpy()).sum(1).mean() for name, q in students.items()}
    return sorted(alphas.items(), key=lambda one: -one[1])[0]


def minus_forward(p, q):
    return -float((p * (p.log() - q.log())).sum(-1).mean())


def minus_reverse(p, q):
    return -float((q * (q.log() - p.log())).sum(-1).mean())


def common_favourites(p, q):
    return float((p.argmax(1) == q.argmax(1)).float().mean())


def of_mean_laws(p, q):
    return float(torch.minimum(p.mean(0), q.mean(0)).sum())


def equal_draws(p, q):
    return float((p * q).sum(1).mean())


def per_token(p, q):
    return float(torch.minimum(p, q).mean())


def one_minus_whole_distance(p, q):
    return 1 - float((p - q).abs().sum(1).mean())


def refused_share(p, q):
    return float((p - q).clamp(min=0).sum(1).mean())


def smallest_distance_reported(target_probs, students):
    distances = {name: refused_share(target_probs, q) for name, q in students.items()}
    best = min(distances, key=distances.get)
    return best, distances[best]


def worst(target_probs, students):
    return min(((name, alpha_of(target_probs, q)) for name, q in students.items()), key=lambda one: one[1])


def only_the_name(target_probs, students):
    return by_distance(target_probs, students)[0]


# --- 9.3 inner_round


def pick(probs, uniform):
    cdf = probs.cumsum(-1)
    return min(int(torch.searchsorted(cdf, uniform * cdf[-1], right=True)), int((cdf < cdf[-1]).sum()))


def right_round(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    kept, k = 0, len(micro_tokens)
    while kept < k:
        token = int(micro_tokens[kept])
        if accept_uniforms[kept] * micro_probs[kept, token] >= draft_probs[kept, token]:
            break
        kept += 1
    law = draft_probs[kept]
    if kept < k and float((law - micro_probs[kept]).clamp(min=0).sum()) > 0:
        law = (law - micro_probs[kept]).clamp(min=0)
    return [*micro_tokens[:kept].tolist(), pick(law, correct_uniform)], draft_probs[: kept + 1]


def vectorised_round(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    k = len(micro_tokens)
    q = draft_probs[:k].gather(1, micro_tokens[:, None])[:, 0]
    kept = int((accept_uniforms < q / micro_probs.gather(1, micro_tokens[:, None])[:, 0]).long().cumprod(0).sum())
    padded = torch.cat([micro_probs, torch.zeros_like(draft_probs[:1])])
    missing = functional.relu(draft_probs[kept] - padded[kept])
    law = missing / missing.sum() if missing.sum() > 0 else draft_probs[kept]
    return torch.cat([micro_tokens[:kept], torch.tensor([pick(law, correct_uniform)])]).tolist(), draft_probs[
        : kept + 1
    ]


def round_with_lists(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    tokens, laws = [], []
    for i, token in enumerate(micro_tokens.tolist()):
        laws.append(draft_probs[i])
        if not accept_uniforms[i] < draft_probs[i, token] / micro_probs[i, token]:
            missing = (draft_probs[i] - micro_probs[i]).clamp(min=0)
            return [*tokens, pick(missing if missing.any() else draft_probs[i], correct_uniform)], laws
        tokens.append(token)
    return [*tokens, pick(draft_probs[-1], correct_uniform)], [*laws, draft_probs[-1]]


def last_drawn_from_the_other_end(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    """Cuts the unit interval from the right, which gives the same law."""
    flipped = draft_probs.flip(-1), micro_probs.flip(-1), draft_probs.shape[-1] - 1 - micro_tokens
    tokens, laws = right_round(*flipped, accept_uniforms, correct_uniform)
    return [draft_probs.shape[-1] - 1 - token for token in tokens], laws.flip(-1)


def micros_law_for_kept(draft_probs, micro_probs, *rest):
    tokens, laws = right_round(draft_probs, micro_probs, *rest)
    return tokens, torch.cat([micro_probs[: len(tokens) - 1], laws[-1:]])


def residual_of(draft_probs, micro_probs, kept):
    if kept == len(micro_probs):
        return draft_probs[kept]
    missing = (draft_probs[kept] - micro_probs[kept]).clamp(min=0)
    return missing / missing.sum() if missing.sum() > 0 else draft_probs[kept]


def laws_last_drawn_from(draft_probs, micro_probs, *rest):
    tokens, _ = right_round(draft_probs, micro_probs, *rest)
    kept = len(tokens) - 1
    return tokens, torch.cat([micro_probs[:kept], residual_of(draft_probs, micro_probs, kept)[None]])


def residual_for_the_correction(draft_probs, micro_probs, *rest):
    tokens, laws = right_round(draft_probs, micro_probs, *rest)
    return tokens, torch.cat([laws[:-1], residual_of(draft_probs, micro_probs, len(tokens) - 1)[None]])


def certain_tokens(draft_probs, *rest):
    tokens, laws = right_round(draft_probs, *rest)
    return tokens, torch.zeros_like(laws).scatter(1, torch.tensor(tokens)[:, None], 1.0)


def every_row(draft_probs, *rest):
    return right_round(draft_probs, *rest)[0], draft_probs


def rows_after(draft_probs, *rest):
    tokens, _ = right_round(draft_probs, *rest)
    padded = torch.cat([draft_probs, draft_probs[-1:]])
    return tokens, padded[1 : len(tokens) + 1]


def second_chance(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    kept = len(right_round(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform)[0]) - 1
    return [*micro_tokens[:kept].tolist(), pick(draft_probs[kept], correct_uniform)], draft_probs[: kept + 1]


def models_swapped(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    kept, k = 0, len(micro_tokens)
    while kept < k:
        token = int(micro_tokens[kept])
        if float(accept_uniforms[kept]) >= float(micro_probs[kept, token] / draft_probs[kept, token]):
            break
        kept += 1
    law = draft_probs[kept]
    if kept < k:
        law = (micro_probs[kept] - draft_probs[kept]).clamp(min=0)
    return [*micro_tokens[:kept].tolist(), pick(law, correct_uniform)], draft_probs[: kept + 1]


def mask_summed(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    places = torch.arange(len(micro_tokens))
    kept = int((accept_uniforms < draft_probs[places, micro_tokens] / micro_probs[places, micro_tokens]).sum())
    law = residual_of(draft_probs, micro_probs, kept)
    return [*micro_tokens[:kept].tolist(), pick(law, correct_uniform)], draft_probs[: kept + 1]


def judged_a_row_late(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    kept = 0
    for i, token in enumerate(micro_tokens.tolist()):
        if not accept_uniforms[i] < draft_probs[i + 1, token] / micro_probs[i, token]:
            break
        kept += 1
    law = residual_of(draft_probs, micro_probs, kept)
    return [*micro_tokens[:kept].tolist(), pick(law, correct_uniform)], draft_probs[: kept + 1]


def kept_only(*arguments):
    tokens, laws = right_round(*arguments)
    return tokens[:-1], laws[: len(tokens) - 1]


def tokens_only(*arguments):
    return right_round(*arguments)[0]


# --- 9.4 staged_draft


def with_while(text, num_draft_tokens, inner_draft_tokens, micro, draft, judge):
    tokens, laws = [], []
    while len(tokens) < num_draft_tokens:
        so_far = [*text, *tokens]
        count = min(inner_draft_tokens, num_draft_tokens - len(tokens) - 1)
        micro_tokens, micro_laws = micro(so_far, count)
        new_tokens, new_laws = judge(draft(so_far, micro_tokens), micro_tokens, micro_laws)
        tokens.extend(new_tokens)
        laws.extend(new_laws)
    return tokens, laws


def recursively(text, num_draft_tokens, inner_draft_tokens, micro, draft, judge):
    if num_draft_tokens == 0:
        return [], []
    drafted = micro(text, min(inner_draft_tokens, num_draft_tokens - 1))
    new_tokens, new_laws = judge(draft(text, drafted[0]), *drafted)
    left = num_draft_tokens - len(new_tokens)
    tokens, laws = recursively(text + new_tokens, left, inner_draft_tokens, micro, draft, judge)
    return new_tokens + tokens, [*new_laws, *laws]


def no_micro_for_the_last(text, num_draft_tokens, inner_draft_tokens, micro, draft, judge):
    so_far, end = list(text), len(text) + num_draft_tokens
    laws = []
    while (room := end - len(so_far)) > 0:
        drafted = micro(so_far, min(inner_draft_tokens, room - 1)) if room > 1 else ([], torch.zeros(0, 7))
        new_tokens, new_laws = judge(draft(so_far, drafted[0]), *drafted)
        so_far += new_tokens
        laws.append(new_laws)
    return so_far[len(text) :], torch.cat(laws)


def loop_with(limit, before=None, behind=None, cut=True, handed=None, once=False, split=False):
    def answer(text, num_draft_tokens, inner_draft_tokens, micro, draft, judge):
        tokens, laws = [], []
        while len(tokens) < num_draft_tokens:
            so_far = text + tokens
            room = num_draft_tokens - len(tokens)
            micro_tokens, micro_laws = micro(text if before else so_far, limit(inner_draft_tokens, room))
            place = text if behind else so_far
            if split:
                rows = [draft(place, [])]
                for end in range(1, len(micro_tokens) + 1):
                    rows.append(draft(place + micro_tokens[:end], []))
                draft_laws = torch.cat(rows)
            else:
                draft_laws = draft(place, micro_tokens)
            new_tokens, new_laws = judge(draft_laws, micro_tokens, micro_laws)
            tokens += new_tokens
            laws += list(new_laws if handed is None else handed(new_laws, micro_laws))
            if once:
                break
        return (tokens[:num_draft_tokens], laws[:num_draft_tokens]) if cut else (tokens, laws)

    return answer


def room_less_one(inner, room):
    return min(inner, room - 1)


def micro_laws_first(new_laws, micro_laws):
    return [*micro_laws[: len(new_laws) - 1], new_laws[-1]]


def grows_the_text(text, num_draft_tokens, inner_draft_tokens, micro, draft, judge):
    length, laws = len(text), []
    while len(text) < length + num_draft_tokens:
        room = length + num_draft_tokens - len(text)
        micro_tokens, micro_laws = micro(text, min(inner_draft_tokens, room - 1))
        new_tokens, new_laws = judge(draft(text, micro_tokens), micro_tokens, micro_laws)
        text += new_tokens
        laws += list(new_laws)
    return text[length:], laws


# --- 9.5 staged_bill


def bill_with(
    target_passes=None, draft_passes=None, micro_steps=None, passes_s=None, micro_s=None, verify=None, written=None
):
    """Write the bill with plain sums; each argument replaces one of them. All get the rounds and the five times."""

    def answer(rounds, target_step_s, verify_s, draft_step_s, draft_verify_s, micro_step_s):
        inner = [pair for one in rounds for pair in one["inner"]]
        outer_passes = len(rounds) if target_passes is None else target_passes(rounds, inner)
        middle_passes = len(inner) if draft_passes is None else draft_passes(inner)
        steps = sum(d for d, _ in inner) if micro_steps is None else micro_steps(inner)
        if passes_s is None:
            middle_s = sum(draft_verify_s if d > 0 else draft_step_s for d, _ in inner)
        else:
            middle_s = passes_s(inner, draft_step_s, draft_verify_s)
        smallest_s = steps * micro_step_s if micro_s is None else micro_s
        outer_s = outer_passes * (verify_s if verify is None else target_step_s)
        tokens = sum(a + 1 for _, a in inner) if written is None else written(inner)
        plain = target_step_s * sum(one["emitted"] for one in rounds)
        return {
            "target_passes": outer_passes,
            "draft_passes": middle_passes,
            "micro_steps": steps,
            "speedup": plain / (outer_s + middle_s + smallest_s),
            "without_micro": plain / (outer_s + tokens * draft_step_s),
        }

    return answer


right_bill = bill_with()


def bill_by_rounds(rounds, target_step_s, verify_s, draft_step_s, draft_verify_s, micro_step_s):
    counts, staged_s, pair_s, plain_s = [0, 0, 0], 0.0, 0.0, 0.0
    for one in rounds:
        counts[0] += 1
        staged_s, pair_s = staged_s + verify_s, pair_s + verify_s
        plain_s += one["emitted"] * target_step_s
        for drafted, accepted in one["inner"]:
            counts[1] += 1
            counts[2] += drafted
            staged_s += drafted * micro_step_s + (draft_verify_s if drafted else draft_step_s)
            pair_s += (accepted + 1) * draft_step_s
    names = ("target_passes", "draft_passes", "micro_steps")
    return dict(zip(names, counts, strict=True)) | {"speedup": plain_s / staged_s, "without_micro": plain_s / pair_s}


def bill_with_numpy(rounds, target_step_s, verify_s, draft_step_s, draft_verify_s, micro_step_s):
    drafted, accepted = np.array([pair for one in rounds for pair in one["inner"]]).T
    plain = np.sum([one["emitted"] for one in rounds]) * target_step_s
    passes = np.where(drafted > 0, draft_verify_s, draft_step_s).sum()
    target = verify_s * len(rounds)
    return {
        "target_passes": len(rounds),
        "draft_passes": len(drafted),
        "micro_steps": int(drafted.sum()),
        "speedup": float(plain / (target + passes + micro_step_s * drafted.sum())),
        "without_micro": float(plain / (target + draft_step_s * (accepted + 1).sum())),
    }


def bill_upside_down(*arguments):
    bill = right_bill(*arguments)
    return {**bill, "speedup": 1 / bill["speedup"], "without_micro": 1 / bill["without_micro"]}


def bill_of_drafted(rounds, target_step_s, *times):
    patched = [{**one, "emitted": 1 + sum(a + 1 for _, a in one["inner"])} for one in rounds]
    return right_bill(patched, target_step_s, *times)


def bill_alone_in_blocks(rounds, target_step_s, verify_s, draft_step_s, draft_verify_s, micro_step_s):
    bill = right_bill(rounds, target_step_s, verify_s, draft_step_s, draft_verify_s, micro_step_s)
    other = right_bill(rounds, target_step_s, verify_s, draft_verify_s, draft_verify_s, micro_step_s)
    return {**bill, "without_micro": other["without_micro"]}


def bill_as_tuple(*arguments):
    return tuple(right_bill(*arguments).values())


MUTANTS = {
    "9.1": {
        "KL the wrong way round": [swapped, kl_div_as_it_reads],
        "one KL computed twice: forward": [forward_twice],
        "one KL computed twice: reverse": [reverse_twice],
        "TV without the half": [whole_distance],
        "padding and prompts are counted": [everywhere, everywhere_flat],
        "positions that are masked out count as zeros": [masked_but_not_divided],
        "the mean of the rows' means": [row_by_row],
        "a sum over positions instead of a mean": [summed],
        "the row after the judged one is taken": [one_place_late],
        "the temperature is forgotten for the student": [student_at_one],
        "the temperature is forgotten for the target": [target_at_one],
        "the temperature is forgotten in both": [both_at_one],
        "logits are multiplied by the temperature": [multiplied],
        "a mean over the vocabulary": [kl_div_default],
        "logarithms of base 2": [with_log2],
        "wrong type": [losses_as_tuple],
        "changed input": [cools_in_place],
    },
    "9.2": {
        "chosen by forward KL": [by_score(minus_forward)],
        "chosen by reverse KL": [by_score(minus_reverse)],
        "chosen by common favourites": [by_score(common_favourites)],
        "the share of common favourites is called alpha": [by_score(common_favourites, common_favourites)],
        "laws are averaged before they are compared": [by_score(of_mean_laws, of_mean_laws)],
        "the chance of equal draws is called alpha": [by_score(equal_draws, equal_draws)],
        "a mean over the vocabulary": [by_score(alpha_of, per_token)],
        "TV without the half": [by_score(one_minus_whole_distance, one_minus_whole_distance)],
        "the distance is called alpha": [smallest_distance_reported],
        "the worst student is chosen": [worst],
        "wrong type": [only_the_name],
    },
    "9.3": {
        "the micro model's law is handed on for the kept tokens": [micros_law_for_kept],
        "each token comes with the law it was last drawn from": [laws_last_drawn_from],
        "the residual is handed on as the law of the correction": [residual_for_the_correction],
        "point masses are handed on": [certain_tokens],
        "all rows of the pass are handed on": [every_row],
        "each token comes with the law after it": [rows_after],
        "replacement drawn from the draft model's law instead of the residual": [second_chance],
        "the two models swapped": [models_swapped],
        "the accept mask is summed instead of its leading run": [mask_summed],
        "micro token i judged by row i + 1": [judged_a_row_late],
        "no token of the draft model's own": [kept_only],
        "wrong type": [tokens_only],
    },
    "9.4": {
        "only one inner round": [loop_with(room_less_one, once=True)],
        "the draft is longer than K": [loop_with(lambda inner, room: inner, cut=False)],
        "micro tokens are drafted for the bin": [loop_with(lambda inner, room: inner)],
        "no room is left for the draft model's own token": [loop_with(min)],
        "the micro model goes on from the old text": [loop_with(room_less_one, before=True)],
        "the draft model judges behind the old text": [loop_with(room_less_one, behind=True)],
        "one pass of the draft model for each token": [loop_with(room_less_one, split=True)],
        "the micro model's laws are collected": [loop_with(room_less_one, handed=micro_laws_first)],
        "changed input": [grows_the_text],
    },
    "9.5": {
        "the micro model's cost is left out": [bill_with(micro_s=0.0)],
        "inner rounds are counted as passes of the target": [
            bill_with(target_passes=lambda rounds, inner: len(rounds) + len(inner))
        ],
        "each inner round is billed a pass of the target": [bill_with(target_passes=lambda rounds, inner: len(inner))],
        "the draft model is billed a step for each token": [
            bill_with(
                draft_passes=lambda inner: sum(a + 1 for _, a in inner),
                passes_s=lambda inner, step, block: step * sum(a + 1 for _, a in inner),
            )
        ],
        "only accepted micro tokens are billed": [bill_with(micro_steps=lambda inner: sum(a for _, a in inner))],
        "the draft model's pass over a block is taken for a plain step": [
            bill_with(passes_s=lambda inner, step, block: step * len(inner))
        ],
        "a plain step of the draft model is billed as a block": [
            bill_with(passes_s=lambda inner, step, block: block * len(inner))
        ],
        "the draft model's passes are left out": [bill_with(passes_s=lambda inner, step, block: 0.0)],
        "T_v taken for T_t": [bill_with(verify="as a step")],
        "every drafted token is counted as emitted": [bill_of_drafted],
        "the draft model's own tokens are left out of its drafts": [
            bill_with(written=lambda inner: sum(a for _, a in inner))
        ],
        "refused micro tokens are counted as drafts": [bill_with(written=lambda inner: sum(d + 1 for d, _ in inner))],
        "alone, the draft model is billed a pass over a block for each token": [bill_alone_in_blocks],
        "turned upside down": [bill_upside_down],
        "wrong type": [bill_as_tuple],
    },
}

CORRECT = {
    "9.1": {
        "positions first": right_losses,
        "with kl_div": with_kl_div,
        "position by position": loss_by_loss,
        "with weights": masked_sums,
    },
    "9.2": {
        "by distance": by_distance,
        "by draws": by_acceptance_of_draws,
        "with numpy": with_numpy,
    },
    "9.3": {
        "with a loop": right_round,
        "vectorised": vectorised_round,
        "with lists": round_with_lists,
        "cut from the right": last_drawn_from_the_other_end,
    },
    "9.4": {
        "with a loop": with_while,
        "recursively": recursively,
        "no micro call for the last token": no_micro_for_the_last,
    },
    "9.5": {"with sums": right_bill, "round by round": bill_by_rounds, "with numpy": bill_with_numpy},
}
