"""Measuring on a fake clock: what counts, what is left out, and a slowdown shown as one (FAULTS 29 to 31)."""

import itertools

import pytest
import torch

from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.drafters.candidates import CandidatesDrafter
from specdec_ref.economics import expected_tokens, speedup
from specdec_ref.measure import Run, interpolate, predicted_speedup, time_draft_step, time_passes, timed
from specdec_ref.rows import Round
from specdec_ref.sampling import GREEDY, SamplingSettings
from specdec_ref.table import table_lm
from specdec_ref.trees import full_tree

CPU = torch.device("cpu")


@pytest.fixture
def target():
    return table_lm(torch.randn(6, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2)


def ticking(step=1.0):
    ticks = itertools.count()
    return lambda: next(ticks) * step


def one_row(emitted, drafted, accepted):
    return Round([[7] * emitted], [[7] * drafted], [accepted], [None])


def run_of(*rounds, seconds=1.0):
    return Run([one_row(*numbers) for numbers in rounds], [seconds] * len(rounds))


def test_alpha_is_accepted_over_judged_and_the_acceptance_rate_is_accepted_over_drafted():
    run = run_of((3, 4, 2), (5, 4, 4), (1, 4, 0))
    assert run.acceptance_rate == 6 / 12
    assert run.alpha == 6 / 8  # the first round judged 3 tokens, the second 4, the third 1
    assert run.emitted_per_round == 3


def test_speed_leaves_the_first_round_out_because_it_reads_the_prompt():
    run = Run([one_row(1, 0, 0)] * 5, [100.0, 1.0, 1.0, 1.0, 1.0])
    assert run.tokens_per_s == 1.0
    assert run.decode_seconds == 4.0


def test_what_was_not_seen_is_none_and_never_zero():
    empty = Run()
    assert (empty.alpha, empty.acceptance_rate, empty.emitted_per_round, empty.tokens_per_s) == (None,) * 4
    assert run_of((1, 0, 0)).alpha is None
    assert predicted_speedup(empty, {1: 1.0}, 0.0) is None


def test_a_row_that_has_ended_counts_no_more_rounds():
    both = Round([[1], [2]], [[], []], [0, 0], ["eos", None])
    only_second = Round([[], [2]], [[], []], [0, 0], [None, None])
    run = Run([both, only_second, only_second], [1.0] * 3)
    assert run.row_rounds == 4
    assert run.emitted_per_round == 1.0


def test_the_clock_stands_still_while_the_consumer_works(target):
    run, clock = Run(), ticking()
    for _ in timed(generate(target, [[1, 2]], GREEDY, max_new_tokens=3), run, CPU, clock):
        clock()  # a consumer that looks at the clock 1 second long
    assert run.seconds == [1.0, 1.0, 1.0]
    assert run.new_tokens == 3


def test_a_block_may_be_longer_than_the_context():
    blocks: list[int] = []
    lm = table_lm(torch.zeros(4, 4).double())
    lm.model.register_forward_pre_hook(
        lambda _, __, given: blocks.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    assert list(time_passes(lm, [1, 6], context=2, repeats=1)) == [1, 6]
    assert blocks == [2, 1, 6, 1, 6]  # the context, then two turns


def test_passes_take_turns_and_the_first_turn_only_warms_up(target):
    order = []

    class Spy:
        def __call__(self):
            order.append(1)
            return float(len(order))

    assert time_passes(target, [1, 4], context=5, repeats=3, clock=Spy()) == {1: 1.0, 4: 1.0}
    assert len(order) == 2 * 2 * 4  # start and end, two lengths, three turns and a warm-up


def test_timing_a_target_leaves_its_own_cache_alone(target):
    time_passes(target, [1, 2], context=4, repeats=1)
    assert len(target.cache.lengths) == 0


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings()])
def test_a_draft_step_is_the_time_of_a_proposal_over_its_tokens(target, settings):
    seconds = time_draft_step(ModelDrafter(target), target, [[1, 2], [3]], 4, settings, repeats=3, clock=ticking())
    assert seconds == 0.25


def test_a_tree_is_timed_over_its_nodes_and_read_anew_in_each_round(target):
    drafter = CandidatesDrafter(target, full_tree((2, 1)))  # 2 + 2 nodes
    assert time_draft_step(drafter, target, [[1, 2], [3]], 4, SamplingSettings(), repeats=3, clock=ticking()) == 0.25


def test_a_drafter_that_never_proposes_has_no_draft_step(target):
    assert time_draft_step(NgramDrafter(3, 3), target, [[1]], 4, GREEDY, repeats=1) is None


def test_the_bill_of_constant_rounds_agrees_with_the_closed_form():
    # alpha = 1, K = 5: every round emits 6; T_d = .1 T_t, T_v = T_t
    run = run_of(*[(6, 5, 5)] * 10)
    assert predicted_speedup(run, {1: 1.0, 6: 1.0}, 0.1) == pytest.approx(float(speedup(1.0, 5, 0.1, 1.0)))


def test_a_slowdown_is_predicted_as_one():
    # alpha = .5, K = 4, c = .3: emits 1.9375 a round for 2.2 steps
    emitted = float(expected_tokens(0.5, 4))
    rounds = [(2, 4, 1)] * 15 + [(1, 4, 0)]
    assert sum(numbers[0] for numbers in rounds) / 16 == pytest.approx(emitted)
    assert predicted_speedup(run_of(*rounds), {1: 1.0, 5: 1.0}, 0.3) == pytest.approx(0.881, abs=5e-4)


def test_rounds_without_a_draft_pay_a_plain_pass():
    run = run_of((1, 0, 0), (1, 0, 0), (3, 2, 2))
    assert predicted_speedup(run, {1: 1.0, 3: 2.0}, 0.5) == pytest.approx(5 / (1 + 1 + 2 * 0.5 + 2))


def test_times_between_measured_lengths_lie_on_a_line():
    assert interpolate({1: 1.0, 5: 3.0}, 3) == 2.0
    assert interpolate({1: 1.0, 5: 3.0}, 9) == 3.0


def test_a_whole_run_of_real_rounds_adds_up(target):
    run = Run()
    rounds = speculate(target, ModelDrafter(target), [[1], [2, 3]], GREEDY, num_draft_tokens=3, max_new_tokens=9)
    texts = [[], []]
    for result in timed(rounds, run, CPU, ticking()):
        for row in (0, 1):
            texts[row] += result.tokens[row]
    assert run.new_tokens == 18 == sum(map(len, texts))
    assert run.alpha == 1.0
    assert len(run.seconds) == len(run.rounds)
