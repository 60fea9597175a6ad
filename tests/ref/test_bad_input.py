"""Bad input: a ValueError that names the argument and the value, at the call and before any token.

Numbers that turn bad while decoding (NaN) name the row. Vocabularies padded to other widths are no bad input.
"""

from __future__ import annotations

import copy

import pytest
import torch

from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import Draft, Drafter, ModelDrafter, NgramDrafter
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, SamplingSettings
from specdec_ref.table import table_lm
from tests.ref.helpers import (
    PlannedDrafter,
    cycle_lm,
    random_table,
    random_table_lm,
    spy,
    texts,
    tiny_lm,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")

BAD_FOR_BOTH = [
    ({"prompts": []}, "prompts is empty"),
    ({"prompts": [[1], []]}, r"prompts\[1\] is empty"),
    ({"prompts": [[1], [2, 5]]}, r"prompts\[1\] holds token id 5; table 0 knows ids 0..4"),
    ({"prompts": [[-1]]}, r"prompts\[0\] holds token id -1"),
    ({"prompts": [[1] * 13]}, r"prompts\[0\] has 13 tokens; table 0 has a context of 12"),
    ({"prompts": [1, 2, 3]}, r"prompts\[0\]=1 must be a sequence of token ids"),
    ({"prompts": "text"}, r"prompts\[0\]='t' must be a sequence of token ids"),
    ({"prompts": ["text"]}, r"prompts\[0\]='text' must be"),
    ({"prompts": [[1.5]]}, r"prompts\[0\]=\[1.5\] must be"),
    ({"prompts": torch.tensor([[1.0]])}, r"prompts\[0\]=.* must be"),
    ({"max_new_tokens": -1}, "max_new_tokens=-1 must be >= 0"),
    ({"max_new_tokens": 2.5}, "max_new_tokens=2.5 must be a whole number"),
    ({"max_new_tokens": None}, "max_new_tokens=None must be a whole number"),
    ({"seeds": [1, 2]}, "seeds has 2 entries; there are 1 prompts"),
    ({"seeds": []}, "seeds has 0 entries"),
]
BAD_FOR_SPECULATE = [
    ({"num_draft_tokens": -1}, "num_draft_tokens=-1 must be >= 0"),
    ({"num_draft_tokens": 1.5}, "num_draft_tokens=1.5 must be a whole number"),
    ({"num_draft_tokens": None}, "num_draft_tokens=None must be a whole number"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_FOR_BOTH)
def test_generate_refuses_at_the_call(bad, message):
    target = random_table_lm(5, 0, max_length=12)
    arguments = {"prompts": [[1, 2]], **bad}
    with spy(target) as shapes, pytest.raises(ValueError, match=message):
        generate(target, **arguments)
    assert shapes == []


@pytest.mark.parametrize(("bad", "message"), BAD_FOR_BOTH + BAD_FOR_SPECULATE)
def test_speculate_refuses_at_the_call_and_target_and_drafter_stay_usable(bad, message):
    target, drafter = random_table_lm(5, 0, max_length=12), ModelDrafter(random_table_lm(5, 1))
    good = {"prompts": [[1, 2]], "max_new_tokens": 6}
    wanted = list(speculate(target, drafter, **good))
    with spy(target) as shapes, pytest.raises(ValueError, match=message):
        speculate(target, drafter, **{**good, **bad})
    assert shapes == []
    assert list(speculate(target, drafter, **good)) == wanted


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"max_ngram": 0, "min_ngram": 0}, "min_ngram=0"),
        ({"max_ngram": 2, "min_ngram": 3}, "min_ngram=3 and max_ngram=2"),
        ({"min_ngram": -1}, "min_ngram=-1"),
    ],
)
def test_an_ngram_drafter_refuses_lengths_without_meaning(bad, message):
    with pytest.raises(ValueError, match=message):
        NgramDrafter(**bad)


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": 0}])
def test_settings_refuse_before_there_is_a_decoder(bad):
    (name, value), *_ = bad.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        SamplingSettings(**bad)


# --- numbers that turn bad


def sick_lm(token, value=torch.nan, vocab=5, seed=0):
    """A table model whose law after `token` is no law: the self-test at load has not seen it."""
    table = random_table(vocab, seed)
    lm = random_table_lm(vocab, seed)
    sick = lm.fresh(1)
    sick.model = copy.deepcopy(lm.model)
    with torch.no_grad():
        sick.model.table.copy_(table)
        sick.model.table[:, token] = value
    return sick


@pytest.mark.parametrize("how", [GREEDY, SamplingSettings(), SamplingSettings(top_k=2), SamplingSettings(top_p=0.5)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_of_the_target_without_a_law_name_the_row(how, value):
    target, nothing = sick_lm(4, value), PlannedDrafter(lambda text, number: [])
    prompts = [[0, 1], [2, 4]]
    for rounds in (generate(target, prompts, how), speculate(target, nothing, prompts, how)):
        with pytest.raises(ValueError, match=r"logits of table 0 for row 1 hold NaN or \+inf, or nothing but -inf"):
            next(rounds)
    drafts_4 = PlannedDrafter(lambda text, number: [4] if text[0] == 2 else [])
    with pytest.raises(ValueError, match="row 1"):  # also where the law is met behind a draft token
        next(speculate(target, drafts_4, [[0, 1], [2, 1]], how))


def test_a_row_is_named_by_its_place_in_the_callers_batch():
    """Row 0 ends in round 1, the bad numbers come in row 2 in round 2."""
    vocab = 5
    target = cycle_lm(vocab)
    sick = target.fresh(1)
    sick.model = copy.deepcopy(target.model)
    with torch.no_grad():
        sick.model.table[:, 3] = torch.nan
    stop = Stop(token_ids=(1,))
    rounds = generate(sick, [[0], [4], [2]], GREEDY, stop=stop)  # writes 1 | 0 1 | 3 NaN
    next(rounds)
    with pytest.raises(ValueError, match="row 2"):
        list(rounds)

    def probs_of_nan(rows, limits):
        laws = torch.full((len(rows), 1, vocab), 1 / vocab, dtype=torch.float64)
        for place, text in enumerate(rows.tokens):
            if text[-1] == 3:
                laws[place] = torch.nan
        tokens = torch.tensor([[(text[-1] + 1) % vocab] for text in rows.tokens])
        return Draft(tokens, torch.ones(len(rows), dtype=torch.int64), laws)

    class Sick(Drafter):
        def propose(self, rows, limits):
            return probs_of_nan(rows, limits)

    rounds = speculate(target, Sick(), [[4], [0], [1]], GREEDY, num_draft_tokens=1, stop=Stop(token_ids=(0,)))
    next(rounds)  # row 0 writes 0 and ends; row 2 writes 2 3
    with pytest.raises(ValueError, match="draft: a token of row 2 has probability 0 or NaN"):
        list(rounds)


@pytest.mark.parametrize("how", [GREEDY, SamplingSettings()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_of_the_draft_without_a_law_name_the_row(how, value):
    target, draft = random_table_lm(5, 0), sick_lm(4, value, seed=1)
    with pytest.raises(ValueError, match="draft: a token of row 1 has probability 0 or NaN"):
        next(speculate(target, ModelDrafter(draft), [[0, 1], [2, 4]], how, num_draft_tokens=1))


def test_what_is_wrong_behind_a_shorter_draft_is_nobodys_business():
    """Row 0 drafts nothing beside a row that drafts 3: its padding may meet a sick law."""
    sick = table_lm(cycle_lm(5).model.table.expand(5, 5, 5))
    with torch.no_grad():
        sick.model.table[2, 0] = torch.nan  # after 2 comes 3; only padding (0) makes it 2 0
    plan = PlannedDrafter(lambda text, number: [] if text[0] == 2 else [(text[-1] + 1 + i) % 5 for i in range(3)])
    rounds = speculate(sick, plan, [[2], [0]], GREEDY, num_draft_tokens=3, max_new_tokens=4)
    assert texts(list(rounds)) == [[3, 4, 0, 1], [1, 2, 3, 4]]


def test_a_draft_token_that_its_law_cannot_give_is_refused():
    def impossible(rows, limits):
        laws = torch.tensor([[[0.0, 0.5, 0.5, 0.0, 0.0]]], dtype=torch.float64)
        return Draft(torch.tensor([[3]]), torch.tensor([1]), laws)

    class Wrong(Drafter):
        def propose(self, rows, limits):
            return impossible(rows, limits)

    with pytest.raises(ValueError, match="row 0 has probability 0"):
        next(speculate(cycle_lm(5), Wrong(), [[1]]))


@pytest.mark.parametrize(
    "draft",
    [
        Draft(torch.zeros(1, 2).long(), torch.tensor([3])),
        Draft(torch.zeros(1, 2).long(), torch.tensor([-1])),
        Draft(torch.zeros(2, 2).long(), torch.tensor([2])),
        Draft(torch.zeros(1, 2).long(), torch.tensor([2, 2])),
        Draft(torch.zeros(2).long(), torch.tensor([2])),
        Draft(torch.zeros(1, 2).long(), torch.tensor([2]), torch.ones(1, 2, 4) / 4),
        Draft(torch.zeros(1, 9).long(), torch.tensor([9])),
        Draft(torch.tensor([[0, 5]]), torch.tensor([2])),  # the target knows 0..4
        Draft(torch.tensor([[0, -1]]), torch.tensor([1])),  # padding is read too
    ],
)
def test_a_draft_that_breaks_the_contract_is_refused(draft):
    class Wrong(Drafter):
        def propose(self, rows, limits):
            return draft

    with pytest.raises(ValueError, match="draft: "):
        next(speculate(cycle_lm(5), Wrong(), [[1]], num_draft_tokens=4))


# --- vocabularies of different widths


@pytest.mark.parametrize("how", [GREEDY, SamplingSettings(), SamplingSettings(temperature=0.8, top_k=3, top_p=0.9)])
@pytest.mark.parametrize(("target_width", "draft_width"), [(8, 10), (10, 8), (8, 8), (3, 9), (9, 3)])
@pytest.mark.parametrize("real", [True, False], ids=["real ids given", "widths alone"])
def test_vocabularies_padded_to_other_widths(how, target_width, draft_width, real):
    """The padding of either side is never drafted nor written when the number of real ids is known. When it is not,
    whatever the target says is its text, and an id the draft has no embedding for is no reason to stumble.
    """
    ids = min(target_width, draft_width) if real else None
    target = CachedLM(tiny_model("llama", 0, vocab_size=target_width), vocab_size=ids)
    draft = CachedLM(tiny_model("llama", 1, vocab_size=draft_width), vocab_size=ids)
    prompts = [[0, target.vocab_size - 1], [1, 2, 1]]
    rounds = list(speculate(target, ModelDrafter(draft), prompts, how, num_draft_tokens=3, max_new_tokens=30))
    highest = target.vocab_size
    assert all(0 <= token < highest for text in texts(rounds) for token in text)
    assert all(0 <= token < min(highest, draft_width) for r in rounds for row in r.drafts for token in row)
    if how.greedy:
        assert texts(rounds) == texts(list(generate(target, prompts, how, max_new_tokens=30)))
    assert max(map(len, texts(rounds))) == 30


def test_a_draft_of_another_vocabulary_that_is_otherwise_the_target_is_accepted_in_full():
    model = tiny_model("llama", vocab_size=64)
    wide = tiny_model("llama", vocab_size=70)
    with torch.no_grad():
        for name, weights in model.state_dict().items():
            wide.state_dict()[name][: len(weights)] = weights
        wide.lm_head.weight[64:] = 9.0  # loud padding
    target, draft = CachedLM(model), CachedLM(wide, vocab_size=64)
    for one, other in ((target, draft), (draft, target)):
        rounds = list(speculate(one, ModelDrafter(other), [[1, 2]], max_new_tokens=40))
        assert sum(r.num_accepted[0] for r in rounds) == sum(r.num_drafted[0] for r in rounds)


def test_ids_outside_the_real_vocabulary_are_refused_even_where_an_embedding_exists():
    lm = CachedLM(tiny_model("llama"), vocab_size=50)
    with pytest.raises(ValueError, match=r"prompts\[0\] holds token id 50"):
        generate(lm, [[50]])
    assert tiny_lm("llama").vocab_size == 64


def test_a_draft_model_on_another_device_is_refused_at_the_call():
    elsewhere = random_table_lm(5, 1).fresh(1)
    elsewhere.device = torch.device("meta")
    with pytest.raises(ValueError, match="draft model 'table 1' is on meta, the target 'table 0' on cpu"):
        speculate(random_table_lm(5, 0), ModelDrafter(elsewhere), [[1]])
