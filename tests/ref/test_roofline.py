"""The roofline: limits, monotonicity, published numbers, and the batch at which drafts stop paying."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.economics import expected_tokens
from specdec_ref.roofline import (
    PRESETS,
    Hardware,
    ModelSize,
    break_even_batch,
    draft_cost,
    pass_time,
    roofline_speedup,
    rows_that_fit,
    step_time,
    verify_cost,
)
from specdec_ref.this_machine import measure_hardware

ROUND = Hardware("round numbers", bandwidth=100.0, peak=1000.0, memory=100.0)
LLAMA_70B = ModelSize(70.6e9, kv_bytes_per_token=2 * 80 * 8 * 128 * 2)
LLAMA_8B = ModelSize(8.03e9, kv_bytes_per_token=2 * 32 * 8 * 128 * 2)
LLAMA_1B = ModelSize(1.24e9, kv_bytes_per_token=2 * 16 * 8 * 64 * 2)
counts = st.integers(0, 16)
batches = st.integers(1, 512)
contexts = st.integers(0, 10_000)


def test_the_longer_of_reading_and_calculating_counts():
    assert step_time(200, 50, 100, 10, ROUND) == 3.0  # 300 bytes at 100 a second; 500 operations take half a second
    assert step_time(200, 50, 100, 100, ROUND) == 5.0
    assert step_time([0, 100], 10, 0, [[1], [1000]], ROUND).tolist() == [[0.01, 1.0], [10.0, 10.0]]


def test_at_the_ridge_both_take_as_long():
    assert ROUND.ridge == 10
    assert step_time(1000, 100, 0, 100, ROUND) == 10.0 == 1000 / ROUND.bandwidth == 100 * 100 / ROUND.peak


@given(counts, batches, contexts)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_verification_costs_from_one_step_to_k_plus_one_and_never_falls(count, batch, context):
    cost, longer = verify_cost(LLAMA_8B, PRESETS["a100"], [count, count + 1], batch, context)
    assert 1 <= cost <= longer <= (count + 2) * (1 + 1e-12)
    assert cost <= (count + 1) * (1 + 1e-12)
    assert verify_cost(LLAMA_8B, PRESETS["a100"], 0, batch, context) == 1
    # A row brings arithmetic and, by its keys and values, reading; without these the ratio never falls with the batch.
    one, more = verify_cost(LLAMA_8B, PRESETS["a100"], count, [batch, batch + 1])
    assert one <= more * (1 + 1e-12)


@given(st.floats(0, 1), counts, batches, contexts)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_no_prediction_exceeds_the_tokens_of_a_round(alpha, count, batch, context):
    gain = roofline_speedup(alpha, count, LLAMA_70B, LLAMA_8B, PRESETS["h100"], batch, context)
    assert 0 < gain <= expected_tokens(alpha, count) * (1 + 1e-12)


def test_one_row_waits_for_memory_on_every_preset():
    for hardware in PRESETS.values():
        assert verify_cost(LLAMA_8B, hardware, 7) == 1
        assert draft_cost(LLAMA_8B, LLAMA_1B, hardware) == pytest.approx(1.24 / 8.03)


def test_a_large_batch_of_short_texts_pays_for_each_token():
    assert verify_cost(LLAMA_8B, PRESETS["a100"], 4, batch=100_000) == pytest.approx(5)
    assert roofline_speedup(0.8, 4, LLAMA_8B, LLAMA_1B, PRESETS["a100"], batch=100_000) < 1


def test_presets_read_an_8b_model_in_known_times():
    """16.06 GB of bfloat16: 7.9 ms on an A100, 4.8 on an H100, 53.5 on an L4."""
    times = {name: 1e3 * pass_time(LLAMA_8B, hardware, 1) for name, hardware in PRESETS.items()}
    assert times["a100"] == pytest.approx(7.88, abs=0.01)
    assert times["h100"] == pytest.approx(4.79, abs=0.01)
    assert times["l4"] == pytest.approx(53.5, abs=0.1)
    assert all(hardware.ridge > 100 for hardware in PRESETS.values())  # bfloat16: spare arithmetic at small batches


def test_the_break_even_batch_is_the_first_that_loses():
    found = break_even_batch(0.7, 4, LLAMA_8B, LLAMA_1B, PRESETS["a100"], context=200)
    assert found is not None
    gain = [roofline_speedup(0.7, 4, LLAMA_8B, LLAMA_1B, PRESETS["a100"], batch, 200) for batch in range(1, found + 1)]
    assert all(value > 1 for value in gain[:-1])
    assert gain[-1] <= 1


def test_long_texts_keep_speculation_paying_at_any_batch():
    """Keys and values are read once a pass, however many tokens it judges; short texts give memory nothing to do."""
    short = break_even_batch(0.7, 4, LLAMA_8B, LLAMA_1B, PRESETS["a100"], context=100)
    assert short is not None
    assert break_even_batch(0.7, 4, LLAMA_8B, LLAMA_1B, PRESETS["a100"], context=32_000) is None


def test_break_even_batch_shrinks_with_longer_drafts():
    found = [break_even_batch(0.7, count, LLAMA_8B, LLAMA_1B, PRESETS["a100"]) or 10**9 for count in (2, 4, 8)]
    assert found == sorted(found, reverse=True)


def test_a_draft_that_never_helps_never_pays():
    assert break_even_batch(0.0, 4, LLAMA_8B, LLAMA_1B, PRESETS["a100"]) == 1


def test_a_second_model_takes_rows_from_others():
    alone = rows_that_fit(PRESETS["l4"], 2000, LLAMA_8B)
    assert alone == int((24e9 - 16.06e9) / (2000 * 131_072)) == 30
    assert rows_that_fit(PRESETS["l4"], 2000, LLAMA_8B, LLAMA_1B) < 0.6 * alone
    assert rows_that_fit(PRESETS["l4"], 2000, LLAMA_70B) == 0


def test_everything_broadcasts():
    grid = roofline_speedup(
        np.linspace(0, 1, 4)[:, None, None], np.arange(3)[:, None], LLAMA_8B, LLAMA_1B, ROUND, np.arange(1, 6)
    )
    assert grid.shape == (4, 3, 5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: step_time(-1, 1, 1, 1, ROUND), "model_bytes=-1"),
        (lambda: step_time(1, 1, -1, 1, ROUND), "kv_bytes=-1"),
        (lambda: step_time(1, -1, 1, 1, ROUND), "flops_per_token=-1"),
        (lambda: step_time(1, 1, 1, 1.5, ROUND), "tokens_in_pass=1.5"),
        (lambda: verify_cost(LLAMA_8B, ROUND, -1), "num_draft_tokens=-1"),
        (lambda: break_even_batch(0.5, 2, LLAMA_8B, LLAMA_1B, ROUND, max_batch=0), "max_batch=0"),
        (lambda: rows_that_fit(Hardware("unknown", 1, 1), 100, LLAMA_8B), "hardware='unknown'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()


# --- this machine


def test_the_quickest_product_counts_and_the_first_is_left_out():
    """Products seem to take 9 (warm-up), 2, 1, 3 seconds: the bandwidth is the bytes over 1."""
    ticks = itertools.accumulate(itertools.chain.from_iterable([[0, 9, 0, 2, 0, 1, 0, 3]] * 2))
    found = measure_hardware(
        torch.device("cpu"),
        torch.float32,
        repeats=3,
        matrix_bytes=4096 * 4 * 10,
        sides=(16,),
        clock=lambda: float(next(ticks)),
    )
    assert found.bandwidth == 4096 * 4 * 10
    assert found.peak == 2 * 16**3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_this_machine_can_be_measured(dtype):
    found = measure_hardware(torch.device("cpu"), dtype, repeats=1, matrix_bytes=2**20, sides=(64,))
    assert found.bandwidth > 0
    assert found.peak > 0
    assert found.memory is None
