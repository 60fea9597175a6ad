"""Stage 08, EAGLE: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.plain import Plain, array, show
from specdec_course.checks.replay import Picture

VOCAB, WIDTH = 9, 4
_KNOWS, _HEAD = "Why is a feature easier to predict than a token?", "What does the head read?"
_CHAIN, _FORGET = "The chain: on with its own features", "What must be forgotten after a round?"
_VOCABULARY = "A smaller vocabulary"


def _source(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _whole(low: int, high: int, source: torch.Generator) -> int:
    """Return a whole number from `low` up to and without `high`."""
    return int(torch.randint(low, high, (), generator=source))


def _normal(source: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float64)


def _ids(count: int, source: torch.Generator) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=source).tolist()


# --- 8.1 the head's input


def _inputs_cases(seed: int) -> Sequence[Case]:
    """Texts of two to eight tokens; the target has read all but the last."""
    source = _source(seed)
    texts = [[3, 1], [3, 1, 4], [2, 5, 5, 1], [6, 0, 6, 2, 7]]
    texts += [_ids(_whole(2, 9, source), source) for _ in range(24)]
    return [
        Case(
            {
                "features": _normal(source, len(text) - 1, WIDTH),
                "embedding": _normal(source, VOCAB, WIDTH),
                "text": text,
            }
        )
        for text in texts
    ]


def _joined(features: torch.Tensor, embedding: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Put features and embeddings side by side, [m, 2D]."""
    return torch.cat([features, embedding[torch.tensor(tokens, dtype=torch.int64)]], dim=-1)


HEAD_INPUTS = Exercise(
    id="8.1",
    function="head_inputs",
    title="The pairs that the head reads",
    points=2,
    difficulty=2,
    minutes=6,
    section=_HEAD,
    rule="Pair i is the feature of token i, then the embedding of token i + 1: the token that was drawn from that "
    "feature's law. There is one pair for each feature.",
    hints=(
        "A feature knows the law of the next token, but not which token was drawn from it. Which token tells?",
        "There are n - 1 features and n tokens. The first token of the text is the token AFTER no feature at all.",
        "`tokens = torch.tensor(text[1:])`, then `torch.cat([features, embedding[tokens]], dim=-1)`.",
    ),
    cases=_inputs_cases,
    reference=lambda features, embedding, text: _joined(features, embedding, text[1:]),
    mistakes=(
        Mistake(
            "the feature is paired with its own token",
            lambda features, embedding, text: _joined(features, embedding, text[:-1]),
            "The feature of token i has read token i already, so its embedding tells the head nothing new. What the "
            "head lacks is the token that was drawn NEXT: token i + 1.",
            section=_KNOWS,
        ),
        Mistake(
            "the newest pair is left out",
            lambda features, embedding, text: _joined(features[:-1], embedding, text[1:-1]),
            "The last committed token has no feature yet, but it completes the newest pair: it came after the last "
            "feature. Without that pair the head would draft a token that is already written.",
            early=True,
        ),
        Mistake(
            "the feature is paired with the token after the next",
            lambda features, embedding, text: _joined(features[:-1], embedding, text[2:]),
            "That token is what the head shall predict. Pair i holds feature i and token i + 1, and says what token "
            "i + 2 may be.",
            early=True,
        ),
        Mistake(
            "the embedding comes first",
            lambda features, embedding, text: _joined(features, embedding, text[1:]).roll(WIDTH, -1),
            "The weights of the head expect the feature in the first half and the embedding in the second.",
        ),
        Mistake(
            "added instead of put side by side",
            lambda features, embedding, text: features + embedding[text[1:]],
            "A sum mixes the two for good, and the head could not weigh them apart. Put them side by side: 2 D numbers "
            "for each pair.",
            early=True,
        ),
        Mistake(
            "stacked one below the other",
            lambda features, embedding, text: torch.cat([features, embedding[text[1:]]]),
            "One pair is one row: join along the last dimension (`dim=-1`), not along the first.",
            early=True,
        ),
        Mistake(
            "token ids instead of embeddings",
            lambda features, embedding, text: torch.cat([features, torch.tensor(text[1:])[:, None].double()], dim=-1),
            "An id is a name, not a quantity: id 8 is not twice id 4. Look up the row of `embedding`.",
            early=True,
        ),
        Mistake(
            "the last token stands in every pair",
            lambda features, embedding, text: _joined(features, embedding, [text[-1]] * len(features)),
            "Each feature has a next token of its own. The last one belongs to the newest pair only.",
        ),
    ),
)

# --- 8.2 a law over the draft vocabulary, as the verifier wants it


def _token_cases(seed: int) -> Sequence[Case]:
    """Draft vocabularies that hold none of their own first ids, and others; several uniform numbers for each law."""
    source = _source(seed)
    fixed = [([1, 3, 4], 6, 3), ([2, 3, 5, 7], 9, 2), ([1, 2, 4, 6, 8], 9, 3), ([4], 6, 1)]
    for _ in range(5):
        size = _whole(3, 7, source)
        kept = torch.randperm(VOCAB, generator=source)[:size].sort().values.tolist()
        fixed.append((kept, VOCAB + _whole(1, 4, source), _whole(2, size + 2, source)))
    cases = []
    for number, (kept, vocab_size, top_k) in enumerate(fixed):
        logits = 1.5 * _normal(source, len(kept))
        if number == 0:
            logits = torch.tensor([1.0, 0.2, -0.4], dtype=torch.float64)
        for uniform in (0.02, 0.5, 0.97, _whole(0, 1000, source) / 1000 + 0.0003):
            cases.append(
                Case(
                    {
                        "draft_logits": logits,
                        "draft_to_target": torch.tensor(kept),
                        "vocab_size": vocab_size,
                        "top_k": top_k,
                        "uniform": uniform,
                    }
                )
            )
    return cases


def _draft_token(
    draft_logits: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int, top_k: int, uniform: float
) -> tuple[int, torch.Tensor]:
    from specdec_ref.sampling import SamplingSettings, draw, probabilities

    wide = draft_logits.new_full((vocab_size,), -torch.inf).index_copy(0, draft_to_target, draft_logits)
    law = probabilities(wide, SamplingSettings(1.0, top_k=top_k))
    return int(draw(law, torch.tensor(uniform, dtype=torch.float64))), law


def _filtered(draft_logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return the logits with all but the `top_k` largest at -inf; the plain version for models of mistakes."""
    if top_k >= len(draft_logits):
        return draft_logits
    least = draft_logits.sort(descending=True).values[top_k - 1]
    return torch.where(draft_logits >= least, draft_logits, -torch.inf)


def _inverted(law: torch.Tensor, uniform: float) -> int:
    """Return where the cumulative law passes the uniform number."""
    sums = law.cumsum(0)
    return min(int((sums <= uniform * float(sums[-1])).sum()), len(law) - 1)


def _spread(law: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int, rest: float = 0.0) -> torch.Tensor:
    """Return numbers over the draft vocabulary [R] as numbers over the target's [V], `rest` elsewhere."""
    wide = torch.full((vocab_size,), rest, dtype=law.dtype)
    wide[draft_to_target] = law
    return wide


def _drawing(
    law: Callable[[torch.Tensor, int], torch.Tensor] = lambda logits, top_k: _filtered(logits, top_k).softmax(-1),
    handed: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = lambda logits, law, top_k: law,
    place: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = _spread,
    choose: Callable[[torch.Tensor, float], int] = _inverted,
    name: Callable[[int, torch.Tensor], int] = lambda token, draft_to_target: int(draft_to_target[token]),
) -> Callable[..., Any]:
    """Make the answer of a draw with the given faults; without any it is right."""

    def answer(
        draft_logits: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int, top_k: int, uniform: float
    ) -> Any:
        drawn = law(draft_logits, top_k)
        token = choose(drawn, uniform)
        q = handed(draft_logits, drawn, top_k)
        return name(token, draft_to_target), place(q, draft_to_target, vocab_size)

    return answer


def _first_ids(law: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return torch.cat([law, law.new_zeros(vocab_size - len(law))])


def _zeros_elsewhere(
    draft_logits: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int, top_k: int, uniform: float
) -> Any:
    law = _spread(_filtered(draft_logits, top_k), draft_to_target, vocab_size).softmax(-1)
    return _inverted(law, uniform), law


def _not_scaled(
    draft_logits: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int, top_k: int, uniform: float
) -> Any:
    kept = _filtered(draft_logits, top_k) > -torch.inf
    return ANY, _spread(draft_logits.softmax(-1) * kept, draft_to_target, vocab_size)


def _as_point(law: torch.Tensor, uniform: float) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(_inverted(law, uniform)), len(law)).to(law.dtype)


def _point_mass(
    draft_logits: torch.Tensor, draft_to_target: torch.Tensor, vocab_size: int, top_k: int, uniform: float
) -> Any:
    law = _filtered(draft_logits, top_k).softmax(-1)
    token = _inverted(law, uniform)
    return int(draft_to_target[token]), _spread(_as_point(law, uniform), draft_to_target, vocab_size)


DRAFT_TOKEN = Exercise(
    id="8.2",
    function="draft_token",
    title="From draft ids to the target's",
    points=3,
    difficulty=3,
    minutes=10,
    section=_VOCABULARY,
    rule="q is the law the token was really drawn from: softmax over the kept logits, put at the target's ids, 0 "
    "everywhere else, with a sum of 1. The token is the target's id too.",
    hints=(
        "Make q first, over the draft's R tokens: keep the `top_k` largest logits, then softmax. Only then think about "
        "ids.",
        "`q = torch.zeros(vocab_size, dtype=...)`, and `q[draft_to_target] = law`: entry i of the law goes to the id "
        "`draft_to_target[i]`. What is not named there keeps probability 0.",
        "`least = draft_logits.topk(min(top_k, len(draft_logits))).values[-1]`; "
        "`law = draft_logits.masked_fill(draft_logits < least, -torch.inf).softmax(-1)`; scatter it; the token is "
        "`int((q.cumsum(0) <= uniform).sum())`, counted over q, so it is the target's id already.",
    ),
    cases=_token_cases,
    reference=_draft_token,
    uniforms=("uniform",),
    tolerance=1e-6,
    any_float=True,
    mistakes=(
        Mistake(
            "draft ids are used as target ids",
            _drawing(place=_first_ids, name=lambda token, draft_to_target: token),
            "Entry i of the head's law is not token i of the target: it is token `draft_to_target[i]`. Without the map "
            "the target is asked about other words than the head meant, and hardly any is accepted.",
        ),
        Mistake(
            "the token handed out is a draft id",
            _drawing(name=lambda token, draft_to_target: token),
            "q stands at the right ids, but the token is still an index into the draft vocabulary. The verifier looks "
            "up p and q at the token: it must be the target's id, `draft_to_target[i]`.",
        ),
        Mistake(
            "q stands at the draft's ids",
            _drawing(place=_first_ids),
            "The token is right, but q was put at ids 0..R-1. At the token's own id it is 0 or another token's "
            "probability. Scatter: `q[draft_to_target] = law`.",
        ),
        Mistake(
            "q covers the draft vocabulary only",
            _drawing(place=lambda law, draft_to_target, vocab_size: law),
            "The verifier subtracts q from p, token by token, so q needs all V entries. It is 0 where the head never "
            "drafts; there the residual is p itself, and supplies what the head cannot say.",
            early=True,
        ),
        Mistake(
            "absent tokens get a logit of 0",
            _zeros_elsewhere,
            "A logit of 0 is not a probability of 0: softmax turns it into exp(0) = 1, often more than a drafted token "
            "gets. Tokens that the head does not know need -inf, or must be filled in after the softmax.",
        ),
        Mistake(
            "masked after the softmax and not scaled to 1",
            _not_scaled,
            "The numbers left by the filter sum to less than 1, yet the token was drawn from their ratios. A q that is "
            "too small makes p/q too large: too much is accepted, and the text no longer follows the target. Divide by "
            "the sum, or mask the logits before the softmax.",
        ),
        Mistake(
            "the law handed in is not the one drawn from",
            _drawing(handed=lambda logits, law, top_k: logits.softmax(-1)),
            "The token was drawn after the filter, so q is the law after the filter. This is stage 02's rule again: "
            "q is what the token was REALLY drawn from.",
        ),
        Mistake(
            "the top-k filter is left out",
            _drawing(law=lambda logits, top_k: logits.softmax(-1)),
            "Keep only the `top_k` largest of the head's logits. The filter belongs to the sampling settings, and p "
            "and q use the same ones.",
        ),
        Mistake(
            "the likeliest token is taken instead of drawing",
            _drawing(choose=lambda law, uniform: int(law.argmax())),
            "An argmax is no draw from q. Judged with a soft q it makes the text drift: draw with `uniform`, or hand "
            "in a point mass.",
        ),
        Mistake(
            "q is a point mass on the drawn token",
            _point_mass,
            "A point mass says that this token was certain. It was drawn: with other luck it would have been another. "
            "Hand in the whole law.",
        ),
    ),
)

# --- 8.3 what the head forgets and reads after a round


def _after_cases(seed: int) -> Sequence[Case]:
    """Every number of accepted tokens for drafts of 0 to 4, and more."""
    source = _source(seed)
    wanted = [(count, accepted) for count in (2, 3, 1, 0, 4) for accepted in range(count + 1)]
    wanted += [(count, _whole(0, count + 1, source)) for count in (2, 3, 4, 5, 5, 6, 6, 4, 3, 5, 2, 6)]
    cases = []
    for count, accepted in wanted:
        tokens = torch.randperm(VOCAB, generator=source).tolist()  # all different: no mistake hides behind equal ids
        draft, following, last = tokens[:count], tokens[-1], tokens[-2]
        features = {
            "own_features": _normal(source, count, WIDTH),
            "target_features": _normal(source, count + 1, WIDTH),
        }
        numbers = {"num_accepted": accepted, "next_token": following}
        cases.append(Case({"last_token": last, "draft_tokens": draft, **numbers, **features}))
    return cases


def _after(
    forget: Callable[[int, int], int] = lambda drafted, accepted: max(0, drafted - 1),
    start: Callable[[int, int], int] = lambda drafted, accepted: 0,
    end: Callable[[int, int], int] = lambda drafted, accepted: accepted + 1,
    text: Callable[[int, list[int], int, int], list[int]] = lambda last, draft, a, following: [*draft[:a], following],
    replaced: Callable[[int, int], int] = lambda drafted, accepted: 0,
    own_only: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a clean-up with the given faults; without any it is right."""

    def answer(
        last_token: int,
        draft_tokens: list[int],
        num_accepted: int,
        next_token: int,
        own_features: torch.Tensor,
        target_features: torch.Tensor,
    ) -> Any:
        drafted = len(draft_tokens)
        first, last = start(drafted, num_accepted), end(drafted, num_accepted)
        own = replaced(drafted, num_accepted)
        true = target_features[own:] if not own_only else target_features[:0]
        features = torch.cat([own_features[:own], true])[first:last]
        tokens = text(last_token, draft_tokens, num_accepted, next_token)[first:last]
        return {"forget": forget(drafted, num_accepted), "features": features, "tokens": tokens}

    return answer


def _kept_own(drafted: int, accepted: int) -> int:
    """Return how many pairs of its own hold accepted tokens: the last draft token was never fed."""
    return min(accepted, max(0, drafted - 1))


def _replay_after(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return both clean-ups as lines, with each feature called by where it comes from."""
    shown = ("last_token", "draft_tokens", "num_accepted", "next_token")
    rows = {
        tuple(row.round(6)): f"{kind} feature {place}"
        for name, kind in (("own_features", "own"), ("target_features", "the target's"))
        for place, row in enumerate(array(arguments[name]).reshape(-1, WIDTH))
    }
    lines = [", ".join(f"{name} = {show(arguments[name])}" for name in shown)]
    return Picture(lines=[*lines, f"right: {_clean_up(expected, rows)}", f"yours: {_clean_up(seen, rows)}"])


def _clean_up(observed: Plain, rows: dict[tuple[float, ...], str]) -> str:
    """Return "forget 2, then read (the target's feature 0; 4), ..." for what a clean-up gave."""
    if observed["error"]:
        return f"{observed['error']['type']}: {observed['error']['message']}"
    items = observed["value"].get("items", {})
    parts = [items.get(name, {}) for name in ("forget", "features", "tokens")] if isinstance(items, dict) else [{}]
    if [part.get("kind") for part in parts] != ["int", "tensor", "list"] or parts[1]["shape"][1:] != [WIDTH]:
        return show(observed["value"])
    features = [rows.get(tuple(row.round(6)), "another feature") for row in array(parts[1])]
    tokens = [show(token) for token in parts[2]["items"]]
    pairs = ", ".join(f"({feature}; {token})" for feature, token in zip_longest(features, tokens, fillvalue="nothing"))
    return f"forget {show(parts[0])}, then read {pairs or 'nothing'}"


AFTER_ROUND = Exercise(
    id="8.3",
    function="after_round",
    title="After the verdict: forget, then reread",
    points=3,
    difficulty=4,
    minutes=12,
    section=_FORGET,
    rule="All K - 1 pairs of its own are forgotten. Then the 1 + a pairs of this round are read with the TARGET's "
    "features: of the last committed token and of the accepted drafts, each with the token that followed it.",
    hints=(
        "Which pairs did the head add while it drafted? Each drafted token but the last was fed once, with a feature "
        "that the head had guessed. How many of those features are true?",
        "The target's pass read the last committed token and all drafts: K + 1 features. True for the text are those "
        "of the last committed token and of the accepted drafts: the first 1 + a. Which token came after each?",
        '`{"forget": max(0, len(draft_tokens) - 1), "features": target_features[: 1 + num_accepted], '
        '"tokens": [*draft_tokens[:num_accepted], next_token]}`',
    ),
    cases=_after_cases,
    reference=_after(),
    replay=_replay_after,
    mistakes=(
        Mistake(
            "after an empty draft a negative number is forgotten",
            _after(forget=lambda drafted, accepted: drafted - 1),
            "With K = 0 nothing was fed, so nothing is forgotten: 0, not -1. A negative rollback would make the cache "
            "longer than what it holds.",
        ),
        Mistake(
            "pairs of the draft are left in the cache",
            _after(forget=lambda drafted, accepted: 0),
            "The pairs of the draft hold guesses, and those of refused tokens hold words that are not in the text. All "
            "K - 1 must go before the true ones are read.",
        ),
        Mistake(
            "the pairs of accepted tokens are kept",
            _after(
                forget=lambda drafted, accepted: max(0, drafted - 1) - _kept_own(drafted, accepted),
                start=_kept_own,
            ),
            "The TOKENS were right, the features in those pairs are still the head's own guesses. The target has "
            "computed the true ones meanwhile, at no extra cost. Forget all K - 1 pairs, and read them again.",
            early=True,
        ),
        Mistake(
            "every feature is the head's own",
            _after(replaced=lambda drafted, accepted: drafted, own_only=True),
            "`own_features` are the head's guesses, and there is none of the last draft token. The target's pass has "
            "given a true feature for each: read `target_features`.",
            early=True,
        ),
        Mistake(
            "the head's own features are read again",
            _after(replaced=lambda drafted, accepted: accepted),
            "`own_features` are the head's guesses. An accepted token makes the token right, not the guess of its "
            "feature. Read `target_features`.",
        ),
        Mistake(
            "one pair too many is forgotten",
            _after(forget=lambda drafted, accepted: drafted),
            "The last draft token was drawn and never fed, so the draft added K - 1 pairs. The K-th one back is a true "
            "pair of the text.",
        ),
        Mistake(
            "only the pairs of refused tokens are forgotten",
            _after(forget=lambda drafted, accepted: max(0, drafted - 1 - accepted)),
            "The pairs of accepted tokens are read again, with true features; if the old ones stay, these tokens stand "
            "in the cache twice. Forget all K - 1.",
        ),
        Mistake(
            "features of refused tokens are kept",
            _after(
                end=lambda drafted, accepted: drafted + 1,
                text=lambda last, draft, a, following: [*draft, following],
            ),
            "A refused token is not in the text, and its feature has read it. Only the first 1 + a features of the "
            "pass belong to the text.",
            early=True,
        ),
        Mistake(
            "only the newest pair is read",
            _after(start=lambda drafted, accepted: accepted),
            "The pairs of the accepted tokens were forgotten, so without reading them again the cache has a hole. Read "
            "all 1 + a pairs of the round.",
            early=True,
        ),
        Mistake(
            "the pair of the correction or bonus is missing",
            _after(end=lambda drafted, accepted: accepted),
            "The newest pair is the one that the next draft comes from: the feature before the correction or bonus, "
            "with that token. There are 1 + a pairs, not a.",
            early=True,
        ),
        Mistake(
            "each feature is paired with its own token",
            _after(text=lambda last, draft, a, following: [last, *draft[:a]]),
            "The first feature of the pass is that of the last committed token. It is paired with what came AFTER it: "
            "the first accepted draft, or the correction.",
            section=_HEAD,
        ),
        Mistake(
            "the refused token stands in the newest pair",
            _after(text=lambda last, draft, a, following: [*draft[: a + 1], following][: a + 1]),
            "The first refused draft is not in the text. In its place stands the correction, `next_token`.",
        ),
    ),
)

# --- 8.4 a chain with a toy head


class ToyHead:
    """A head small enough to compute by hand: what it predicts hangs on the pair, and on all pairs before it."""

    def __init__(self, seed: int, size: int = 6) -> None:
        source = _source(seed)
        self.mix, self.table = _normal(source, WIDTH, WIDTH), 1.5 * _normal(source, VOCAB, WIDTH)
        self.rows = 2.0 * _normal(source, size, WIDTH)
        self.pairs: list[Any] = []

    def read(self, features: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Add pairs to the cache; return the feature that is predicted after each, [m, D].

        Raises
        ------
        ValueError
            If there is not one token, an int, for each feature [m, D].
        """
        if features.dim() != 2 or features.shape[1] != WIDTH or len(features) != len(tokens):
            raise ValueError(f"features is {tuple(features.shape)}; needed is [{len(tokens)}, {WIDTH}], a row a token")
        outputs = []
        for feature, token in zip(features, tokens, strict=True):
            self.pairs.append([[round(float(x), 6) for x in feature], int(token)])
            past = math.sin(sum(float(pair[0][0]) + pair[1] for pair in self.pairs))
            outputs.append(torch.tanh(self.mix @ feature + self.table[int(token)] + 0.8 * past))
        return torch.stack(outputs)

    def logits(self, feature: torch.Tensor) -> torch.Tensor:
        """Return logits over the draft vocabulary, [R], for one feature [D]."""
        return self.rows @ feature


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _pick(kept: tuple[int, ...], logits: torch.Tensor, uniform: Any) -> tuple[int, torch.Tensor]:
    """Draw from softmax(logits / 0.8) over draft ids; return the target's id, and the law over the target's ids."""
    ids = torch.tensor(kept)
    law = _spread((logits / 0.8).softmax(-1), ids, VOCAB)
    return _inverted(law, float(uniform)), law


def _chain_cases(seed: int) -> Sequence[Case]:
    """One or several true pairs to read first, drafts of one to five tokens."""
    source = _source(seed)
    sizes = [(1, 2), (2, 2), (1, 1), (3, 3), (2, 4), (1, 5)]
    sizes += [(_whole(1, 6, source), _whole(1, 6, source)) for _ in range(8)]
    cases = []
    for number, (held, count) in enumerate(sizes):
        kept = tuple(torch.randperm(VOCAB, generator=source)[:6].sort().values.tolist())
        shared = {
            "head": Made(functools.partial(ToyHead, 100 * seed + number), "a toy head"),
            "features": _normal(source, held, WIDTH),
            "tokens": _ids(held, source),
        }
        pick = Made(functools.partial(_itself, functools.partial(_pick, kept)), "pick")
        for low, high in ((0.9, 0.05), (0.1, 0.95)):  # two cases that differ in their luck alone
            luck = 0.05 * torch.rand(count, generator=source, dtype=torch.float64)
            luck[::2] += low
            luck[1::2] += high - 0.05
            cases.append(Case({**shared, "draft_uniforms": luck, "pick": pick}))
    return cases


def _drive_chain(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(*arguments.values())
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], torch.Tensor):
        answer = answer[0], list(answer[1])  # a stacked [K, V] tensor of laws will do
    return {"answer": answer, "pairs read": arguments["head"].pairs}


def _drafting(
    first: Callable[[torch.Tensor, list[int]], tuple[torch.Tensor, list[int]]] = lambda features, tokens: (
        features,
        tokens,
    ),
    row: int = -1,
    fed_feature: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda output, true: output,
    fed_token: Callable[[int, list[int]], int] = lambda token, tokens: token,
    uniform: Callable[[torch.Tensor, int], torch.Tensor] = lambda uniforms, i: uniforms[i],
    choose: Callable[[int, torch.Tensor], int] = lambda token, law: token,
    law_of: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor] = lambda laws, law: law,
    feed: bool = True,
    feed_last: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a chain with the given faults; without any it is right."""

    def answer(head: Any, features: torch.Tensor, tokens: list[int], draft_uniforms: torch.Tensor, pick: Any) -> Any:
        output = head.read(*first(features, tokens))[row]
        drafted: list[int] = []
        laws: list[torch.Tensor] = []
        for i in range(len(draft_uniforms)):
            token, law = pick(head.logits(output), uniform(draft_uniforms, i))
            drafted.append(choose(token, law))
            laws.append(law_of(laws, law))
            if feed and (feed_last or i + 1 < len(draft_uniforms)):
                output = head.read(fed_feature(output, features[-1])[None], [fed_token(drafted[-1], tokens)])[-1]
        return drafted, laws

    return answer


DRAFT_CHAIN = Exercise(
    id="8.4",
    function="draft_chain",
    title="A chain of drafted tokens",
    points=3,
    difficulty=3,
    minutes=12,
    section=_CHAIN,
    rule="Read the true pairs; what the head predicts after the last one gives the first token's law. Then go on: the "
    "predicted feature with the token just drawn is the next pair. The last drawn token is not fed.",
    hints=(
        "`head.read(features, tokens)` returns one predicted feature for each pair. Which of them knows everything?",
        "Keep one variable for the latest predicted feature. Draw from its logits; to go on, read the pair of THIS "
        "feature and the token just drawn, and the answer is the new feature.",
        "`feature = head.read(features, tokens)[-1]`, then for i in range(K): if i > 0, "
        "`feature = head.read(feature[None], [drafted[-1]])[-1]`; "
        "`token, law = pick(head.logits(feature), draft_uniforms[i])`.",
    ),
    cases=_chain_cases,
    drive=_drive_chain,
    reference=_drafting(),
    uniforms=("draft_uniforms",),
    tolerance=1e-6,
    any_float=True,
    mistakes=(
        Mistake(
            "the last true feature is fed again and again",
            _drafting(fed_feature=lambda output, true: true),
            "The second pair belongs to another place of the text. Its feature is the one that the head has just "
            "predicted: feed that forward.",
        ),
        Mistake(
            "nothing is fed back",
            _drafting(feed=False),
            "All tokens were drawn after the same feature, so all are guesses for one and the same place. Each token "
            "must be read, with the predicted feature, before the next is drawn.",
        ),
        Mistake(
            "the token in the pair is not the one just drawn",
            _drafting(fed_token=lambda token, tokens: tokens[-1]),
            "The drawn token is what a feature cannot know. A pair with an older token goes on as if nothing had been "
            "drafted.",
            section=_KNOWS,
        ),
        Mistake(
            "the feature after the first pair is used",
            _drafting(row=0),
            "`read` returns a feature for each pair. The law of the first draft token comes after the LAST one.",
        ),
        Mistake(
            "only the newest true pair is read",
            _drafting(first=lambda features, tokens: (features[-1:], tokens[-1:])),
            "The head attends to all pairs of the text. What was accepted in the last round must be in its cache too.",
            section=_FORGET,
        ),
        Mistake(
            "the last draft token is fed as well",
            _drafting(feed_last=True),
            "Nothing is drawn after it in this round, and its pair would hold a guess. After the verdict it is read "
            "with the target's feature.",
        ),
        Mistake(
            "the most likely token is taken instead of drawing",
            _drafting(choose=lambda token, law: int(law.argmax())),
            "The verifier believes that each token was DRAWN from the law you hand back. An argmax judged with a soft "
            "q makes the text drift away from the target.",
            section=_VOCABULARY,
        ),
        Mistake(
            "one uniform number for all draft tokens",
            _drafting(uniform=lambda uniforms, i: uniforms[0]),
            "Each draw needs a number of its own; with one number for all, the tokens of a draft are not independent.",
        ),
        Mistake(
            "the first law is handed back for every token",
            _drafting(law_of=lambda laws, law: laws[0] if laws else law),
            "Each token has a law of its own: the one it was drawn from. Hand back what `pick` gave with it.",
        ),
    ),
)

# --- 8.5 what a small vocabulary costs


def _ceiling_cases(seed: int) -> Sequence[Case]:
    """One to six positions; draft vocabularies that hold the target's favourite, or lack it."""
    source = _source(seed)
    fixed = [(1, [1, 3]), (2, [1, 2, 4]), (1, [4, 5, 6]), (3, [1, 2, 5, 6])]
    for _ in range(24):
        size = _whole(2, VOCAB - 1, source)
        fixed.append((_whole(1, 7, source), torch.randperm(VOCAB, generator=source)[:size].sort().values.tolist()))
    return [
        Case(
            {
                "target_probs": (1.5 * _normal(source, places, VOCAB)).softmax(-1),
                "draft_logits": 1.5 * _normal(source, places, len(kept)),
                "draft_to_target": torch.tensor(kept),
            }
        )
        for places, kept in fixed
    ]


def _vocabulary_cost(
    target_probs: torch.Tensor, draft_logits: torch.Tensor, draft_to_target: torch.Tensor
) -> dict[str, float]:
    from specdec_ref.sampling import SamplingSettings, probabilities

    wide = torch.full_like(target_probs, -torch.inf).index_copy(-1, draft_to_target, draft_logits)
    draft_probs = probabilities(wide, SamplingSettings(1.0))
    alpha = torch.minimum(target_probs, draft_probs).sum(-1).mean()
    return {"alpha": float(alpha), "ceiling": float(target_probs[:, draft_to_target].sum(-1).mean())}


def _costs(
    alpha: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = lambda p, q, ids: torch.minimum(
        p[:, ids], q
    ).sum(-1),
    ceiling: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = lambda p, q, ids: p[:, ids].sum(-1),
    law: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda logits, ids: logits.softmax(-1),
    combine: Callable[[torch.Tensor], torch.Tensor] = lambda values: values.double().mean(),
) -> Callable[..., Any]:
    """Make the answer with the given faults; without any it is right."""

    def answer(target_probs: torch.Tensor, draft_logits: torch.Tensor, draft_to_target: torch.Tensor) -> Any:
        q = law(draft_logits, draft_to_target)
        found = alpha(target_probs, q, draft_to_target), ceiling(target_probs, q, draft_to_target)
        return {"alpha": float(combine(found[0])), "ceiling": float(combine(found[1]))}

    return answer


def _with_zeros(p: torch.Tensor, q: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the acceptance of a law that gives each absent token the logit 0; `q` are logits."""
    wide = torch.zeros_like(p).index_copy(-1, ids, q)
    return torch.minimum(p, wide.softmax(-1)).sum(-1)


def _scaled(p: torch.Tensor, q: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.minimum(p[:, ids] / p[:, ids].sum(-1, keepdim=True), q).sum(-1)


VOCABULARY_COST = Exercise(
    id="8.5",
    function="vocabulary_cost",
    title="What a small vocabulary costs",
    points=2,
    difficulty=3,
    minutes=8,
    section=_VOCABULARY,
    rule="A drafted token passes with chance sum over x of min(p(x), q(x)). Outside the draft vocabulary q is 0, so no "
    "q can get more than p's own mass inside of it.",
    hints=(
        "Which tokens add to sum min(p, q)? Only those that q can draw: compare the R numbers of q with p at their "
        "target ids.",
        "`target_probs[:, draft_to_target]` is p of the draft vocabulary, [N, R]. Leave it as it is: p is the target's "
        "law, whatever the head can say.",
        "`inside = target_probs[:, draft_to_target]`; alpha is "
        "`torch.minimum(inside, draft_logits.softmax(-1)).sum(-1).mean()`, the ceiling `inside.sum(-1).mean()`.",
    ),
    cases=_ceiling_cases,
    reference=_vocabulary_cost,
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "draft ids are used as target ids",
            _costs(
                alpha=lambda p, q, ids: torch.minimum(p[:, : len(ids)], q).sum(-1),
                ceiling=lambda p, q, ids: p[:, : len(ids)].sum(-1),
            ),
            "Column i of the head's logits is token `draft_to_target[i]`, not token i. Pick p with "
            "`target_probs[:, draft_to_target]`.",
        ),
        Mistake(
            "the share of the vocabulary instead of its mass",
            _costs(ceiling=lambda p, q, ids: torch.full((len(p),), len(ids) / p.shape[1])),
            "R / V counts tokens. Tokens are not equally likely: a few hundred common ones may hold nearly all of p. "
            "Add up p.",
        ),
        Mistake(
            "the target's law is cut and scaled up",
            _costs(alpha=_scaled),
            "The target may say any token. Scaled to the draft vocabulary, p is another law, and alpha looks better "
            "than it is: it could pass the ceiling.",
        ),
        Mistake(
            "agreement of the favourites",
            _costs(alpha=lambda p, q, ids: (ids[q.argmax(-1)] == p.argmax(-1)).double()),
            "Acceptance is not whether both like the same word best. That is so for greedy decoding only; here tokens "
            "are drawn, and sum min(p, q) pass.",
        ),
        Mistake(
            "products instead of minima",
            _costs(alpha=lambda p, q, ids: (p[:, ids] * q).sum(-1)),
            "Sum p q is the chance that two independent draws are equal. The rule of stage 02 accepts more: x passes "
            "with min(1, p/q), and q min(1, p/q) = min(p, q).",
        ),
        Mistake(
            "ratios averaged without their weights",
            _costs(alpha=lambda p, q, ids: (p[:, ids] / q).clamp(max=1).mean(-1)),
            "min(1, p/q) is the chance for ONE token; token x is drawn with probability q(x). Weighted with q it is "
            "min(p, q), and those are summed.",
        ),
        Mistake(
            "summed over the positions",
            _costs(combine=lambda values: values.sum()),
            "Both are rates for one token: average over the N positions.",
        ),
        Mistake(
            "the ceiling counts favourites",
            _costs(ceiling=lambda p, q, ids: torch.isin(p.argmax(-1), ids).double()),
            "That is the ceiling for greedy decoding. When tokens are drawn, the mass of ALL tokens inside counts.",
        ),
        Mistake(
            "absent tokens get a logit of 0",
            _costs(law=lambda logits, ids: logits, alpha=_with_zeros),
            "A logit of 0 becomes exp(0) = 1 in the softmax: the head would draft tokens that it never learned. q is 0 "
            "outside the draft vocabulary.",
        ),
    ),
)

EXERCISES = [HEAD_INPUTS, DRAFT_TOKEN, AFTER_ROUND, DRAFT_CHAIN, VOCABULARY_COST]

QUESTIONS = [
    Question(
        "8.a",
        "The target's feature at token t already holds the law of token t+1. Why does the head also get token t+1 "
        "itself?",
        (
            Choice(
                "Because the feature forgets the tokens before it",
                "It does not: attention has put what matters of the whole text into it.",
            ),
            Choice(
                "Because a law does not say what was drawn from it",
                "Right: with several likely next tokens the next feature could be any of several. The drawn token "
                "settles which.",
            ),
            Choice(
                "To make the head's input as wide as two tokens",
                "Width is no aim. With the feature's OWN token the input would be as wide, and would say nothing new.",
            ),
        ),
        right="b",
    ),
    Question(
        "8.b",
        "All four drafts of a round were accepted. Which pairs does the head read before it drafts again?",
        (
            Choice(
                "The last two: the fourth draft and the bonus",
                "So it is for a draft MODEL, whose entries hold tokens, and those were right. The pairs of this head "
                "hold features, and those were guesses.",
            ),
            Choice(
                "None, everything was right",
                "The tokens were. The features in the pairs were the head's own, and the target has true ones now.",
            ),
            Choice(
                "Five: with the target's features of the last committed token and of all four drafts",
                "Right: 1 + a pairs, one pass over them, and the cache holds true features only.",
            ),
        ),
        right="c",
    ),
    Question(
        "8.c",
        "The draft vocabulary lacks a token that the target gives probability .3. How often does the text get it?",
        (
            Choice(
                "Never, but it is faster",
                "Then the text would follow another law. What the head cannot say, the correction says.",
            ),
            Choice(
                "With .3, as without speculation",
                "Right: there q is 0, so the residual max(0, p - q) holds its whole .3, and refusals draw from it.",
            ),
            Choice(
                "With .3 times the chance of a refusal",
                "It is drawn only after a refusal, yes, but from the residual, where it weighs .3 over all that is "
                "missing. Together that is .3.",
            ),
        ),
        right="b",
    ),
]
