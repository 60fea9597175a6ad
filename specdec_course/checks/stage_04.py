"""Stage 04, the pipeline: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.replay_rounds import replay_rounds
from specdec_course.checks.toy_target import ToyTarget

VOCAB = 7


class ToyDraft(ToyTarget):
    """Wants what the toy target wants, except after some tokens; notes what its cache held before each draft."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int = VOCAB) -> None:
        super().__init__(texts, vocab_size)
        self.held: list[int] = []

    def favourite(self, text: Sequence[int]) -> int:
        """Return the draft's token after `text`: the target's, or the one after it."""
        return (super().favourite(text) + (sum(text[-2:]) % 4 == 3)) % self.vocab_size


class ToyBlocks(ToyTarget):
    """A toy target that notes each pass: what the cache held before it, and the block."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int = VOCAB) -> None:
        super().__init__(texts, vocab_size)
        self.blocks: list[list[Any]] = []

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Note the pass, then make it."""
        self.blocks.append([self.lengths.tolist()[0], tokens.tolist()[0]])
        return super().extend(tokens)


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _given(function: Callable[..., Any], name: str) -> Made:
    """Pass a function of ours to the learner's under this name."""
    return Made(functools.partial(_itself, function), name)


# --- 4.1 the draft and its cache


def pick(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Draw from softmax(logits / 0.7) by inverting the cumulative sum; return the token and its law."""
    probs = (logits.double() / 0.7).softmax(-1)
    token = int(torch.searchsorted(probs.cumsum(-1), torch.as_tensor(uniform).double().reshape(1), right=True))
    return min(token, len(probs) - 1), probs


def _propose_cases(seed: int) -> Sequence[Case]:
    """The prompt of a first round, a correction to feed, and two tokens after full acceptance."""
    source = torch.Generator().manual_seed(seed)
    fixed = [([3, 1], 1, 2), ([3, 1, 4], 1, 2), ([3, 1], 0, 3), ([2, 5, 5, 1], 3, 3), ([2, 5, 5, 1], 2, 3), ([6], 0, 1)]
    for _ in range(10):
        length, count = (int(torch.randint(*span, (), generator=source)) for span in ((2, 6), (1, 5)))
        text = torch.randint(0, VOCAB, (length,), generator=source).tolist()
        fixed.append((text, [0, length - 1, max(0, length - 2)][len(fixed) % 3], count))
    luck = [torch.rand(count, generator=source, dtype=torch.float64) for _, _, count in fixed]
    luck[0][:] = torch.tensor([0.98, 0.02])  # no draw gives the favourite, nor the token of the other number
    return [
        Case(
            {
                "draft": _holding(text[:held]),
                "text": text,
                "draft_uniforms": uniforms,
                "pick": _given(pick, "pick"),
            }
        )
        for (text, held, _), uniforms in zip(fixed, luck, strict=True)
    ]


def _holding(held: list[int]) -> Made:
    return Made(functools.partial(ToyDraft, [held]), f"a draft model whose cache holds {held}")


def _drive_propose(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(*arguments.values())
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], torch.Tensor):
        answer = answer[0], list(answer[1])  # a stacked [K, V] tensor of laws will do
    return {"answer": answer, "cache": arguments["draft"].rows[0]}


def _drafting(
    missing: Callable[[list[int], int], list[int]] = lambda text, held: text[held:],
    row: int = -1,
    uniform: Callable[[torch.Tensor, int], torch.Tensor] = lambda uniforms, i: uniforms[i],
    feed: bool = True,
    feed_last: bool = False,
    choose: Callable[[torch.Tensor, int, torch.Tensor], tuple[int, torch.Tensor]] = lambda _, token, law: (token, law),
) -> Callable[..., Any]:
    """Make the answer of a drafter with the given faults; without any it is right."""

    def answer(draft: Any, text: list[int], draft_uniforms: torch.Tensor, pick: Any) -> Any:
        logits = draft.extend(torch.tensor([missing(text, int(draft.lengths[0]))]))[0, row]
        tokens: list[int] = []
        laws: list[torch.Tensor] = []
        for i in range(len(draft_uniforms)):
            if i and feed:
                logits = draft.extend(torch.tensor([[tokens[-1]]]))[0, -1]
            token, law = choose(logits, *pick(logits, uniform(draft_uniforms, i)))
            tokens.append(token)
            laws.append(law)
        if feed_last:
            draft.extend(torch.tensor([[tokens[-1]]]))
        return tokens, laws

    return answer


_CACHE = "A cache for the draft"
PROPOSE = Exercise(
    id="4.1",
    function="propose",
    title="A draft model with its own cache",
    points=3,
    difficulty=3,
    minutes=10,
    section=_CACHE,
    rule="Feed what is committed and not in the draft's cache, draw a token from the last row of logits, feed it, draw "
    "the next. The last draft token is not fed. Hand back the tokens and the laws they were drawn from.",
    hints=(
        "How many tokens of `text` does the cache hold already? `int(draft.lengths[0])` says so. All the others must "
        "be fed, in one block: one, two, or a whole prompt.",
        "After that, each step is the same: `pick` a token from the latest logits, and feed this token to get the next "
        "logits. Feed before each draw but the first; then the last token is never fed.",
        "`logits = draft.extend(torch.tensor([text[held:]]))[0, -1]`, then for i in range(K): if i > 0, "
        "`logits = draft.extend(torch.tensor([[tokens[-1]]]))[0, -1]`; `token, law = pick(logits, draft_uniforms[i])`.",
    ),
    cases=_propose_cases,
    drive=_drive_propose,
    reference=_drafting(),
    uniforms=("draft_uniforms",),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "only the last token of the text is fed",
            _drafting(missing=lambda text, held: text[-1:]),
            "At the first round the cache lacks the whole prompt, and after full acceptance two tokens. Feed "
            "`text[held:]`: all that is committed and not in the cache. The finished text would not show this fault: "
            "it only costs acceptance.",
        ),
        Mistake(
            "after full acceptance only one token is fed",
            _drafting(missing=lambda text, held: text[-1:] if held else text),
            "After full acceptance the cache lacks two tokens: the last draft, which was drawn and never fed, and the "
            "bonus. Feed `text[held:]`. The finished text would not show this fault: it only costs acceptance.",
        ),
        Mistake(
            "the whole text is fed again",
            _drafting(missing=lambda text, held: text),
            "The cache holds the first tokens of the text already. Fed twice, they sit at new positions, and the draft "
            "reads another text. Feed only what comes after them.",
        ),
        Mistake(
            "logits of the first fed token are used",
            _drafting(row=0),
            "Where two tokens or a prompt are fed, there is one row of logits for each. The law of the next token is "
            "in the LAST row.",
        ),
        Mistake(
            "draft tokens are not fed back",
            _drafting(feed=False),
            "The second draft token continues the first. Each one must be fed before the next is drawn.",
        ),
        Mistake(
            "the last draft token is fed as well",
            _drafting(feed_last=True),
            "Nothing is drawn after the last draft token in this round, so that pass is paid for nothing. If the token "
            "is accepted, the next round feeds it.",
        ),
        Mistake(
            "the most likely token is taken instead of drawing",
            _drafting(choose=lambda logits, token, law: (int(logits.argmax()), law)),
            "The verifier believes that each token was DRAWN from the law you hand back. If it was the maximum, the "
            "rule is fed a wrong q, and the text no longer follows the target.",
        ),
        Mistake(
            "the law is not the one that was drawn from",
            _drafting(choose=lambda logits, token, law: (token, logits.softmax(-1))),
            "`pick` applies the temperature. The law q must be the one the token was really drawn from: hand back what "
            "`pick` gave, not a softmax of your own.",
        ),
        Mistake(
            "one uniform number for all draft tokens",
            _drafting(uniform=lambda uniforms, i: uniforms[0]),
            "Each draw needs a number of its own; with one number for all, the tokens of a draft are not independent.",
        ),
    ),
)

# --- 4.2 where a text ends


def _cut_cases(seed: int) -> Sequence[Case]:
    """EOS at every place of a block, as the correction and the bonus, twice, of several kinds, behind the budget."""
    source = torch.Generator().manual_seed(seed)
    fixed: list[tuple[list[int], int, tuple[int, ...]]] = [([5, 2, 5], 9, (2,)), ([2], 9, (2,)), ([5, 5, 2], 9, (2,))]
    fixed += [([5, 3], 9, ()), ([5, 3, 4, 1], 2, (2,)), ([5, 3, 4], 3, ()), ([5, 2, 3, 2, 4], 9, (2,)), ([1], 1, (2,))]
    fixed += [
        ([5, 4, 2, 3], 9, (1, 2)),
        ([5, 3, 1, 2], 9, (2, 3)),
        ([5, 4, 2, 1], 2, (2,)),
        ([5, 4, 2, 1], 3, (1, 2)),
        ([4, 5, 6, 3], 3, (3,)),
    ]
    for _ in range(16):
        block = torch.randint(0, 6, (int(torch.randint(1, 7, (), generator=source)),), generator=source).tolist()
        ids = tuple(sorted(set(torch.randint(0, 6, (2,), generator=source).tolist())))
        fixed.append((block, int(torch.randint(1, 8, (), generator=source)), ids[: len(fixed) % 3]))
    return [Case({"new_tokens": block, "remaining": remaining, "eos_ids": ids}) for block, remaining, ids in fixed]


def _cut_block(new_tokens: list[int], remaining: int, eos_ids: tuple[int, ...]) -> list[int]:
    from specdec_ref.rows import Stop

    kept = new_tokens[:remaining]
    end = Stop(token_ids=eos_ids).find(kept, start=0)
    return kept if end is None else kept[: end[0]]


def cut(new_tokens: Sequence[int], remaining: int, eos_ids: Iterable[int]) -> list[int]:
    """Return the tokens that go into the text; the plain version for models of mistakes."""
    ids, kept = set(eos_ids), []
    for token in new_tokens[:remaining]:
        kept.append(token)
        if token in ids:
            break
    return kept


def _last_only(new_tokens: list[int], remaining: int, eos_ids: tuple[int, ...]) -> list[int]:
    """Of code that asks only whether the block's last token is EOS: nothing is ever cut, except by the budget."""
    return new_tokens[:remaining]


def _without_eos(new_tokens: list[int], remaining: int, eos_ids: tuple[int, ...]) -> list[int]:
    return list(itertools.takewhile(lambda token: token not in eos_ids, new_tokens[:remaining]))


def _to_last_eos(new_tokens: list[int], remaining: int, eos_ids: tuple[int, ...]) -> list[int]:
    kept = new_tokens[:remaining]
    places = [place for place, token in enumerate(kept) if token in eos_ids]
    return kept[: places[-1] + 1] if places else kept


def _to_first_id(new_tokens: list[int], remaining: int, eos_ids: tuple[int, ...]) -> list[int]:
    """Of code that looks for the ids one after the other and cuts at the first it finds, wherever that is."""
    kept = new_tokens[:remaining]
    found = next((kept.index(token) for token in eos_ids if token in kept), None)
    return kept if found is None else kept[: found + 1]


_ENDS = "Where does a text end?"
CUT_BLOCK = Exercise(
    id="4.2",
    function="cut_block",
    title="EOS inside a block, and the budget",
    points=2,
    difficulty=2,
    minutes=6,
    section=_ENDS,
    rule="The text takes the block's tokens up to and with the first EOS, and never more than the budget has room for.",
    hints=(
        "Two limits, and the nearer one counts: the first EOS and the budget.",
        "Go through the tokens from the left and append each; stop after an EOS. `token in eos_ids` works for no id, "
        "one and several.",
        "`for token in new_tokens[:remaining]: kept.append(token)`, then `if token in eos_ids: break`, and return "
        "`kept`.",
    ),
    cases=_cut_cases,
    reference=_cut_block,
    mistakes=(
        Mistake(
            "EOS inside the block is missed",
            _last_only,
            "Only the end of the block, or nothing at all, is searched for EOS. A block brings several tokens, and EOS "
            "may be any of them: what stands behind it must not be written.",
        ),
        Mistake(
            "EOS itself is dropped",
            _without_eos,
            "Plain decoding writes EOS and then stops, so the two texts would differ, and the loop could not see that "
            "the text has ended. Keep it as the last token.",
        ),
        Mistake(
            "the budget is not kept",
            lambda new_tokens, remaining, eos_ids: cut(new_tokens, len(new_tokens), eos_ids),
            "`remaining` is a promise: never more tokens than that, whatever the block brings.",
        ),
        Mistake(
            "one token more than the budget",
            lambda new_tokens, remaining, eos_ids: cut(new_tokens, remaining + 1, eos_ids),
            "Count the bonus or correction like any other token: at most `remaining` in all.",
        ),
        Mistake(
            "only the first EOS id is known",
            lambda new_tokens, remaining, eos_ids: cut(new_tokens, remaining, eos_ids[:1]),
            "A model may have several ids that end a text, and each of them does. Test with `in`, not with `==`.",
        ),
        Mistake(
            "cut at the last EOS instead of the first",
            _to_last_eos,
            "The text ends at the first EOS. Another one behind it belongs to a text that is never written.",
        ),
        Mistake(
            "the order of the EOS ids decides",
            _to_first_id,
            "Whichever EOS stands first in the BLOCK ends the text, not whichever is listed first.",
        ),
    ),
)

# --- 4.3 the whole loop


def _favourites(logits: torch.Tensor) -> list[int]:
    return logits.argmax(-1).tolist()


def judge_greedily(logits: torch.Tensor, draft_tokens: Sequence[int], draft_probs: Any) -> tuple[int, int]:
    """Return how many drafts the target's favourites agree with, from the left, and the favourite after them."""
    wanted = _favourites(logits)
    agree = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(draft_tokens, wanted, strict=False))
    accepted = sum(1 for _ in agree)
    return accepted, wanted[accepted]


def propose_greedily(draft: ToyDraft, text: Sequence[int], num_draft_tokens: int) -> tuple[list[int], list[Any]]:
    """Draft the favourites of a toy draft, and note what its cache held."""
    held = int(draft.lengths[0])
    draft.held.append(held)
    if num_draft_tokens == 0:
        return [], []
    logits = draft.extend(torch.tensor([list(text[held:]) or [text[-1]]]))[0, -1]
    tokens = [int(logits.argmax())]
    while len(tokens) < num_draft_tokens:
        tokens.append(int(draft.extend(torch.tensor([[tokens[-1]]]))[0, -1].argmax()))
    return tokens, [None] * len(tokens)


def _loop_cases(seed: int) -> Sequence[Case]:
    """Small budgets against draft lengths, EOS of several kinds, one-token prompts."""
    source = torch.Generator().manual_seed(seed)
    fixed: list[tuple[list[int], int, int, tuple[int, ...]]] = [([3], 2, 4, ()), ([3, 1], 3, 9, ()), ([5], 4, 1, ())]
    fixed += [
        ([2, 2], 3, 0, ()),
        ([1, 4], 4, 12, (0,)),
        ([3, 6, 1], 5, 12, (2, 4)),
        ([4], 1, 6, ()),
        ([6, 6], 0, 3, ()),
    ]
    for place in range(12):
        length, count = (int(torch.randint(*span, (), generator=source)) for span in ((1, 4), (1, 6)))
        prompt = torch.randint(0, VOCAB, (length,), generator=source).tolist()
        ids = torch.randint(0, VOCAB, (place % 3,), generator=source).tolist()
        fixed.append((prompt, count, int(torch.randint(2, 16, (), generator=source)), tuple(ids)))
    return [
        Case(
            {
                "target": Made(functools.partial(ToyBlocks, [prompt[:-1]]), f"a target that holds {prompt[:-1]}"),
                "draft": _holding([]),
                "prompt": prompt,
                "propose": _given(propose_greedily, "propose"),
                "judge": _given(judge_greedily, "judge"),
                "num_draft_tokens": count,
                "max_new_tokens": budget,
                "eos_ids": ids,
            }
        )
        for prompt, count, budget, ids in fixed
    ]


def _drive_loop(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    rounds = function(*arguments.values())
    if rounds is None:
        return None
    target, seen, passes = arguments["target"], [], []
    for result in itertools.islice(rounds, 30):
        passes.append(target.passes)
        seen.append(tuple(result) if isinstance(result, list) else result)
    return {
        "rounds": seen,
        "passes so far": passes,
        "target held, then read": target.blocks,
        "draft held before drafting": arguments["draft"].held,
    }


def _loop(
    plan: Callable[[int, int], int] = lambda most, room: min(most, room - 1),
    forget: Callable[[int, int], int] = lambda drafted, accepted: drafted - accepted,
    keep: Callable[[int, int, int], int] = lambda n, accepted, drafted: n + accepted,
    emit: Callable[[list[int], int, int], list[int]] = lambda tokens, a, following: [*tokens[:a], following],
    cut: Callable[..., list[int]] = cut,
    split: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a loop with the given faults; without any it is right."""

    def answer(
        target: Any,
        draft: Any,
        prompt: list[int],
        propose: Any,
        judge: Any,
        num_draft_tokens: int,
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
    ) -> Iterator[Any]:
        text, end = list(prompt), len(prompt) + max_new_tokens
        while len(text) < end:
            n, room = len(text), end - len(text)
            tokens, laws = propose(draft, text, plan(num_draft_tokens, room))
            block = torch.tensor([[text[-1], *tokens]])
            parts = block.split(1, dim=1) if split else [block]
            accepted, following = judge(torch.cat([target.extend(part)[0] for part in parts]), tokens, laws)
            target.rollback([forget(len(tokens), accepted)])
            held = int(draft.lengths[0])
            draft.rollback([held - min(held, keep(n, accepted, len(tokens)))])
            new = cut(emit(tokens, accepted, following), room, eos_ids)
            text += new
            yield new, len(tokens), accepted
            if new and new[-1] in eos_ids:
                return

    return answer


def _at_the_end(*arguments: Any) -> Any:
    return list(_loop()(*arguments))


_LOOP = "The loop"
SPECULATIVE_GENERATE = Exercise(
    id="4.3",
    function="speculative_generate",
    title="The whole loop",
    points=5,
    difficulty=4,
    minutes=18,
    section=_LOOP,
    rule="Each round: limit the draft to the room minus one, propose, one pass over [last token, drafts], judge, "
    "forget K - a in the target's cache, keep at most n + a in the draft's, commit what is left after the cut, yield, "
    "and stop at EOS or when the budget is used up.",
    hints=(
        "Write the six steps of the lesson as comments first. One variable holds the text; `room` is what may still be "
        "written.",
        "n is the length of the text BEFORE the round. The target forgets K - a. The draft keeps min(held, n + a), so "
        "it forgets what it holds beyond that.",
        "`k = min(num_draft_tokens, room - 1)`; after judging: `target.rollback([k - accepted])`, "
        "`draft.rollback([max(0, int(draft.lengths[0]) - (n + accepted))])`, "
        "`new = cut_block([*tokens[:accepted], next_token], room, eos_ids)`, `text += new`, "
        "`yield new, k, accepted`, and return if `new[-1] in eos_ids`.",
    ),
    cases=_loop_cases,
    drive=_drive_loop,
    reference=_loop(),
    replay=replay_rounds,
    mistakes=(
        Mistake(
            "all rounds come at the end",
            _at_the_end,
            "The rounds are right, but none comes before all are done, so nothing can be streamed. `yield` each round "
            "as soon as it is committed.",
        ),
        Mistake(
            "one pass for each token of the block",
            _loop(split=True),
            "The text is right, but it took as many passes as plain decoding. Give the block to one call of `extend`.",
        ),
        Mistake(
            "refused drafts stay in the target's cache",
            _loop(forget=lambda drafted, accepted: 0),
            "The next pass would read refused drafts as text. The target must forget the K - a refused tokens.",
        ),
        Mistake(
            "accepted drafts are rolled back instead of refused ones",
            _loop(forget=lambda drafted, accepted: accepted),
            "`rollback` takes how many tokens to FORGET: the refused ones, K - a.",
        ),
        Mistake(
            "the draft's cache is not rolled back",
            _loop(keep=lambda n, accepted, drafted: 10**9),  # all that it holds
            "The draft holds its own refused tokens and builds on them. The text stays right, because the target "
            "checks everything, but acceptance decays. Keep at most n + a tokens.",
            section=_CACHE,
        ),
        Mistake(
            "the draft's cache is cut one token too far",
            _loop(keep=lambda n, accepted, drafted: n - 1 + accepted),
            "The draft's cache holds n + K - 1 tokens, one less than the target read, because its last draft was never "
            "fed. Forgetting K - a there throws an accepted token away, and it must be read again. Keep min(held, n + "
            "a).",
            section=_CACHE,
        ),
        Mistake(
            "the draft is not limited by the budget",
            _loop(plan=lambda most, room: most),
            "Near the end there is no room for a whole draft. The text is cut rightly, but drafting and checking "
            "tokens that can never be written is work for nothing: draft at most `room - 1`.",
            section=_ENDS,
        ),
        Mistake(
            "no room is left for the correction or bonus",
            _loop(plan=lambda most, room: min(most, room)),
            "A round emits one token more than it accepts. With room for m tokens, draft at most m - 1.",
            section=_ENDS,
        ),
        Mistake(
            "the block is not cut to the budget",
            _loop(plan=lambda most, room: most, cut=lambda new, room, eos_ids: cut(new, len(new), eos_ids)),
            "More tokens than `max_new_tokens` are written: limit the draft, and cut the block.",
            section=_ENDS,
        ),
        Mistake(
            "EOS inside the block is missed",
            _loop(cut=lambda new, room, eos_ids: new[:room]),
            "The loop looks for EOS at the end of a block only. Any of its tokens may be EOS; the text ends there.",
            section=_ENDS,
        ),
        Mistake(
            "the correction or bonus is left out",
            _loop(emit=lambda tokens, a, following: tokens[:a]),
            "Every round brings the accepted drafts AND one token of the target's own. Without it, a refused first "
            "draft would bring nothing at all.",
        ),
        Mistake(
            "refused drafts are written",
            _loop(emit=lambda tokens, a, following: [*tokens, following]),
            "Only the first `accepted` tokens of the draft go into the text, then the target's token.",
        ),
    ),
)

# --- 4.4 statistics


def _rounds_cases(seed: int) -> Sequence[Case]:
    """Full acceptance, rounds without a draft, and a last round that EOS or the budget cut short."""
    source = torch.Generator().manual_seed(seed)
    fixed = [[(4, 2, 3)], [(4, 4, 5), (4, 0, 1)], [(4, 4, 5), (4, 3, 4), (2, 2, 1)], [(0, 0, 1), (3, 1, 2), (1, 1, 2)]]
    for _ in range(10):
        trace = []
        for _ in range(int(torch.randint(2, 8, (), generator=source))):
            drafted = int(torch.randint(0, 6, (), generator=source))
            accepted = int(torch.randint(0, drafted + 1, (), generator=source))
            trace.append((drafted, accepted, accepted + 1))
        trace.append((3, 2, int(torch.randint(1, 3, (), generator=source))))  # cut
        fixed.append(trace)
    return [Case({"rounds": trace}) for trace in fixed]


def _run_statistics(rounds: list[tuple[int, int, int]]) -> dict[str, float]:
    from specdec_ref.economics import estimate_alpha

    drafted, accepted, emitted = zip(*rounds, strict=True)
    return {
        "alpha": estimate_alpha(accepted, drafted),
        "accepted_per_drafted": sum(accepted) / sum(drafted),
        "emitted_per_round": sum(emitted) / len(rounds),
    }


def _numbers(
    judged: Callable[[int, int], int] = lambda drafted, accepted: accepted + (accepted < drafted),
    emitted: Callable[[list[tuple[int, int, int]]], float] = lambda rounds: sum(e for _, _, e in rounds) / len(rounds),
) -> Callable[..., Any]:
    """Make the answer of statistics with a wrong number of judged tokens, or another count of emitted ones."""

    def answer(rounds: list[tuple[int, int, int]]) -> dict[str, float]:
        accepted = sum(a for _, a, _ in rounds)
        return {
            "alpha": accepted / max(1, sum(judged(d, a) for d, a, _ in rounds)),
            "accepted_per_drafted": accepted / sum(d for d, _, _ in rounds),
            "emitted_per_round": emitted(rounds),
        }

    return answer


def _mean_of_ratios(rounds: list[tuple[int, int, int]]) -> dict[str, float]:
    drafting = [(d, a) for d, a, _ in rounds if d]
    return {
        "alpha": sum(a / (a + (a < d)) for d, a in drafting) / len(drafting),
        "accepted_per_drafted": sum(a / d for d, a in drafting) / len(drafting),
        "emitted_per_round": sum(e for _, _, e in rounds) / len(rounds),
    }


_NUMBERS = "Three numbers that look alike"
RUN_STATISTICS = Exercise(
    id="4.4",
    function="run_statistics",
    title="Three numbers of a run",
    points=2,
    difficulty=2,
    minutes=8,
    section=_NUMBERS,
    rule="alpha is accepted over JUDGED: a round judges its accepted tokens and, unless all passed, the one it "
    "refused. The other two are accepted over drafted, and emitted tokens over rounds. All are ratios of sums.",
    hints=(
        "How many draft tokens did the rule look at in a round of 4 drafts of which 2 passed?",
        "Judged in a round: accepted + 1 if something was refused (accepted < drafted), else just accepted.",
        "`judged = sum(a + (a < d) for d, a, e in rounds)`, then `alpha = accepted / judged`; the tokens a round "
        "emitted are its third number.",
    ),
    cases=_rounds_cases,
    reference=_run_statistics,
    mistakes=(
        Mistake(
            "alpha taken for accepted over drafted",
            _numbers(judged=lambda drafted, accepted: drafted),
            "After the first refusal the rest of the draft is thrown away unjudged. It says nothing about alpha, so it "
            "must not be in the denominator.",
        ),
        Mistake(
            "a refusal counted in every round",
            _numbers(judged=lambda drafted, accepted: accepted + 1),
            "Where all drafts passed, or none was made, nothing was refused: the round judged just its accepted "
            "tokens.",
        ),
        Mistake(
            "emitted taken for accepted + 1",
            _numbers(emitted=lambda rounds: sum(a + 1 for _, a, _ in rounds) / len(rounds)),
            "In the last round EOS or the budget may cut tokens off. Count what the text got.",
        ),
        Mistake(
            "rounds without a draft left out",
            _numbers(emitted=lambda rounds: sum(e for _, _, e in rounds) / sum(1 for d, _, _ in rounds if d)),
            "A round without a draft costs a pass and brings a token. It counts as a round.",
        ),
        Mistake(
            "the mean of the rounds' ratios",
            _mean_of_ratios,
            "A mean of ratios lets a round with one draft weigh as much as one with five. Sum first, divide once.",
        ),
        Mistake(
            "emitted per drafted token",
            _numbers(emitted=lambda rounds: sum(e for _, _, e in rounds) / sum(d for d, _, _ in rounds)),
            "Per round means: divide by the number of rounds, each of which cost one pass of the target.",
        ),
    ),
)

# --- 4.5 streaming

_PIECES = [b"Hi", b" there", "é".encode(), b"\xc3", b"\xa9", b"\xf0\x9f", b"\xa6", b"\x8a", b"\xe6\x97", b"\xa5", b"."]
_WORDS = [[0], [1], [2], [3, 4], [5, 6, 7], [8, 9], [10]]
MARK = "\ufffd"


def decode_bytes(tokens: Iterable[int]) -> str:
    """Return the text of tokens that are pieces of bytes; half characters become the replacement mark."""
    return b"".join(_PIECES[token] for token in tokens).decode("utf-8", errors="replace")


def _stream_cases(seed: int) -> Sequence[Case]:
    """Characters over two, three and four bytes, whole and in parts, and a text that ends in the middle of one."""
    source = torch.Generator().manual_seed(seed)
    fixed = [[0], [0, 3, 4], [5, 6, 7], [0, 1, 10], [0, 8, 9, 10], [2, 5, 6, 7, 8, 9], [0, 5, 6], [1, 3]]
    for place in range(8):
        words = torch.randint(0, len(_WORDS), (int(torch.randint(2, 6, (), generator=source)),), generator=source)
        tokens = [token for word in words.tolist() for token in _WORDS[word]]
        fixed.append(tokens + ([5, 6] if place % 3 == 0 else []))
    return [Case({"tokens": tokens, "decode": _given(decode_bytes, "decode")}) for tokens in fixed]


def _drive_stream(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Tell after how many tokens each piece of text was shown; pieces without text do not count."""
    taken = 0

    def coming() -> Iterator[int]:
        nonlocal taken
        for token in arguments["tokens"]:
            taken += 1
            yield token

    pieces = function(coming(), arguments["decode"])
    if pieces is None:
        return None
    shown: dict[int, str] = {}
    for piece in itertools.islice(pieces, 100):
        if not isinstance(piece, str):
            return {"pieces": type(piece).__name__}
        shown[taken] = shown.get(taken, "") + piece
    return {"pieces": "str", "shown": [[after, text] for after, text in shown.items() if text]}


def _streaming(show: Callable[[list[int], str], tuple[str, str]], finish: bool = True) -> Callable[..., Iterator[str]]:
    """Make the answer of a streamer. `show(tokens, shown)` gives the piece and what counts as shown after it."""

    def answer(tokens: Iterable[int], decode: Any) -> Iterator[str]:
        so_far: list[int] = []
        shown = ""
        for token in tokens:
            so_far.append(token)
            piece, shown = show(so_far, shown)
            yield piece
        if finish:
            yield decode_bytes(so_far)[len(shown) :]

    return answer


def _held_back(so_far: list[int], shown: str) -> tuple[str, str]:
    text = decode_bytes(so_far)
    return ("", shown) if text.endswith(MARK) else (text[len(shown) :], text)


def _at_once(so_far: list[int], shown: str) -> tuple[str, str]:
    text = decode_bytes(so_far)
    return text[len(shown) :], text


def _whole_again(so_far: list[int], shown: str) -> tuple[str, str]:
    text = decode_bytes(so_far)
    return ("", shown) if text.endswith(MARK) else (text, text)


def _one_by_one(tokens: Iterable[int], decode: Any) -> Iterator[str]:
    return (decode_bytes([token]) for token in tokens)


def _thrown_away(tokens: Iterable[int], decode: Any) -> Iterator[str]:
    return (piece.replace(MARK, "") for piece in _one_by_one(tokens, decode))


def _whole_at_end(tokens: Iterable[int], decode: Any) -> Iterator[str]:
    yield decode_bytes(list(tokens))


STREAM_TEXT = Exercise(
    id="4.5",
    function="stream_text",
    title="Text as it comes, never half a character",
    points=2,
    difficulty=3,
    minutes=8,
    section="Half a character",
    rule="Decode all tokens so far, show what is new, but hold it back while the text ends in the replacement mark. At "
    "the end show what is left. The pieces joined are the decoding of the whole.",
    hints=(
        "A single token may be half a character, so a single token cannot be decoded. What can?",
        "Keep the tokens so far and how much text was shown. After each token decode everything; if the text ends in "
        '"\\ufffd", wait.',
        "`text = decode(so_far)`; `if not text.endswith('\\ufffd'): yield text[len(shown):]` and remember `shown = "
        "text`. After the loop: `yield decode(so_far)[len(shown):]`.",
    ),
    cases=_stream_cases,
    drive=_drive_stream,
    reference=_streaming(_held_back),
    mistakes=(
        Mistake(
            "each token is decoded by itself",
            _one_by_one,
            "A token is a piece of bytes. One that holds half a character decodes to a replacement mark, and so does "
            "the other half. Decode all tokens so far and show what is new.",
        ),
        Mistake(
            "half characters are thrown away",
            _thrown_away,
            "Without its first half the second half is no character either. Hold the bytes back instead.",
        ),
        Mistake(
            "half characters are shown",
            _streaming(_at_once),
            "While a character is unfinished the decoded text ends in a replacement mark. Shown once, it cannot be "
            "taken back: wait until the text no longer ends in it.",
        ),
        Mistake(
            "the whole text is shown again",
            _streaming(_whole_again),
            "Show only what is new since the last piece.",
        ),
        Mistake(
            "the rest is not shown at the end",
            _streaming(_held_back, finish=False),
            "A text may end in the middle of a character, when the budget is used up. What was held back must be shown "
            "then, or the pieces are not the whole text.",
        ),
        Mistake(
            "nothing is shown before the end",
            _whole_at_end,
            "The text is right, but that is no stream: yield what is new after each token.",
        ),
    ),
)

# --- 4.6 a batch with drafts of different lengths


def _batch_cases(seed: int) -> Sequence[Case]:
    """Rows agree up to a place of their own; drafts differ in length, and padding with 0 looks like agreement."""
    source = torch.Generator().manual_seed(seed)
    fixed = [([[3, 1]], [2]), ([[3, 1], [2, 5]], [1, 2]), ([[2, 4, 1], [5]], [3, 1]), ([[1, 1], [6, 0, 2]], [0, 2])]
    fixed.append(([[2, 5], [5, 1, 1], [3]], [0, 3, 4]))
    fixed.append(([[5, 1], [3, 1]], [0, 2]))  # after [5, 1] the target wants 0, and padding is 0 in most answers
    for _ in range(12):
        rows = int(torch.randint(2, 4, (), generator=source))
        lengths = torch.randint(1, 4, (rows,), generator=source).tolist()
        texts = [torch.randint(0, VOCAB, (length,), generator=source).tolist() for length in lengths]
        fixed.append((texts, torch.randint(0, 5, (rows,), generator=source).tolist()))
    return [_batch_case(texts, counts, number) for number, (texts, counts) in enumerate(fixed)]


def _batch_case(texts: list[list[int]], counts: list[int], number: int) -> Case:
    """Give each row a draft that agrees with the target up to a place that the case's number chooses."""
    toy, drafts = ToyTarget([[0]]), []
    for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
        so_far, wrong = list(text), (number + row) % (count + 2)
        for place in range(count):
            so_far.append((toy.favourite(so_far) + (place == wrong)) % VOCAB)
        drafts.append(so_far[len(text) :])
    held = [text[:-1] for text in texts]
    target = Made(functools.partial(ToyTarget, held), f"a target whose rows hold {held}")
    return Case({"target": target, "texts": texts, "drafts": drafts})


def _drive_batch(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(*arguments.values())
    target = arguments["target"]
    if isinstance(answer, list) and all(isinstance(row, torch.Tensor) for row in answer):
        answer = [row.tolist() for row in answer]
    return {"new_tokens": answer, "caches": target.rows, "passes": target.passes}


def _batch(
    own: bool = True,
    leading: bool = True,
    bonus_row: Callable[[int, int, int], int] = lambda accepted, count, width: accepted,
    forget: Callable[[int, int, int], int] = lambda accepted, count, width: width - accepted,
    width: Callable[[list[int]], int] = max,
    with_next: bool = True,
) -> Callable[..., Any]:
    """Make the answer of a batched round with the given faults; without any it is right."""

    def answer(target: Any, texts: list[list[int]], drafts: list[list[int]]) -> Any:
        most = width([len(draft) for draft in drafts])
        padded = [(draft + [0] * most)[:most] for draft in drafts]
        block = torch.tensor([[text[-1], *draft] for text, draft in zip(texts, padded, strict=True)])
        wanted = target.extend(block).argmax(-1).tolist()
        new, removed = [], []
        for favourites, draft, padding in zip(wanted, drafts, padded, strict=True):
            count = min(len(draft), most)
            judged = padding if not own else draft[:count]
            agree = [a == b for a, b in zip(judged, favourites, strict=False)]
            accepted = sum(itertools.takewhile(bool, agree)) if leading else sum(agree)
            following = favourites[bonus_row(accepted, count, most)]
            new.append([*judged[:accepted], following] if with_next else judged[:accepted])
            removed.append(forget(accepted, count, most))
        target.rollback(removed)
        return new

    return answer


BATCH_ROUND = Exercise(
    id="4.6",
    function="batch_round",
    title="One round for several texts",
    points=3,
    difficulty=4,
    minutes=10,
    section="Several texts at once",
    rule="One pass over the padded block. Each row is judged on its own draft alone, gets its accepted tokens and the "
    "favourite of the row after them, and forgets everything else that the pass wrote for it, padding included.",
    hints=(
        "Pad each draft to the longest one with any token id, put the row's last token in front, and make one tensor.",
        "Judge row b with `wanted[b]` and its own draft: `zip(draft, wanted[b])` stops where the shorter one ends, so "
        "the padding is never judged. The token after the accepted ones is `wanted[b][accepted]`.",
        "The pass wrote 1 + K tokens for EVERY row, K being the longest draft. Keep the last token and the accepted: "
        "`target.rollback([K - a for a in accepted])`.",
    ),
    cases=_batch_cases,
    drive=_drive_batch,
    reference=_batch(),
    mistakes=(
        Mistake(
            "padding is left in the cache",
            _batch(forget=lambda accepted, count, width: count - accepted),
            "The pass wrote K + 1 tokens for every row, padding too. A row with a short draft must forget its padding "
            "as well: K - a, with the K of the whole block.",
        ),
        Mistake(
            "padding is judged like a draft",
            _batch(own=False),
            "Padding was never drafted. If the target happens to want the padding's id, it looks accepted, though "
            "nobody proposed it. Judge only as many tokens as the row has drafts.",
        ),
        Mistake(
            "the bonus is read behind the padding",
            _batch(bonus_row=lambda accepted, count, width: width if accepted == count else accepted),
            "After all of a row's own drafts passed, its bonus stands in the row after its LAST DRAFT. The last row of "
            "the block has read the padding.",
        ),
        Mistake(
            "all drafts are cut to the shortest",
            _batch(width=min),
            "One row with a short draft would cost all others theirs. Pad the short ones instead.",
        ),
        Mistake(
            "agreements are counted instead of the leading run",
            _batch(leading=False),
            "A draft behind a refused one was judged after a text that is not written. Only the leading run counts.",
            section=_LOOP,
        ),
        Mistake(
            "the correction or bonus is left out",
            _batch(with_next=False),
            "Every row gets one token of the target's own after its accepted drafts.",
            section=_LOOP,
        ),
    ),
)

EXERCISES = [PROPOSE, CUT_BLOCK, SPECULATIVE_GENERATE, RUN_STATISTICS, STREAM_TEXT, BATCH_ROUND]

QUESTIONS = [
    Question(
        "4.a",
        "A decoder writes exactly the text of plain greedy decoding, but acceptance falls from round to round, even "
        "when a model drafts for itself. Where is the fault?",
        (
            Choice(
                "In the acceptance rule", "A wrong rule would change the text, or accept too little from the start."
            ),
            Choice(
                "In the draft's cache",
                "Right: the target repairs every bad guess, so the text hides the fault; a hole or junk in the draft's "
                "cache makes its guesses worse.",
            ),
            Choice(
                "Nowhere: real acceptance varies",
                "It varies between texts. But a model that drafts for itself, greedily in float32, must accept "
                "everything.",
            ),
        ),
        right="b",
    ),
    Question(
        "4.b",
        "Alpha is .8 and K is 4. An engine prints an acceptance rate of .59. What has happened?",
        (
            Choice(
                "It divides by all drafted tokens",
                "Right: 2.3616 / 4 is .5904. Drafts behind a refusal were never judged, but they are in its "
                "denominator.",
            ),
            Choice("Its draft is worse than ours", "The same rounds give both numbers."),
            Choice("It counts the bonus token", "The bonus would make the number larger, not smaller."),
        ),
        right="a",
    ),
    Question(
        "4.c",
        "In bfloat16 a greedy speculative text parts from the plain one at token 40. What do you do first?",
        (
            Choice(
                "Look at the lead of the best logit at token 40",
                "Right: if it is below the noise of a block pass, it is a near tie, and both texts are the target's.",
            ),
            Choice(
                "Report a bug: speculative decoding is lossless",
                "It is, for given logits. In half precision the logits of a block pass differ from those of single "
                "passes.",
            ),
            Choice(
                "Nothing: bfloat16 texts always differ",
                "They usually agree for long stretches. A difference where the lead is large IS a fault.",
            ),
        ),
        right="a",
    ),
    Question(
        "4.d",
        "There is room for 3 more tokens and K is 5. How many tokens should be drafted?",
        (
            Choice("5, and cut afterwards", "The text would be right, but drafting three of them is work for nothing."),
            Choice("3", "If all pass, the bonus would be the fourth token: one of the drafts was for nothing."),
            Choice("2", "Right: two drafts and the token that the target always adds fill the room exactly."),
        ),
        right="c",
    ),
]
