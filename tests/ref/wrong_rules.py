"""Wrong ways to verify and to draft, each one shipped by somebody, as runnable code.

A verify function has the arguments of `verify_chain`. A drafter is a function from text to `Drafts`, as `law` wants it.
The number in brackets is the fault's number in the project's list of faults. `thresholds` gives every point at which
any of these rules can change its mind, so that the law of a wrong rule comes out exactly too.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from specdec_ref.acceptance import Verification, residual, verify_chain
from specdec_ref.law import Drafts, Text, chain_thresholds, sampled_drafts
from specdec_ref.sampling import draw


def _drafted(probs, tokens):
    """Probability of each draft token: [B, K]."""
    return probs[:, : tokens.shape[1]].gather(-1, tokens[..., None]).squeeze(-1)


def _q(p, tokens, q):
    return functional.one_hot(tokens, p.shape[-1]).to(p.dtype) if q is None else q


def _finish(accepted, laws, u_correct):
    """Leading run, then the law [B, K+1, V] of that row: right in all of these rules but where they say otherwise."""
    num_accepted = accepted.long().cumprod(-1).sum(-1)
    return Verification(num_accepted, draw(laws[torch.arange(len(laws)), num_accepted], u_correct))


def _right_laws(p, q):
    return torch.cat([residual(p[:, :-1], q), p[:, -1:]], dim=1)  # [B, K+1, V]


def replacement_from_p(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[3] The replacement of a refused token is drawn from p."""
    q = _q(p, tokens, q)
    return _finish(u_accept < _drafted(p, tokens) / _drafted(q, tokens), p, u_correct)


def softmax_scaled_residual(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[4] The residual, already scaled to a distribution, goes through softmax."""
    q = _q(p, tokens, q)
    laws = torch.cat([residual(p[:, :-1], q).softmax(-1), p[:, -1:]], dim=1)
    return _finish(u_accept < _drafted(p, tokens) / _drafted(q, tokens), laws, u_correct)


def softmax_residual(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[4] max(0, p - q) goes through softmax, as if it were logits."""
    q = _q(p, tokens, q)
    laws = torch.cat([(p[:, :-1] - q).clamp(min=0).softmax(-1), p[:, -1:]], dim=1)
    return _finish(u_accept < _drafted(p, tokens) / _drafted(q, tokens), laws, u_correct)


def residual_without_fallback(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[5] Where p equals q the residual is 0/0, and the sampler meets NaN (`torch.multinomial` raises as here)."""
    missing = (p[:, :-1] - _q(p, tokens, q)).clamp(min=0)
    laws = torch.cat([missing / missing.sum(-1, keepdim=True), p[:, -1:]], dim=1)
    if bool(laws.isnan().any()):
        raise RuntimeError("probability tensor contains either inf, nan or element < 0")
    return _finish(u_accept < _drafted(p, tokens) / _drafted(_q(p, tokens, q), tokens), laws, u_correct)


def accepts_impossible(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[6] `u <= p/q` lets a token with p = 0 pass when u = 0."""
    q = _q(p, tokens, q)
    return _finish(u_accept <= _drafted(p, tokens) / _drafted(q, tokens), _right_laws(p, q), u_correct)


def sum_of_mask(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[7] Counts every accepted token, also those after the first refusal."""
    q = _q(p, tokens, q)
    accepted = u_accept < _drafted(p, tokens) / _drafted(q, tokens)
    num_accepted = accepted.long().sum(-1)
    return Verification(num_accepted, draw(_right_laws(p, q)[torch.arange(len(p)), num_accepted], u_correct))


def bonus_from_last_draft_row(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[7] The bonus is drawn from row K-1, the law of the last draft token, instead of row K."""
    laws = _right_laws(p, _q(p, tokens, q))
    laws[:, -1] = p[:, -2]
    return _finish(u_accept < _drafted(p, tokens) / _drafted(_q(p, tokens, q), tokens), laws, u_correct)


def bonus_from_residual(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[7] The bonus, too, is drawn from a residual, that of the last draft row."""
    laws = _right_laws(p, _q(p, tokens, q))
    laws[:, -1] = laws[:, -2]
    return _finish(u_accept < _drafted(p, tokens) / _drafted(_q(p, tokens, q), tokens), laws, u_correct)


def first_never_judged(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[8] The logits are taken from the block alone: its first token has no row and passes unseen."""
    q = _q(p, tokens, q)
    accepted = u_accept < _drafted(p, tokens) / _drafted(q, tokens)
    accepted[:, 0] = True
    return _finish(accepted, _right_laws(p, q), u_correct)


def rows_shifted(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[8] Draft token i is judged by row i+1: the law of the token after it."""
    return verify_chain(torch.cat([p[:, 1:], p[:, -1:]], dim=1), tokens, q, u_accept, u_correct, num_drafted)


def p_and_q_swapped(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[9] Accept with q/p, correct from max(0, q - p)."""
    q = _q(p, tokens, q)
    laws = torch.cat([residual(q, p[:, :-1]), p[:, -1:]], dim=1)
    return _finish(u_accept < _drafted(q, tokens) / _drafted(p, tokens), laws, u_correct)


def length_ignored(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """Padding after a short draft is judged as if it had been drafted: right only if nobody chose the padding."""
    return verify_chain(p, tokens, q, u_accept, u_correct)


def one_uniform_for_draft_and_accept(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """[12] The number that drew the draft token decides on it too.

    Given that token x was drawn, that number is uniform between the CDF of q before x and after x, not over [0, 1).
    """
    below = q.cumsum(-1).gather(-1, tokens[..., None]).squeeze(-1) - _drafted(q, tokens)
    return verify_chain(p, tokens, q, below + u_accept * _drafted(q, tokens), u_correct, num_drafted)


def thresholds(p, tokens, q):
    """Every point at which `verify_chain` or a rule above can change its outcome."""
    accept, correct = chain_thresholds(p, tokens, q)
    here, after, drawn = _drafted(p, tokens), _drafted(p[:, 1:], tokens), _drafted(q, tokens)
    below = q.cumsum(-1).gather(-1, tokens[..., None]).squeeze(-1) - drawn
    more_accept = [drawn / here, after / drawn, (here / drawn - below) / drawn]
    rows, after_rows = p[:, :-1], p[:, 1:]
    laws = [
        residual(rows, q).softmax(-1),
        (rows - q).clamp(min=0).softmax(-1),
        residual(q, rows),
        residual(after_rows, q),
    ]
    accept = torch.cat([accept, torch.stack(more_accept, dim=-1)], dim=-1)
    return accept, torch.cat([correct, torch.cat(laws, dim=1).cumsum(-1).flatten(1)], dim=-1)


def drafted_from_filtered_judged_by_raw(raw: torch.Tensor, filtered: torch.Tensor, text: Text, num_draft_tokens: int):
    """[1] A drafter that samples from its filtered q and reports the unfiltered one."""
    drafts = sampled_drafts(filtered, text, num_draft_tokens)
    believed = sampled_drafts(raw, text, num_draft_tokens)
    same = (drafts.tokens[:, None] == believed.tokens).all(-1).long().argmax(-1)  # row of each draft among all drafts
    assert believed.probs is not None
    return Drafts(drafts.tokens, drafts.weights, believed.probs[same])


def argmax_reported_as_sampled(table: torch.Tensor, text: Text, num_draft_tokens: int):
    """[2] A drafter that takes the most likely token and reports the whole distribution as its q."""
    greedy = functional.one_hot(table.argmax(-1), table.shape[-1]).double()
    return drafted_from_filtered_judged_by_raw(table, greedy, text, num_draft_tokens)


def unlikely_tokens_dropped(table: torch.Tensor, text: Text, num_draft_tokens: int, floor: float):
    """A drafter that draws a token, looks at its probability, and gives up before it if that is below `floor`.

    The tokens it does propose are no longer drawn from q: the decision to stop must not look at the token it drops.
    """
    drafts = sampled_drafts(table, text, num_draft_tokens)
    assert drafts.probs is not None
    likely = _drafted(drafts.probs, drafts.tokens) >= floor
    return Drafts(drafts.tokens, drafts.weights, drafts.probs, likely.long().cumprod(-1).sum(-1))
