"""By position, as trees, staged: each falls back to the forms of constant alpha, and a simulation agrees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.draft_shapes import (
    expected_tokens_by_length,
    expected_tree_tokens,
    speedup_by_length,
    staged_draft_cost,
    survival_curve,
)
from specdec_ref.economics import expected_tokens, speedup

alphas = st.floats(0, 1)

# --- by position


def test_survival_counts_the_rounds_that_get_so_far():
    assert survival_curve([0, 1, 3, 3], [3, 3, 3, 3]) == pytest.approx([0.75, 0.5, 0.5])


def test_a_short_draft_that_passed_is_no_failure_of_the_tokens_it_did_not_have():
    """Two rounds of length 1 that passed, one of length 2 that passed: dividing by all rounds would give S_2 = 1/3."""
    assert survival_curve([1, 1, 2], [1, 1, 2]) == pytest.approx([1.0, 1.0])


def test_rounds_without_a_draft_say_nothing():
    assert survival_curve([0, 0, 1, 0], [0, 0, 2, 2]) == pytest.approx(survival_curve([1, 0], [2, 2]))
    assert survival_curve([0], [0]).shape == survival_curve([], []).shape == (0,)


def test_a_place_that_no_round_reached_survives_in_none():
    assert survival_curve([0, 0], [2, 2]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("chances", [(0.9, 0.8, 0.7, 0.6), (0.5, 0.9, 0.9, 0.2)])
def test_survival_is_recovered_from_drafts_of_any_length(chances):
    """2e5 rounds: standard errors below 0.004; 0.02 is 5 of them. Without censoring the last place is far off."""
    rng = np.random.default_rng(3)
    drafted = rng.integers(0, 5, 200_000)
    passed = (rng.random((200_000, 4)) < chances) & (np.arange(4) < drafted[:, None])
    accepted = passed.cumprod(axis=1).sum(axis=1)
    assert survival_curve(accepted, drafted) == pytest.approx(np.cumprod(chances), abs=0.02)


@given(alphas, st.integers(1, 20))
@settings(derandomize=True, deadline=None)
def test_a_curve_of_powers_is_constant_alpha(alpha, longest):
    curve = alpha ** np.arange(1, longest + 1)
    assert expected_tokens_by_length(curve) == pytest.approx(expected_tokens(alpha, np.arange(longest + 1)), rel=1e-12)
    gains = speedup_by_length(curve, 0.1, 1.3)
    assert gains[1:] == pytest.approx(speedup(alpha, np.arange(1, longest + 1), 0.1, 1.3), rel=1e-12)
    assert gains[0] == 1


def test_the_best_length_depends_on_where_tokens_fail_not_only_on_how_many():
    """The same accepted tokens at K = 3: one curve dies after the first token, the other one late."""
    early, late = [0.9, 0.3, 0.3], [0.5, 0.5, 0.5]
    assert expected_tokens_by_length(early)[3] == pytest.approx(expected_tokens_by_length(late)[3])
    assert speedup_by_length(early, 0.2, [1.0, 1.0, 1.0, 1.0]).argmax() == 1
    assert speedup_by_length(late, 0.2, [1.0, 1.0, 1.0, 1.0]).argmax() == 3


# --- trees


@given(alphas, st.integers(1, 12))
@settings(derandomize=True, deadline=None)
def test_a_chain_is_a_tree_of_one_branch(alpha, count):
    chain = list(range(-1, count - 1))
    assert expected_tree_tokens(chain, np.full(count, alpha)) == pytest.approx(expected_tokens(alpha, count), rel=1e-12)


def test_a_small_tree_by_hand():
    """Two guesses for the next token (.6, .2), one after each (.5, .5): 1 + .6 + .2 + .3 + .1."""
    assert expected_tree_tokens([-1, -1, 0, 1], [0.6, 0.2, 0.5, 0.5]) == pytest.approx(2.2)


def test_a_tree_agrees_with_a_walk_down_it():
    """2e5 walks; the depth lies in 0..3, so the standard error is below 0.004, and 0.03 is more than 7 of them."""
    parents, chances = [-1, -1, 0, 0, 1, 2], np.array([0.5, 0.3, 0.4, 0.4, 0.7, 0.9])
    rng = np.random.default_rng(5)
    depth = np.zeros(200_000)
    at = np.full(200_000, -1)
    for _ in range(3):
        luck, moved = rng.random(len(at)), np.full(len(at), -2)  # -2: refused
        for parent in range(-1, 6):
            edges = np.cumsum([0.0] + [chances[node] for node in range(6) if parents[node] == parent])
            children = [node for node in range(6) if parents[node] == parent]
            for child, low, high in zip(children, edges, edges[1:], strict=False):
                moved[(at == parent) & (luck >= low) & (luck < high)] = child
        depth += moved >= 0
        at = moved
    assert depth.mean() + 1 == pytest.approx(expected_tree_tokens(parents, chances), abs=0.03)


@given(st.lists(st.floats(0, 0.5), min_size=4, max_size=4))
@settings(derandomize=True, deadline=None)
def test_another_node_never_emits_less_and_at_most_its_path_more(chances):
    before = expected_tree_tokens([-1, -1, 0], chances[:3])
    after = expected_tree_tokens([-1, -1, 0, 1], chances)
    assert before <= after <= before + chances[1] + 1e-12


def test_trees_take_many_rows_of_chances():
    assert expected_tree_tokens([-1, 0], [[0.5, 0.5], [1.0, 1.0], [0.0, 1.0]]) == pytest.approx([1.75, 3.0, 1.0])


# --- staged


def test_without_a_smaller_model_a_draft_token_costs_a_step():
    assert staged_draft_cost(0.9, 5, 0, 0.2, 0.01) == pytest.approx(0.2)


def test_a_perfect_free_smaller_model_saves_all_steps_but_one_a_round():
    """6 tokens, 2 at a time: inner rounds of 3 and 3, each one pass of the draft."""
    assert staged_draft_cost(1.0, 6, 2, 0.3, 0.0) == pytest.approx(2 * 0.3 / 6)


def test_a_smaller_model_that_is_never_right_adds_its_own_cost():
    """5 tokens: 4 rounds with drafts of 2, 2, 2, 1 for nothing, each emitting one, and a last plain step."""
    assert staged_draft_cost(0.0, 5, 2, 0.2, 0.05) == pytest.approx((5 * 0.2 + 7 * 0.05) / 5)


@given(alphas, st.integers(1, 8), st.integers(1, 4))
@settings(derandomize=True, deadline=None)
def test_a_better_smaller_model_never_costs_more(alpha, count, inner):
    low, high = staged_draft_cost([alpha / 2, alpha], count, inner, 0.2, 0.03)
    assert high <= low * (1 + 1e-12)


def test_a_staged_draft_agrees_with_rounds_played_out():
    """5e3 rounds of 8 tokens; their cost spreads by less than 0.3, so 0.004 a token is more than 7 errors."""
    rng = np.random.default_rng(7)
    total = 0.0
    for _ in range(5_000):
        left = 8
        while left:
            count = min(3, left - 1)
            passed = rng.random(count) < 0.7
            total += count * 0.02 + (0.2 * 1.1 if count else 0.2)
            left -= int(passed.cumprod().sum()) + 1
    assert total / 5_000 / 8 == pytest.approx(staged_draft_cost(0.7, 8, 3, 0.2, 0.02, 1.1), abs=0.004)


# --- refusals


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: survival_curve([3], [2]), "num_accepted=3"),
        (lambda: survival_curve([1, 1], [2]), "num_accepted has shape"),
        (lambda: expected_tokens_by_length([0.5, 0.6]), "rises"),
        (lambda: expected_tokens_by_length([1.5]), "survival=1.5"),
        (lambda: expected_tokens_by_length(0.5), r"survival has shape \(\)"),
        (lambda: speedup_by_length([0.5], 0.1, [1.0]), r"verify_cost has shape \(1,\)"),
        (lambda: speedup_by_length([0.5], -0.1), "draft_cost=-0.1"),
        (lambda: expected_tree_tokens([0], [0.5]), "node 0 has parent 0"),
        (lambda: expected_tree_tokens([-1, -1], [0.6, 0.6]), "add up to 1.2"),
        (lambda: expected_tree_tokens([-1, 0], [0.6]), "tree of 2 nodes"),
        (lambda: staged_draft_cost(0.5, 0, 2, 0.1, 0.1), "num_draft_tokens=0"),
        (lambda: staged_draft_cost(1.5, 3, 2, 0.1, 0.1), "inner_alpha=1.5"),
    ],
)
def test_values_out_of_range_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
