"""Stage 01: the solutions do what the reference does, on the same inputs and the same uniform numbers."""

import pytest
import torch

from specdec_course import figures_plain_loop as figures
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.checks.stage_01 import Reader
from specdec_course.checks.toy_target import ToyTarget
from specdec_course.figures import as_html
from specdec_ref import sampling
from specdec_ref.decode import collect, generate
from specdec_ref.rows import Stop
from specdec_ref.sampling import Purpose, SamplingSettings, probabilities, uniforms
from tests.course.solutions import solution_functions
from tests.ref.helpers import tiny_lm

EXERCISES = ("1.1", "1.2", "1.3", "1.4", "1.5", "1.6")
PROMPTS = ([3], [5, 1, 5], [60, 2, 7, 7, 9, 11])


@pytest.fixture(scope="module")
def solution():
    return solution_functions("01_the_plain_loop")


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_reference_agree_on_the_same_inputs(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


def test_softmax_and_filters_together_are_the_references_distribution(solution):
    source = torch.Generator().manual_seed(0)
    for temperature in (0.0, 0.3, 1.0, 2.5):
        for top_k, top_p in [(None, 1.0), (5, 1.0), (None, 0.7), (8, 0.5), (100, 0.05)]:
            logits = 3 * torch.randn(40, generator=source, dtype=torch.float64)
            ours = solution["keep"](solution["softmax"](logits, temperature), top_k, top_p)
            wanted = probabilities(logits, SamplingSettings(temperature, top_k, top_p))
            torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)


def test_draw_picks_the_references_token_for_every_number(solution):
    source = torch.Generator().manual_seed(0)
    probs = torch.randn(30, generator=source, dtype=torch.float64).softmax(-1)
    probs[[0, 7, 29]] = 0.0
    ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)  # the smallest and the largest number there is
    numbers = torch.cat([torch.rand(300, generator=source, dtype=torch.float64), ends])
    wanted = sampling.draw(probs.expand(len(numbers), -1), numbers).tolist()
    assert [solution["draw"](probs, number) for number in numbers.tolist()] == wanted


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("eos_ids", "budget"), [((), 12), (tuple(range(0, 64, 5)), 12), ((), 0), ((), 1)])
def test_both_loops_write_the_text_of_generate(prompt, eos_ids, budget, solution):
    lm, settings = tiny_lm("llama"), SamplingSettings(temperature=0.9, top_k=20, top_p=0.9)
    wanted = collect(generate(lm, [prompt], settings, max_new_tokens=budget, stop=Stop(eos_ids), seeds=4))[0]

    def choose(row, uniform):
        return solution["draw"](
            solution["keep"](solution["softmax"](row, settings.temperature), settings.top_k, settings.top_p), uniform
        )

    # The reference draws token i in round i, at its own position.
    steps = torch.arange(budget)
    numbers = uniforms(torch.full((budget,), 4), steps, len(prompt) + steps, Purpose.CORRECT)
    rest = prompt, choose, numbers, eos_ids, budget
    assert solution["write"](lambda tokens: lm.fresh(1).extend(torch.tensor([tokens]))[0], *rest) == wanted
    cached = lm.fresh(1)
    assert solution["write_cached"](cached, *rest) == wanted
    assert int(cached.cache.lengths[0]) == (len(prompt) + len(wanted) - 1 if budget else 0)


def test_the_least_time_of_a_pass_turns_where_the_lesson_says(solution):
    weights, width, bandwidth, peak = 10**8, 4, 2e10, 1e11
    turn = peak * width / (2 * bandwidth)
    times = [solution["pass_seconds"](count, weights, width, bandwidth, peak) for count in (1, turn, 2 * turn)]
    assert times == pytest.approx([weights * width / bandwidth] * 2 + [2 * weights * width / bandwidth])


def test_the_toy_model_without_a_cache_gives_the_logits_of_the_one_with_a_cache():
    text = [3, 1, 4, 1, 5]
    assert torch.equal(Reader()(text), ToyTarget([[]]).extend(torch.tensor([text]))[0])
    with pytest.raises(ValueError, match="one text"):
        Reader()([text])


def test_every_figure_of_the_lesson_can_be_drawn_and_carries_its_text():
    times = {1: 0.05, 8: 0.06}
    drawn = [
        figures.draw_laws(["a", "b"], {"T = 1": [0.7, 0.3], "T = 2": [0.6, 0.4]}, "two laws"),
        figures.draw_interval([0.5, 0.0, 0.5], [(0.2, 0), (0.7, 2)], "pieces"),
        figures.draw_times({"pass": times}, {"floor": 0.03}, ("tokens", "ms", "times")),
        figures.draw_times({"pass": times}, {}, ("tokens", "ms", "times"), log_time=True),
        figures.draw_roofline(2e10, 1e11, {"pass": {1: (0.5, 5e9), 8: (4.0, 4e10)}}, "roofline"),
    ]
    for figure in drawn:
        assert 'alt="a figure of stage 01"' in as_html(figure, "a figure of stage 01")
