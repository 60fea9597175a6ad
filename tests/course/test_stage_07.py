"""Stage 07: the solutions build, read, walk and clean up trees as the reference does, and the pictures tell it."""

import itertools
import json
import random

import pytest
import torch
from matplotlib import pyplot as plt

from specdec_course import tree_figures as figures
from specdec_course.building.products import ROOT
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.checks.replay import picture_of
from specdec_course.checks.stage_07 import a_tree
from specdec_course.checks.stage_07 import draw as draw_token
from specdec_course.figures import as_html
from specdec_course.medusa_training import TREE_FIGURE, train_heads, write_text
from specdec_course.widgets import tree_mask
from specdec_course.widgets.tree_mask import CHAIN, NUM_CACHED, SIBLINGS, TREE, TREES, WAYS, view_of
from specdec_ref.acceptance import Verification, verify_tree
from specdec_ref.cache import RowCache
from specdec_ref.draft_shapes import expected_tree_tokens
from specdec_ref.heads import MedusaHeads, MedusaShape
from specdec_ref.law import fixed_tree, target_law, text_law, tree_round_law
from specdec_ref.model import block_shape
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import draw
from specdec_ref.trees import depths, full_tree, parents_of
from tests.course.mistakes import stage_07 as mistakes
from tests.course.solutions import solution_functions
from tests.ref.helpers import tiny_lm

EXERCISES = ("7.1", "7.2", "7.3", "7.4", "7.5")
FOLDER = ROOT / "source" / "07_medusa_and_trees"
TEXT = (FOLDER / "exercise.py").read_text(encoding="utf-8")
HAND = [-1, -1, 0, 0, 1]  # x -> a, b; a -> c, d; b -> e


@pytest.fixture(scope="module")
def solution():
    return solution_functions("07_medusa_and_trees")


@pytest.fixture(autouse=True)
def quiet_and_tidy():
    """Tiny models are quicker on one thread; no figure stays open."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    plt.close("all")


# --- the solutions and the reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_reference_agree_on_the_same_inputs(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


@pytest.mark.parametrize("widths", [(1,), (1, 1, 1), (3, 2, 1), (2, 3)])
def test_the_solutions_tree_is_the_one_that_medusa_drafts(widths, solution):
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    tokens, parents = solution["candidate_tree"](logits, list(widths))
    paths = full_tree(widths)
    assert parents == parents_of(paths)
    best = logits.topk(max(widths), dim=-1).indices
    assert tokens == [int(best[len(path) - 1, path[-1]]) for path in paths]


def test_mask_and_positions_of_the_solution_are_those_that_the_reference_gives_a_model(solution):
    source, given = random.Random(0), {}
    lm = tiny_lm("llama").fresh(1)
    lm.prefill([[1, 2, 3]])
    handle = lm.model.register_forward_pre_hook(lambda _, args, kwargs: given.update(kwargs), with_kwargs=True)
    for _ in range(5):
        parents = a_tree(source, source.randint(1, 9))
        block = torch.tensor([[-1, *(parent + 1 for parent in parents)]])
        lm.extend(torch.ones(1, block.shape[1], dtype=torch.int64), parents=block)
        positions, mask = solution["tree_block"](parents, 3)
        assert torch.equal(given["position_ids"][0], positions)
        assert torch.equal(given["attention_mask"][0, 0] == 0, mask)
        lm.rollback([block.shape[1]])
    handle.remove()


def test_the_positions_of_the_tree_by_hand_are_its_depths(solution):
    positions, mask = solution["tree_block"](HAND, 0)
    assert positions.tolist() == [0, 1, 1, 2, 2, 2]
    assert mask.int().tolist()[3:] == [[1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 0, 1, 0, 0, 1]]


def test_the_solutions_walk_is_the_references_for_any_tree_and_any_luck(solution):
    source, luck = random.Random(1), torch.Generator().manual_seed(1)
    accepted = set()
    for _ in range(200):
        parents = a_tree(source, source.randint(1, 8), depth_limit=3)
        tokens = []
        for node, parent in enumerate(parents):
            taken = [tokens[other] for other in range(node) if parents[other] == parent]
            tokens.append(source.choice([token for token in range(12) if token not in taken][:5]))
        deepest = int(depths(torch.tensor([parents])).max())
        laws = torch.rand(len(tokens) + 1, 12, generator=luck, dtype=torch.float64)
        laws[:, 4:] *= 0.05
        laws = laws / laws.sum(-1, keepdim=True)
        uniforms = torch.rand(deepest + 1, generator=luck, dtype=torch.float64)
        wanted = verify_tree(laws[None], torch.tensor([tokens]), torch.tensor([parents]), uniforms[None])
        path, following = solution["walk_tree"](laws, tokens, parents, uniforms, draw_token)
        assert path == wanted.path[0, : int(wanted.num_accepted)].tolist()
        assert following == int(wanted.next_token)
        accepted.add(len(path))
    assert accepted >= {0, 1, 2}


def one_by_one(walk):
    """A learner's walk as a verifier of batches."""

    def verify(p, tokens, parents, uniforms, num_drafted=None):
        paths = torch.zeros(len(p), uniforms.shape[1] - 1, dtype=torch.int64)
        count, following = torch.zeros(len(p), dtype=torch.int64), torch.zeros(len(p), dtype=torch.int64)
        for row in range(len(p)):
            path, following[row] = walk(p[row], tokens[row].tolist(), parents[row].tolist(), uniforms[row], draw_token)
            count[row] = len(path)
            paths[row, : len(path)] = torch.tensor(path, dtype=torch.int64)
        return Verification(count, following, paths)

    return verify


@pytest.mark.parametrize(
    "name", ["walk_tree", "a refused draw is drawn again", "children of a refused node are counted"]
)
def test_the_solutions_walk_emits_the_targets_law_and_its_mutants_do_not(name, solution):
    walk = solution["walk_tree"] if name == "walk_tree" else mistakes.MUTANTS["7.3"][name][0]
    table = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(-1)
    tree = fixed_tree((0, 1, 1, 2), (-1, -1, 0, 1))
    law = text_law(table, lambda text: tree_round_law(table, tree, text, one_by_one(walk)), (0, 1), 3, rounds=1)
    off = float((law - target_law(table, (0, 1), 3)).abs().max())
    assert (off < 1e-12) == (name == "walk_tree"), off


def test_after_the_solutions_gather_a_real_transformer_goes_on_as_after_a_fresh_reading(solution):
    lm, text, nodes = tiny_lm("llama").fresh(1), [5, 6, 7], [1, 2, 3, 4, 8]
    lm.prefill([text[:-1]])
    block = torch.tensor([[-1, *(parent + 1 for parent in HAND)]])
    lm.extend(torch.tensor([[text[-1], *nodes]]), parents=block)
    lengths = set()
    with torch.inference_mode():
        for layer in (*lm.cache.keys, *lm.cache.values):
            kept, length = solution["keep_path"](layer[0, :8].flatten(1), 2, [1, 4])  # b and e
            layer[0, :8] = kept.view_as(layer[0, :8])
            lengths.add(length)
    assert lengths == {5}
    lm.cache.lengths = torch.tensor([5])
    fresh = tiny_lm("llama").fresh(1)
    fresh.prefill([[*text, nodes[1], nodes[4]]])
    follow = torch.tensor([[9]])
    torch.testing.assert_close(lm.extend(follow), fresh.extend(follow), atol=1e-4, rtol=1e-4)


def test_the_solutions_gather_is_that_of_a_row_cache(solution):
    store = torch.arange(16.0).view(8, 2)
    cache = RowCache(1, torch.device("cpu"))
    cache.begin_pass(8)
    cache.update(store[None, None], store[None, None], 0)
    cache.keep_path([2], torch.tensor([[0, 2, 5]]), [3])
    kept, length = solution["keep_path"](store, 2, [1, 4])
    assert length == int(cache.lengths[0]) == 5
    assert torch.equal(kept[:5], cache.keys[0][0, :5, 0])


def test_no_other_tree_of_as_many_nodes_is_expected_to_bring_more_than_the_solutions(solution):
    chances = [[0.5, 0.3], [0.45, 0.25], [0.4, 0.2]]
    every = full_tree((2, 2, 2))
    for count in (1, 2, 3, 4, 5):
        paths, expected = solution["best_tree"](chances, count)
        most = 0.0
        for chosen in itertools.combinations(every, count):
            if all(path[:-1] in ((), *chosen) for path in chosen):
                own = [chances[len(path) - 1][path[-1]] for path in chosen]
                most = max(most, float(expected_tree_tokens(parents_of(chosen), own)))
        assert expected == pytest.approx(most)
        assert figures.likeliest_tree(chances, count) == paths
        assert figures.worth_of(paths, chances) == pytest.approx(expected)


def failing(name, function):
    exercise = find_exercise(name)
    seen = json.loads(json.dumps(observe(exercise, function, 0)))
    return picture_of(exercise, judge(exercise, seen, 0))


def test_the_replay_of_a_block_marks_the_token_that_sits_or_sees_wrongly():
    (by_index,) = mistakes.MUTANTS["7.2"]["positions by index"]
    lines = failing("7.2", by_index).lines
    assert sum(line.endswith("<- here") for line in lines) >= 1
    assert "last token: right position" in lines[1]
    assert "Yours: ZeroDivisionError" in failing("7.2", lambda parents, num_cached: 1 / 0).lines[-1]


def test_the_replay_of_a_walk_draws_the_laws_on_the_way_and_says_what_was_drawn():
    (again,) = mistakes.MUTANTS["7.3"]["a refused draw is drawn again"]
    picture = failing("7.3", again)
    assert picture.laws
    assert "after the text (row 0): u = " in picture.lines[1]
    assert picture.lines[-2].startswith("Yours: ")
    assert failing("7.3", lambda *_: 1 / 0).lines[-2].startswith("Yours: ZeroDivisionError")


# --- the mask viewer


@pytest.mark.parametrize("tree", list(TREES))
def test_the_right_view_of_a_tree_is_the_references_block(tree):
    block = torch.tensor([[-1, *(parent + 1 for parent in TREES[tree])]])
    offsets, sees = block_shape(1, block.shape[1], block)
    view = view_of(tree, TREE)
    assert [position - NUM_CACHED for position in view.positions] == offsets[0].tolist()
    assert [[kind == "path" for kind in line[NUM_CACHED:]] for line in view.kinds] == sees[0].tolist()
    assert all(line[:NUM_CACHED] == ["text"] * NUM_CACHED for line in view.kinds)


def test_the_wrong_views_show_what_they_must_not_and_only_where_there_is_something_to_show():
    def wrong(tree, way):
        return sum(kind == "wrong" for line in view_of(tree, way).kinds for kind in line)

    hand, a_chain, *_ = TREES
    assert wrong(hand, CHAIN) == 7
    assert wrong(hand, SIBLINGS) == 4
    assert {wrong(a_chain, way) for way in WAYS} == {0}
    assert {wrong(tree, TREE) for tree in TREES} == {0}
    assert view_of(hand, CHAIN).positions == [3, 4, 5, 6, 7, 8]


def test_the_viewer_says_in_words_what_a_token_reads():
    hand = next(iter(TREES))
    assert "Token d sits at position 5 and reads the 3 tokens in the cache and its path x a d." in tree_mask.describe(
        hand, TREE, 4
    )
    words = tree_mask.describe(hand, CHAIN, 4)
    assert "It also reads b c, which is in no text together with it" in words
    assert "Its position should be 5, by its depth." in words


def test_choosing_another_tree_mask_or_token_changes_the_picture_and_its_words(monkeypatch):
    shown = []
    monkeypatch.setattr(tree_mask, "show_widget", lambda *parts: shown.append(parts))
    tree_mask.view_tree_mask()
    box, static, alt = shown[0]
    trees, ways, token, view = box.children
    assert view.value == static
    assert f'alt="{alt.replace(">", "&gt;")}"' in static
    ways.value = SIBLINGS
    assert "It also reads c" in view.value
    token.value = 5
    trees.value = "a chain of three"
    assert token.value == 3
    assert "Token c sits at position 6" in view.value


def test_every_tree_and_mask_can_be_drawn():
    for tree in TREES:
        for way in WAYS:
            assert len(tree_mask.draw(tree, way, len(TREES[tree])).axes) == 2


# --- figures


def test_a_tree_is_drawn_with_a_box_for_each_node_and_a_thick_line_along_the_path():
    figure = figures.draw_tree([str(n) for n in range(5)], HAND, "x", path=[1, 4])
    (axes,) = figure.axes
    assert len(axes.patches) == 6
    assert [line.get_linewidth() for line in axes.lines] == [1, 2.5, 1, 1, 2.5]
    assert [text.get_text() for text in axes.texts] == ["x", "0", "1", "2", "3", "4"]


def test_bars_and_lines_of_a_figure_differ_in_more_than_colour():
    hits = figures.draw_hits([[0.7, 0.1, 0.05], [0.6, 0.1, 0.05]], "hits").axes[0]
    laws = figures.draw_laws({"a": [0.5, 0.5], "b": [0.9, 0.1], "c": [0.2, 0.8]}, ["x", "y"], "laws").axes[0]
    for axes in (hits, laws):
        assert len({bars.patches[0].get_hatch() for bars in axes.containers}) == 3
    growth = figures.draw_growth({name: {1: 1.5, 2: 1.7} for name in "abc"}, "growth").axes[0]
    assert len({(line.get_marker(), line.get_linestyle()) for line in growth.lines}) == 3


def test_a_training_is_drawn_with_its_loss_and_the_marks_beside_it():
    left, right = figures.draw_training([3.0, 2.0], {1: 1.1, 2: 1.4}, {"untrained": 1.0, "models/": 3.1}).axes
    assert list(left.lines[0].get_ydata()) == [3.0, 2.0]
    words = [text.get_text() for text in right.get_legend().get_texts()]
    assert words == ["after so many steps", "untrained: 1.00", "models/: 3.10"]
    assert "<img" in as_html(left.figure, "a training")


# --- the short training


def test_a_training_of_seconds_uses_the_targets_own_text_and_lowers_the_loss(tmp_path, capsys):
    tiny = load_pair("tiny", device="cpu")
    count = write_text(tiny, tmp_path, num_texts=12, num_held_out=2, max_new_tokens=16)
    assert 14 <= count <= 14 * 16
    trained = train_heads(tiny, tmp_path, epochs=6, look_every=6)
    assert len(trained.losses) == 18
    assert trained.losses[-1] < trained.losses[0]
    assert [look["step"] for look in trained.looks] == [6, 12, 18]
    assert trained.figures_of(trained.heads)[TREE_FIGURE] == pytest.approx(trained.looks[-1][TREE_FIGURE], abs=0.2)
    untrained = MedusaHeads(MedusaShape(256, trained.heads.shape.target_vocab, 3))
    untrained.borrow(tiny.target.model)
    assert trained.figures_of(untrained)[TREE_FIGURE] < 2
    assert "step    6 of 18: loss" in capsys.readouterr().out


def test_the_draw_of_the_checks_is_the_references():
    luck = torch.Generator().manual_seed(2)
    for _ in range(100):
        law, uniform = torch.rand(5, generator=luck, dtype=torch.float64), torch.rand((), generator=luck)
        assert draw_token(law, uniform) == int(draw(law, uniform.double()))
