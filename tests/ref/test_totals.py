"""Statistics of whole benchmarks (FAULTS 29 to 31): totals, medians, prompts kept apart, a slowdown shown as one."""

import pytest

from specdec_ref.economics import expected_tokens
from specdec_ref.measure import Run, bill
from specdec_ref.rows import Round
from specdec_ref.totals import Totals, median_run, percentile


def one_row(emitted, drafted=0, accepted=0):
    return Round([[7] * emitted], [[7] * drafted], [accepted], [None])


def run_of(*rounds, seconds):
    return Run([one_row(*numbers) for numbers in rounds], list(seconds))


def test_a_speed_is_total_tokens_over_total_seconds_and_never_a_mean_of_speeds():
    short = run_of((1,), (1,), (1,), seconds=[9.0, 0.25, 0.25])  # 4 tokens/s
    long = run_of(*[(1,)] * 19, seconds=[9.0, *[1.0] * 18])  # 1 token/s
    assert Totals([short, long]).tokens_per_s == pytest.approx(20 / 18.5)


def test_the_speedup_of_two_texts_is_119_and_not_256():
    def total(*seconds):
        return Totals([run_of((1,), (10,), seconds=[5.0, each]) for each in seconds]).tokens_per_s

    assert total(0.5, 18.0) / total(2.0, 20.0) == pytest.approx(22 / 18.5)


def test_the_prompt_is_kept_apart():
    totals = Totals([run_of((1,), (2,), seconds=[5.0, 1.0]), run_of((1,), (1,), seconds=[7.0, 1.0])])
    assert (totals.first_token_s, totals.decode_seconds, totals.decode_tokens) == (6.0, 2.0, 3)


def test_repetitions_give_their_median_by_decoding_time_alone():
    runs = [run_of((1,), (1,), seconds=[prompt, decode]) for prompt, decode in ((1.0, 3.0), (9.0, 2.0), (1.0, 7.0))]
    assert median_run(runs) is runs[0]
    assert median_run(runs[:2]) is runs[1]
    with pytest.raises(ValueError, match="repeats"):
        median_run([])


def test_alpha_over_several_texts_is_accepted_over_judged():
    runs = [run_of((3, 4, 2), (5, 4, 4), seconds=[1, 1]), run_of((1, 4, 0), seconds=[1])]
    counts = Totals(runs).counts
    assert counts.alpha == 6 / 8
    assert counts.acceptance_rate == 6 / 12
    assert counts.emitted_per_round == 3


def test_tokens_of_one_round_arrive_together():
    totals = Totals([run_of((1,), (4, 3, 3), (1, 3, 0), seconds=[9.0, 2.0, 1.0])])
    assert totals.arrival_gaps() == [2.0, 1.0]
    assert totals.token_gaps() == [0.5, 0.5, 0.5, 0.5, 1.0]


def test_a_row_that_has_ended_waits_for_nothing():
    run = Run([Round([[1], [1]], [[], []], [0, 0], [None, "eos"]), Round([[1], []], [[], []], [0, 0], [None] * 2)])
    run.seconds += [1.0, 3.0]
    assert Totals([run]).arrival_gaps() == [3.0]


def test_what_was_not_seen_is_none_and_never_zero():
    empty = Totals([run_of((3,), seconds=[1.0])])
    assert empty.tokens_per_s is None
    assert percentile(empty.token_gaps(), 0.5) is None
    assert Totals([]).first_token_s is None


def test_a_percentile_is_a_value_that_was_seen():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.95) == 95
    assert (percentile([5.0], 0), percentile([5.0], 1)) == (5.0, 5.0)
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], 50)


def test_the_bill_of_several_runs_adds_seconds_and_leaves_their_first_rounds_out():
    runs = [run_of((9, 8, 8), (3, 2, 2), (1,), seconds=[0] * 3), run_of((9, 8, 8), (2, 2, 1), seconds=[0] * 2)]
    found = bill(runs, {1: 1.0, 3: 2.0}, 0.5)
    assert (found.rounds, found.undrafted_rounds) == (3, 1)
    assert (found.plain_s, found.draft_s, found.verify_s) == (6.0, 2.0, 5.0)
    assert found.speedup == pytest.approx(6 / 7)


def test_a_bill_shows_a_slowdown_as_it_is():
    # alpha = .5, K = 4, c = .3: .881 (FAULTS 31)
    rounds = [(2, 4, 1)] * 15 + [(1, 4, 0)]
    assert sum(numbers[0] for numbers in rounds) / 16 == pytest.approx(float(expected_tokens(0.5, 4)))
    run = run_of((1,), *rounds, seconds=[0.0] * 17)
    assert bill([run], {1: 1.0, 5: 1.0}, 0.3).speedup == pytest.approx(0.881, abs=5e-4)


def test_an_empty_bill_predicts_nothing():
    assert bill([], {1: 1.0}, 0.1).speedup is None
