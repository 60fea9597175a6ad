"""The bill in money: prompts, idle hours and memory keep a faster decoder from being as much cheaper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.costs import cost_per_million_tokens

shares = st.floats(0, 0.9)


def test_a_machine_that_only_decodes():
    """3.6 an hour at 1,000 tokens a second: a million tokens take 1,000 seconds, so 1."""
    assert cost_per_million_tokens(3.6, 1000) == pytest.approx(1.0)


def test_twice_as_fast_at_decoding_is_half_the_bill_only_where_nothing_else_is_paid():
    assert cost_per_million_tokens(3.6, 1000, 2.0) == pytest.approx(0.5)
    plain = cost_per_million_tokens(3.6, 1000, prompt_share=0.5)
    assert cost_per_million_tokens(3.6, 1000, 2.0, prompt_share=0.5) / plain == pytest.approx(0.75)


def test_a_faster_request_is_a_poor_trade_where_the_second_model_takes_the_memory_of_others():
    """1.3 times as fast, with 30 % fewer rows: 0.91 of the tokens a second."""
    assert cost_per_million_tokens(3.6, 1000, 1.3, memory_share=0.3) > cost_per_million_tokens(3.6, 1000)


def test_idle_hours_are_paid_too():
    assert cost_per_million_tokens(3.6, 1000, idle_share=0.75) == pytest.approx(4.0)


@given(st.floats(0.2, 8), shares, shares, shares)
@settings(derandomize=True, deadline=None)
def test_cost_falls_with_speed_and_rises_with_every_share(times, prompt, idle, memory):
    def cost(speedup=times, **changes):
        shares = {"prompt_share": prompt, "idle_share": idle, "memory_share": memory} | changes
        return cost_per_million_tokens(2.0, 300.0, speedup, **shares)

    assert cost(times * 1.1) < cost()
    for name, share in (("prompt_share", prompt), ("idle_share", idle), ("memory_share", memory)):
        assert cost(**{name: share + 0.05}) > cost()
    saved = 1 - cost() / cost(1.0)
    assert saved <= max(0.0, 1 - 1 / times) + 1e-12  # never more than the share of decoding time saved


def test_everything_broadcasts():
    assert cost_per_million_tokens(3.6, [[100], [1000]], np.array([1.0, 2.0, 3.0])).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost_per_million_tokens(-1, 10), "price_per_hour=-1"),
        (lambda: cost_per_million_tokens(1, 0), "tokens_per_s=0"),
        (lambda: cost_per_million_tokens(1, 10, 0), "speedup=0"),
        (lambda: cost_per_million_tokens(1, 10, prompt_share=1), "prompt_share=1"),
        (lambda: cost_per_million_tokens(1, 10, idle_share=1.2), "idle_share=1.2"),
        (lambda: cost_per_million_tokens(1, 10, memory_share=-0.1), "memory_share=-0.1"),
    ],
)
def test_values_out_of_range_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
