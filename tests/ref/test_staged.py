"""Staged drafts: exact at both levels, no uniform number used twice, caches of all three models in step."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from scipy import stats

from specdec_ref import rows as rows_module
from specdec_ref import sampling
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, Drafter, ModelDrafter, NgramDrafter, StagedDrafter
from specdec_ref.law import fixed_draft, path_probs, sampled_drafts, speculative_law, staged_drafts, target_law
from specdec_ref.measure import Run
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, inner_seeds, probabilities
from tests.ref import wrong_rules as wrong
from tests.ref.helpers import Watched, random_table, random_table_lm, spy, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = 1e-12
TEXT = (0, 1)
PROMPTS = [[1, 2, 3], [4], [3, 3, 2, 1, 0], [2, 1]]


def law(seed: int, vocab: int = 3) -> torch.Tensor:
    return random_table(vocab, seed).softmax(-1)


def staged(middle: int = 1, micro: int = 2, vocab: int = 5, count: int = 2, **options) -> StagedDrafter:
    tables = random_table_lm(vocab, middle), random_table_lm(vocab, micro)
    return StagedDrafter(tables[0], ModelDrafter(tables[1]), count, **options)


# The law, counted


@pytest.mark.parametrize("inner", ["sampled", "fixed"])
@pytest.mark.parametrize(("outer_count", "inner_count"), [(1, 1), (2, 1), (3, 2), (2, 3)])
def test_staged_drafts_leave_the_targets_law_unchanged(inner: str, outer_count: int, inner_count: int):
    target, middle, micro = law(0), law(1), law(2)

    def inner_draft(text):
        if inner == "sampled":
            return sampled_drafts(micro, text, inner_count)
        return fixed_draft(tuple((text[-1] + step) % 3 for step in range(inner_count)))

    drafter = partial(staged_drafts, middle, inner_draft, num_draft_tokens=outer_count)
    found = speculative_law(target, drafter, TEXT, outer_count + 1, outer_count + 1)
    assert float((found - target_law(target, TEXT, outer_count + 1)).abs().max()) < EXACT


def test_the_inner_level_gives_what_the_middle_model_would_have_written():
    middle, micro = law(1), law(2)
    drafts = staged_drafts(middle, partial(sampled_drafts, micro, num_draft_tokens=2), TEXT, 3)
    assert drafts.probs is not None
    torch.testing.assert_close(drafts.probs, path_probs(middle, TEXT, drafts.tokens)[:, :3])
    product = drafts.probs.gather(-1, drafts.tokens[..., None]).squeeze(-1).prod(-1)
    torch.testing.assert_close(drafts.weights, product, atol=EXACT, rtol=0)


def test_a_staged_draft_that_names_the_smallest_models_law_is_caught():
    """The tokens follow the middle model; a q of the micro model would be another text."""
    target, middle, micro = law(0), law(1), law(2)

    def fault(text):
        drafts = staged_drafts(middle, partial(sampled_drafts, micro, num_draft_tokens=2), text, 2)
        return wrong.Drafts(drafts.tokens, drafts.weights, path_probs(micro, text, drafts.tokens)[:, :2])

    found = speculative_law(target, fault, TEXT, 3, 1)
    assert float((found - target_law(target, TEXT, 3)).abs().max()) > 1e-3


def test_an_inexact_inner_level_makes_the_outer_level_inexact():
    target, middle, micro = law(0), law(1), law(2)

    def fault(text):
        inner = partial(sampled_drafts, micro, num_draft_tokens=2)
        weights = speculative_law(middle, inner, text, 2, 2, wrong.replacement_from_p).flatten()
        drafts = sampled_drafts(middle, text, 2)
        return wrong.Drafts(drafts.tokens, weights, drafts.probs)

    found = speculative_law(target, fault, TEXT, 3, 1)
    assert float((found - target_law(target, TEXT, 3)).abs().max()) > 1e-3


# The drafter itself


@pytest.mark.parametrize("how", [SamplingSettings(), SamplingSettings(0.7, top_k=3, repetition_penalty=1.3)])
def test_the_law_handed_in_is_the_middle_models_given_all_tokens_before(how: SamplingSettings):
    middle, checked = random_table_lm(5, 1), 0
    texts: list[Rows] = []

    def look(event: str, _: Drafter, value: object) -> None:
        nonlocal checked
        if isinstance(value, Rows):
            texts.append(value)
        if not isinstance(value, Draft):
            return
        assert value.probs is not None
        for row, text in enumerate(texts[0].tokens):
            for i in range(int(value.counts[row])):
                before = [*text, *value.tokens[row, :i].tolist()]
                wanted = probabilities(uncached(middle, before)[-1:], how, torch.tensor([before]))[0]
                torch.testing.assert_close(value.probs[row, i], wanted, atol=1e-12, rtol=0)
                checked += 1

    drafter = Watched(staged(), look)
    list(speculate(random_table_lm(5, 0), drafter, PROMPTS, how, num_draft_tokens=4, max_new_tokens=12))
    assert checked > 60


def test_sampled_text_follows_the_targets_law():
    """Chi-square on the first three new tokens of 4,000 rows; a true decoder fails once in a million runs."""
    count, target = 4000, random_table_lm(3, 0)
    found = collect(speculate(target, staged(vocab=3), [[0, 1]] * count, num_draft_tokens=2, max_new_tokens=3, seeds=7))
    expected = target_law(law(0), TEXT, 3).flatten() * count
    seen = torch.zeros(27)
    for a, b, c in found:
        seen[9 * a + 3 * b + c] += 1
    rare = expected < 5
    observed = [*seen[~rare].tolist(), float(seen[rare].sum())]
    wanted = [*expected[~rare].tolist(), float(expected[rare].sum())]
    assert stats.chisquare(observed, wanted).pvalue > 1e-6


def test_no_uniform_number_serves_twice_on_any_level(monkeypatch: pytest.MonkeyPatch):
    keys: Counter[tuple[int, int, int, int]] = Counter()

    def counted(seeds, rounds, positions, purpose):
        for seed, number, line in zip(seeds.tolist(), rounds.tolist(), positions.tolist(), strict=True):
            keys.update((seed, number, position, int(purpose)) for position in line)
        return sampling.uniforms(seeds, rounds, positions, purpose)

    monkeypatch.setattr(rows_module, "uniforms", counted)
    nested = StagedDrafter(random_table_lm(5, 1), staged(2, 3), 3)
    prompt = [[1, 2, 3]]
    collect(speculate(random_table_lm(5, 0), nested, prompt, num_draft_tokens=5, max_new_tokens=30, seeds=3))
    assert keys.most_common(1)[0][1] == 1
    assert len({seed for seed, *_ in keys}) == 3  # one for each level that draws
    assert inner_seeds([3]) != inner_seeds([4])


@pytest.mark.parametrize("inner", ["model", "ngram", "staged"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_greedy_text_is_the_targets_own(inner: str, batch: int):
    target, prompts = random_table_lm(5, 0), PROMPTS[:batch]
    inners = {"model": ModelDrafter(random_table_lm(5, 2)), "ngram": NgramDrafter(), "staged": staged(2, 3)}
    drafter = StagedDrafter(random_table_lm(5, 1), inners[inner], 2)
    stop = Stop((0,))
    plain = collect(generate(target, prompts, GREEDY, max_new_tokens=25, stop=stop))
    assert collect(speculate(target, drafter, prompts, GREEDY, max_new_tokens=25, stop=stop)) == plain


def test_three_equal_models_accept_everything_for_more_than_a_hundred_tokens():
    """[13] A cache that lacks a token after full acceptance, on any level, would show as a refusal."""
    lm, run = tiny_lm(), Run()
    drafter = StagedDrafter(lm, ModelDrafter(lm), 2, watch=run.rounds.append)
    rounds = list(speculate(lm, drafter, [[5, 9, 2], [7]], GREEDY, num_draft_tokens=5, max_new_tokens=120))
    assert all(one.num_accepted == one.num_drafted for one in rounds)
    assert all(one.num_accepted == one.num_drafted for one in run.rounds)
    assert sum(map(len, (one.tokens[0] for one in rounds))) == 120


def test_each_level_has_its_statistics():
    """What the inner rounds emit is what the outer rounds draft, row by row."""
    inner, outer = Run(), Run()
    drafter = staged(watch=inner.rounds.append)
    target = random_table_lm(5, 0)
    outer.rounds += speculate(target, drafter, PROMPTS, num_draft_tokens=4, max_new_tokens=30, stop=Stop((0,)))
    for row in range(4):
        written = [token for one in inner.rounds for token in one.tokens[row]]
        assert written == [token for one in outer.rounds for token in one.drafts[row]]
    assert inner.alpha is not None
    assert 0 < inner.alpha < 1
    assert inner.emitted_per_round is not None
    assert 1 <= inner.emitted_per_round <= 3


def test_a_row_does_not_depend_on_the_rows_beside_it():
    target, drafter = random_table_lm(5, 0), staged(count=3)
    options = {"num_draft_tokens": 4, "max_new_tokens": 20, "stop": Stop((0,))}
    settings = SamplingSettings(0.9, top_p=0.95, repetition_penalty=1.1)
    together = collect(speculate(target, drafter, PROMPTS, settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, drafter, [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    assert together == alone


def test_the_middle_model_reads_each_token_once():
    """No pass but those of the inner rounds: after full acceptance two tokens go in front of the next inner draft."""
    lm, middle, run = tiny_lm(), tiny_lm("llama", 1), Run()
    drafter = StagedDrafter(middle, ModelDrafter(tiny_lm("llama", 2)), 2, watch=run.rounds.append)
    with spy(middle) as shapes:
        list(speculate(lm, drafter, [[5, 9, 2, 4, 4, 1]], GREEDY, num_draft_tokens=4, max_new_tokens=30))
    assert len(shapes) == 1 + len(run.rounds)  # the prompt, then the rounds
    assert all(length <= 4 for _, length in shapes[1:])


def test_contexts_of_three_lengths_and_every_budget_are_kept():
    target = random_table_lm(5, 0, 12)
    drafter = StagedDrafter(random_table_lm(5, 1, 9), ModelDrafter(random_table_lm(5, 2, 7)), 2)
    plain = collect(generate(target, [[1, 2, 3], [4]], GREEDY, max_new_tokens=30))
    assert collect(speculate(target, drafter, [[1, 2, 3], [4]], GREEDY, max_new_tokens=30)) == plain
    for budget in range(6):
        assert [len(text) for text in collect(speculate(target, drafter, [[1, 2]], max_new_tokens=budget))] == [budget]


def test_what_cannot_serve_inside_is_refused_by_name():
    class Plain(Drafter):
        pass

    class Wants(Drafter):
        wants_features = True

    target = random_table_lm(5, 0)
    with pytest.raises(ValueError, match="inner=Wants reads features"):
        StagedDrafter(target, Wants())
    with pytest.raises(ValueError, match="num_draft_tokens=0 must be >= 1"):
        StagedDrafter(target, NgramDrafter(), 0)
    with pytest.raises(ValueError, match="inner=Plain cannot take text back"):
        StagedDrafter(target, Plain())
    with pytest.raises(ValueError, match="staged drafts need one vocabulary"):
        speculate(target, StagedDrafter(random_table_lm(4, 0), NgramDrafter()), [[1, 2]])


def test_two_runs_share_nothing():
    target, drafter = random_table_lm(5, 0), staged()
    first = collect(speculate(target, drafter, PROMPTS, max_new_tokens=9))
    next(speculate(target, drafter, [[4, 4, 4]], max_new_tokens=9))
    assert collect(speculate(target, drafter, PROMPTS, max_new_tokens=9)) == first
