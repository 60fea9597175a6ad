"""The bill of a round: published numbers, limits, and the two classic mistakes of measuring."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.economics import (
    best_num_draft_tokens,
    break_even_alpha,
    estimate_alpha,
    expected_tokens,
    operations,
    speedup,
    total_speedup,
)

alphas = st.floats(0, 1)
lengths = st.integers(0, 64)
costs = st.floats(0, 4)

# --- expected tokens


@pytest.mark.parametrize(
    ("alpha", "count", "tokens"),
    [(0.8, 5, 3.68928), (0.8, 4, 3.3616), (1.0, 5, 6.0), (0.0, 5, 1.0), (0.5, 1, 1.5), (0.7, 0, 1.0), (1.0, 0, 1.0)],
)
def test_expected_tokens_of_known_rounds(alpha, count, tokens):
    assert expected_tokens(alpha, count) == pytest.approx(tokens, abs=1e-12)


@given(alphas, lengths)
@settings(derandomize=True, deadline=None)
def test_expected_tokens_is_the_geometric_sum_to_the_last_digits(alpha, count):
    """Against exact fractions, close to alpha = 1 too, where the textbook form loses digits."""
    exact = sum(Fraction(alpha) ** power for power in range(count + 1))
    assert expected_tokens(alpha, count) == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize("gap", [2.0**-53, 1e-15, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("count", [1, 5, 100])
def test_expected_tokens_is_stable_next_to_one(gap, count):
    alpha = 1 - gap
    exact = float(sum(Fraction(alpha) ** power for power in range(count + 1)))
    assert expected_tokens(alpha, count) == pytest.approx(exact, rel=1e-14)
    assert expected_tokens(alpha, count) <= expected_tokens(1.0, count) == count + 1


@given(alphas, alphas, lengths)
@settings(derandomize=True, deadline=None)
def test_more_acceptance_or_a_longer_draft_never_emits_less(one, other, count):
    low, high = sorted((one, other))
    slack = 1 + 1e-13
    assert 1 <= expected_tokens(low, count) <= expected_tokens(high, count) * slack <= (count + 1) * slack
    assert expected_tokens(low, count) <= expected_tokens(low, count + 1) * slack


def test_a_simulated_round_agrees():
    """2e5 rounds; the standard error of the mean is below 0.004, and 0.03 is more than 7 of them."""
    passed = np.random.default_rng(0).random((200_000, 4)) < 0.8
    emitted = passed.cumprod(axis=1).sum(axis=1) + 1
    assert emitted.mean() == pytest.approx(expected_tokens(0.8, 4), abs=0.03)


# --- speedup and operations


@pytest.mark.parametrize(
    ("alpha", "count", "draft", "verify", "times"),
    [(0.8, 5, 0.1, 1, 2.46), (0.8, 5, 0.1, 2, 1.48), (0.5, 4, 0.3, 1, 0.881)],
)
def test_speedup_of_known_bills(alpha, count, draft, verify, times):
    """The second: the same tokens, a pass that costs two steps. [31] The third is a slowdown, given as it is."""
    assert speedup(alpha, count, draft, verify) == pytest.approx(times, abs=5e-3 if times > 1 else 5e-4)


@pytest.mark.parametrize(
    ("alpha", "count", "work", "speed"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_table_1_of_leviathan_et_al(alpha, count, work, speed):
    """A draft that costs nothing: arithmetic and speed, as printed to two digits."""
    assert round(float(operations(alpha, count)), 2) == work
    assert round(float(speedup(alpha, count, 0.0)), 2) == speed


@given(alphas, lengths, costs, st.floats(0.25, 4))
@settings(derandomize=True, deadline=None)
def test_speedup_never_exceeds_k_plus_one_and_falls_with_every_cost(alpha, count, draft, verify):
    times = speedup(alpha, count, draft, verify)
    assert times <= (count + 1) / verify * (1 + 1e-13)
    assert speedup(alpha, count, draft + 0.1, verify) <= times
    assert speedup(alpha, count, draft, verify + 0.1) < times
    assert operations(alpha, count) >= 1 - 1e-13


def test_a_draft_as_dear_as_the_target_never_wins():
    assert np.all(speedup(np.linspace(0, 1, 101)[:, None], np.arange(1, 30), 1.0, 1.0) <= 1 + 1e-12)


# --- the alpha from which on it pays


@given(st.integers(1, 40), costs, st.floats(0.25, 4))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_at_the_break_even_alpha_the_speedup_is_one(count, draft, verify):
    alpha = break_even_alpha(count, draft, verify)
    bill = count * draft + verify
    if bill > count + 1:
        assert math.isnan(alpha)
        assert speedup(1.0, count, draft, verify) < 1
    elif bill <= 1:
        assert alpha == 0
        assert speedup(0.0, count, draft, verify) >= 1
    else:
        assert speedup(alpha, count, draft, verify) == pytest.approx(1, rel=1e-12)


def test_break_even_alpha_of_a_single_draft_token_is_what_the_round_costs_more():
    """K = 1: 1 + alpha tokens for c + v."""
    assert break_even_alpha(1, 0.2, 1.1) == pytest.approx(0.3, abs=1e-15)
    assert break_even_alpha(1, 1.0, 1.0) == 1.0


def test_break_even_alpha_broadcasts_and_rises_with_each_cost():
    alpha = break_even_alpha([[1], [3], [5]], [0.0, 0.1, 0.2, 0.3], 1.5)
    assert alpha.shape == (3, 4)
    assert np.all(np.diff(alpha, axis=1) > 0)
    assert break_even_alpha([0, 0, 0], 0.1, [0.9, 1.0, 1.1]).tolist()[:2] == [0.0, 0.0]
    assert np.isnan(break_even_alpha(0, 0.1, 1.1))


# --- the best draft length


def test_best_length_is_the_best_of_all_lengths():
    for alpha in (0.3, 0.6, 0.8, 0.95):
        for draft in (0.02, 0.1, 0.3):
            best = best_num_draft_tokens(alpha, draft, 1.0, max_draft_tokens=20)
            gains = [1.0] + [float(speedup(alpha, count, draft, 1.0)) for count in range(1, 21)]
            assert best == int(np.argmax(gains))


def test_best_length_is_zero_where_nothing_pays():
    assert best_num_draft_tokens(0.2, 0.5) == 0
    assert best_num_draft_tokens(0.0, 0.0) == 0
    assert best_num_draft_tokens(0.6, 0.0, 3.0) == 0
    assert best_num_draft_tokens(0.9, 0.1, max_draft_tokens=0) == 0


def test_best_length_is_the_longest_where_drafts_are_free_and_perfect():
    assert best_num_draft_tokens(1.0, 0.0, max_draft_tokens=7) == 7


def test_verification_that_grows_with_the_block_shortens_the_best_draft():
    grows = lambda block: 1 + 0.25 * (block - 1)  # noqa: E731
    flat, growing = best_num_draft_tokens(0.8, 0.05), best_num_draft_tokens(0.8, 0.05, grows)
    assert growing < flat
    assert best_num_draft_tokens(0.8, 0.05, [grows(block) for block in range(1, 18)]) == growing
    assert best_num_draft_tokens(0.8, 0.05, np.array([1.0, 1.0, 9.0, 9.0]), max_draft_tokens=3) == 1


def test_everything_broadcasts():
    alpha, count = np.linspace(0, 1, 5)[:, None], np.arange(4)
    assert expected_tokens(alpha, count).shape == (5, 4)
    assert speedup(alpha, count, 0.1, 1.2).shape == (5, 4)
    assert expected_tokens(np.float32(0.5), 2).dtype == np.float64
    surface = best_num_draft_tokens(np.linspace(0.1, 0.9, 5)[:, None], [0.0, 0.1, 0.5], max_draft_tokens=9)
    assert surface.shape == (5, 3)
    assert surface[4, 1] == best_num_draft_tokens(0.9, 0.1, max_draft_tokens=9)
    assert np.all(np.diff(surface, axis=0) >= 0)
    assert np.all(np.diff(surface, axis=1) <= 0)


# --- estimating from measurements


def test_alpha_is_accepted_over_judged_not_over_drafted():
    """[29] alpha 0.8, K = 4: a round emits 3.3616, accepts 2.3616; accepted/drafted is 0.5904."""
    accepted = float(expected_tokens(0.8, 4)) - 1
    assert accepted == pytest.approx(2.3616)
    assert accepted / 4 == pytest.approx(0.5904)
    chances = [0.2 * 0.8**count for count in range(4)] + [0.8**4]  # of 0..4 accepted
    rounds = np.repeat(np.arange(5), np.round(np.array(chances) * 3125 * 1.0).astype(int))
    assert len(rounds) == 3125  # in exactly the expected proportions
    assert estimate_alpha(rounds, np.full_like(rounds, 4)) == pytest.approx(0.8, abs=1e-12)
    assert rounds.mean() / 4 == pytest.approx(0.5904)


def test_alpha_of_small_traces():
    assert estimate_alpha([3], [3]) == 1.0
    assert estimate_alpha([0], [5]) == 0.0
    assert estimate_alpha([2, 4], [4, 4]) == 6 / 7
    assert estimate_alpha([[1, 0], [0, 2]], [[1, 0], [3, 2]]) == 3 / 4  # a round without a draft judges nothing
    assert estimate_alpha(3, 5) == 3 / 4
    assert math.isnan(estimate_alpha([0, 0], [0, 0]))
    assert math.isnan(estimate_alpha([], []))


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.97])
def test_alpha_is_recovered_from_drafts_of_any_length(alpha):
    """1e5 rounds judge more than 1e5 tokens: a standard error below 0.0016; 0.01 is more than 6 of them."""
    rng = np.random.default_rng(1)
    drafted = rng.integers(0, 7, 100_000)
    passed = (rng.random((100_000, 6)) < alpha) & (np.arange(6) < drafted[:, None])
    accepted = passed.cumprod(axis=1).sum(axis=1)
    assert estimate_alpha(accepted, drafted) == pytest.approx(alpha, abs=0.01)
    if alpha > 0.4:
        assert accepted.sum() / drafted.sum() < alpha - 0.01


def test_a_workload_is_judged_by_totals():
    """[30] 2 s -> 0.5 s and 20 s -> 18 s is 1.19 times, not 2.56."""
    assert total_speedup([2, 20], [0.5, 18]) == pytest.approx(1.19, abs=5e-3)
    assert np.mean([2 / 0.5, 20 / 18]) == pytest.approx(2.56, abs=5e-3)


# --- refusals


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: expected_tokens(-0.1, 3), "alpha=-0.1"),
        (lambda: expected_tokens(1.01, 3), "alpha=1.01"),
        (lambda: expected_tokens([0.5, math.nan], 3), "alpha=nan"),
        (lambda: expected_tokens(0.5, -1), "num_draft_tokens=-1"),
        (lambda: expected_tokens(0.5, 2.5), "num_draft_tokens=2.5"),
        (lambda: expected_tokens(0.5, math.inf), "num_draft_tokens=inf"),
        (lambda: speedup(0.5, 3, -0.1, 1), "draft_cost=-0.1"),
        (lambda: speedup(0.5, 3, 0.1, 0), "verify_cost=0"),
        (lambda: speedup(0.5, 3, 0.1, math.inf), "verify_cost=inf"),
        (lambda: break_even_alpha(3, -1), "draft_cost=-1"),
        (lambda: break_even_alpha(3, 0.1, 0), "verify_cost=0"),
        (lambda: break_even_alpha(1.5, 0.1), "num_draft_tokens=1.5"),
        (lambda: operations(0.5, 3, -1), "draft_operations=-1"),
        (lambda: best_num_draft_tokens(0.5, 0.1, max_draft_tokens=-1), "max_draft_tokens=-1"),
        (lambda: best_num_draft_tokens(0.5, 0.1, [1.0, 1.0], max_draft_tokens=3), r"verify_cost has shape \(2,\)"),
        (lambda: best_num_draft_tokens(0.5, 0.1, lambda block: -1.0), "verify_cost=-1"),
        (lambda: estimate_alpha([3], [2]), "num_accepted=3"),
        (lambda: estimate_alpha([-1], [2]), "num_accepted=-1"),
        (lambda: estimate_alpha([1, 1], [2]), "num_accepted has shape"),
        (lambda: total_speedup([1.0], [0.0]), "speculative_s=0"),
        (lambda: total_speedup([1.0, 2.0], [1.0]), "plain_s has shape"),
    ],
)
def test_values_out_of_range_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
