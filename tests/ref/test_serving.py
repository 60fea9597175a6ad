"""The serving simulator, held to the laws of queues and to the closed form of a single row."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_ref.economics import expected_tokens
from specdec_ref.roofline import PRESETS, ModelSize
from specdec_ref.serving import Server, Workload, fixed, lognormal, roofline_server, simulate

STEP = 0.02
ONE_ROW = Server(pass_s=lambda rows, length: STEP, draft_s=lambda rows: 0.1 * STEP, prompt_s=0.0, max_rows=1)
# 32 rows: a pass costs more from 32 tokens on, so that drafts pay for few rows and not for many.
BATCHED = Server(
    pass_s=lambda rows, length: STEP * max(1.0, rows * length / 32),
    draft_s=lambda rows: 0.1 * STEP,
    prompt_s=1e-4,
    draft_prompt_s=1e-5,
    max_rows=32,
    max_rows_with_draft=24,
)
POLICIES = ("off", "on", "adaptive")


def load(rate, *, count=150, alpha=0.8):
    return Workload(rate, lognormal(60), lognormal(40, 0.5), num_requests=count, alpha=alpha)


# --- laws that hold for every queue


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rate", [2.0, 40.0])
def test_littles_law(policy, rate):
    """Present on average = arrivals per second * seconds that each stays. Counted apart: by rounds, and by requests."""
    found = simulate(load(rate), BATCHED, policy)
    arrivals_per_s = len(found.arrival_s) / found.finish_s.max()
    assert found.mean_present == pytest.approx(arrivals_per_s * found.latency_s.mean(), rel=1e-9)


def test_one_row_with_equal_requests_waits_as_pollaczek_and_khinchine_say():
    """M/D/1: mean wait = load * service / (2 (1 - load)). 4,000 requests at load 0.5: within 10 %."""
    service = 5 * STEP
    workload = Workload(0.5 / service, fixed(10), fixed(5), num_requests=4000)
    found = simulate(workload, ONE_ROW, "off")
    waits = found.latency_s - service
    assert waits.min() == pytest.approx(0, abs=1e-9)
    assert waits.mean() == pytest.approx(0.5 * service / (2 * 0.5), rel=0.1)


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_gets_an_answer_before_they_ask_and_all_get_one(policy):
    found = simulate(load(20.0), BATCHED, policy)
    assert np.all(found.first_token_s > found.arrival_s)
    assert np.all(found.finish_s >= found.first_token_s)
    assert np.isfinite(found.finish_s).all()
    assert found.percentile(0.5) <= found.percentile(0.95)


# --- a single row is the closed form


@pytest.mark.parametrize(("alpha", "count"), [(0.8, 4), (0.5, 2), (0.3, 6)])
def test_a_single_row_decodes_as_fast_as_the_closed_form_says(alpha, count):
    """More than 3,000 rounds whose tokens spread by at most 1.7: an error below 2 % of the mean; 6 % is allowed."""
    workload = Workload(1.0, fixed(1), fixed(10_000), num_requests=1, alpha=alpha)
    found = simulate(workload, ONE_ROW, "on", num_draft_tokens=count)
    per_s = 10_000 / (found.finish_s[0] - found.arrival_s[0])
    closed = expected_tokens(alpha, count) / (count * 0.1 * STEP + STEP)
    assert per_s == pytest.approx(float(closed), rel=0.06)


def test_a_perfect_draft_takes_a_round_for_every_k_plus_one_tokens():
    workload = Workload(1.0, fixed(1), fixed(50), num_requests=1, alpha=1.0)
    assert simulate(workload, ONE_ROW, "on").latency_s[0] == pytest.approx(10 * (4 * 0.1 * STEP + STEP))


def test_plain_decoding_takes_a_step_a_token_and_reads_the_prompt_first():
    workload = Workload(1.0, fixed(100), fixed(7), num_requests=1)
    found = simulate(workload, BATCHED, "off")
    assert found.latency_s[0] == pytest.approx(100 * 1e-4 + 7 * STEP)
    assert found.first_token_s[0] - found.arrival_s[0] == pytest.approx(100 * 1e-4 + STEP)


def test_a_draft_model_reads_the_prompt_too():
    workload = Workload(1.0, fixed(1000), fixed(5), num_requests=1, alpha=1.0)
    latency = simulate(workload, BATCHED, "on").latency_s[0]
    assert latency == pytest.approx(1000 * (1e-4 + 1e-5) + 4 * 0.1 * STEP + STEP)


# --- what it is for: load decides


def test_speculation_pays_for_few_users_and_loses_for_many():
    quiet = {policy: simulate(load(1.0), BATCHED, policy) for policy in ("off", "on")}
    busy = {policy: simulate(load(60.0), BATCHED, policy) for policy in ("off", "on")}
    assert quiet["on"].percentile(0.5) < 0.7 * quiet["off"].percentile(0.5)
    assert busy["on"].percentile(0.95) > 1.2 * busy["off"].percentile(0.95)
    assert busy["on"].tokens_per_s < busy["off"].tokens_per_s


def test_adaptive_follows_the_better_of_both():
    for rate in (1.0, 10.0, 60.0):
        found = {policy: simulate(load(rate), BATCHED, policy).latency_s.mean() for policy in POLICIES}
        # It holds the second model's memory even where it does not draft, so it cannot be quite as good as "off".
        assert found["adaptive"] <= 1.35 * min(found["off"], found["on"])
        assert found["adaptive"] <= 1.02 * found["on"]


def test_adaptive_drafts_less_the_more_rows_there_are():
    lengths = [BATCHED.best_length(rows, 0.8, 8) for rows in (1, 4, 8, 32)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 3
    assert lengths[-1] == 0


def test_throughput_follows_the_load_until_the_machine_is_full():
    served = [simulate(load(rate), BATCHED, "off") for rate in (0.5, 5.0, 50.0, 500.0)]
    speeds = [found.tokens_per_s for found in served]
    assert speeds == sorted(speeds)
    assert speeds[-1] < 32 / STEP  # all rows, a token each a step
    assert served[0].mean_rows < 2 < 20 < served[-1].mean_rows <= 32


def test_rows_never_exceed_the_memory_and_the_second_model_takes_some():
    assert simulate(load(500.0), BATCHED, "on").mean_rows <= 24
    assert BATCHED.rows("off") == 32
    assert BATCHED.rows("on") == BATCHED.rows("adaptive") == 24
    assert ONE_ROW.rows("on") == 1


# --- seeds


def test_all_policies_meet_the_same_requests_and_a_seed_repeats_them():
    first, again, other = (simulate(load(5.0), BATCHED, "on", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.finish_s, again.finish_s)
    assert not np.array_equal(first.arrival_s, other.arrival_s)
    plain = simulate(load(5.0), BATCHED, "off", seed=1)
    assert np.array_equal(first.arrival_s, plain.arrival_s)
    assert np.array_equal(first.answer_tokens, plain.answer_tokens)


def test_alpha_changes_nothing_where_nothing_is_drafted():
    found = [simulate(load(5.0, alpha=alpha), BATCHED, "off").finish_s for alpha in (0.1, 0.9)]
    assert np.array_equal(*found)


def test_lengths_follow_their_laws():
    rng = np.random.default_rng(0)
    lengths = lognormal(100, 0.5, longest=300)(rng, 20_000)
    assert lengths.min() >= 1
    assert lengths.max() == 300
    assert np.median(lengths) == pytest.approx(100, rel=0.03)
    assert set(fixed(3)(rng, 5)) == {3}


def test_a_server_made_of_the_roofline():
    target, draft = ModelSize(8e9, 131_072), ModelSize(1e9, 32_768)
    server = roofline_server(target, draft, PRESETS["l4"], 1000)
    assert server.max_rows > server.rows("on") > 0
    assert server.pass_s(1, 1) == pytest.approx((16e9 + 131_072 * 1000) / 300e9)
    assert server.best_length(1, 0.8, 8) > 2
    workload = Workload(0.05, fixed(200), fixed(100), num_requests=20, alpha=0.8)
    off, on = (simulate(workload, server, policy).percentile(0.5) for policy in ("off", "on"))
    assert on < 0.6 * off


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Workload(0, fixed(1), fixed(1)), "rate=0"),
        (lambda: Workload(1, fixed(1), fixed(1), num_requests=0), "num_requests=0"),
        (lambda: Workload(1, fixed(1), fixed(1), alpha=1.1), "alpha=1.1"),
        (lambda: simulate(load(1.0), BATCHED, "sometimes"), "policy='sometimes'"),
        (lambda: simulate(load(1.0), BATCHED, "on", num_draft_tokens=-1), "num_draft_tokens=-1"),
        (lambda: simulate(load(1.0), Server(lambda r, n: 1.0, lambda r: 1.0, 0.0, 0), "off"), "max_rows=0"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
