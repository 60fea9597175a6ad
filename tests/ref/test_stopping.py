"""Where a row ends: budget, end of text, stop strings, the context of the target and of the drafter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY
from tests.ref.helpers import (
    PlannedDrafter,
    cycle_lm,
    position_lm,
    position_text,
    random_table_lm,
    reasons,
    script_lm,
    scripted_drafter,
    spy,
    texts,
    tiny_lm,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def letters(tokens):
    """Token 0 is "a", 1 is "b", ..."""
    return "".join(chr(ord("a") + token) for token in tokens)


# --- budget


@pytest.mark.parametrize("num_draft_tokens", range(1, 6))
@pytest.mark.parametrize("budget", range(13))
def test_exactly_max_new_tokens_are_written(budget, num_draft_tokens):
    target = cycle_lm(7)
    wanted = [[(3 + i) % 7 for i in range(budget)], [(6 + i) % 7 for i in range(budget)]]
    for drafter in (ModelDrafter(target), ModelDrafter(cycle_lm(7, 3)), NgramDrafter(min_ngram=1)):
        rounds = list(
            speculate(target, drafter, [[1, 2], [5]], GREEDY, num_draft_tokens=num_draft_tokens, max_new_tokens=budget)
        )
        assert texts(rounds) == wanted
        assert reasons(rounds) == ["max_new_tokens"] * 2
        assert all(max(r.num_drafted) < budget for r in rounds if budget), "the last round needs no draft for its bonus"


def test_a_budget_of_zero_reports_the_end_of_every_row_once():
    for rounds in (
        generate(cycle_lm(5), [[1], [2]], max_new_tokens=0),
        speculate(cycle_lm(5), NgramDrafter(), [[1], [2]], max_new_tokens=0),
    ):
        only = list(rounds)
        assert texts(only) == [[], []]
        assert [r.finished for r in only] == [["max_new_tokens", "max_new_tokens"]]


# --- end of text


@pytest.mark.parametrize("accepted", range(5))
@pytest.mark.parametrize("place", range(1, 11))
def test_end_of_text_at_every_place_of_a_block_ends_the_row_there(place, accepted):
    """Places 1..5 are the first round of K=4: accepted drafts, the correction (after `accepted`) or the bonus."""
    vocab, eos = 9, 8
    text = [0, 1, *(2 + i % 5 for i in range(30))]
    text[1 + place] = eos
    target = script_lm(text, vocab)
    drafter = scripted_drafter(text, vocab, [accepted] * 40)
    rounds = list(
        speculate(
            target, drafter, [text[:2]], GREEDY, num_draft_tokens=4, max_new_tokens=20, stop=Stop(token_ids=(eos,))
        )
    )
    assert texts(rounds)[0] == text[2 : 2 + place]
    assert texts(rounds)[0][-1] == eos
    assert reasons(rounds) == ["eos"]


@pytest.mark.parametrize("ids", [(), (3,), (3, 5), (5, 3), [4, 6], {2}])
def test_none_one_or_several_ids_end_a_text(ids):
    target = cycle_lm(7)
    plain = [(1 + i) % 7 for i in range(20)]
    wanted = next((plain[: i + 1] for i, token in enumerate(plain) if token in ids), plain)
    for drafter in (ModelDrafter(target), NgramDrafter()):
        rounds = list(speculate(target, drafter, [[0]], GREEDY, max_new_tokens=20, stop=Stop(token_ids=ids)))
        assert texts(rounds)[0] == wanted
        assert reasons(rounds) == ["eos" if ids else "max_new_tokens"]
    rounds = list(generate(target, [[0]], GREEDY, max_new_tokens=20, stop=Stop(token_ids=ids)))
    assert texts(rounds)[0] == wanted


def test_an_end_of_text_id_in_the_prompt_ends_nothing():
    target = cycle_lm(7)
    rounds = list(speculate(target, ModelDrafter(target), [[5, 4, 5]], GREEDY, stop=Stop(token_ids=(5,))))
    assert texts(rounds)[0] == [6, 0, 1, 2, 3, 4, 5]


def test_end_of_text_as_the_last_token_of_the_budget_counts_as_end_of_text():
    rounds = list(speculate(cycle_lm(7), NgramDrafter(), [[0]], GREEDY, max_new_tokens=3, stop=Stop(token_ids=(3,))))
    assert reasons(rounds) == ["eos"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_that_end_at_different_times_for_different_reasons_write_what_they_write_alone(data):
    target = random_table_lm(9, 0, max_length=20)
    prompts = data.draw(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=14), min_size=1, max_size=5))
    stop = Stop(
        token_ids=data.draw(st.sets(st.integers(0, 8), max_size=2)),
        strings=tuple(data.draw(st.lists(st.text("abcdefghi", min_size=1, max_size=3), max_size=1))),
        decode=letters,
    )
    how = {"num_draft_tokens": data.draw(st.integers(0, 5)), "max_new_tokens": data.draw(st.integers(0, 12))}
    drafter = data.draw(st.sampled_from([NgramDrafter(min_ngram=1), ModelDrafter(random_table_lm(9, 1))]))
    together = list(speculate(target, drafter, prompts, stop=stop, seeds=50, **how))
    for row, prompt in enumerate(prompts):
        alone = list(speculate(target, drafter, [prompt], stop=stop, seeds=[50 + row], **how))
        assert texts(together)[row] == texts(alone)[0]
        assert reasons(together)[row] == reasons(alone)[0] is not None
        new = texts(alone)[0]
        assert len(new) <= how["max_new_tokens"]
        assert len(prompt) + len(new) <= 20
        assert not set(new[:-1]) & set(stop.token_ids)
        assert not any(string in letters(new[:-1]) for string in stop.strings)
        if reasons(alone)[0] == "max_new_tokens":
            assert len(new) == how["max_new_tokens"]
        if reasons(alone)[0] == "context":
            assert len(prompt) + len(new) == 20


# --- stop strings


@pytest.mark.parametrize(
    ("strings", "wanted"),
    [
        (("e",), "bcde"),
        (("cd",), "bcd"),  # across a border of tokens
        (("defg", "zz"), "bcdefg"),  # across two rounds
        (("fg", "de"), "bcde"),  # the first to be complete
        (("a",), "bcdefga"),  # the prompt's own "a" does not count
        (("ab",), "bcdefgab"),
        (("zz",), "bcdefgabcdefgabcdefg"),
    ],
)
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4])
def test_a_row_ends_with_the_token_that_completes_a_stop_string(strings, wanted, num_draft_tokens):
    target, stop = cycle_lm(7), Stop(strings=strings, decode=letters)
    for rounds in (
        list(
            speculate(
                target,
                ModelDrafter(target),
                [[0]],
                GREEDY,
                num_draft_tokens=num_draft_tokens,
                max_new_tokens=20,
                stop=stop,
            )
        ),
        list(generate(target, [[0]], GREEDY, max_new_tokens=20, stop=stop)),
    ):
        assert letters(texts(rounds)[0]) == wanted
        assert reasons(rounds) == ["max_new_tokens" if strings == ("zz",) else "stop string"]


def test_of_an_id_and_a_string_the_first_to_come_ends_the_text():
    target = cycle_lm(7)
    for ids, reason in (((3,), "eos"), ((6,), "stop string")):
        stop = Stop(token_ids=ids, strings=("ef",), decode=letters)
        rounds = list(speculate(target, ModelDrafter(target), [[0]], GREEDY, stop=stop))
        assert reasons(rounds) == [reason]


def test_a_stop_string_is_seen_when_its_last_byte_comes():
    """Two tokens make one character; half of it decodes to a replacement mark."""
    pieces = [b"x", "é".encode()[:1], "é".encode()[1:], b"y"]
    stop = Stop(strings=("é",), decode=lambda tokens: b"".join(pieces[t] for t in tokens).decode("utf-8", "replace"))
    target = cycle_lm(4)
    rounds = list(speculate(target, ModelDrafter(target), [[3]], GREEDY, max_new_tokens=9, stop=stop))
    assert texts(rounds)[0] == [0, 1, 2]


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"strings": ("a",)}, "stop strings .* need a `decode` function"),
        ({"strings": ("a", ""), "decode": letters}, "empty string"),
        ({"strings": "ab", "decode": letters}, "strings='ab' must be tuples"),
        ({"token_ids": 5}, "token_ids=5"),
        ({"token_ids": None}, "token_ids=None"),
    ],
)
def test_stop_rules_that_cannot_be_meant_are_refused(stop, message):
    with pytest.raises(ValueError, match=message):
        Stop(**stop)


# --- contexts


@pytest.mark.parametrize("prompt_length", [1, 5, 9, 10])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 5])
def test_a_text_ends_at_the_context_of_the_target(prompt_length, num_draft_tokens):
    target, prompt = position_lm(7, max_length=10), [3] * prompt_length
    for drafter in (ModelDrafter(position_lm(7)), NgramDrafter(min_ngram=1), ModelDrafter(target)):
        rounds = list(
            speculate(target, drafter, [prompt], GREEDY, num_draft_tokens=num_draft_tokens, max_new_tokens=50)
        )
        assert texts(rounds)[0] == position_text(prompt, 10 - prompt_length)
        assert reasons(rounds) == ["context"]


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_real_classes_write_up_to_their_last_position_beside_a_shorter_row(name):
    target = tiny_lm(name, **({"n_positions": 12} if name == "gpt2" else {"max_position_embeddings": 12}))
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [5]]
    together = list(speculate(target, ModelDrafter(target), prompts, GREEDY, num_draft_tokens=4, max_new_tokens=50))
    assert [len(text) for text in texts(together)] == [3, 11]
    assert reasons(together) == ["context", "context"]
    assert texts(together) == texts(list(generate(target, prompts, GREEDY, max_new_tokens=50)))


@pytest.mark.parametrize("draft_length", range(3, 12))
@pytest.mark.parametrize("num_draft_tokens", [1, 4])
def test_a_draft_model_with_a_smaller_context_drafts_as_far_as_it_can_and_the_text_goes_on(
    draft_length, num_draft_tokens
):
    """Rows before, at and beyond the draft's context, in one batch. Where it drafts it is right: it is the target."""
    prompts = [[2], [3, 1, 4], [1, 5, 9 % 7, 2, 6, 5, 3, 5, 1, 0, 2, 3]]
    target, draft = position_lm(7), position_lm(7, max_length=draft_length)
    with spy(draft) as shapes:
        rounds = list(
            speculate(
                target,
                ModelDrafter(draft),
                prompts,
                GREEDY,
                num_draft_tokens=num_draft_tokens,
                max_new_tokens=16,
            )
        )
    assert texts(rounds) == [position_text(prompt, 16) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    for result in rounds:
        for row, new in enumerate(result.tokens):
            room = max(0, draft_length + 1 - lengths[row])
            left = 16 - (lengths[row] - len(prompts[row]))
            if new:
                assert result.num_drafted[row] == min(num_draft_tokens, room, left - 1)
                assert result.num_accepted[row] == result.num_drafted[row]
            lengths[row] += len(new)
    assert sum(length for _, length in shapes) <= 4 * draft_length + 8, "no draft pass once no row has room"


def test_real_draft_models_with_a_smaller_context_never_run_past_their_positions():
    for name in ("gpt2", "opt", "llama"):
        target = tiny_lm(name)
        draft = tiny_lm(name, **({"n_positions": 8} if name == "gpt2" else {"max_position_embeddings": 8}))
        prompts = [[1], [1, 2, 3, 4, 5, 6], list(range(20))]
        rounds = speculate(target, ModelDrafter(draft), prompts, GREEDY, num_draft_tokens=5, max_new_tokens=20)
        assert texts(list(rounds)) == texts(list(generate(target, prompts, GREEDY, max_new_tokens=20)))


def test_a_planned_draft_beyond_the_limits_is_refused_by_the_contract():
    class Greedy(PlannedDrafter):
        def propose(self, rows, limits):
            return super().propose(rows, [limit + 1 for limit in limits])

    drafter = Greedy(lambda text, number: [0] * 9)
    with pytest.raises(ValueError, match="draft: counts"):
        list(speculate(cycle_lm(5), drafter, [[1]], num_draft_tokens=3, max_new_tokens=20))
    with pytest.raises(ValueError, match="draft: counts"):
        list(speculate(cycle_lm(5), drafter, [[1]], num_draft_tokens=3, max_new_tokens=1))


def test_sampled_rows_end_at_the_context_too():
    target = random_table_lm(5, 0, max_length=9)
    rounds = list(speculate(target, ModelDrafter(random_table_lm(5, 1)), [[1], [2, 3, 4]], max_new_tokens=100))
    assert [len(text) for text in texts(rounds)] == [8, 6]
    assert torch.tensor([max(r.num_drafted) for r in rounds]).max() <= 5
