"""Stage 03, batched verification: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.replay_blocks import replay_mask, replay_verdict
from specdec_course.checks.toy_target import ToyTarget

# --- 3.1 positions


def _length_cases(seed: int) -> Sequence[Case]:
    """One row first, then ragged rows; an empty cache is among them."""
    source = torch.Generator().manual_seed(seed)
    fixed = [([5], 3), ([5, 2], 3), ([0, 3], 2), ([1, 1], 1), ([2, 6, 4], 4), ([7], 1)]
    for _ in range(4):
        rows = int(torch.randint(2, 5, (), generator=source))
        lengths = torch.randint(0, 9, (rows,), generator=source).tolist()
        fixed.append((lengths, int(torch.randint(1, 6, (), generator=source))))
    return [Case({"lengths": torch.tensor(lengths), "block_length": block}) for lengths, block in fixed]


def _block_positions(lengths: torch.Tensor, block_length: int) -> torch.Tensor:
    from specdec_ref.model import block_shape

    offsets, _ = block_shape(len(lengths), block_length, None)
    return lengths[:, None] + offsets


def _positions(start: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make the answer of code that begins each row's block at `start(lengths)`, [B] or one for all."""

    def answer(lengths: torch.Tensor, block_length: int) -> torch.Tensor:
        return start(lengths).expand(len(lengths))[:, None] + torch.arange(block_length)

    return answer


BLOCK_POSITIONS = Exercise(
    id="3.1",
    function="block_positions",
    title="Where does each token of the block sit?",
    points=1,
    difficulty=1,
    minutes=5,
    section="What does a pass need to know?",
    rule="A row that holds n tokens has used the positions 0 to n-1. The token at offset t of its block sits at n + t.",
    hints=(
        "Take one row first: its cache holds 5 tokens, so which positions are taken?",
        "Each row adds its own length to the offsets 0, 1, ..., T-1. In tensors: a column [B, 1] plus a line [T].",
        "`return lengths[:, None] + torch.arange(block_length)`.",
    ),
    cases=_length_cases,
    reference=_block_positions,
    mistakes=(
        Mistake(
            "positions start at 0 again",
            _positions(lambda lengths: torch.zeros_like(lengths)),
            "The block continues a text. Its first token comes after all that the row's cache holds: add the length.",
        ),
        Mistake(
            "all rows placed after the longest",
            _positions(lambda lengths: lengths.max()),
            "A position is a place in the row's own text. How long other rows are has no part in it.",
            section="How do texts of different lengths share a pass?",
        ),
        Mistake(
            "all rows placed after the first row",
            _positions(lambda lengths: lengths[:1]),
            "Each row has its own length: use the whole tensor, not its first entry.",
            section="How do texts of different lengths share a pass?",
        ),
        Mistake(
            "positions one too far",
            _positions(lambda lengths: lengths + 1),
            "Positions count from 0: a cache of 5 tokens has used 0 to 4, and 5 is the next.",
        ),
        Mistake(
            "positions one too early",
            _positions(lambda lengths: lengths - 1),
            "The last token of the text is the first of the block, and it is not in the cache yet: the block begins at "
            "the length, not one before it.",
        ),
        Mistake(
            "the whole block at one position",
            lambda lengths, block_length: lengths[:, None].expand(-1, block_length).clone(),
            "Within the block, each token sits one position after the one before it: add the offset t.",
        ),
    ),
)

# --- 3.2 mask


def _block_mask(lengths: torch.Tensor, block_length: int) -> torch.Tensor:
    from specdec_ref.model import attention_mask, block_shape

    _, sees = block_shape(len(lengths), block_length, None)
    return attention_mask(lengths, sees, torch.float64, lengths.device)[:, 0] == 0


def _mask(visible: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]) -> Callable[..., Any]:
    """Make the answer of code with `visible(slot, length, offset, T)`; the three broadcast to [B, T, S]."""

    def answer(lengths: torch.Tensor, block_length: int) -> torch.Tensor:
        slot = torch.arange(int(lengths.max()) + block_length)[None, None]
        length, offset = lengths[:, None, None], torch.arange(block_length)[None, :, None]
        return visible(slot, length, offset, block_length).expand(len(lengths), -1, -1)

    return answer


BLOCK_MASK = Exercise(
    id="3.2",
    function="block_mask",
    title="Who sees whom?",
    points=2,
    difficulty=3,
    minutes=10,
    section="What does a pass need to know?",
    rule="The token at offset t of row b sees the slots 0 to length[b] + t: the row's text and the block up to itself.",
    hints=(
        "Write down the mask of one row with 2 tokens in its cache and a block of 3, as a table of 3 by 5.",
        "Slot s is visible where s <= length + t. Three directions: rows [B, 1, 1], offsets [1, T, 1], slots [S].",
        "`slots = torch.arange(int(lengths.max()) + block_length)`, `last = lengths[:, None] + "
        "torch.arange(block_length)`, and `return slots <= last[:, :, None]`.",
    ),
    cases=_length_cases,
    reference=_block_mask,
    replay=replay_mask,
    mistakes=(
        Mistake(
            "visible and hidden mixed up",
            _mask(lambda s, length, t, block: s > length + t),
            "True means that the token may look at the slot.",
        ),
        Mistake(
            "drafts see the drafts after them",
            _mask(lambda s, length, t, block: (s < length + block) & (t >= 0)),
            "A token that sees what follows it has read the answer it should judge: inside the block, too, nothing "
            "after the token itself is visible.",
        ),
        Mistake(
            "a token does not see itself",
            _mask(lambda s, length, t, block: s < length + t),
            "The token's own key and value are written before it looks: slot length + t is visible too, so use `<=`.",
        ),
        Mistake(
            "the earlier text is hidden",
            _mask(lambda s, length, t, block: (s >= length) & (s <= length + t)),
            "The slots below the length hold the row's text, and every token of the block reads all of it.",
        ),
        Mistake(
            "the mask of an empty cache",
            _mask(lambda s, length, t, block: (s <= t) & (length >= 0)),
            "The block begins at slot length, not at slot 0: the triangle moves to the right by the row's length.",
        ),
        Mistake(
            "short rows see what lies behind them",
            _mask(lambda s, length, t, block: s <= length.max() + t),
            "Slots after a row's own tokens hold junk: refused drafts, padding, nothing. Each row's limit comes from "
            "its own length.",
            section="How do texts of different lengths share a pass?",
        ),
        Mistake(
            "every row uses the first row's length",
            _mask(lambda s, length, t, block: s <= length[:1] + t),
            "Each row has its own length: use the whole tensor, not its first entry.",
            section="How do texts of different lengths share a pass?",
        ),
    ),
)

# --- 3.3 the verdict over a block


def _judge_cases(seed: int) -> Sequence[Case]:
    """Favourites are written down, and become logits; later drafts may agree again after a refused one."""
    source = torch.Generator().manual_seed(seed)

    def case(favourites: list[list[int]], drafts: list[list[int]], padding: int = 0) -> Case:
        vocab = 6
        logits = torch.rand(len(drafts), len(favourites[0]), vocab + padding, generator=source)
        logits.scatter_(-1, torch.tensor(favourites)[..., None], 3.0)
        logits[..., vocab:] = 9.0  # never trained, and loud
        arguments = {"logits": logits, "draft_tokens": torch.tensor(drafts), "vocab_size": vocab}
        return Case(arguments)

    cases = [
        case([[3, 4]], [[3]]),
        case([[3, 4]], [[5]]),
        case([[3, 4, 5, 0]], [[3, 1, 5]]),
        case([[3, 4, 5, 0]], [[1, 4, 5]]),
        case([[3, 4, 5, 0], [1, 2, 0, 5]], [[3, 4, 5], [2, 0, 4]]),
        case([[3, 4, 5, 0], [1, 2, 0, 5]], [[3, 2, 1], [1, 2, 0]], padding=2),
    ]
    for _ in range(6):
        rows, width = (int(torch.randint(*span, (), generator=source)) for span in ((1, 4), (2, 5)))
        favourites = torch.randint(0, 6, (rows, width + 1), generator=source)
        agrees = torch.rand(rows, width, generator=source) < 0.6
        drafts = torch.where(agrees, favourites[:, :-1], torch.randint(0, 6, (rows, width), generator=source))
        cases.append(case(favourites.tolist(), drafts.tolist(), int(torch.randint(0, 3, (), generator=source))))
    return cases


def _judge_block(
    logits: torch.Tensor, draft_tokens: torch.Tensor, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    from specdec_ref.acceptance import verify_chain
    from specdec_ref.sampling import GREEDY, probabilities

    batch, width = draft_tokens.shape
    probs = probabilities(logits[..., :vocab_size], GREEDY)
    verdict = verify_chain(probs, draft_tokens, None, torch.zeros(batch, width), torch.zeros(batch))
    return verdict.num_accepted, verdict.next_token


def _run(agrees: torch.Tensor) -> torch.Tensor:
    """Length of the leading run of True, [B]; written without `cumprod`, as a learner might."""
    counts = []
    for row in agrees.tolist():
        counts.append(row.index(False) if False in row else len(row))
    return torch.tensor(counts)


def _pick(wanted: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return wanted.gather(1, rows[:, None]).squeeze(1)


def _judgement(rule: Callable[[torch.Tensor, torch.Tensor], tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """Make the answer of a wrong rule on the favourites [B, 1+K] over the real ids and the drafts [B, K]."""

    def answer(logits: torch.Tensor, draft_tokens: torch.Tensor, vocab_size: int) -> tuple[Any, Any]:
        return rule(logits[..., :vocab_size].argmax(-1), draft_tokens)

    return answer


def _right_run(wanted: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    return _run(wanted[:, :-1] == drafts)


def _first_unjudged(wanted: torch.Tensor, drafts: torch.Tensor) -> tuple[Any, Any]:
    agrees = wanted[:, :-1] == drafts
    agrees[:, 0] = True
    return _run(agrees), _pick(wanted, _run(agrees))


def _all_agreements(wanted: torch.Tensor, drafts: torch.Tensor) -> tuple[Any, Any]:
    count = (wanted[:, :-1] == drafts).sum(-1)
    return count, _pick(wanted, count)


def _refused_draft(wanted: torch.Tensor, drafts: torch.Tensor) -> tuple[Any, Any]:
    run = _right_run(wanted, drafts)
    return run, _pick(torch.cat([drafts, wanted[:, -1:]], dim=1), run)


def _row_after(wanted: torch.Tensor, drafts: torch.Tensor) -> tuple[Any, Any]:
    run = _right_run(wanted, drafts)
    return run, _pick(wanted, (run + 1).clamp(max=drafts.shape[1]))


def _slowest(wanted: torch.Tensor, drafts: torch.Tensor) -> tuple[Any, Any]:
    run = _right_run(wanted, drafts)
    return run.min().expand(len(run)), _pick(wanted, run.min().expand(len(run)))


def _padding_counts(logits: torch.Tensor, draft_tokens: torch.Tensor, vocab_size: int) -> tuple[Any, Any]:
    wanted = logits.argmax(-1)
    run = _right_run(wanted, draft_tokens)
    return run, _pick(wanted, run)


_ROWS = "Which row judges which draft?"
JUDGE_BLOCK = Exercise(
    id="3.3",
    function="judge_block",
    title="Judge a whole block",
    points=3,
    difficulty=3,
    minutes=12,
    section=_ROWS,
    rule="Row t of the logits is the law after token t of the block, so it judges draft t+1. The accepted drafts are "
    "the "
    "leading run that agrees; with a of them, row a gives the next token.",
    hints=(
        "Greedy first: `wanted = logits[..., :vocab_size].argmax(-1)` has 1+K columns, the draft has K. Which column "
        "of "
        "`wanted` stands over which draft?",
        "`agrees = wanted[:, :-1] == draft_tokens`. Count until the first False: a running product of the ones stays 1 "
        "just so long.",
        "`count = agrees.long().cumprod(-1).sum(-1)`, and the next token of row b is `wanted[b, count[b]]`: "
        "`wanted.gather(1, count[:, None]).squeeze(1)`.",
    ),
    cases=_judge_cases,
    reference=_judge_block,
    replay=replay_verdict,
    mistakes=(
        Mistake(
            "padding of the vocabulary counted",
            _padding_counts,
            "Columns from vocab_size on belong to no token and were never trained. Cut them off before the argmax.",
            section="Do all columns count?",
        ),
        Mistake(
            "the first draft is never judged",
            _judgement(_first_unjudged),
            "Row 0, after the text's last token, judges draft 1. A drafter whose first draft is always wrong shows it: "
            "nothing may pass.",
            section="What if the rows slip by one?",
        ),
        Mistake(
            "drafts judged by the row after them",
            _judgement(lambda wanted, drafts: (_run(wanted[:, 1:] == drafts), ANY)),
            "Row t stands AFTER token t of the block. The row that has already read a draft cannot judge it: compare "
            "draft "
            "t+1 with row t, that is `wanted[:, :-1]` with the draft.",
            section="What if the rows slip by one?",
        ),
        Mistake(
            "all agreements counted, not the leading run",
            _judgement(_all_agreements),
            "After the first refusal the rest is thrown away, also where it happens to agree: those rows have read a "
            "refused token.",
        ),
        Mistake(
            "next token always from the last row",
            _judgement(lambda wanted, drafts: (_right_run(wanted, drafts), wanted[:, -1])),
            "The last row has read all drafts, also the refused ones. With a accepted, the next token comes from row "
            "a.",
        ),
        Mistake(
            "next token always from row 0",
            _judgement(lambda wanted, drafts: (_right_run(wanted, drafts), wanted[:, 0])),
            "Row 0 speaks about the place of draft 1. With a accepted, the next token comes from row a.",
        ),
        Mistake(
            "next token from the row after the refusal",
            _judgement(_row_after),
            "With a accepted, draft a+1 is refused by row a, and the same row says what belongs there.",
        ),
        Mistake(
            "the refused draft is emitted",
            _judgement(_refused_draft),
            "The refused draft is what the target did not want. Its place takes the target's own token, from row a.",
        ),
        Mistake(
            "all rows held back by the slowest",
            _judgement(_slowest),
            "Rows of a batch are texts of their own: each has its own count.",
            section="How do texts of different lengths share a pass?",
        ),
    ),
)

# --- 3.4 writing a block into the cache


def _write_cases(seed: int) -> Sequence[Case]:
    """Slots hold numbers that tell them apart; what lies behind a row's text is junk, not zeros."""
    source = torch.Generator().manual_seed(seed)
    fixed = [([2], [2]), ([3, 1], [2, 2]), ([3, 1], [1, 2]), ([0, 2], [2, 0]), ([1, 4, 2], [3, 1, 2])]
    for _ in range(4):
        rows = int(torch.randint(2, 4, (), generator=source))
        lengths = torch.randint(1, 6, (rows,), generator=source).tolist()
        counts = torch.randint(0, 4, (rows,), generator=source).tolist()
        fixed.append((lengths, [*counts[:-1], max(counts[-1], 1)]))
    cases = []
    for lengths, counts in fixed:
        batch, block, slots = len(lengths), max(counts), max(lengths) + max(counts) + 1
        store = 10.0 * torch.arange(1, batch + 1)[:, None] + torch.arange(slots)
        states = -10.0 * torch.arange(1, batch + 1)[:, None] - torch.arange(block)
        arguments = {
            "store": store[..., None],  # [B, slots, 1]
            "lengths": torch.tensor(lengths),
            "states": states[..., None],  # [B, T, 1]
            "counts": torch.tensor(counts),
        }
        cases.append(Case(arguments))
    return cases


def _drive_write(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Observe the lengths and each row's text; what lies behind a text is nobody's business and shows as 0."""
    answer = function(*arguments.values())
    if not (isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[0], torch.Tensor)):
        return answer
    store, lengths = answer
    if store.shape == arguments["store"].shape:
        end = (arguments["lengths"] + arguments["counts"])[:, None, None]
        store = torch.where(torch.arange(store.shape[1])[None, :, None] < end, store, 0.0)
    return store, lengths


def _write_block(
    store: torch.Tensor, lengths: torch.Tensor, states: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    from specdec_ref.cache import RowCache

    cache = RowCache(len(lengths), torch.device("cpu"))
    cache.lengths = lengths
    cache.keys, cache.values = [store.clone()[:, :, None]], [store.clone()[:, :, None]]  # one layer, one head
    cache.begin_pass(states.shape[1])
    cache.update(states[:, None], states[:, None], 0)
    cache.advance(counts)
    return cache.keys[0][:, :, 0], cache.lengths


def _write(
    start: Callable[[torch.Tensor], torch.Tensor],
    grow: Callable[[torch.Tensor, int], torch.Tensor] = lambda counts, block: counts,
) -> Callable[..., Any]:
    """Make the answer of code that writes each row's block from slot `start(lengths)` on, and grows by `grow`."""

    def answer(store: torch.Tensor, lengths: torch.Tensor, states: torch.Tensor, counts: torch.Tensor) -> Any:
        new, first = store.clone(), start(lengths).expand(len(lengths)).tolist()
        for row, count in enumerate(counts.tolist()):
            for t in range(count):
                if first[row] + t >= 0:
                    new[row, first[row] + t] = states[row, t]
        return new, lengths + grow(counts, states.shape[1])

    return answer


def _last_of_block(store: torch.Tensor, lengths: torch.Tensor, states: torch.Tensor, counts: torch.Tensor) -> Any:
    new = store.clone()
    for row, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        new[row, length : length + count] = states[row, states.shape[1] - count :]
    return new, lengths + counts


_RAGGED = "How do texts of different lengths share a pass?"
WRITE_BLOCK = Exercise(
    id="3.4",
    function="write_block",
    title="A cache with a length per row",
    points=2,
    difficulty=3,
    minutes=10,
    section=_RAGGED,
    rule="Token t of row b goes to slot lengths[b] + t, for t < counts[b]. The row then holds counts[b] tokens more.",
    hints=(
        "Two loops will do: over the rows, and over the real tokens of the row. Work on `store.clone()`.",
        "Without the inner loop: row b's real states are `states[b, : counts[b]]`, and they go to the slots from "
        "`lengths[b]` to `lengths[b] + counts[b]`.",
        "`new[b, n : n + c] = states[b, :c]` with n, c the row's length and count, and at the end "
        "`return new, lengths + counts`.",
    ),
    cases=_write_cases,
    drive=_drive_write,
    reference=_write_block,
    mistakes=(
        Mistake(
            "appended behind all slots",
            lambda store, lengths, states, counts: (torch.cat([store, states], dim=1), lengths + counts),
            "The store already has free slots behind each row's text. A block that is appended lies where no row's "
            "length "
            "reaches: write it into the slots from the row's own length on.",
            early=True,
        ),
        Mistake(
            "all rows written behind the longest",
            _write(lambda lengths: lengths.max()),
            "A short row then has a hole in its text. Each row writes behind its own last token, at slot lengths[b].",
        ),
        Mistake(
            "all rows written behind the first row's text",
            _write(lambda lengths: lengths[:1]),
            "Each row has its own length: use the whole tensor, not its first entry.",
        ),
        Mistake(
            "the last token of the text is overwritten",
            _write(lambda lengths: lengths - 1),
            "A row of n tokens fills the slots 0 to n-1. The next free one is n.",
        ),
        Mistake(
            "one slot left empty",
            _write(lambda lengths: lengths + 1),
            "A row of n tokens fills the slots 0 to n-1. The next free one is n.",
        ),
        Mistake(
            "written from slot 0",
            _write(lambda lengths: torch.zeros_like(lengths)),
            "Slot 0 holds the first token of the text. The block goes behind the text.",
        ),
        Mistake(
            "padding counted as text",
            _write(lambda lengths: lengths, lambda counts, block: torch.full_like(counts, block)),
            "The block is padded on the right to one width. A row grows by its count of real tokens, not by the width.",
        ),
        Mistake(
            "lengths not moved",
            _write(lambda lengths: lengths, lambda counts, block: torch.zeros_like(counts)),
            "What was written belongs to the text only once the length covers it: return lengths + counts.",
        ),
        Mistake(
            "padding expected on the left",
            _last_of_block,
            "The real tokens of a row are the FIRST counts[b] of its block; the padding is on the right.",
        ),
    ),
)

# --- 3.5 a whole round


def _round_cases(seed: int) -> Sequence[Case]:
    """Drafts are the target's own words up to a point, which each case chooses for each row."""
    source = torch.Generator().manual_seed(seed)
    fixed: list[tuple[list[list[int]], list[int], int]] = [
        ([[1, 2]], [1], 2),
        ([[1, 2]], [2], 2),
        ([[3]], [0], 1),
        ([[1, 2], [4]], [2, 0], 2),
        ([[1, 2, 3], [4, 0]], [1, 3], 3),
    ]
    for _ in range(4):
        rows, width = (int(torch.randint(*span, (), generator=source)) for span in ((2, 4), (2, 5)))
        texts = [
            torch.randint(0, 7, (int(torch.randint(1, 5, (), generator=source)),), generator=source).tolist()
            for _ in range(rows)
        ]
        fixed.append((texts, torch.randint(0, width + 1, (rows,), generator=source).tolist(), width))
    return [_round_case(texts, right, width) for texts, right, width in fixed]


def _round_case(texts: list[list[int]], right: list[int], width: int) -> Case:
    guide, last, drafts = ToyTarget(texts), [], []
    for text, good in zip(texts, right, strict=True):
        so_far = [*text, guide.favourite(text)]
        last.append(so_far[-1])
        for i in range(width):
            favourite = guide.favourite(so_far)
            # After the wrong draft the rest agrees again: whoever counts agreements is found out.
            so_far.append((favourite + 3) % 7 if i == good else favourite)
        drafts.append(so_far[-width:])
    arguments = {
        "target": Made(functools.partial(ToyTarget, texts), f"a target whose rows hold {texts}"),
        "last_tokens": torch.tensor(last),
        "draft_tokens": torch.tensor(drafts),
    }
    return Case(arguments)


def _drive_round(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Observe the verdict, what the cache holds afterwards, and how many passes it took."""
    target = arguments["target"]
    answer = function(*arguments.values())
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        return {"num_accepted": answer, "next_token": None, "cache": target.rows, "passes": target.passes}
    return {
        "num_accepted": answer[0],
        "next_token": answer[1],
        "cache": [list(row) for row in target.rows],
        "passes": target.passes,
    }


def _verify_round(target: Any, last_tokens: torch.Tensor, draft_tokens: torch.Tensor) -> Any:
    logits = target.extend(torch.cat([last_tokens[:, None], draft_tokens], dim=1))
    num_accepted, next_token = _judge_block(logits, draft_tokens, logits.shape[-1])
    target.rollback(draft_tokens.shape[1] - num_accepted)
    return num_accepted, next_token


def _round(
    undo: Callable[[torch.Tensor, int], torch.Tensor | None], feed_next: bool = False
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Make the answer of a round that rolls back `undo(num_accepted, K)` tokens, or nothing."""

    def answer(target: Any, last_tokens: torch.Tensor, draft_tokens: torch.Tensor) -> Any:
        wanted = target.extend(torch.cat([last_tokens[:, None], draft_tokens], dim=1)).argmax(-1)
        run = _right_run(wanted, draft_tokens)
        counts = undo(run, draft_tokens.shape[1])
        if counts is not None:
            target.rollback(counts)
        if feed_next:
            target.extend(_pick(wanted, run)[:, None])
        return run, _pick(wanted, run)

    return answer


def _pass_per_token(target: Any, last_tokens: torch.Tensor, draft_tokens: torch.Tensor) -> Any:
    block = torch.cat([last_tokens[:, None], draft_tokens], dim=1)
    wanted = torch.cat([target.extend(block[:, t : t + 1]) for t in range(block.shape[1])], dim=1).argmax(-1)
    run = _right_run(wanted, draft_tokens)
    target.rollback(draft_tokens.shape[1] - run)
    return run, _pick(wanted, run)


def _last_not_fed(target: Any, last_tokens: torch.Tensor, draft_tokens: torch.Tensor) -> Any:
    wanted = target.extend(draft_tokens).argmax(-1)
    run = _run(wanted == draft_tokens)
    target.rollback(draft_tokens.shape[1] - run)
    return run, _pick(wanted, run.clamp(max=draft_tokens.shape[1] - 1))


_ROLLBACK = "How do refused tokens leave the cache?"
VERIFY_ROUND = Exercise(
    id="3.5",
    function="verify_round",
    title="One verification round",
    points=3,
    difficulty=4,
    minutes=12,
    section=_ROLLBACK,
    rule="One pass over [last token, drafts], the verdict from its 1+K rows of logits, and K - a tokens rolled back in "
    "each row: the cache keeps the last token and the accepted drafts, and not the next token, which was never fed.",
    hints=(
        "The block is the last token of each row, then its drafts: `torch.cat` along dimension 1. One call of "
        "`extend`.",
        "The pass wrote 1+K tokens. Which of them are text? The last token, and the accepted drafts. The others go.",
        "After the verdict: `target.rollback(draft_tokens.shape[1] - num_accepted)`, one count per row.",
    ),
    cases=_round_cases,
    drive=_drive_round,
    reference=_verify_round,
    mistakes=(
        Mistake(
            "one pass for each token",
            _pass_per_token,
            "The verdict is right, but it took 1+K passes, as many as plain decoding: nothing was won. Give the whole "
            "block to one call of `extend`.",
            section="Is one pass really the same as many?",
        ),
        Mistake(
            "refused tokens left in the cache",
            _round(lambda run, width: None),
            "The next round would read the refused drafts as if they were text. Roll back the K - a refused tokens.",
        ),
        Mistake(
            "accepted tokens rolled back instead of refused ones",
            _round(lambda run, width: run),
            "The count for `rollback` is how many tokens to FORGET: the refused ones, K - a.",
        ),
        Mistake(
            "one token too many rolled back",
            _round(lambda run, width: width - run + 1),
            "The block also held the last token of the text. It is text whatever happens to the drafts, and stays: "
            "only "
            "K - a tokens go.",
        ),
        Mistake(
            "all rows rolled back like the slowest",
            _round(lambda run, width: (width - run).max().expand(len(run))),
            "One cut for all rows throws accepted tokens away. Each row has its own count.",
            section="Look at the memory",
        ),
        Mistake(
            "the next token is fed as well",
            _round(lambda run, width: width - run, feed_next=True),
            "The next token is the first of the next block. Fed here too, it costs a second pass, and the next round "
            "would "
            "write it twice.",
        ),
        Mistake(
            "the last token is not fed",
            _last_not_fed,
            "The cache lacks the text's last token, and only the row after it can judge draft 1. The block is the last "
            "token and then the drafts: 1+K tokens, 1+K rows.",
            section=_ROWS,
        ),
    ),
)

# --- 3.6 the draft model's cache


def _draft_cases(seed: int) -> Sequence[Case]:
    """Every number of accepted drafts occurs, in single rows and in ragged ones."""
    source = torch.Generator().manual_seed(seed)
    fixed = [([10], 4, [a]) for a in (2, 4, 0, 3)] + [([6], 1, [1]), ([6], 1, [0]), ([10, 7], 4, [1, 4])]
    for _ in range(3):
        rows, width = (int(torch.randint(*span, (), generator=source)) for span in ((1, 4), (1, 6)))
        lengths = torch.randint(1, 20, (rows,), generator=source).tolist()
        fixed.append((lengths, width, torch.randint(0, width + 1, (rows,), generator=source).tolist()))
    return [
        Case(
            {
                "text_lengths": torch.tensor(lengths),
                "num_draft_tokens": width,
                "num_accepted": torch.tensor(accepted),
            }
        )
        for lengths, width, accepted in fixed
    ]


def _draft_cache_after(
    text_lengths: torch.Tensor, num_draft_tokens: int, num_accepted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    from specdec_ref.cache import RowCache

    cache = RowCache(len(text_lengths), torch.device("cpu"))
    cache.advance(text_lengths)  # it was fed the text, x included, ...
    cache.advance(num_draft_tokens - 1)  # ... and every draft but the last
    text = text_lengths + num_accepted + 1
    cache.rollback((cache.lengths - (text - 1)).clamp(min=0))  # of the new text, only the last token was never drafted
    return cache.lengths, text - cache.lengths


def _held(rule: Callable[[torch.Tensor, int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., Any]:
    def answer(text_lengths: torch.Tensor, num_draft_tokens: int, num_accepted: torch.Tensor) -> Any:
        return rule(text_lengths, num_draft_tokens, num_accepted)

    return answer


def _always(count: int) -> Callable[..., Any]:
    def rule(n: torch.Tensor, k: int, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.minimum(n - 1 + k, n + a), torch.full_like(n, count)

    return _held(rule)


_DRAFT = "And the drafter's own cache?"
DRAFT_CACHE_AFTER = Exercise(
    id="3.6",
    function="draft_cache_after",
    title="What does the draft model still need?",
    points=2,
    difficulty=2,
    minutes=8,
    section=_DRAFT,
    rule="Before the verdict the draft's cache holds n - 1 + K tokens: its last draft was drawn, never fed. After "
    "it, at "
    "most n + a of them are text. What the text of n + a + 1 tokens has beyond that must be fed.",
    hints=(
        "Count what the draft was fed: the text of n tokens, then its own drafts, except for one. Which one?",
        "It holds min(n - 1 + K, n + a) tokens after the rollback, and the text has n + a + 1.",
        "`held = torch.minimum(text_lengths - 1 + num_draft_tokens, text_lengths + num_accepted)`, and to feed remains "
        "`text_lengths + num_accepted + 1 - held`.",
    ),
    cases=_draft_cases,
    reference=_draft_cache_after,
    mistakes=(
        Mistake(
            "the last draft counted as held",
            _held(lambda n, k, a: (n + a, torch.ones_like(n))),
            "After full acceptance the last draft is text, but the draft model never read it: it was drawn and not "
            "fed. "
            "The cache holds one token less, and two must be fed.",
        ),
        Mistake(
            "always one token to feed",
            _always(1),
            "After full acceptance one token would stay unread, and every later one would sit one position too "
            "early. The "
            "text stays right; only acceptance decays. Feed all that the cache lacks: two tokens then.",
        ),
        Mistake(
            "always two tokens to feed",
            _always(2),
            "Two are needed only after full acceptance. Otherwise the second would be a token that the cache holds "
            "already.",
        ),
        Mistake(
            "the next token counted as held",
            _held(lambda n, k, a: (n + a + 1, torch.zeros_like(n))),
            "The correction or bonus comes from the target. The draft has never seen it, so it must be fed.",
        ),
        Mistake(
            "refused drafts left in the cache",
            _held(lambda n, k, a: ((n - 1 + k).expand(len(n)), n + a + 1 - (n - 1 + k))),
            "Refused drafts are no text. They go, and then at most n + a tokens are left.",
        ),
        Mistake(
            "accepted drafts thrown away",
            _held(lambda n, k, a: (n.clone(), a + 1)),
            "The draft model has read its own drafts already. Those that were accepted are text and stay in its cache.",
        ),
    ),
)

EXERCISES = [BLOCK_POSITIONS, BLOCK_MASK, JUDGE_BLOCK, WRITE_BLOCK, VERIFY_ROUND, DRAFT_CACHE_AFTER]

QUESTIONS = [
    Question(
        "3.a",
        "Draft 2 of 4 is refused. In the same pass, the target's favourite in row 3 is just draft 4. May draft 4 be "
        "kept?",
        (
            Choice("Yes, the target agrees with it", "It agrees after a text that holds the refused draft 2."),
            Choice(
                "No: row 3 has read the refused draft",
                "Right: its law belongs to a text that is not written. Only the leading run counts.",
            ),
            Choice(
                "Only when decoding greedily",
                "The kind of decoding changes nothing: row 3 speaks about another text in any case.",
            ),
        ),
        right="b",
    ),
    Question(
        "3.b",
        "A refused token's key and value are overwritten with zeros, and the mask still shows its slot. What happens?",
        (
            Choice("Nothing: zeros add nothing", "The value adds nothing, but the weight is taken from the others."),
            Choice(
                "Its slot takes a share of the attention from the real tokens",
                "Right: a zero key gives the score 0, and e to the 0 is 1. Hidden means a score of minus infinity.",
            ),
            Choice("The softmax fails", "A score of 0 is a number like any other; nothing fails, which is the danger."),
        ),
        right="b",
    ),
    Question(
        "3.c",
        "On one machine a pass over 6 tokens takes as long as 2 steps, on another as long as 1. Same models, same "
        "text, "
        "greedy. What differs?",
        (
            Choice(
                "How many drafts are accepted", "Acceptance compares numbers of the models; time has no part in it."
            ),
            Choice("The text", "The text is the target's own in both cases, up to rounding."),
            Choice(
                "Only what a round costs, and so the speedup",
                "Right: the same tokens from the same rounds, and a bill that is twice as high for verification.",
            ),
        ),
        right="c",
    ),
    Question(
        "3.d",
        "A server runs 64 rows at once, and the processor's arithmetic is busy. What does verifying 5 drafts per row "
        "do?",
        (
            Choice(
                "It costs nothing extra: the weights are read anyway",
                "That holds while arithmetic is spare. Here it is not, and six times as much of it is asked for.",
            ),
            Choice(
                "It may cost more than it saves",
                "Right: a pass over 384 tokens is real work, and refused drafts are work for nothing. Measure it.",
            ),
            Choice(
                "It changes the texts of the other rows",
                "Each row sees only its own slots. It may slow the others, never change them (up to rounding).",
            ),
        ),
        right="b",
    ),
]
