"""The proof by counting: the exact law of the text that speculative decoding emits, with no sampling noise.

A round is a pure function of the draft and its uniform numbers, and its outcome changes only where a uniform number
crosses a threshold: p/q of a draft token, or a step of the cumulative law the next token is drawn from. Cut the unit
interval of every uniform number at its thresholds, call the verifier once in every cell, weigh what it emits with the
size of the cell and the probability of the draft, add up. The sum is the law of the emitted text, to rounding.

A model is a table [V, V, V] here: row (a, b) is the law of the token after ...a, b. It looks at two tokens, not one, so
that a verifier which takes the right row of the wrong draft is found out. Texts are compared whole: each token by
itself can have the right law while the text has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch.nn import functional

from specdec_ref import trees
from specdec_ref.acceptance import Verification, accept_probability, residual, verify_chain, verify_tree
from specdec_ref.siblings import verify_siblings

Text = tuple[int, ...]  # token ids; two at least where a table has to continue it
Round = list[torch.Tensor]  # entry j: the probability that a round emits exactly these j+1 tokens, [V] * (j+1)
Thresholds = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Drafts:
    """Every draft that may be proposed after some text: tokens [D, K], with the probability of each, weights [D].

    `probs` [D, K, V] is the q reported to the verifier (None: a point mass), `num_drafted` [D] the real length of each
    draft (None: K). Probabilities are float64.
    """

    tokens: torch.Tensor
    weights: torch.Tensor
    probs: torch.Tensor | None = None
    num_drafted: torch.Tensor | None = None


def path_probs(table: torch.Tensor, text: Text, tokens: torch.Tensor) -> torch.Tensor:
    """Return the laws of the tokens on the way through `tokens` [D, K] after `text`, and of the next: [D, K+1, V]."""
    whole = torch.cat([torch.tensor(text[-2:]).expand(len(tokens), 2), tokens], dim=1)  # [D, K+2]
    return table[whole[:, :-1], whole[:, 1:]]


def sampled_drafts(table: torch.Tensor, text: Text, num_draft_tokens: int) -> Drafts:
    """Return every draft that sampling from `table` can give, with the q that each token is drawn from."""
    tokens = _all_sequences(len(table), num_draft_tokens)  # [D, K]
    probs = path_probs(table, text, tokens)[:, :num_draft_tokens]  # [D, K, V]
    weights = probs.gather(-1, tokens[..., None]).squeeze(-1).prod(-1)  # [D]
    possible = weights > 0
    return Drafts(tokens[possible], weights[possible], probs[possible])


def staged_drafts(table: torch.Tensor, drafter: Callable[[Text], Drafts], text: Text, num_draft_tokens: int) -> Drafts:
    """Return every draft of the model `table` when `drafter` drafts for it, with the q that each token is said to have.

    The weights are counted, round by round, as for any text; the q is that of the model alone. If the two did not
    agree, the next level would not be exact.
    """
    weights = speculative_law(table, drafter, text, num_draft_tokens, num_draft_tokens).flatten()  # [V^K]
    tokens = _all_sequences(len(table), num_draft_tokens)
    probs = path_probs(table, text, tokens)[:, :num_draft_tokens]
    possible = weights > 0
    return Drafts(tokens[possible], weights[possible], probs[possible])


def fixed_draft(tokens: Text) -> Drafts:
    """Return the one draft of a deterministic drafter: certain, and without a q."""
    return Drafts(torch.tensor([tokens], dtype=torch.int64), torch.ones(1, dtype=torch.float64))


def target_law(table: torch.Tensor, text: Text, length: int) -> torch.Tensor:
    """Return the law of the next `length` tokens when the target writes alone: [V] * length."""
    a, b = text[-2:]
    law = torch.ones((), dtype=table.dtype)
    for written in range(length):
        law = law[..., None] * (table[a, b], table[b], table)[min(written, 2)]
    return law


def round_law(
    table: torch.Tensor,
    drafts: Drafts,
    text: Text,
    verify: Callable[..., Verification] = verify_chain,
    thresholds: Thresholds | None = None,
    at: float = 0.5,
) -> Round:
    """Return the law of what one round emits after `text`: `verify` is called in every cell of uniform space.

    Parameters
    ----------
    table : Tensor [V, V, V] float64
        The target.
    drafts : Drafts
        What may be drafted, however it is drafted.
    verify : callable
        `verify_chain`, or a rule under test with the same arguments.
    thresholds : callable, or None
        Where the outcome can change; None is `chain_thresholds`. A rule under test may need cuts of its own.
    at : float in [0, 1)
        Where in its cell an accept uniform lies: in the middle, or with 0 on the lower edge, where `u < p/q` and
        `u <= p/q` can be told apart.
    """
    width = drafts.tokens.shape[1]
    p = path_probs(table, text, drafts.tokens)  # [D, K+1, V]
    q = functional.one_hot(drafts.tokens, len(table)).double() if drafts.probs is None else drafts.probs  # [D, K, V]
    accept_cuts, correct_cuts = (thresholds or chain_thresholds)(p, drafts.tokens, q)
    accept, accept_size = _cells(accept_cuts, at)  # [D, K, A]
    correct, correct_size = _cells(correct_cuts, 0.5)  # [D, C]

    # One cell of the whole space is one interval on each of the K accept axes, and one on the correct axis.
    choice = _all_sequences(accept.shape[-1], width)  # [N, K], N = A^K
    accept = accept[:, torch.arange(width), choice]  # [D, N, K]
    size = accept_size[:, torch.arange(width), choice].prod(-1)  # [D, N]
    weight = (drafts.weights[:, None] * size)[..., None] * correct_size[:, None]  # [D, N, C]
    draft, chosen, point = (weight > 0).nonzero(as_tuple=True)  # [B] each: the cells that are not empty
    outcome = verify(
        p[draft],
        drafts.tokens[draft],
        None if drafts.probs is None else q[draft],
        accept[draft, chosen],
        correct[draft, point],
        None if drafts.num_drafted is None else drafts.num_drafted[draft],
    )
    return _collect(outcome, drafts.tokens[draft], weight[draft, chosen, point], len(table))


def chain_thresholds(p: torch.Tensor, tokens: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where a round's outcome can change: cuts of the accept axes [D, K, 1] and of the correct axis [D, cuts].

    The next token comes from p or from a residual, at some position of the draft. The axis is cut for all of them, so
    that the proof need not know which is right.
    """
    width = tokens.shape[1]
    p_drafted = p[:, :width].gather(-1, tokens[..., None])  # [D, K, 1]
    q_drafted = q.gather(-1, tokens[..., None])
    laws = torch.cat([p, residual(p[:, :width], q)], dim=1)  # [D, 2K+1, V]
    return accept_probability(p_drafted, q_drafted), laws.cumsum(-1).flatten(1)


@dataclass(frozen=True)
class Trees:
    """Every tree that may be proposed after some text: tokens and parents [D, N], the probability of each, weights [D].

    Without `probs` a tree is judged without a q: it may have been chosen in any way that does not look at the uniforms.
    With `probs` [D, N, V] each node was drawn from its law, given its parent and its elder siblings.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    weights: torch.Tensor
    num_drafted: torch.Tensor | None = None
    probs: torch.Tensor | None = None


def fixed_tree(tokens: Text, parents: tuple[int, ...]) -> Trees:
    """Return the one tree of a deterministic drafter."""
    return Trees(torch.tensor([tokens]).long(), torch.tensor([parents]).long(), torch.ones(1, dtype=torch.float64))


def tree_probs(table: torch.Tensor, text: Text, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Return the law after `text`, and the law after each node of the trees [D, N]: [D, N+1, V]."""
    ends = torch.cat([torch.tensor(text[-1]).expand(len(tokens), 1), tokens], dim=1)  # [D, N+1]: each place's token
    before = ends.gather(1, parents + 1)  # [D, N]: the token of each node's parent
    return torch.cat([table[text[-2], text[-1]].expand(len(tokens), 1, -1), table[before, tokens]], dim=1)


def sampled_trees(table: torch.Tensor, text: Text, parents: tuple[int, ...]) -> Trees:
    """Return every tree of one shape that sampling from `table` can give, siblings drawn without replacement.

    Where a law has fewer tokens than a place has children, the rest of the tokens are all alike.
    """
    tokens = _all_sequences(len(table), len(parents))  # [D, N]
    hung = torch.tensor(parents).expand(len(tokens), -1)
    after = tree_probs(table, text, tokens, hung)  # [D, N+1, V]
    laws = []
    for node, parent in enumerate(parents):
        left = torch.ones_like(after[:, 0])
        for elder in range(node):
            if parents[elder] == parent:
                left = left.scatter(1, tokens[:, elder, None], 0.0)
        some = after[:, parent + 1] * left
        some = torch.where(some.sum(1, keepdim=True) > 0, some, left)
        laws.append(some / some.sum(1, keepdim=True))
    probs = torch.stack(laws, 1)  # [D, N, V]
    weights = probs.gather(-1, tokens[..., None]).squeeze(-1).prod(-1)
    possible = weights > 0
    return Trees(tokens[possible], hung[possible], weights[possible], probs=probs[possible])


def sibling_round_law(
    table: torch.Tensor,
    drafts: Trees,
    text: Text,
    verify: Callable[..., Verification] = verify_siblings,
    at: float = 0.5,
) -> Round:
    """Return the law of what a round with a sampled tree emits after `text`; as `round_law` does for a chain.

    A node's threshold is p/q, where p is what its elder siblings have left of the law after its parent. The next token
    comes from such a law too, at some place of the tree after some refusals: the axis is cut for all of them.
    """
    assert drafts.probs is not None
    count = drafts.tokens.shape[1]
    p = tree_probs(table, text, drafts.tokens, drafts.parents)  # [D, N+1, V]
    rows, left, cuts, laws = torch.arange(len(p)), p.clone(), [], [p]
    for node in range(count):
        place, token = drafts.parents[:, node] + 1, drafts.tokens[:, node]
        before, q = left[rows, place], drafts.probs[:, node]  # [D, V]
        cuts.append(accept_probability(before[rows, token], q[rows, token]))
        left[rows, place] = residual(before, q)
        laws.append(left[rows, place][:, None])
    accept, accept_size = _cells(torch.stack(cuts, 1)[..., None], at)  # [D, N, 2]
    correct, correct_size = _cells(torch.cat(laws, 1).cumsum(-1).flatten(1), 0.5)  # [D, C]
    choice = _all_sequences(2, count)  # [M, N]
    accept = accept[:, torch.arange(count), choice]  # [D, M, N]
    size = accept_size[:, torch.arange(count), choice].prod(-1)  # [D, M]
    weight = (drafts.weights[:, None] * size)[..., None] * correct_size[:, None]  # [D, M, C]
    draft, chosen, point = (weight > 0).nonzero(as_tuple=True)
    outcome = verify(
        p[draft],
        drafts.tokens[draft],
        drafts.parents[draft],
        drafts.probs[draft],
        accept[draft, chosen],
        correct[draft, point],
        None if drafts.num_drafted is None else drafts.num_drafted[draft],
    )
    assert outcome.path is not None
    tokens = drafts.tokens[draft].gather(1, outcome.path)
    return _collect(outcome, tokens, weight[draft, chosen, point], len(table))


def tree_round_law(
    table: torch.Tensor, drafts: Trees, text: Text, verify: Callable[..., Verification] = verify_tree
) -> Round:
    """Return the law of what a round with a tree emits after `text`: `verify` is called in every cell of uniform space.

    The outcome changes only where a uniform number crosses a step of the law it draws from. Each axis is cut at the
    steps of every node's law, so that the proof need not know which is right.

    Parameters
    ----------
    table : Tensor [V, V, V] float64
        The target.
    drafts : Trees
        What may be drafted.
    verify : callable
        `verify_tree`, or a rule under test with the same arguments.
    """
    p = tree_probs(table, text, drafts.tokens, drafts.parents)  # [D, N+1, V]
    depth = int(trees.depths(drafts.parents).max()) if drafts.tokens.shape[1] else 0
    points, sizes = _cells(p.cumsum(-1).flatten(1), 0.5)  # [D, C] each
    choice = _all_sequences(points.shape[1], depth + 1)  # [M, depth + 1]: a cell on each axis
    weight = drafts.weights[:, None] * sizes[:, choice].prod(-1)  # [D, M]
    draft, chosen = (weight > 0).nonzero(as_tuple=True)  # [B] each: the cells that are not empty
    outcome = verify(
        p[draft],
        drafts.tokens[draft],
        drafts.parents[draft],
        points[draft[:, None], choice[chosen]],
        None if drafts.num_drafted is None else drafts.num_drafted[draft],
    )
    assert outcome.path is not None
    return _collect(outcome, drafts.tokens[draft].gather(1, outcome.path), weight[draft, chosen], len(table))


def text_law(
    table: torch.Tensor, one_round: Callable[[Text], Round], text: Text, length: int, rounds: int, memory: int = 2
) -> torch.Tensor:
    """Return the law of the next `length` tokens: `rounds` rounds at most, then the target alone. [V] * length.

    `one_round` is any way to draft and verify whose law can be counted. It may look at the last `memory` tokens.
    """

    @cache
    def law_after(text: Text, missing: int, rounds: int) -> torch.Tensor:
        if rounds == 0 or missing == 0:
            return target_law(table, text, missing)
        law = torch.zeros([len(table)] * missing, dtype=table.dtype)
        for count, emitted in enumerate(round_after(text), start=1):
            if count >= missing:  # a text longer than asked for counts for its beginning
                law += emitted.flatten(missing).sum(-1) if count > missing else emitted
                continue
            for tokens in product(range(len(table)), repeat=count):
                if emitted[tokens] > 0:
                    law[tokens] += emitted[tokens] * law_after((text + tokens)[-memory:], missing - count, rounds - 1)
        return law

    round_after = cache(one_round)
    return law_after(text[-memory:], length, rounds)


def speculative_law(
    table: torch.Tensor,
    drafter: Callable[[Text], Drafts],
    text: Text,
    length: int,
    rounds: int,
    verify: Callable[..., Verification] = verify_chain,
    thresholds: Thresholds | None = None,
    at: float = 0.5,
) -> torch.Tensor:
    """Return `text_law` of rounds that verify the drafts of `drafter` (text to `Drafts`) as a chain: [V] * length."""
    return text_law(
        table, lambda so_far: round_law(table, drafter(so_far), so_far, verify, thresholds, at), text, length, rounds
    )


def _all_sequences(choices: int, length: int) -> torch.Tensor:
    """Return every sequence of `length` numbers below `choices`: [choices ** length, length]."""
    return torch.tensor(list(product(range(choices), repeat=length))).long().reshape(choices**length, length)


def _cells(cuts: torch.Tensor, at: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut [0, 1) at `cuts` [..., M]: a point in each of the M+1 cells, and their sizes. Some may be empty."""
    ends = functional.pad(cuts.clamp(0, 1), (1, 0), value=0.0)
    edges = functional.pad(ends, (0, 1), value=1.0).sort(-1).values
    size = edges.diff(dim=-1)
    return edges[..., :-1] + at * size, size


def _collect(outcome: Verification, tokens: torch.Tensor, weight: torch.Tensor, vocab: int) -> Round:
    """Add up the weights of the cells that emit the same tokens."""
    emitted = []
    for accepted in range(tokens.shape[1] + 1):
        here = outcome.num_accepted == accepted
        number = torch.zeros_like(outcome.next_token[here])  # the emitted tokens, read as one number in base V
        for token in (*tokens[here, :accepted].unbind(1), outcome.next_token[here]):
            number = number * vocab + token
        law = torch.bincount(number, weight[here], minlength=vocab ** (accepted + 1))
        emitted.append(law.reshape([vocab] * (accepted + 1)))
    return emitted
