"""Stage 09: the solutions compute what training and staged drafts of the reference do; the lesson's numbers hold."""

import re

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_course import staged_figures as figures
from specdec_course import student_lab as lab
from specdec_course.building.products import ROOT
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_ref.acceptance import Verification, verify_chain
from specdec_ref.decode import speculate
from specdec_ref.draft_shapes import staged_draft_cost
from specdec_ref.drafters import ModelDrafter, StagedDrafter
from specdec_ref.economics import expected_tokens, speedup
from specdec_ref.law import sampled_drafts, speculative_law, target_law
from specdec_ref.measure import Run
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY
from specdec_ref.training.batches import Batch
from specdec_ref.training.distill import loss
from tests.course.solutions import solution_functions
from tests.ref.helpers import random_table, random_table_lm

EXERCISES = ("9.1", "9.2", "9.3", "9.4", "9.5")
FOLDER = ROOT / "source" / "09_students_and_stages"
TEXT = (FOLDER / "exercise.py").read_text(encoding="utf-8")
LESSON = (FOLDER / "lesson.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def solution():
    return solution_functions("09_students_and_stages")


@pytest.fixture(autouse=True)
def one_thread_and_no_figure_left_open():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    plt.close("all")


def random_laws(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(*shape, generator=generator, dtype=torch.float64) ** 2 + 0.01
    return weights / weights.sum(-1, keepdim=True)


# --- the solutions and the reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes_its_check_with_every_seed(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message
        assert verdict.points == exercise.points


def test_forward_kl_plus_tv_is_the_loss_that_trained_the_models_where_the_record_holds_all_tokens(solution):
    """Padding and prompts included: the batch names rows and columns, the exercise a mask."""
    generator = torch.Generator().manual_seed(4)
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        student = LlamaForCausalLM(config).eval()
    tokens = torch.randint(12, (2, 5), generator=generator)
    mask = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 0, 0, 0]]).bool()
    target_logits = 2 * torch.randn(2, 5, 12, generator=generator)
    rows, columns = mask.nonzero(as_tuple=True)
    log_p, top_ids = target_logits[mask].log_softmax(-1).sort(descending=True)
    batch = Batch(tokens, rows, columns, top_ids[:, 0], top_ids, log_p)
    with torch.no_grad():
        draft_logits = student(input_ids=tokens).logits
        wanted = float(loss(student, batch, tv_weight=1.0))
    found = solution["distillation_losses"](target_logits, draft_logits, mask, 1.0)
    assert found["forward_kl"] + found["tv"] == pytest.approx(wanted, abs=1e-5)
    assert found["reverse_kl"] != pytest.approx(found["forward_kl"], rel=1e-3)


def test_tv_is_the_share_that_the_rule_refuses_and_keeps_pinskers_promise(solution):
    for seed in range(20):
        p, q = random_laws(seed, 2, 1, 1, 6)
        found = solution["distillation_losses"](p.log(), q.log(), torch.ones(1, 1, dtype=torch.bool), 1.0)
        law = p[0, 0]
        # Of the drafts of one token, the chance to be accepted, counted by the verifier over a grid of numbers.
        grid = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
        accepted = 0.0
        for token in range(6):
            verdict = verify_chain(
                law.expand(400, 2, 6),
                torch.full((400, 1), token),
                q[0].expand(400, 1, 6),
                grid[:, None],
                grid,
            )
            accepted += float(q[0, 0, token]) * float(verdict.num_accepted.double().mean())
        assert 1 - found["tv"] == pytest.approx(accepted, abs=0.005)
        for name in ("forward_kl", "reverse_kl"):
            assert found["tv"] <= (found[name] / 2) ** 0.5 + 1e-12


def test_an_inner_round_of_the_solution_decides_as_the_reference_with_the_same_numbers(solution):
    lengths = set()
    for seed in range(60):
        k, generator = seed % 5, torch.Generator().manual_seed(seed)
        q, micro = random_laws(seed, k + 1, 5), random_laws(seed + 1000, k, 5)
        tokens = torch.randint(5, (k,), generator=generator)
        accept = torch.rand(k, generator=generator, dtype=torch.float64) ** 2
        correct = torch.rand(1, generator=generator, dtype=torch.float64)
        verdict = verify_chain(q[None], tokens[None], micro[None], accept[None], correct)
        written, laws = solution["inner_round"](q, micro, tokens, accept, float(correct))
        assert written == [*tokens[: int(verdict.num_accepted)].tolist(), int(verdict.next_token)]
        assert torch.equal(laws, q[: len(written)])
        lengths.add(len(written))
    assert lengths == {1, 2, 3, 4, 5}


def test_what_inner_rounds_of_the_solution_write_follows_the_draft_models_law_exactly(solution):
    middle, micro = (random_table(3, seed).softmax(-1) for seed in (1, 2))

    def verify(target_probs, draft_tokens, draft_probs, accept_uniforms, correct_uniforms, num_drafted=None):
        cells = zip(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniforms, strict=True)
        rounds = [solution["inner_round"](q, m, t, u, float(v))[0] for q, m, t, u, v in cells]
        counts, following = zip(*((len(tokens) - 1, tokens[-1]) for tokens in rounds), strict=True)
        return Verification(torch.tensor(counts), torch.tensor(following))

    found = speculative_law(middle, lambda text: sampled_drafts(micro, text, 1), (0, 1), 2, 2, verify)
    assert float((found - target_law(middle, (0, 1), 2)).abs().max()) < 1e-12


@pytest.mark.parametrize(("count", "most"), [(1, 2), (4, 1), (5, 3), (6, 2), (3, 9)])
def test_the_solution_s_loop_drafts_what_the_reference_s_staged_drafter_drafts(count, most, solution):
    target, middle, micro = (random_table_lm(5, seed) for seed in (0, 1, 2))
    inner, prompt = Run(), [3, 1]
    drafter = StagedDrafter(middle, ModelDrafter(micro), most, watch=inner.rounds.append)
    first = next(iter(speculate(target, drafter, [prompt], GREEDY, num_draft_tokens=count, max_new_tokens=20)))

    def favourites(lm, text, number):
        logits = lm.fresh(1).extend(torch.tensor([text]))[0, -number:]
        return torch.nn.functional.one_hot(logits.argmax(-1), 5).double()

    def micro_draft(text, number):
        tokens, laws = [], [torch.zeros(0, 5).double()]
        for _ in range(number):
            laws.append(favourites(micro, [*text, *tokens], 1))
            tokens.append(int(laws[-1].argmax()))
        return tokens, torch.cat(laws)

    def judge_inside(draft_laws, tokens, laws):
        numbers = torch.full((len(tokens),), 0.5, dtype=torch.float64)
        return solution["inner_round"](draft_laws, laws, torch.tensor(tokens, dtype=torch.int64), numbers, 0.5)

    passes = []

    def draft_pass(text, tokens):
        passes.append(len(tokens))
        return favourites(middle, [*text, *tokens], 1 + len(tokens))

    tokens, laws = solution["staged_draft"](prompt, count, most, micro_draft, draft_pass, judge_inside)
    assert tokens == first.drafts[0]
    assert len(laws) == count
    assert passes == [one.num_drafted[0] for one in inner.rounds[: len(passes)]]
    assert sum(one.num_accepted[0] + 1 for one in inner.rounds[: len(passes)]) == count


def test_the_solution_s_bill_is_the_closed_form_where_all_rounds_are_alike(solution):
    """All micro tokens accepted: 6 drafts from two inner rounds of 2, with the price of `staged_draft_cost`."""
    rounds = [{"emitted": 7, "inner": [(2, 2), (2, 2)]}] * 5
    bill = solution["staged_bill"](rounds, 1.0, 1.2, 0.3, 0.36, 0.02)
    price = float(staged_draft_cost(1.0, 6, 2, 0.3, 0.02, 1.2))
    assert bill["speedup"] == pytest.approx(float(speedup(1.0, 6, price, 1.2)))
    assert bill["without_micro"] == pytest.approx(float(speedup(1.0, 6, 0.3, 1.2)))
    assert (bill["target_passes"], bill["draft_passes"], bill["micro_steps"]) == (5, 10, 20)


# --- the lesson's numbers


def test_the_two_students_of_the_lesson_are_ranked_differently_by_kl_and_by_acceptance(solution):
    p = torch.tensor([[0.5, 0.49, 0.01]]).double()
    students = {
        "forgetful": torch.tensor([[0.5, 0.499999, 0.000001]]).double(),
        "blurred": torch.tensor([[0.35, 0.64, 0.01]]).double(),
    }
    mask = torch.ones(1, 1, dtype=torch.bool)
    losses = {
        name: solution["distillation_losses"](p[None].log(), q[None].log(), mask, 1.0) for name, q in students.items()
    }
    assert losses["blurred"]["forward_kl"] < losses["forgetful"]["forward_kl"]
    name, alpha = solution["choose_student"](p, students)
    assert name == "forgetful"
    assert alpha == pytest.approx(0.99, abs=1e-4)


def test_the_third_model_pays_where_speculation_pays_for_the_draft_model():
    """In long drafts; the formula of the lesson is stage 05's speedup one level down."""
    for alpha, ratio in ((0.3, 0.5), (0.5, 0.2), (0.8, 0.05), (0.6, 0.6)):
        limit = (3 * ratio + 1) / float(expected_tokens(alpha, 3))
        assert float(staged_draft_cost(alpha, 400, 3, 1.0, ratio)) == pytest.approx(limit, rel=0.01)
        assert 1 / limit == pytest.approx(float(speedup(alpha, 3, ratio)))


# --- the lab


def test_a_student_of_the_lab_learns_from_the_target_s_own_text_and_leaves_the_caller_s_luck_alone():
    pair = load_pair("tiny", device="cpu")
    before = torch.get_rng_state()
    text = lab.write_text(pair, num_texts=8, num_held_out=4, max_new_tokens=12)
    assert len(text.pages) == 1
    assert len(text.prompts) == 4
    assert text.num_tokens == len(text.pages[0].batch.labels)
    student = lab.new_student(pair, seed=1)
    curve = lab.teach(
        student, text, lambda log_p, log_q: (log_p.exp() * (log_p - log_q)).sum(-1), steps=8, look_every=4
    )
    assert list(curve) == [0, 4, 8]
    assert 0 < curve[0] < curve[8] < 1
    assert lab.overlap(student, text.look_at) == pytest.approx(curve[8])
    run = lab.decode_with(pair, student, text.prompts[:1], temperature=1.0, max_new_tokens=6)
    assert run.new_tokens <= 6
    assert torch.equal(torch.get_rng_state(), before)


def test_the_target_overlaps_with_itself_completely():
    pair = load_pair("tiny", device="cpu")
    text = lab.write_text(pair, num_texts=2, num_held_out=2, max_new_tokens=6)
    assert lab.overlap(pair.target.model, text.look_at) == pytest.approx(1, abs=2e-3)  # the record is in float16


# --- words


def test_every_section_that_the_exercise_names_is_a_heading_of_the_lesson():
    headings = set(re.findall(r"^# #+ (.+)$", LESSON, re.MULTILINE))
    assert set(re.findall(r'"([^"\n]+\?|One inner round|The loop inside|Choose by acceptance)"', TEXT)) <= headings


def test_every_figure_of_the_lesson_has_words_for_those_who_do_not_see_it():
    assert LESSON.count("show(") - LESSON.count("def show(") == LESSON.count("alt=") == 6


# --- figures


def test_the_students_of_a_figure_share_what_is_filled_with_the_target():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    (axes,) = figures.draw_students(p, {"one": q}).axes
    filled = [bar.get_height() for bar in axes.patches[3:]]
    assert sum(filled) == pytest.approx(0.7)


def test_lines_of_a_figure_differ_in_more_than_colour():
    curves = {name: {0: 0.1, 20: 0.5} for name in ("a", "b", "c")}
    drawn = [
        figures.draw_curves({"one": curves}).axes[0].lines,
        figures.draw_draft_cost([0.1, 0.2], 6, 3).axes[0].lines,
    ]
    for lines in drawn:
        looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
        assert len(looks) == len(lines) >= 3


def test_the_stages_show_as_many_draft_tokens_with_three_models_as_with_two():
    upper, lower = figures.draw_stages([(3, 3), (1, 1), (0, 0)]).axes
    assert [text.get_text() for text in lower.texts] == ["d1–d4", "d5–d6", "d7", "one pass over x, d1 … d7"]
    assert len(upper.patches) == 8
    assert len(lower.patches) == 4 + 3 + 1


def test_a_bill_that_loses_says_so():
    (axes,) = figures.draw_bills({"good": (0.1, 0.4, 1.0, 3.0), "bad": (0.5, 1.0, 1.0, 2.0)}).axes
    words = [text.get_text() for text in axes.texts]
    assert "1.50 for 3.00 tokens: 2.00x" in words
    assert "2.50 for 2.00 tokens: 0.80x, SLOWER" in words
