"""Stage 03: the solutions are what the reference does, in the loops of the reference too, and its pictures tell it."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_course import pass_times
from specdec_course.block_figures import draw_costs, draw_judges, draw_mask
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.checks.replay import picture_of
from specdec_course.checks.toy_target import ToyTarget
from specdec_course.cli import build_app
from specdec_course.errors import CourseError
from specdec_course.figures import as_html
from specdec_course.widgets import cache_viewer
from specdec_course.widgets.cache_viewer import CROP, LENGTHS, RECOMPUTE, STEPS, WAYS, memory
from specdec_ref import pairs
from specdec_ref.acceptance import verify_chain
from specdec_ref.cache import RowCache
from specdec_ref.decode import collect, speculate
from specdec_ref.drafters import ModelDrafter
from specdec_ref.pairs import Pair
from specdec_ref.sampling import GREEDY, probabilities
from tests.course.mistakes import stage_03 as mistakes
from tests.course.solutions import solution_functions
from tests.ref.helpers import Watched, greedy_text, random_table_lm, tiny_lm

EXERCISES = ("3.1", "3.2", "3.3", "3.4", "3.5", "3.6")


@pytest.fixture(scope="module")
def solution():
    return solution_functions("03_batched_verification")


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_reference_agree_on_the_same_inputs(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


def test_positions_and_mask_of_the_solution_are_those_the_reference_gives_a_model(solution):
    lm = tiny_lm("llama").fresh(3)
    lm.prefill([[1, 2, 3, 4, 5], [6], [7, 8, 9]])
    given = {}
    handle = lm.model.register_forward_pre_hook(lambda _, args, kwargs: given.update(kwargs), with_kwargs=True)
    lengths = lm.cache.lengths
    lm.extend(torch.ones(3, 4, dtype=torch.int64))
    handle.remove()
    assert torch.equal(given["position_ids"], solution["block_positions"](lengths, 4))
    assert torch.equal(given["attention_mask"][:, 0] == 0, solution["block_mask"](lengths, 4))


def test_the_solutions_verdict_is_the_references_for_any_logits(solution):
    source = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits = torch.randn(4, 4, 3, generator=source)
        drafts = torch.randint(0, 3, (4, 3), generator=source)
        uniforms = torch.rand(4, 4, generator=source)
        wanted = verify_chain(probabilities(logits, GREEDY), drafts, None, uniforms[:, :3], uniforms[:, 3])
        num_accepted, next_token = solution["judge_block"](logits, drafts, 3)
        assert torch.equal(num_accepted, wanted.num_accepted)
        assert torch.equal(next_token, wanted.next_token)


def test_a_store_written_and_rolled_back_round_after_round_holds_what_a_row_cache_holds(solution):
    source = torch.Generator().manual_seed(1)
    cache = RowCache(3, torch.device("cpu"))
    store, lengths = torch.zeros(3, 128, 2), torch.zeros(3, dtype=torch.int64)
    for _ in range(8):
        states = torch.randn(3, 4, 2, generator=source)
        counts = torch.randint(1, 5, (3,), generator=source)
        cache.begin_pass(4)
        cache.update(states[:, None], states[:, None], 0)
        cache.advance(counts)
        store, lengths = solution["write_block"](store, lengths, states, counts)
        refused = torch.minimum(torch.randint(0, 3, (3,), generator=source), counts)
        cache.rollback(refused)
        lengths = lengths - refused
        assert torch.equal(lengths, cache.lengths)
        for row, length in enumerate(lengths.tolist()):
            assert torch.equal(store[row, :length], cache.keys[0][row, :length, 0])


class WithLengths:
    """A `CachedLM` as the exercise describes a target."""

    def __init__(self, lm):
        self.lm, self.extend, self.rollback = lm, lm.extend, lm.rollback

    @property
    def lengths(self):
        return self.lm.cache.lengths


def test_rounds_of_the_solution_write_the_greedy_text_of_a_real_transformer(solution):
    base = tiny_lm("llama")
    texts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    truth = [text + greedy_text(base, text, 20) for text in texts]
    target = WithLengths(base.fresh(2))
    target.lm.prefill([text[:-1] for text in texts])
    for number in range(3):
        good = (number, 2 - number)
        ahead = [truth[row][len(text) : len(text) + 3] for row, text in enumerate(texts)]
        drafts = [part[:g] + [(token + 1) % 64 for token in part[g:]] for part, g in zip(ahead, good, strict=True)]
        num_accepted, next_token = solution["verify_round"](
            target, torch.tensor([text[-1] for text in texts]), torch.tensor(drafts)
        )
        assert num_accepted.tolist() == list(good)
        for row, text in enumerate(texts):
            text += [*drafts[row][: good[row]], int(next_token[row])]
        assert target.lengths.tolist() == [len(text) - 1 for text in texts]
    assert all(text == whole[: len(text)] for text, whole in zip(texts, truth, strict=True))


def test_the_draft_cache_of_the_solution_is_that_of_the_references_drafter(solution):
    seen, before = [], {}

    def listen(event, drafter, argument):
        if event == "propose":
            before.update(text=drafter.committed.clone(), full=bool((argument.counts == 3).all()))
        elif event == "commit" and before["full"]:  # near its budget a row drafts less
            held, to_feed = solution["draft_cache_after"](before["text"], 3, argument.num_accepted)
            assert torch.equal(held, drafter.lm.cache.lengths)
            seen.extend(to_feed.tolist())

    target, draft = random_table_lm(4, seed=0), random_table_lm(4, seed=1)
    for model in (draft, target):  # the second drafts for itself: all pass
        drafter = Watched(ModelDrafter(model), listen)
        collect(speculate(target, drafter, [[1, 2], [3]], GREEDY, num_draft_tokens=3, max_new_tokens=16))
    assert set(seen) == {1, 2}


def test_the_toy_target_answers_a_block_as_it_answers_its_tokens_one_by_one():
    block = torch.tensor([[3, 1, 6], [2, 2, 0]])
    whole, pieces = ToyTarget([[1, 2], [4]]), ToyTarget([[1, 2], [4]])
    steps = torch.cat([pieces.extend(block[:, t : t + 1]) for t in range(3)], dim=1)
    assert torch.equal(whole.extend(block), steps)
    assert (whole.passes, pieces.passes) == (1, 3)
    whole.rollback([2, 0])
    assert whole.rows == [[1, 2, 3], [4, 2, 2, 0]]
    for wrong in ([-1, 0], [0, 5], [1]):
        with pytest.raises(ValueError, match="counts"):
            whole.rollback(wrong)
    with pytest.raises(ValueError, match="tokens has shape"):
        whole.extend(torch.tensor([1, 2]))


def test_a_failed_mask_and_a_failed_verdict_are_replayed_beside_the_right_ones():
    """The picture shows the row of the batch that went wrong."""
    for name, function, words in (
        ("3.2", mistakes.mask_not_itself, ["row 0, 5 tokens", "right ######..   yours #####..."]),
        ("3.3", mistakes.judge_sum, ["logits row 1 wants 4; draft 2 is 1: does not agree", "Right: 1 accepted"]),
        ("3.3", lambda logits, draft_tokens, vocab_size: logits.nothing, ["AttributeError"]),
    ):
        exercise = find_exercise(name)
        verdict = judge(exercise, observe(exercise, function))
        picture = picture_of(exercise, verdict)
        for word in words:
            assert word in "\n".join(picture.lines)
        assert bool(picture.laws) == (name == "3.3")


# --- the memory viewer


def labels(slots, *kinds):
    return [label for label, kind in slots if kind in kinds]


@pytest.mark.parametrize("accepted", [(4, 1), (0, 0), (2, 4), (4, 4)])
def test_after_a_rollback_by_lengths_or_recompute_each_row_continues_with_what_it_accepted(accepted):
    for way in (LENGTHS, RECOMPUTE):
        now = memory(way, 3, accepted)
        for row, (slots, count, held) in enumerate(zip(now.slots, accepted, cache_viewer.HELD, strict=True)):
            text = [f"t{i}" for i in range(held)] + ["x"] + [f"d{i + 1}" for i in range(count)] + ["y"]
            assert labels(slots, "text", "new") == text
            assert now.gained[row] == 1 + count
    assert memory(LENGTHS, 3, accepted).fed == 2 * 5 + 2


def test_one_cut_for_all_rows_keeps_what_the_slowest_accepted_and_loses_the_rest():
    now = memory(CROP, 2, (4, 1))
    assert labels(now.slots[0], "lost") == ["d2", "d3", "d4"]
    assert now.gained == [2, 2]
    assert labels(memory(CROP, 3, (4, 1)).slots[0], "new") == ["d2"]


def test_junk_is_where_refused_drafts_were_and_the_next_pass_writes_over_it():
    assert labels(memory(LENGTHS, 2, (4, 1)).slots[1], "junk") == ["d2", "d3", "d4"]
    after = memory(LENGTHS, 3, (4, 1)).slots[1]
    assert [label for label, kind in after[5:8]] == ["y", "d3", "d4"]


def test_moving_a_slider_of_the_viewer_changes_figure_and_words(monkeypatch):
    shown = {}
    monkeypatch.setattr(cache_viewer, "show_widget", lambda widget, static, alt: shown.update(box=widget, alt=alt))
    cache_viewer.view_cache()
    way, step, first, _, view = shown["box"].children
    before = view.value
    assert shown["alt"] in before
    assert "Junk" in before
    first.value = 0
    assert view.value != before
    way.value, step.value = CROP, 2
    assert "one cut for all rows" in view.value


def test_every_moment_of_every_way_can_be_drawn_and_said():
    for way in WAYS:
        for step in range(len(STEPS)):
            assert STEPS[step].capitalize() in cache_viewer.describe(way, step, (3, 2))
    assert "<img" in as_html(cache_viewer.draw(CROP, 2, (3, 2)), "x")


def test_the_figures_of_the_lesson_can_be_drawn():
    for figure in (
        draw_mask([5], 3),
        draw_mask([5, 2], 3),
        draw_judges("23", "34", 1),
        draw_costs({"a": {"x": {1: 1.0, 2: 1.2}}}),
    ):
        assert "<img" in as_html(figure, "x")


# --- what a pass costs


def test_targets_take_turns_and_the_quickest_pass_counts():
    ticks = iter([0, 9, 0, 9, 0, 5, 0, 7, 0, 9, 0, 9, 0, 4, 0, 8])  # a turn warms up before each timed one
    lm = tiny_lm("llama")
    assert pass_times.pass_times({"a": lm}, (1, 2), turns=2, clock=lambda: next(ticks)) == {"a": {1: 4, 2: 7}}
    assert lm.cache.lengths.tolist() == []
    assert pass_times.ratios({1: 4.0, 2: 6.0}) == {1: 1.0, 2: 1.5}


def test_no_curve_is_recorded_on_a_cpu(tmp_path):
    with pytest.raises(CourseError, match="on a GPU only"):
        pass_times.record(tiny_lm("llama"), "float32", tmp_path)
    assert pass_times.recorded(tmp_path) == []


def test_a_recorded_curve_comes_back_with_numbers_as_keys_and_a_broken_one_is_named(tmp_path):
    report = {"device": "Some GPU", "seconds": {"1": {"1": 0.5, "6": 0.6}}}
    (tmp_path / "some-gpu.json").write_text(json.dumps(report), encoding="utf-8")
    assert pass_times.recorded(tmp_path)[0]["seconds"] == {1: {1: 0.5, 6: 0.6}}
    (tmp_path / "torn.json").write_text('{"device": "x"', encoding="utf-8")
    with pytest.raises(CourseError, match=r"torn\.json"):
        pass_times.recorded(tmp_path)


def test_all_curves_of_the_repository_were_recorded_on_a_named_gpu():
    for report in pass_times.recorded():
        assert report["device"]
        assert set(report) >= {"model", "dtype", "torch", "context_tokens", "repeats"}


def test_the_command_prints_one_line_for_each_pass_and_refuses_to_record_here(monkeypatch):
    lm = tiny_lm("llama", max_position_embeddings=128)
    monkeypatch.setattr(pairs, "load_pair", lambda *_, **__: Pair("toy", lm, lm, None, "float64", Path("toy")))
    done = CliRunner().invoke(build_app(), ["passes", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    assert "T_v / T_t" in done.output
    done = CliRunner().invoke(build_app(), ["passes", "--record"])
    assert done.exit_code == 1
