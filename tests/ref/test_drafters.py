"""The drafters: what is copied from the text, and that the law handed in is the law the draft was drawn from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, Drafter, ModelDrafter, NgramDrafter
from specdec_ref.drafters.ngram import SuffixIndex
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from tests.ref.helpers import Watched, cycle_lm, random_table_lm, reasons, spy, texts, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")


def copied(text, limit=4, max_ngram=3, min_ngram=1):
    return SuffixIndex(max_ngram, min_ngram).continuation(list(text), limit)


def brute_force(text, limit, max_ngram, min_ngram):
    """The newest earlier occurrence of the longest suffix that something follows."""
    for size in range(max_ngram, min_ngram - 1, -1):
        if size > len(text):
            continue
        suffix = text[len(text) - size :]
        for start in range(len(text) - size - 1, -1, -1):  # the newest first; the suffix itself is not among them
            if text[start : start + size] == suffix:
                return text[start + size : start + size + limit]
    return []


# --- n-grams


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ([1, 2, 3, 4, 1, 2, 3], [4, 1, 2, 3]),
        ([1, 2, 9, 5, 2, 8, 1, 2], [9, 5, 2, 8]),  # two tokens match before one: not the newer 2 8
        ([7, 5, 1, 7, 6, 1, 7], [6, 1, 7]),  # 1 7 wins over 7; it is followed by 6
        ([5, 1, 5, 2, 5, 3, 5], [3, 5]),  # of equally long matches the newest
        ([4, 4, 4], [4]),  # the match overlaps the suffix
        ([4, 4], [4]),
        ([6, 6, 6, 6, 6], [6]),
    ],
)
def test_the_longest_suffix_first_then_the_newest_match(text, wanted):
    assert copied(text) == wanted


@pytest.mark.parametrize(
    "text", [[1], [1, 2, 3, 4], [0, 1, 2], [3, 1, 2]], ids=["one token", "no repeat", "zeros first", "short"]
)
def test_nothing_is_proposed_where_nothing_matches(text):
    """Neither token 0, nor what follows the suffix itself, which is nothing."""
    assert copied(text) == []


def test_lengths_below_min_ngram_do_not_count_and_texts_shorter_than_an_n_gram_are_no_trouble():
    assert copied([1, 2, 3, 4, 9, 4], min_ngram=2) == []
    assert copied([1, 2, 9, 1, 2], min_ngram=2) == [9, 1, 2]
    assert copied([1, 2], max_ngram=10) == []
    assert copied([1, 1], max_ngram=10) == [1]
    assert copied([1, 2, 3, 1, 2, 3], max_ngram=6, min_ngram=6) == []


def test_the_limit_cuts_the_copy():
    assert copied([1, 2, 3, 4, 1], limit=2) == [2, 3]
    assert copied([1, 2, 3, 4, 1], limit=0) == []


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_growing_index_equals_a_search_of_the_whole_text(data):
    alphabet = st.integers(0, data.draw(st.integers(0, 3)))
    max_ngram = data.draw(st.integers(1, 4))
    min_ngram = data.draw(st.integers(1, max_ngram))
    index, text = SuffixIndex(max_ngram, min_ngram), data.draw(st.lists(alphabet, min_size=1, max_size=20))
    for _ in range(data.draw(st.integers(1, 6))):
        limit = data.draw(st.integers(0, 5))
        assert index.continuation(text, limit) == brute_force(text, limit, max_ngram, min_ngram)
        text += data.draw(st.lists(alphabet, min_size=1, max_size=4))


def test_each_row_searches_its_own_prompt_and_its_own_new_text():
    target = cycle_lm(6)
    prompts = [[1, 5, 5, 5, 2], [2, 3], [4, 5, 0, 1, 2, 3, 4, 5]]
    rounds = list(speculate(target, NgramDrafter(), prompts, GREEDY, num_draft_tokens=3, max_new_tokens=24))
    assert rounds[0].drafts == [[], [], [0, 1, 2]]  # only row 2 repeats itself
    assert rounds[0].num_accepted == [0, 0, 3]
    assert texts(rounds) == [[(prompt[-1] + 1 + i) % 6 for i in range(24)] for prompt in prompts]
    for row, first in ((0, 2), (1, 2)):  # written text is searched: once the cycle repeats, all drafts are right
        late = [r for r in rounds if len(r.drafts[row]) == 3]
        assert late, f"row {row} never copied"
        assert all(r.num_accepted[row] == 3 for r in late[first:])


def test_an_index_follows_its_row_when_others_finish():
    target = cycle_lm(6)
    prompts = [[3], [0, 1, 2, 3, 4, 5, 0, 1], [1, 2, 3, 4, 5, 0, 1, 2]]
    stop = Stop(token_ids=(4,))

    def run(rows):
        return list(speculate(target, NgramDrafter(), rows, GREEDY, num_draft_tokens=2, max_new_tokens=9, stop=stop))

    rounds = run(prompts)  # row 0 ends at once
    assert texts(rounds) == [[4], [2, 3, 4], [3, 4]]
    for row, prompt in enumerate(prompts):
        alone = run([prompt])
        assert [r.drafts[row] for r in rounds if r.tokens[row]] == [r.drafts[0] for r in alone]


def test_a_copied_draft_with_an_end_of_text_ends_the_row_there():
    target = cycle_lm(6)
    prompt = [0, 1, 2, 3, 4, 5, 0, 1]
    stop = Stop(token_ids=(3,))
    rounds = list(speculate(target, NgramDrafter(), [prompt], GREEDY, num_draft_tokens=5, stop=stop))
    assert rounds[0].drafts == [[2, 3, 4, 5, 0]]
    assert texts(rounds) == [[2, 3]]
    assert reasons(rounds) == ["eos"]


def test_a_miss_costs_a_plain_step():
    target = random_table_lm(9, 0)
    with spy(target) as shapes:
        list(speculate(target, NgramDrafter(min_ngram=3), [[1, 2, 3]], num_draft_tokens=5, max_new_tokens=1))
    assert shapes[-1] == (1, 1)


# --- model drafts


@pytest.mark.parametrize(
    "how",
    [
        SamplingSettings(),
        SamplingSettings(temperature=0.5, top_k=3),
        SamplingSettings(top_p=0.7, repetition_penalty=1.5),
    ],
)
def test_the_law_handed_in_is_the_law_of_the_draft_given_all_tokens_before(how):
    """After temperature, filters and penalty; the verifier divides by it, so anything else is another text."""
    target, draft = random_table_lm(6, 0), random_table_lm(6, 1)
    prompts, seen = [[1], [2, 3, 3]], []
    drafter = Watched(
        ModelDrafter(draft), lambda event, _, argument: seen.append(argument) if event == "propose" else None
    )
    so_far = [list(prompt) for prompt in prompts]
    for number, result in enumerate(speculate(target, drafter, prompts, how, num_draft_tokens=3, max_new_tokens=20)):
        for row, tokens in enumerate(result.drafts):
            for i, token in enumerate(tokens):
                before = so_far[row] + tokens[:i]
                wanted = probabilities(uncached(draft, before)[-1:], how, torch.tensor([before]))[0]
                place = [r for r, new in enumerate(result.tokens) if new].index(row)
                torch.testing.assert_close(seen[number].probs[place, i], wanted, atol=1e-12, rtol=0)
                assert wanted[token] > 0
        so_far = [text + new for text, new in zip(so_far, result.tokens, strict=True)]


@pytest.mark.parametrize("how", [GREEDY, SamplingSettings(temperature=0.8)], ids=["greedy", "sampled"])
def test_an_unsure_draft_model_stops_after_the_token_it_was_unsure_of(how):
    """Of the raw law: a greedy law is always sure. The unsure token stays, or q would not be what it was drawn from."""
    target, draft = random_table_lm(6, 0), random_table_lm(6, 1)
    prompts = [[1], [2, 3, 3], [4, 5]]
    drafter = ModelDrafter(draft, stop_below=0.35)
    so_far, cut = [list(prompt) for prompt in prompts], set()
    for result in speculate(target, drafter, prompts, how, num_draft_tokens=3, max_new_tokens=20):
        for row, tokens in enumerate(result.drafts):
            text = so_far[row] + tokens
            sure = [
                uncached(draft, text[:end])[-1].softmax(-1).max() >= 0.35 for end in range(len(so_far[row]), len(text))
            ]
            assert all(sure[:-1])
            if 0 < len(tokens) < 3 and len(text) < len(prompts[row]) + 19:
                assert not sure[-1]
                cut.add(len(tokens))
        so_far = [text + new for text, new in zip(so_far, result.tokens, strict=True)]
    assert cut == {1, 2}


def test_a_draft_model_that_stops_early_serves_each_row_as_if_alone():
    target, drafter = tiny_lm("llama"), ModelDrafter(tiny_lm("llama", 1), stop_below=0.02)
    prompts = [[1], [2, 3, 3], [4, 5]]
    run = {"settings": SamplingSettings(), "num_draft_tokens": 4, "max_new_tokens": 24}
    together = list(speculate(target, drafter, prompts, seeds=[7, 8, 9], **run))
    for row, prompt in enumerate(prompts):
        alone = list(speculate(target, drafter, [prompt], seeds=[7 + row], **run))
        assert [one.drafts[0] for one in alone] == [one.drafts[row] for one in together][: len(alone)]
    assert {len(draft) for one in together for draft in one.drafts} >= {1, 2}


def test_a_threshold_that_is_no_probability_is_refused():
    with pytest.raises(ValueError, match=r"stop_below=1\.5 must be a probability"):
        ModelDrafter(random_table_lm(6, 1), stop_below=1.5)


def test_a_greedy_model_draft_is_a_point_mass():
    seen = []
    drafter = Watched(ModelDrafter(random_table_lm(6, 1)), lambda event, _, draft: seen.append((event, draft)))
    list(speculate(random_table_lm(6, 0), drafter, [[1]], GREEDY, max_new_tokens=10))
    assert all(draft.probs is None for event, draft in seen if event == "propose")


def test_a_sampled_draft_model_and_an_argmax_draft_model_give_the_same_law_of_texts_not_the_same_texts():
    """A deterministic draft under sampling is judged as a point mass: accepted with p of the token."""

    class Argmax(ModelDrafter):
        def propose(self, rows, limits):
            sampled, rows.settings = rows.settings, GREEDY
            try:
                return super().propose(rows, limits)
            finally:
                rows.settings = sampled

    target, batch = random_table_lm(4, 0), 1500
    rounds = list(
        speculate(target, Argmax(random_table_lm(4, 1)), [[1, 2]] * batch, num_draft_tokens=2, max_new_tokens=3)
    )
    # rows all draft the same token first; the share of rows that accept it is the target's p of it
    token = rounds[0].drafts[0][0]
    p = uncached(target, [1, 2])[-1].softmax(-1)[token].item()
    accepted = sum(a > 0 for a in rounds[0].num_accepted) / batch
    assert abs(accepted - p) < 5 * (p * (1 - p) / batch) ** 0.5  # false alarm 6e-7


def test_each_run_works_on_a_copy_of_the_drafter():
    target, drafter = tiny_lm("llama"), ModelDrafter(tiny_lm("llama", 1))
    state = dict(vars(drafter))
    collect(speculate(target, drafter, [[1, 2, 3]], max_new_tokens=8))
    assert vars(drafter) == state
    assert drafter.model.cache.lengths.numel() == 0
    ngram = NgramDrafter()
    collect(speculate(target, ngram, [[1, 2, 3]], max_new_tokens=8))
    assert ngram.indexes == []


def test_a_drafter_needs_only_propose():
    class Bare(Drafter):
        def propose(self, rows: Rows, limits):
            following = torch.tensor([[(text[-1] + 1) % 5] for text in rows.tokens])
            return Draft(following, torch.tensor(limits).clamp(max=1))

    target = cycle_lm(5)
    assert collect(speculate(target, Bare(), [[0]], GREEDY, max_new_tokens=12)) == collect(
        generate(target, [[0]], GREEDY, max_new_tokens=12)
    )
    with pytest.raises(NotImplementedError):
        next(speculate(target, Drafter(), [[0]], GREEDY))
