"""The two loops of the course: `generate` decodes plainly, `speculate` drafts, verifies and commits.

Both are generators of `Round`s, so streaming is a `for` loop, stopping early is a `break`, and statistics are a fold.
Both keep one invariant: a row's last committed token is not in the cache yet. It is the first token of the next block.

    plain        feed [x]               get the law of the next token, draw it
    speculative  feed [x, d1, ..., dK]  get K+1 laws at once: K to judge the drafts, one for a bonus token
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral

import torch
from torch.nn import functional

from specdec_ref import device as host
from specdec_ref import trees
from specdec_ref.acceptance import Verification, verify_chain, verify_tree
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.model import CachedLM
from specdec_ref.rows import Round, Rows, Stop
from specdec_ref.sampling import Purpose, SamplingSettings, draw, healthy_rows, probabilities
from specdec_ref.siblings import verify_siblings
from specdec_ref.typical import Typical


def generate(
    target: CachedLM,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings = SamplingSettings(),  # noqa: B008 - frozen
    *,
    max_new_tokens: int = 128,
    stop: Stop = Stop(),  # noqa: B008 - frozen
    seeds: int | Sequence[int] | None = 0,
) -> Iterator[Round]:
    """Decode plainly: one token per row and pass.

    Parameters
    ----------
    target : CachedLM
        The model.
    prompts : sequence of sequences of int
        B ragged prompts, at least one token each.
    settings : SamplingSettings
        How logits become a distribution.
    max_new_tokens : int
        Budget per row, never exceeded. 0 is allowed.
    stop : Stop
        End-of-text ids and stop strings.
    seeds : int, sequence of int, or None
        One seed per row. An integer s gives row b the seed s + b. None: fresh entropy.

    Yields
    ------
    Round
        After each pass; first of all, if some row has no budget, a round without tokens that says so.

    Raises
    ------
    ValueError
        At the call, before any token: an empty batch or prompt, ids outside the vocabulary, a prompt longer than the
        context, a negative budget. While decoding: logits without a distribution.
    """
    return _plain_rounds(target, _open_rows(target, prompts, settings, max_new_tokens, stop, seeds))


def _plain_rounds(target: CachedLM, rows: Rows) -> Iterator[Round]:
    lm = target.fresh(len(rows))
    if any(rows.finished):
        yield rows.report()  # these rows have no budget at all
    _drop_finished(rows, lm)
    lm.prefill([tokens[:-1] for tokens in rows.tokens])
    while len(rows):
        logits = lm.extend(rows.last_tokens())[:, -1]  # [B, V]
        probs = probabilities(logits, rows.settings, rows.history(), check=False)
        tokens = draw(probs, rows.uniforms(Purpose.CORRECT))  # [B]
        packet = host.read(torch.stack([tokens, healthy_rows(logits).long()], dim=1)).tolist()
        _refuse_sick_rows([row[1] for row in packet], rows, target)
        yield rows.commit([[row[0]] for row in packet], [[] for _ in packet], [0 for _ in packet])
        _drop_finished(rows, lm)


def speculate(
    target: CachedLM,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings = SamplingSettings(),  # noqa: B008 - frozen
    *,
    num_draft_tokens: int = 5,
    max_new_tokens: int = 128,
    stop: Stop = Stop(),  # noqa: B008 - frozen
    seeds: int | Sequence[int] | None = 0,
    typical: Typical | None = None,
) -> Iterator[Round]:
    """Decode speculatively: a round drafts up to K tokens per row and emits 1 to K+1, for one pass of the target.

    The text follows the target's own law exactly, whatever the drafter proposes, unless `typical` is given. With
    greedy settings it is the text of `generate`, up to the target's numerical ties.

    Parameters
    ----------
    target, prompts, settings, max_new_tokens, stop, seeds
        As in `generate`.
    drafter : Drafter
        Proposes; see `specdec_ref.drafters`. Left unchanged: each call works on a drafter of its own.
    num_draft_tokens : int
        K >= 0, the most that is drafted in a round; for a tree, its depth. The budget caps it near the end.
    typical : Typical or None
        LOSSY: accept what is typical of the target instead of what it would have said; see `specdec_ref.typical`.
        None, the default, is exact.

    Yields
    ------
    Round
        After each target pass; first of all, if some row has no budget, a round without tokens that says so.

    Raises
    ------
    ValueError
        As `generate`; also a negative K, and a drafter that breaks its contract.
    """
    num_draft_tokens = _whole("num_draft_tokens", num_draft_tokens)
    rows = _open_rows(target, prompts, settings, max_new_tokens, stop, seeds)
    lm = target.fresh(len(rows))
    return _speculative_rounds(lm, drafter.fresh(lm, rows), rows, num_draft_tokens, typical)


def _speculative_rounds(
    lm: CachedLM, drafter: Drafter, rows: Rows, num_draft_tokens: int, typical: Typical | None
) -> Iterator[Round]:
    if any(rows.finished):
        yield rows.report()  # these rows have no budget at all
    _drop_finished(rows, lm, drafter)
    prompts = [tokens[:-1] for tokens in rows.tokens]
    if not drafter.wants_features:
        lm.prefill(prompts)
    elif len(rows):
        drafter.take_features(lm.prefill_with_features(prompts), torch.tensor([len(tokens) for tokens in prompts]))
    while len(rows):
        # A round emits at most one token more than it drafts, so the budget caps the draft.
        limits = [min(num_draft_tokens, remaining - 1) for remaining in rows.remaining]
        draft = drafter.propose(rows, limits)
        draft.check(limits, lm.vocab_size)

        block = torch.cat([rows.last_tokens(), draft.tokens], dim=1)  # [B, 1+K]
        # The last committed token is the tree's root: node i of the draft is node i+1 of the block.
        parents = None if draft.parents is None else functional.pad(draft.parents + 1, (1, 0), value=-1)
        features = None
        if drafter.wants_features:
            logits, features = lm.extend_with_features(block, 1 + draft.counts, parents=parents)  # and [B, 1+K, D]
        else:
            logits = lm.extend(block, 1 + draft.counts, parents=parents)  # [B, 1+K, V], in ONE pass for all rows
        verdict = _judge(draft, logits, rows, typical)
        drafts, verdict = _read_round(draft, verdict, logits, rows, lm)

        features = _keep_accepted(lm, draft, verdict, features)
        drafter.commit(verdict)
        if features is not None:
            drafter.take_features(features, 1 + verdict.num_accepted)
        accepted = verdict.num_accepted.tolist()
        emitted = [
            [*(tokens[node] for node in path[:kept]), following]
            for tokens, path, kept, following in zip(
                drafts, _paths(draft, verdict), accepted, verdict.next_token.tolist(), strict=True
            )
        ]
        yield rows.commit(emitted, drafts, accepted)
        _drop_finished(rows, lm, drafter)


def _judge(draft: Draft, logits: torch.Tensor, rows: Rows, typical: Typical | None) -> Verification:
    """Judge a draft, chain or tree, by the target's logits [B, 1+K, V]."""
    counts = host.upload(draft.counts, rows.device)
    if draft.parents is None and typical is None:
        target_probs = probabilities(logits, rows.settings, rows.history(draft.tokens), check=False)
        return verify_chain(
            target_probs,
            draft.tokens,
            draft.probs,
            rows.uniforms(Purpose.ACCEPT, draft.width),
            rows.uniforms(Purpose.CORRECT),
            counts,
            check=False,
        )
    parents = trees.chain(*draft.tokens.shape) if draft.parents is None else draft.parents
    history = rows.history(draft.tokens, trees.ancestors(parents))
    target_probs = probabilities(logits, rows.settings, history, check=False)
    if typical is not None:
        uniforms = rows.uniforms(Purpose.CORRECT)
        return typical.verify(target_probs, draft.tokens, parents, uniforms, counts)
    if draft.probs is not None:
        accept = rows.uniforms(Purpose.ACCEPT, draft.width)  # one for each node, not for each position
        correct = rows.uniforms(Purpose.CORRECT)
        return verify_siblings(target_probs, draft.tokens, parents, draft.probs, accept, correct, counts, check=False)
    deepest = int(trees.depths(parents).max()) if draft.width else 0
    uniforms = rows.uniforms(Purpose.CORRECT, deepest + 1)
    return verify_tree(target_probs, draft.tokens, parents, uniforms, counts, check=False)


def _keep_accepted(
    lm: CachedLM, draft: Draft, verdict: Verification, features: torch.Tensor | None
) -> torch.Tensor | None:
    """Keep the accepted tokens in the cache, and return the features of what is kept, first among any others."""
    if verdict.path is None:
        lm.rollback(draft.counts - verdict.num_accepted)
        return features
    path = functional.pad(verdict.path + 1, (1, 0))  # [B, 1+D]: the last committed token, then the accepted nodes
    start = lm.cache.lengths - (1 + draft.counts)
    lm.cache.keep_path(start, path, (1 + verdict.num_accepted).tolist())
    if features is None:
        return None
    place = host.upload(path, features.device)[..., None].expand(-1, -1, features.shape[2])
    return features.gather(1, place)


def _paths(draft: Draft, verdict: Verification) -> list[list[int]]:
    """Return which draft tokens each row accepted, in order; more may follow those that count."""
    return [list(range(draft.width))] * len(draft.tokens) if verdict.path is None else verdict.path.tolist()


def _read_round(
    draft: Draft, verdict: Verification, logits: torch.Tensor, rows: Rows, target: CachedLM
) -> tuple[list[list[int]], Verification]:
    """Bring a round's numbers to the host: the draft, the verdict, and whether every law was one. One read in all."""
    healthy = healthy_rows(logits)  # [B, 1+K]; rows after a shorter draft are padding, and may be anything
    real = torch.arange(1 + draft.width, device=rows.device) <= host.upload(draft.counts, rows.device)[:, None]
    flags = [(healthy | ~real).all(1), draft.plausible(rows.device)]
    columns = torch.stack([column.long() for column in (verdict.num_accepted, verdict.next_token, *flags)], 1)
    paths = draft.tokens[:, :0] if verdict.path is None else verdict.path
    packet = host.read(torch.cat([columns, draft.tokens, paths], 1))
    _refuse_sick_rows(packet[:, 2].tolist(), rows, target)
    draft.refuse_implausible(packet[:, 3].tolist(), rows.original)
    tokens, paths = packet[:, 4 : 4 + draft.width], packet[:, 4 + draft.width :]
    drafts = [line[:count] for line, count in zip(tokens.tolist(), draft.counts.tolist(), strict=True)]
    return drafts, Verification(packet[:, 0], packet[:, 1], None if verdict.path is None else paths)


def collect(rounds: Iterable[Round]) -> list[list[int]]:
    """Run a decoder to its end and return the new tokens of every row, [B] lists."""
    texts: list[list[int]] = []
    for number, result in enumerate(rounds):
        if number == 0:
            texts = [[] for _ in result.tokens]
        for text, tokens in zip(texts, result.tokens, strict=True):
            text += tokens
    return texts


def _open_rows(
    target: CachedLM,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    max_new_tokens: int,
    stop: Stop,
    seeds: int | Sequence[int] | None,
) -> Rows:
    """Check the arguments both loops share, so that bad input is refused before any token."""
    if len(prompts) == 0:
        raise ValueError("prompts is empty: give at least one prompt")
    max_new_tokens = _whole("max_new_tokens", max_new_tokens)
    prompts = [_token_ids(f"prompts[{row}]", prompt) for row, prompt in enumerate(prompts)]
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompts[{row}] is empty: a model needs at least one token to continue")
        if len(prompt) > target.max_length:
            raise ValueError(
                f"prompts[{row}] has {len(prompt)} tokens; {target.name} has a context of {target.max_length}"
            )
        outside = [token for token in prompt if not 0 <= token < target.vocab_size]
        if outside:
            raise ValueError(
                f"prompts[{row}] holds token id {outside[0]}; {target.name} knows ids 0..{target.vocab_size - 1}"
            )
    if seeds is None:
        seeds = secrets.randbits(63)
    if isinstance(seeds, int | Integral):
        seeds = [int(seeds) + row for row in range(len(prompts))]
    if len(seeds) != len(prompts):
        raise ValueError(f"seeds has {len(seeds)} entries; there are {len(prompts)} prompts")
    return Rows(prompts, settings, max_new_tokens, target.max_length, stop, seeds, target.device)


def _whole(name: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be a whole number") from None
    if number < 0:
        raise ValueError(f"{name}={number} must be >= 0")
    return number


def _token_ids(name: str, prompt: Sequence[int]) -> list[int]:
    """Return a prompt as Python integers: a token that is a tensor or numpy's would equal no other as a dict's key."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise ValueError(f"{name}={prompt!r} must be a sequence of token ids, and prompts a list of those") from None


def _drop_finished(rows: Rows, lm: CachedLM, drafter: Drafter | None = None) -> None:
    """Let finished rows leave the batch, so that no pass computes anything for them."""
    keep = [row for row in range(len(rows)) if rows.finished[row] is None]
    if len(keep) == len(rows):
        return
    rows.select(keep)
    if keep:
        lm.select(keep)
        if drafter is not None:
            drafter.select(keep)


def _refuse_sick_rows(healthy: list[int], rows: Rows, target: CachedLM) -> None:
    if not all(healthy):
        row = rows.original[healthy.index(0)]
        raise ValueError(
            f"logits of {target.name} for row {row} hold NaN or +inf, or nothing but -inf: there is no law to draw from"
        )
