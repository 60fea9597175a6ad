"""Logits to distribution to token: the contracts that everything else stands on.

Statistical tests use fixed seeds and fail below a p-value of `FALSE_ALARM`: for a right sampler with fresh seeds, once
in a million runs of a test.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from specdec_ref.sampling import GREEDY, Purpose, SamplingSettings, draw, healthy_rows, probabilities, uniforms

FALSE_ALARM = 1e-6
HIGHEST = 1 - 2.0**-53  # the largest float64 below 1, and the largest number `uniforms` returns
SMOL_VOCAB = 49152


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return 2 * torch.randn(*shape, dtype=dtype, generator=generator(seed))


def kept(weights, **how):
    """The token ids that survive filters on a distribution given as numbers."""
    logits = torch.tensor(weights, dtype=torch.float64).log()
    return probabilities(logits, SamplingSettings(**how)).nonzero().flatten().tolist()


# --- settings


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": -3}, "top_k=-3"),
        ({"top_k": 2.5}, "top_k=2.5"),
        ({"top_k": 2.0}, r"top_k=2\.0"),
        ({"top_k": math.nan}, "top_k=nan"),
        ({"top_k": math.inf}, "top_k=inf"),
        ({"top_p": 0.0}, r"top_p=0\.0"),
        ({"top_p": 1.0001}, r"top_p=1\.0001"),
        ({"top_p": -0.5}, r"top_p=-0\.5"),
        ({"top_p": math.nan}, "top_p=nan"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty=0\.0"),
        ({"repetition_penalty": math.nan}, "repetition_penalty=nan"),
    ],
)
def test_settings_without_meaning_are_refused_by_name(bad, named):
    with pytest.raises(ValueError, match=named):
        SamplingSettings(**bad)


# --- temperature


def test_temperature_divides_the_logits():
    logits = normal(3, 7)
    for temperature in (0.3, 1.0, 1.7):
        expected = (logits / temperature).softmax(-1)
        assert torch.allclose(probabilities(logits, SamplingSettings(temperature)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 5e-324])
def test_no_temperature_is_too_low(dtype, temperature):
    """[10] Logits [0, 1000] at 1e-3 would be a million, over the range of exp a thousand times."""
    probs = probabilities(torch.tensor([[0, 1000], [-1000, -3000]], dtype=dtype), SamplingSettings(temperature))
    assert probs.tolist() == [[0, 1], [1, 0]]


def test_tokens_that_tie_share_the_mass_at_any_low_temperature():
    assert probabilities(torch.tensor([1.0, 3.0, 3.0]), SamplingSettings(1e-30)).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_greedy_is_one_hot_on_the_lowest_of_equal_maxima(dtype):
    logits = torch.tensor([[1, 5, 5, 0], [2, 2, 2, 2], [-9, -8, -7, -7]], dtype=dtype)
    assert probabilities(logits, GREEDY).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]
    assert GREEDY.greedy
    assert not SamplingSettings(1e-9).greedy


def test_greedy_ties_go_to_the_lowest_index_in_a_real_vocabulary():
    """Wide rows are reduced in parallel pieces; the first of equals must win all the same, at any place."""
    for first in (0, 1, 31, 4097, SMOL_VOCAB - 2):
        logits = torch.zeros(3, SMOL_VOCAB)
        logits[:, [first, SMOL_VOCAB - 1]] = 4.0
        assert probabilities(logits, GREEDY).argmax(-1).tolist() == [first] * 3


def test_greedy_ignores_filters_but_not_the_penalty():
    logits = torch.tensor([[2.0, 1.9, 1.0]])
    assert probabilities(logits, SamplingSettings(0, top_k=1, top_p=0.01)).tolist() == [[1, 0, 0]]
    penalised = probabilities(logits, SamplingSettings(0, repetition_penalty=1.5), torch.tensor([[0]]))
    assert penalised.tolist() == [[0, 1, 0]]


# --- top-k and top-p


@pytest.mark.parametrize(
    ("weights", "how", "survivors"),
    [
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.8}, [0, 1, 2]),  # the token that crosses is kept
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.71}, [0, 1, 2]),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.69}, [0, 1]),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.39}, [0]),  # below the largest: one is left
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 1e-300}, [0]),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 1.0}, [0, 1, 2, 3]),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": HIGHEST}, [0, 1, 2, 3]),
        ([0.1, 0.4, 0.2, 0.3], {"top_p": 0.8}, [1, 2, 3]),
        ([0.5, 0.25, 0.25], {"top_p": 0.5}, [0]),  # reached exactly: nothing more is needed
        ([0.25, 0.25, 0.25, 0.25], {"top_p": 0.5}, [0, 1]),  # of equals the lowest indices
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2}, [0, 1]),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 1}, [0]),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 4}, [0, 1, 2, 3]),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 1000}, [0, 1, 2, 3]),  # more than there are
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 1000, "top_p": 0.8}, [0, 1, 2]),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.56}, [0]),  # mass counted after top-k: 0.4 / 0.7 = 0.571
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.58}, [0, 1]),
        ([0.4, 0.2, 0.2, 0.2], {"top_k": 2}, [0, 1, 2, 3]),  # ties with the last of the k are kept
        ([0.6, 0.4, 0.0, 0.0], {"top_k": 3}, [0, 1]),  # a forbidden token does not come back
        ([0.6, 0.4, 0.0, 0.0], {"top_p": HIGHEST}, [0, 1]),
    ],
)
def test_survivors_of_filters(weights, how, survivors):
    """[11]"""
    assert kept(weights, **how) == survivors


def obvious(logits, how):
    """Filters on one row, token by token, in exact fractions. None where rounding decides who crosses top_p."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    scaled = torch.tensor(logits, dtype=torch.float64) / how.temperature
    if how.top_k is not None and how.top_k < len(order):
        order = [token for token in order if logits[token] >= logits[order[how.top_k - 1]]]
    weights = {token: Fraction(math.exp(float(scaled[token] - scaled.max()))) for token in order}
    total = sum(weights.values())
    survivors, mass = [], Fraction(0)
    for token in order:
        if survivors and how.top_p < 1:
            if abs(mass / total - Fraction(how.top_p)) < Fraction(1, 10**9):
                return None
            if mass / total >= how.top_p:
                break
        survivors.append(token)
        mass += weights[token]
    return [float(weights[token] / mass) if token in survivors else 0.0 for token in range(len(logits))]


# Eighths: two logits are equal, or far enough apart for their probabilities to differ.
vectors = st.lists(st.integers(-40, 40).map(lambda eighths: eighths / 8), min_size=1, max_size=9)
temperatures = st.floats(0.2, 3)
ks = st.none() | st.integers(1, 12)
ps = st.just(1.0) | st.floats(0.01, 1.0)


@given(vectors, temperatures, ks, ps)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_filters_agree_with_a_slow_obvious_reference(logits, temperature, top_k, top_p):
    how = SamplingSettings(temperature, top_k, top_p)
    assume(top_k is None or top_p == 1 or len(set(logits)) == len(logits))  # ties have a test of their own
    expected = obvious(logits, how)
    assume(expected is not None)
    probs = probabilities(torch.tensor(logits, dtype=torch.float64), how)
    assert probs.tolist() == pytest.approx(expected, abs=1e-9)
    assert [value > 0 for value in probs.tolist()] == [value > 0 for value in expected]


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
def test_ties_with_the_last_of_the_k_count_for_top_p_too(order):
    """Which of equal tokens survives must not depend on how `topk` happens to order them."""
    logits = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)[order]
    probs = probabilities(logits, SamplingSettings(top_k=2, top_p=0.999))
    assert torch.allclose(probs, logits.softmax(-1), rtol=1e-12, atol=0)


@given(st.integers(0, 2**31), st.sampled_from([1, 2, 5, 40, 300]), temperatures, ks, ps)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_every_row_is_a_distribution_and_something_survives(seed, vocab, temperature, top_k, top_p):
    logits = normal(4, vocab, seed=seed, dtype=torch.float32)
    probs = probabilities(logits, SamplingSettings(temperature, top_k, top_p))
    assert probs.shape == logits.shape
    assert torch.all(probs >= 0)
    assert torch.allclose(probs.double().sum(-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.all(probs.gather(-1, logits.argmax(-1, keepdim=True)) > 0)


def test_filters_in_a_real_vocabulary():
    logits = normal(2, SMOL_VOCAB, dtype=torch.float32)
    for how in (SamplingSettings(0.7, 50, 0.9), SamplingSettings(1.0, top_p=0.95), SamplingSettings(1.3, 40)):
        probs = probabilities(logits, how)
        assert torch.allclose(probs.sum(-1), torch.ones(2), atol=1e-5)
        survivors = (probs > 0).sum(-1)
        assert torch.all(survivors >= 1)
        assert how.top_k is None or torch.all(survivors <= how.top_k)


@pytest.mark.parametrize("how", [SamplingSettings(0.8), SamplingSettings(0.8, 3), SamplingSettings(0.8, None, 0.7)])
def test_a_row_does_not_depend_on_the_others(how):
    logits = normal(5, 3, 11, dtype=torch.float32)
    together = probabilities(logits, how)
    for row, column in ((0, 0), (4, 2), (2, 1)):
        assert torch.equal(together[row, column], probabilities(logits[row, column], how))


# --- repetition penalty


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.8])
def test_the_whole_chain_equals_that_of_transformers(seed, penalty):
    """Penalty, temperature, top-k, top-p: the processors that `generate` applies, in its order."""
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = normal(6, 50, seed=seed)
    history = torch.randint(0, 50, (6, 20), generator=generator(seed))
    for temperature, top_k, top_p in [(1.0, None, 1.0), (0.6, 8, 1.0), (1.4, None, 0.85), (0.9, 20, 0.7)]:
        chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)])
        if top_k is not None:
            chain.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            chain.append(TopPLogitsWarper(top_p))
        theirs = chain(history, logits.clone()).softmax(-1)
        ours = probabilities(logits, SamplingSettings(temperature, top_k, top_p, penalty), history)
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def test_penalty_counts_a_token_once_and_ignores_padding_and_foreign_ids():
    logits = torch.tensor([[2.0, -1.0, 0.5, 0.0]] * 3, dtype=torch.float64)
    history = torch.tensor([[0, 0, 0], [0, -1, -1], [0, 4, 99]])
    expected = torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64).softmax(-1)
    probs = probabilities(logits, SamplingSettings(repetition_penalty=2.0), history)
    assert all(torch.allclose(row, expected, rtol=1e-14, atol=0) for row in probs)


def test_penalty_makes_seen_tokens_less_likely_whatever_their_sign():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    before = probabilities(logits, SamplingSettings())
    for token in (0, 1):
        after = probabilities(logits, SamplingSettings(repetition_penalty=1.5), torch.tensor([[token]]))
        assert after[0, token] < before[0, token]


def test_penalty_has_a_history_for_every_position_of_a_block():
    """At draft position i the history is everything before i: the block [B, T, V] takes histories [B, T, N]."""
    logits = normal(2, 3, 6)
    history = torch.tensor([[[0, -1], [0, 1], [0, 2]], [[5, -1], [5, 5], [5, 3]]])
    how = SamplingSettings(0.9, repetition_penalty=1.4)
    block = probabilities(logits, how, history)
    for row in range(2):
        for column in range(3):
            assert torch.equal(block[row, column], probabilities(logits[row, column], how, history[row, column]))


def test_no_history_or_no_penalty_changes_nothing():
    logits = normal(2, 5)
    plain = probabilities(logits, SamplingSettings())
    assert torch.equal(plain, probabilities(logits, SamplingSettings(repetition_penalty=1.7)))
    assert torch.equal(plain, probabilities(logits, SamplingSettings(), torch.tensor([[0], [1]])))
    empty = torch.zeros(2, 0, dtype=torch.int64)
    assert torch.equal(plain, probabilities(logits, SamplingSettings(repetition_penalty=1.7), empty))


# --- dtypes, bad rows, inputs


@pytest.mark.parametrize("how", [SamplingSettings(), SamplingSettings(0.7, 3, 0.9), GREEDY])
@pytest.mark.parametrize(
    ("given_dtype", "result"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_promoted_and_double_stays(how, given_dtype, result):
    logits = normal(3, 8).to(given_dtype)
    probs = probabilities(logits, how)
    assert probs.dtype == result
    assert torch.equal(probs, probabilities(logits.to(result), how))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_is_named(bad):
    logits = normal(4, 5)
    logits[2, 3] = bad
    for how in (SamplingSettings(), GREEDY, SamplingSettings(0.5, 2, 0.9)):
        with pytest.raises(ValueError, match="logits: row 2 "):
            probabilities(logits, how)
    with pytest.raises(ValueError, match=r"logits: row \(0, 2\) "):
        probabilities(logits[None], SamplingSettings())
    with pytest.raises(ValueError, match="logits: the only row"):
        probabilities(logits[2], SamplingSettings())
    assert healthy_rows(logits).tolist() == [True, True, False, True]


def test_a_row_that_forbids_every_token_is_named():
    logits = torch.full((2, 4), -math.inf)
    logits[0, 1] = 0
    with pytest.raises(ValueError, match="logits: row 1 "):
        probabilities(logits, SamplingSettings())


def test_forbidden_tokens_stay_forbidden_under_every_setting():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0]])
    for how in (SamplingSettings(), SamplingSettings(1e-3), SamplingSettings(3, 3, 0.999), GREEDY):
        probs = probabilities(logits, how, torch.tensor([[0, 3]]))
        assert probs[0, [0, 2]].tolist() == [0, 0]
    penalised = probabilities(logits, SamplingSettings(repetition_penalty=1.5), torch.tensor([[0, 3]]))
    assert penalised[0, [0, 2]].tolist() == [0, 0]
    assert bool(penalised.isfinite().all())


@pytest.mark.parametrize("how", [SamplingSettings(0.5, 3, 0.8, 1.3), GREEDY, SamplingSettings()])
def test_inputs_are_not_changed(how):
    logits, history = normal(3, 9), torch.randint(-1, 9, (3, 4), generator=generator(0))
    before = logits.clone(), history.clone()
    probabilities(logits, how, history)
    assert torch.equal(logits, before[0])
    assert torch.equal(history, before[1])


@pytest.mark.filterwarnings("error")
def test_strided_inputs_give_the_same_numbers_without_a_warning():
    """A warning on stderr would cost a learner the points of the cell."""
    logits = normal(6, 4, 7)
    how = SamplingSettings(0.9, 5, 0.9)
    assert torch.equal(probabilities(logits.transpose(0, 1), how), probabilities(logits, how).transpose(0, 1))
    probs, points = probabilities(logits, how), torch.rand(6, 4, generator=generator(1), dtype=torch.float64)
    assert torch.equal(draw(probs.transpose(0, 1), points.t()), draw(probs, points).t())
    column_major = probs.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(draw(column_major, points), draw(probs, points))
    assert draw(probs[0, 0].expand(3, 7), torch.tensor(0.5).expand(3)).unique().numel() == 1


# --- draw


def test_draw_inverts_the_cumulative_distribution():
    probs = torch.tensor([0.25, 0.5, 0.0, 0.25], dtype=torch.float64)
    points = torch.tensor([0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, HIGHEST], dtype=torch.float64)
    assert draw(probs.expand(7, 4), points).tolist() == [0, 0, 1, 1, 1, 3, 3]


def test_draw_scales_rows_that_do_not_sum_to_one():
    points = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    probs = torch.tensor([3.0, 1.0, 4.0], dtype=torch.float64)
    assert torch.equal(draw(probs.expand(50, 3), points), draw((probs / 8).expand(50, 3), points))


sparse = st.lists(st.sampled_from([0.0, 0.0, 1e-300, 1e-40, 1e-12, 0.1, 0.3, 1.0]), min_size=1, max_size=12).filter(any)


@given(sparse, st.sampled_from([torch.float32, torch.float64]), st.floats(0, 1, exclude_max=True))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_draw_never_returns_a_token_of_probability_zero(weights, dtype, point):
    """At both ends, at every step of the cumulative sum and next to it, and in between."""
    probs = torch.tensor(weights, dtype=torch.float64)
    probs = (probs / probs.sum()).to(dtype)
    assume(bool(probs.any()))
    steps = (probs.double().cumsum(0) / probs.double().sum()).clamp(max=HIGHEST)
    points = torch.cat([torch.tensor([0.0, point, 5e-324, HIGHEST], dtype=torch.float64), steps])
    points = torch.cat([points, points.nextafter(torch.zeros(())), points.nextafter(torch.ones(()))]).clamp(max=HIGHEST)
    tokens = draw(probs.expand(len(points), -1), points)
    assert torch.all(probs[tokens] > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draw_never_returns_a_token_of_probability_zero_in_a_real_vocabulary(dtype):
    """49,152 entries with zeros at both ends and in between; the points are the ends and 150 steps of the sum."""
    probs = normal(SMOL_VOCAB, dtype=dtype).softmax(-1)
    probs[torch.rand(SMOL_VOCAB, generator=generator(3)) < 0.5] = 0
    probs[:100] = 0
    probs[-100:] = 0
    cdf = probs.double().cumsum(0)
    some = cdf[torch.randperm(SMOL_VOCAB, generator=generator(4))[:150]] / cdf[-1]
    points = torch.cat([torch.tensor([0.0, 2.0**-53, HIGHEST, 1 - 2.0**-24], dtype=torch.float64), some])
    tokens = draw(probs.expand(len(points), -1), points.clamp(max=HIGHEST))
    assert torch.all(probs[tokens] > 0)
    assert int(tokens[0]) == int(probs.nonzero()[0])
    assert int(tokens[2]) == int(probs.nonzero()[-1])


def test_draw_reaches_the_rare_tokens_of_a_real_vocabulary():
    """Summed in float32 the total of 49,152 equal terms drifts; every token must keep its own piece of the interval."""
    probs = torch.full((SMOL_VOCAB,), 1 / SMOL_VOCAB)
    middles = (torch.arange(SMOL_VOCAB, dtype=torch.float64) + 0.5) / SMOL_VOCAB
    some = torch.arange(0, SMOL_VOCAB, 499)
    assert torch.equal(draw(probs.expand(len(some), -1), middles[some]), some)


def test_draw_takes_single_rows_blocks_and_empty_batches():
    probs = probabilities(normal(2, 3, 5), SamplingSettings())
    points = torch.rand(2, 3, generator=generator(0), dtype=torch.float64)
    tokens = draw(probs, points)
    assert tokens.shape == (2, 3)
    assert tokens.dtype == torch.int64
    assert all(int(draw(probs[b, t], points[b, t])) == int(tokens[b, t]) for b in range(2) for t in range(3))
    assert draw(torch.zeros(0, 4), torch.zeros(0)).shape == (0,)


def test_draw_names_uniforms_of_another_shape():
    with pytest.raises(ValueError, match=r"uniforms has shape \(3,\); probs needs \(2,\)"):
        draw(torch.full((2, 4), 0.25), torch.zeros(3))


def test_draw_is_pure():
    probs, points = normal(4, 6).softmax(-1), torch.full((4,), 0.5, dtype=torch.float64)
    before = probs.clone(), points.clone(), torch.get_rng_state()
    assert torch.equal(draw(probs, points), draw(probs, points))
    assert torch.equal(probs, before[0])
    assert torch.equal(points, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


def test_draw_with_counter_uniforms_follows_the_distribution():
    """Chi-square over 200,000 draws, each at a position of its own."""
    probs = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)
    points = uniforms(torch.tensor([7]), torch.tensor([0]), torch.arange(200_000)[None], Purpose.DRAFT)[0]
    counts = draw(probs.expand(len(points), -1), points).bincount(minlength=5)
    assert stats.chisquare(counts, probs * len(points)).pvalue > FALSE_ALARM


# --- uniforms


def key_uniforms(seed, round_, position, purpose):
    """One number, for plain integers."""
    return float(uniforms(torch.tensor([seed]), torch.tensor([round_]), torch.tensor([position]), purpose)[0])


def test_uniforms_mix_as_published():
    """SplitMix64 in plain integers, key part by key part, against the tensor form."""
    mask = 2**64 - 1

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF  # the first output of the published generator from seed 0
    for key in [(0, 0, 0, Purpose.DRAFT), (1, 2, 3, Purpose.ACCEPT), (-5, 7, 2**40, Purpose.CORRECT)]:
        state = mix(key[0] & mask)
        for part in key[1:]:
            state = mix(state ^ (part & mask))
        assert key_uniforms(*key) == (state >> 11) / 2**53


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from(Purpose))
@settings(derandomize=True, deadline=None)
def test_uniforms_lie_in_zero_to_one_for_any_key(seed, round_, position, purpose):
    assert 0 <= key_uniforms(seed, round_, position, purpose) <= HIGHEST


def grid(seeds=20, rounds=15, positions=50):
    """Uniforms of every key of a grid: [seeds, rounds, positions, purposes]."""
    seed, round_ = (x.flatten() for x in torch.meshgrid(torch.arange(seeds), torch.arange(rounds), indexing="ij"))
    where = torch.arange(positions).expand(len(seed), -1)
    parts = [uniforms(seed, round_, where, purpose) for purpose in Purpose]
    return torch.stack(parts, -1).view(seeds, rounds, positions, len(Purpose))


def test_no_number_serves_twice():
    """[12] 45,000 keys, 45,000 numbers: seeds, rounds, positions and purposes all count, and not in their sum alone."""
    numbers = grid().flatten()
    assert numbers.unique().numel() == numbers.numel()


def test_uniforms_are_uniform_along_every_part_of_the_key():
    """Chi-square in 50 bins over the whole grid, and in 10 bins over every line of 500 neighbouring keys or more."""
    numbers = grid(seeds=40, rounds=40, positions=40)
    assert stats.chisquare(torch.histc(numbers, 50, 0, 1)).pvalue > FALSE_ALARM
    for axis in range(4):
        for index in range(numbers.shape[axis]):
            cut = numbers.select(axis, index)
            assert stats.chisquare(torch.histc(cut, 10, 0, 1)).pvalue > FALSE_ALARM / 200


@pytest.mark.parametrize("axis", range(3), ids=["next seed", "next round", "next position"])
def test_neighbouring_keys_are_independent(axis):
    numbers = grid(seeds=40, rounds=40, positions=40)
    length = numbers.shape[axis] - 1
    independent(numbers.narrow(axis, 0, length), numbers.narrow(axis, 1, length))


@pytest.mark.parametrize("pair", list(combinations(range(3), 2)))
def test_purposes_of_one_position_are_independent(pair):
    """[12] One number for the draft and for its acceptance would make B emit [.6, .4, 0]."""
    numbers = grid(seeds=40, rounds=40, positions=40)
    independent(numbers[..., pair[0]], numbers[..., pair[1]])


def independent(first, second, bins=8):
    """Chi-square of the joint counts in bins x bins cells, each expected equally full."""
    cell = (first.flatten() * bins).long() * bins + (second.flatten() * bins).long()
    assert stats.chisquare(cell.bincount(minlength=bins * bins)).pvalue > FALSE_ALARM


def test_low_bits_are_uniform_too():
    low = (grid(seeds=40, rounds=40, positions=40).flatten() * 2.0**45).frac()
    assert stats.chisquare(torch.histc(low, 16, 0, 1)).pvalue > FALSE_ALARM


def test_a_row_does_not_depend_on_its_batch():
    seeds, rounds = torch.tensor([3, 11, 3, 5]), torch.tensor([0, 2, 1, 9])
    positions = torch.tensor([[4, 5, 6], [9, 10, 11], [4, 5, 6], [0, 1, 2]])
    together = uniforms(seeds, rounds, positions, Purpose.ACCEPT)
    for row in range(4):
        alone = uniforms(seeds[row : row + 1], rounds[row : row + 1], positions[row : row + 1], Purpose.ACCEPT)
        assert torch.equal(together[row : row + 1], alone)
    shuffled = torch.tensor([2, 0, 3, 1])
    assert torch.equal(together[shuffled], uniforms(seeds[shuffled], rounds[shuffled], positions[shuffled], Purpose(2)))


def test_one_position_or_a_block_of_them_give_the_same_numbers():
    seeds, rounds = torch.tensor([3, 11]), torch.tensor([0, 2])
    block = uniforms(seeds, rounds, torch.tensor([[4, 5], [9, 10]]), Purpose.DRAFT)
    assert torch.equal(block[:, 1], uniforms(seeds, rounds, torch.tensor([5, 10]), Purpose.DRAFT))
    assert block.dtype == torch.float64


def test_the_global_generators_are_neither_used_nor_moved():
    """[12] Global seeds change nothing here, and nothing here changes them."""
    import random

    import numpy as np

    key = torch.tensor([1]), torch.tensor([2]), torch.tensor([[3, 4]]), Purpose.CORRECT
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = uniforms(*key)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    torch.manual_seed(1)
    assert torch.equal(uniforms(*key), first)


def test_uniforms_leave_their_keys_alone():
    seeds, rounds, positions = torch.tensor([1, 2]), torch.tensor([0, 0]), torch.tensor([[3], [4]])
    before = [x.clone() for x in (seeds, rounds, positions)]
    uniforms(seeds, rounds, positions, Purpose.DRAFT)
    assert all(torch.equal(x, y) for x, y in zip((seeds, rounds, positions), before, strict=True))
