"""The statistics of the benchmark on invented runs: whose ratio, of which totals, and a loss called a loss."""

import pytest

from specdec_course.benchmark import figures, findings, plot, report, run, tables
from specdec_course.benchmark.run import Texts, Tuning
from specdec_course.benchmark.systems import System, Times
from specdec_ref.measure import Run
from specdec_ref.rows import Round

TIMES = Times(batch=1, context=9, passes={1: 1.0, 5: 1.0}, draft_step={"model": 0.3, "ngram": 0.0})


def one_row(emitted, drafted=0, accepted=0):
    return Round([[7] * emitted], [[7] * drafted], [accepted], [None])


def plain_run(tokens, seconds, first=100.0):
    """A run whose prompt takes `first` seconds, and `tokens` later tokens `seconds` in all."""
    return Run([one_row(1)] * (tokens + 1), [first] + [seconds / tokens] * tokens)


def spec_run(rounds, seconds, first=100.0):
    return Run(
        [one_row(1), *(one_row(*numbers) for numbers in rounds)], [first] + [seconds / len(rounds)] * len(rounds)
    )


def system(name, engine="specdec", method="plain", batch=1, lengths=(0,), dtype="float32"):
    return System(name, engine, method, "fast", dtype, batch, lengths, decode=lambda *_: Run())


def entries(measured, tuning=None, suites=("chat", "story")):
    systems = list(dict.fromkeys(key for key, _ in measured))
    runs = {(one.name, suite): measured[one, suite] for one, suite in measured}
    tuned = {(one.name, suite): found for (one, suite), found in (tuning or {}).items()}
    return report.entries(systems, suites, tuned, runs, {("float32", 1): TIMES, ("float32", 4): TIMES})


PLAIN, SPEC, THEIRS = system("plain"), system("spec", method="model", lengths=(2, 4)), system("hf", "transformers")
ASSISTED = system("assisted", "transformers", "model", lengths=(4,))
HALVES = [(2, 4, 1)] * 15 + [(1, 4, 0)]  # alpha = .5, K = 4: a round emits 1.94


@pytest.fixture
def found():
    def tuned(rounds):
        return Tuning({2: [spec_run([(1, 2, 0)], 1.0)], 4: [spec_run(rounds, 1.0)]}, best=4)

    measured = {
        (PLAIN, "chat"): [plain_run(20, 2.0)],
        (PLAIN, "story"): [plain_run(20, 20.0)],
        (SPEC, "chat"): [spec_run([(4, 4, 3)] * 5, 0.5)],
        (SPEC, "story"): [spec_run([(2, 4, 1)] * 10, 18.0)],
        (THEIRS, "chat"): [plain_run(20, 1.0)],
        (THEIRS, "story"): [plain_run(20, 40.0)],
        (ASSISTED, "chat"): [spec_run([(4, 4, 3)] * 5, 1.0)],
        (ASSISTED, "story"): [spec_run([(4, 4, 3)] * 5, 20.0)],
    }
    tuning = {
        (SPEC, "chat"): tuned([(4, 4, 3)] * 5),
        (SPEC, "story"): tuned(HALVES),
        (ASSISTED, "chat"): tuned(HALVES),
        (ASSISTED, "story"): tuned(HALVES),
    }
    return entries(measured, tuning)


def test_the_ratio_over_all_suites_is_one_of_totals_never_a_mean_of_ratios(found):
    ratios = report.ratios(found, ("chat", "story"), batch=1)
    assert ratios["spec_over_best_plain"]["all"] == pytest.approx(22 / 18.5)  # FAULTS 30: not 2.56


def test_the_best_plain_decoder_is_found_suite_by_suite_whoever_wrote_it(found):
    ratios = report.ratios(found, ("chat", "story"), batch=1)
    assert ratios["spec_over_best_plain"]["chat"] == pytest.approx(2.0)  # transformers was faster than our loop
    assert ratios["spec_over_best_plain"]["story"] == pytest.approx(20 / 18)


def test_assisted_generation_is_compared_with_ours(found):
    ratios = report.ratios(found, ("chat", "story"), batch=1)
    assert ratios["spec_over_transformers_assisted"]["all"] == pytest.approx(21 / 18.5)
    assert ratios["spec_over_transformers_assisted_same_drafter"]["model"]["chat"] == pytest.approx(2.0)


def test_the_prediction_uses_other_prompts_and_the_measurement_our_own_plain_loop(found):
    story = next(one for one in found if one["name"] == "spec")["results"]["story"]
    assert story["predicted_speedup"] == pytest.approx(0.881, abs=5e-4)  # FAULTS 31
    assert story["measured_speedup"] == pytest.approx(20 / 18)
    assert story["measured_over_predicted"] == pytest.approx(20 / 18 / story["predicted_speedup"])


def test_alpha_of_a_suite_is_accepted_over_judged(found):
    results = next(one for one in found if one["name"] == "spec")["results"]
    assert results["chat"]["alpha"] == 3 / 4
    assert results["story"]["alpha"] == 1 / 2  # accepted over drafted would be 1/4
    assert results["all"]["alpha"] == pytest.approx(25 / 40)


def test_the_prediction_over_all_suites_adds_seconds():
    assert figures.combined_prediction([(10, 2.0), (10, 0.5)]) == pytest.approx(20 / 25)
    assert figures.combined_prediction([(10, 2.0), (0, None)]) == pytest.approx(2.0)
    assert figures.combined_prediction([(10, 2.0), (10, None)]) is None
    assert figures.combined_prediction([]) is None


def test_a_slowdown_is_said_to_be_one_with_the_reason_from_its_bill():
    measured = {(PLAIN, "chat"): [plain_run(31, 31.0)], (SPEC, "chat"): [spec_run(HALVES, 35.2)]}
    tuning = {(SPEC, "chat"): Tuning({4: [spec_run(HALVES, 1.0)]}, best=4)}
    found = entries(measured, tuning, suites=("chat",))
    whole = {
        "settings": {"batch": 1, "suites": ["chat"], "temperature": 0},
        "systems": found,
        "times": [],
        "ratios": report.ratios(found, ("chat",), 1),
    }
    assert whole["ratios"]["spec_over_best_plain"]["all"] == pytest.approx(0.881, abs=5e-4)
    (line,) = tables.bills(whole)
    assert "SLOWER" in line
    assert "emits 1.94 tokens and costs 2.20 target steps, 1.20 for drafting and 1.00 for the pass" in line
    (found, _) = findings.sentences(whole)
    assert "SLOWER" in found and "its bill predicted 0.88" in found
    assert "loss" in plot.title(whole)


def test_rounds_without_a_draft_are_named_in_the_bill():
    tuned = Tuning({4: [spec_run([(1, 0, 0), (3, 4, 2)], 1.0)]}, best=4)
    found = figures.bill_figures(tuned, TIMES, "ngram", None)
    assert found["bill"].endswith("50% of rounds had no draft")
    assert found["predicted_speedup"] == pytest.approx(2.0)
    assert found["measured_over_predicted"] is None


def test_batches_are_compared_with_batch_one():
    batch = system("spec 4", method="model", batch=4, lengths=(4,))
    plain = system("plain 4", batch=4)
    rounds = Round([[7] * 2] * 4, [[7] * 4] * 4, [1] * 4, [None] * 4)
    four = Run([rounds] * 11, [9.0] + [2.0] * 10)  # 80 tokens in 20 s
    measured = {
        (PLAIN, "chat"): [plain_run(10, 10.0)],
        (SPEC, "chat"): [spec_run([(2, 4, 1)] * 10, 10.0)],
        (plain, "chat"): [four],
        (batch, "chat"): [four],
    }
    tuned = Tuning({4: [spec_run(HALVES, 1.0)]}, best=4)
    found = entries(measured, {(SPEC, "chat"): tuned, (batch, "chat"): tuned}, suites=("chat",))
    ratios = report.ratios(found, ("chat",), batch=4)
    assert ratios["batch_over_batch_1"]["all"] == pytest.approx(4.0 / 2.0)
    assert ratios["spec_over_transformers_assisted"]["all"] is None  # nothing to compare with


def test_the_best_length_is_the_fastest_and_the_shortest_of_equals():
    fast, slow = spec_run([(4, 4, 3)], 1.0), spec_run([(4, 4, 3)], 2.0)
    assert run.best_length({8: [fast], 4: [slow], 2: [slow]}) == 8
    assert run.best_length({8: [fast], 4: [fast]}) == 4
    assert run.best_length({8: [Run()], 4: [Run()]}) == 4  # nothing was measured: no reason for more


def test_the_choice_is_given_with_its_reason():
    tuned = Tuning({2: [spec_run([(4, 4, 3)], 2.0)], 4: [spec_run([(4, 4, 3)], 1.0)]}, best=4)
    assert tuned.reason == "K = 4 gave 4.0 tokens/s on the tuning prompts, against 2.0 at 2"


def test_every_system_gets_the_same_budget_and_turns_go_back_and_forth():
    log = []

    def recorded(name, method, lengths):
        def decode(prompts, length, max_new_tokens):
            log.append((name, tuple(map(tuple, prompts)), length, max_new_tokens))
            return spec_run([(2, 4, 1)], 1.0)

        return System(name, "specdec", method, "fast", "float32", 1, lengths, decode)

    systems = [recorded("a", "plain", (0,)), recorded("b", "model", (2, 4)), recorded("c", "ngram", (2, 4))]
    suites = [Texts("chat", measured=[[1], [2]], tuning=[[8], [9]])]
    told = []
    tuning = run.tune(systems, suites, 10, lambda _, tokens: told.append(tokens))
    assert [entry[0] for entry in log] == ["b", "b", "c", "c", "c", "c", "b", "b"]
    assert {(name, length): sum(entry[0] == name and entry[2] == length for entry in log) for name, _, length, _ in log}
    assert {text for _, text, _, _ in log} == {((8,),), ((9,),)}  # the measured prompts are never seen
    assert all(sum(one[0] == name and one[2] == k for one in log) == 2 for name in "bc" for k in (2, 4))
    log.clear()
    found = run.measure(systems, suites, tuning, 10, 2, lambda _, tokens: told.append(tokens))
    assert [entry[0] for entry in log] == list("abccba" * 2)
    assert {text for _, text, _, _ in log} == {((1,),), ((2,),)}
    assert {len(runs) for runs in found.values()} == {2}
    run.warm_up(systems, suites[0], 10, lambda _, tokens: told.append(tokens))
    assert sum(told) == run.work(systems, suites, 10, 2)  # so the bar ends at 100 %


def test_batches_are_always_full():
    assert run.groups([[1], [2], [3]], 2) == [[[1], [2]], [[3], [1]]]
    assert run.groups([[1], [2]], 1) == [[[1]], [[2]]]
