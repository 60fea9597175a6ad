"""Several candidates for one place: the rule counted to 1e-12, wrong rules caught, and a drafter that proposes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy import stats

from specdec_ref.acceptance import Verification, verify_chain
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import CandidatesDrafter, Draft, Drafter
from specdec_ref.drafters.branching import Shape
from specdec_ref.law import (
    Text,
    Trees,
    round_law,
    sampled_drafts,
    sampled_trees,
    sibling_round_law,
    target_law,
    text_law,
    tree_probs,
)
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from specdec_ref.siblings import draw_siblings, verify_siblings
from specdec_ref.trees import ancestors, full_tree
from specdec_ref.typical import Typical
from tests.ref.helpers import Watched, random_table, random_table_lm, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = 1e-12
CAUGHT = 1e-3
TEXT = (0, 1)
PROMPTS = [[1, 2, 3], [4], [3, 3, 2, 1, 0], [2, 1]]
TWO, THREE = (-1, -1), (-1, -1, -1)
SHAPES = {
    "one": (-1,),
    "two siblings": TWO,
    "three siblings": THREE,
    "chain": (-1, 0, 1),
    "two, and two after the first": (-1, -1, 0, 0),
    "two, each with a child": (-1, -1, 0, 1),
    "interleaved": (-1, 0, -1, 2),
}


def law(seed: int, vocab: int = 3) -> torch.Tensor:
    return random_table(vocab, seed).softmax(-1)


def difference(
    target: torch.Tensor, drafter: Callable[[Text], Trees], length: int, rounds: int = 1, **rule: object
) -> float:
    """Largest difference, over all texts of that length, between the law with such trees and the target's own."""
    one = lambda text: sibling_round_law(target, drafter(text), text, **rule)  # noqa: E731  # pyright: ignore
    found = text_law(target, one, TEXT, length, rounds)
    assert float(found.sum()) == pytest.approx(1, abs=EXACT)
    return float((found - target_law(target, TEXT, length)).abs().max())


# The rule


@pytest.mark.parametrize("shape", list(SHAPES))
def test_sampled_siblings_leave_the_targets_law_unchanged(shape: str):
    target, draft = law(0), law(1)
    assert difference(target, lambda text: sampled_trees(draft, text, SHAPES[shape]), length=3) < EXACT


@pytest.mark.parametrize("shape", [TWO, THREE], ids=["two", "three"])
def test_rounds_to_the_end_over_four_tokens_are_exact(shape: tuple[int, ...]):
    target, draft = law(2, vocab=4), law(3, vocab=4)
    assert difference(target, lambda text: sampled_trees(draft, text, shape), length=3, rounds=3) < EXACT


@pytest.mark.parametrize(
    "how", [SamplingSettings(top_k=1), SamplingSettings(top_k=2), SamplingSettings(0.7, top_p=0.8)]
)
def test_laws_with_fewer_tokens_than_siblings_are_exact(how: SamplingSettings):
    """A draft law of one or two tokens has no third sibling to offer; whatever stands there, its q is known."""
    target, draft = (probabilities(random_table(3, seed), how) for seed in (4, 5))
    assert difference(target, lambda text: sampled_trees(draft, text, THREE), length=2) < EXACT
    assert difference(law(4), lambda text: sampled_trees(draft, text, (-1, -1, 0, 0)), length=3) < EXACT


def test_trees_of_several_sizes_are_exact():
    target, draft = law(0), law(1)

    def padded(text: Text) -> Trees:
        trees = sampled_trees(draft, text, (-1, -1, 0))
        sizes = torch.full((len(trees.tokens),), sum(text) % 4)
        return Trees(trees.tokens, trees.parents, trees.weights, sizes, trees.probs)

    for text in ((0, 0), (0, 1), (1, 1), (2, 1)):
        one = text_law(target, lambda text: sibling_round_law(target, padded(text), text), text, 3, 3)
        assert float((one - target_law(target, text, 3)).abs().max()) < EXACT


def test_a_chain_is_judged_as_a_chain():
    target, draft = law(0), law(1)
    as_tree = sibling_round_law(target, sampled_trees(draft, TEXT, (-1, 0)), TEXT)
    as_chain = round_law(target, sampled_drafts(draft, TEXT, 2), TEXT)
    for one, other in zip(as_tree, as_chain, strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=0)
    luck = torch.Generator().manual_seed(0)
    p, q = (torch.rand(500, n, 5, generator=luck, dtype=torch.float64) for n in (4, 3))
    p, q, tokens = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True), torch.randint(5, (500, 3), generator=luck)
    u, v = torch.rand(500, 3, generator=luck).double(), torch.rand(500, generator=luck).double()
    tree = verify_siblings(p, tokens, torch.tensor([[-1, 0, 1]]).expand(500, -1), q, u, v)
    chain = verify_chain(p, tokens, q, u, v)
    assert torch.equal(tree.num_accepted, chain.num_accepted)
    assert torch.equal(tree.next_token, chain.next_token)


def test_a_second_sibling_is_accepted_with_what_the_first_has_left():
    """Pair B, p=.5,.3,.2 and q=.2,.5,.3: token 1 refused at u=.7, p becomes 1,0,0; token 0 passes, 2 would not."""
    p = torch.tensor([[[0.5, 0.3, 0.2]] * 3])
    q = torch.tensor([[[0.2, 0.5, 0.3], [0.4, 0.0, 0.6]]])
    hung, u, v = torch.tensor([[-1, -1]]), torch.tensor([[0.7, 0.999]]), torch.tensor([0.1])
    found = verify_siblings(p, torch.tensor([[1, 0]]), hung, q, u, v)
    assert (found.num_accepted.tolist(), found.path.tolist()) == ([1], [[1]])  # pyright: ignore
    refused = verify_siblings(p, torch.tensor([[1, 2]]), hung, q, torch.tensor([[0.7, 0.0]]), v)
    assert (refused.num_accepted.tolist(), refused.next_token.tolist()) == ([0], [0])


def more_candidates_are_accepted_more_often(parents: tuple[int, ...]) -> float:
    emitted = sibling_round_law(law(0), sampled_trees(law(1), TEXT, parents), TEXT)
    return float(emitted[0].sum())


def test_each_further_sibling_lowers_the_chance_of_a_round_without_a_draft_token():
    one, two, three = (more_candidates_are_accepted_more_often((-1,) * count) for count in (1, 2, 3))
    assert one > two > three
    assert three == pytest.approx(0, abs=EXACT)  # all three tokens stand there: one of them is right


# Wrong rules, each of which somebody might write


def same_law_again(p, tokens, parents, q, u, v, num=None):
    """Judge the second sibling by the first one's p: nothing is taken off for the refusal."""
    return _judge_root_siblings(p, tokens, q, u, v, after_refusal=lambda law, q: law)


def replacement_from_p(p, tokens, parents, q, u, v, num=None):
    """Siblings judged rightly, but the last word comes from p."""
    return _judge_root_siblings(p, tokens, q, u, v, last_word_from_p=True)


def same_uniform(p, tokens, parents, q, u, v, num=None):
    """Judge all siblings with one number."""
    return verify_siblings(p, tokens, parents, q, u[:, :1].expand_as(u), v, num)


def _judge_root_siblings(p, tokens, q, u, v, after_refusal=None, last_word_from_p=False):
    """The rule for children of the text, by hand, with a mistake to choose."""
    outcomes = []
    for row in range(len(p)):
        left, found = p[row, 0], None
        for node in range(tokens.shape[1]):
            token = int(tokens[row, node])
            if u[row, node] < left[token] / q[row, node, token]:
                found = node
                break
            missing = (left - q[row, node]).clamp(min=0)
            left = after_refusal(left, q[row, node]) if after_refusal else missing / missing.sum()
        end = p[row, found + 1] if found is not None else p[row, 0] if last_word_from_p else left
        following = int(torch.searchsorted(end.cumsum(0), v[row] * end.sum(), right=True))
        outcomes.append((int(found is not None), min(following, len(end) - 1), found or 0))
    accepted, following, place = torch.tensor(outcomes).unbind(1)
    return Verification(accepted, following, place[:, None])


def unconditional_q(draft: torch.Tensor) -> Callable[[Text], Trees]:
    """Name the law of the first sibling for the second too."""

    def drafter(text: Text) -> Trees:
        trees = sampled_trees(draft, text, TWO)
        after = tree_probs(draft, text, trees.tokens, trees.parents)
        return Trees(trees.tokens, trees.parents, trees.weights, probs=after[:, :1].expand(-1, 2, -1))

    return drafter


@pytest.mark.parametrize("rule", [same_law_again, replacement_from_p, same_uniform])
def test_a_wrong_rule_is_caught(rule: Callable[..., Verification]):
    """With three tokens a refusal often leaves one of them only, and mistakes about the rest do not show: so four."""

    def found(seed: int) -> float:
        draft = law(seed + 9, vocab=4)
        return difference(law(seed, 4), lambda text: sampled_trees(draft, text, TWO), length=1, verify=rule)

    assert max(map(found, range(4))) > CAUGHT


def test_a_second_sibling_that_claims_the_law_of_the_first_is_caught():
    found = [difference(law(seed, 4), unconditional_q(law(seed + 9, 4)), length=1) for seed in range(4)]
    assert max(found) > CAUGHT


def test_typical_acceptance_of_siblings_fails_the_same_test_by_a_known_amount():
    """p = .5,.3,.2 always, two siblings of q = .2,.5,.3: the first that is above the threshold of .09 always passes."""
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(3, 3, 3).contiguous()
    draft = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).expand(3, 3, 3).contiguous()

    def lossy(p, tokens, parents, q, u, v, num=None):
        return Typical().verify(p, tokens, parents, v, torch.full((len(p),), tokens.shape[1]))

    found = difference(target, lambda text: sampled_trees(draft, text, TWO), length=1, verify=lossy)
    assert found == pytest.approx(0.3, abs=EXACT)  # the first token follows q: .2 instead of .5
    assert difference(target, lambda text: sampled_trees(draft, text, TWO), length=1) < EXACT


def test_bad_trees_are_refused_by_the_rule():
    p, q = torch.full((1, 3, 4), 0.25), torch.full((1, 2, 4), 0.25)
    tokens, hung, u, v = torch.tensor([[1, 2]]), torch.tensor([[-1, -1]]), torch.zeros(1, 2), torch.zeros(1)
    verify_siblings(p, tokens, hung, q, u, v)
    with pytest.raises(ValueError, match="a parent is -1 or an earlier node"):
        verify_siblings(p, tokens, torch.tensor([[1, -1]]), q, u, v)
    with pytest.raises(ValueError, match="draft_probs has shape"):
        verify_siblings(p, tokens, hung, q[:, :1], u, v)
    with pytest.raises(ValueError, match="not drawn from that law"):
        verify_siblings(p, tokens, hung, torch.tensor([[[0.5, 0.5, 0, 0], [1.0, 0, 0, 0]]]), u, v)
    with pytest.raises(ValueError, match="not drawn from that law"):
        verify_siblings(p * float("nan"), tokens, hung, q, u, v)
    with pytest.raises(ValueError, match="holds NaN"):  # of a token that was not drafted, but may be drawn
        verify_siblings(p, tokens, hung, q.index_fill(2, torch.tensor([3]), float("nan")), u, v)
    with pytest.raises(ValueError, match="num_drafted has shape"):
        verify_siblings(*(part.expand(2, *part.shape[1:]) for part in (p, tokens, hung, q, u, v)), torch.tensor([1]))


# Drawing


def test_siblings_are_different_and_drawn_from_the_law_they_come_with():
    """Chi-square on ordered pairs of 20,000 draws; a true sampler fails once in a million runs."""
    first = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    u = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens, laws = draw_siblings(first.expand(20_000, 3), u)
    assert bool((tokens[:, 0] != tokens[:, 1]).all())
    assert bool((laws.gather(-1, tokens[..., None]) > 0).all())
    torch.testing.assert_close(laws.sum(-1), torch.ones(20_000, 2, dtype=torch.float64))
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    seen = [int(((tokens[:, 0] == a) & (tokens[:, 1] == b)).sum()) for a, b in pairs]
    wanted = [20_000 * float(first[a] * first[b] / (1 - first[a])) for a, b in pairs]
    assert stats.chisquare(seen, wanted).pvalue > 1e-6


def test_a_law_of_one_token_still_gives_different_siblings():
    tokens, laws = draw_siblings(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.9, 0.4, 0.2]]))
    assert tokens.tolist() == [[1, 0, 2]]
    assert laws.tolist() == [[[0, 1, 0], [0.5, 0, 0.5], [0, 0, 1]]]


def test_a_shape_has_no_child_without_its_elder_siblings():
    assert Shape(full_tree((2, 1))).levels(4) == [range(2), range(2, 4)]
    assert Shape(full_tree((2, 1))).counts(torch.tensor([0, 1, 2, 9])).tolist() == [0, 2, 4, 4]
    with pytest.raises(ValueError, match=r"\(1,\) is child 0 of its parent, not 1"):
        Shape([(1,)])
    with pytest.raises(ValueError, match="paths is empty"):
        Shape([])


# The drafter


def drafter(vocab: int = 5, seed: int = 1, paths=full_tree((2, 2, 1))) -> CandidatesDrafter:  # noqa: B008
    return CandidatesDrafter(random_table_lm(vocab, seed), paths)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_text_is_the_targets_own(batch: int, penalty: float):
    target, prompts, settings = tiny_lm(), PROMPTS[:batch], SamplingSettings(0.0, repetition_penalty=penalty)
    small = CandidatesDrafter(tiny_lm("llama", 1), full_tree((2, 2, 1)))
    options = {"max_new_tokens": 20, "stop": Stop((11,))}
    plain = collect(generate(target, prompts, settings, **options))
    assert collect(speculate(target, small, prompts, settings, num_draft_tokens=3, **options)) == plain


def test_sampled_text_follows_the_targets_law():
    """Chi-square on the first three new tokens of 4,000 rows; a true decoder fails once in a million runs."""
    count, target = 4000, random_table_lm(3, 0)
    tree = drafter(3, 1, full_tree((2, 2)))
    found = collect(speculate(target, tree, [[0, 1]] * count, num_draft_tokens=2, max_new_tokens=3, seeds=9))
    expected = target_law(law(0), TEXT, 3).flatten() * count
    seen = torch.zeros(27)
    for a, b, c in found:
        seen[9 * a + 3 * b + c] += 1
    rare = expected < 5
    observed = [*seen[~rare].tolist(), float(seen[rare].sum())]
    assert stats.chisquare(observed, [*expected[~rare].tolist(), float(expected[rare].sum())]).pvalue > 1e-6


@pytest.mark.parametrize("how", [SamplingSettings(), SamplingSettings(0.7, top_k=3, repetition_penalty=1.3)])
def test_each_nodes_law_is_the_draft_models_without_its_elder_siblings(how: SamplingSettings):
    model, rows, checked = tiny_lm("llama", 1), list[Rows](), 0

    def look(event: str, _: Drafter, value: object) -> None:
        nonlocal checked
        if isinstance(value, Rows):
            rows.append(value)
        if not isinstance(value, Draft) or value.parents is None or value.probs is None:
            return
        before = ancestors(value.parents)
        for row, text in enumerate(rows[0].tokens):
            tokens, hung = value.tokens[row].tolist(), value.parents[row].tolist()
            for node in range(int(value.counts[row])):
                path = [tokens[i] for i in before[row, hung[node] + 1].nonzero()[:, 0].tolist()]
                whole = text + path
                wanted = probabilities(uncached(model, whole)[-1:], how, torch.tensor([whole]))[0].clone()
                elder = [tokens[i] for i in range(node) if hung[i] == hung[node]]
                wanted[elder] = 0
                torch.testing.assert_close(value.probs[row, node], wanted / wanted.sum(), atol=1e-10, rtol=0)
                checked += 1

    tree = Watched(CandidatesDrafter(model, full_tree((2, 2, 1))), look)
    list(speculate(tiny_lm(), tree, PROMPTS, how, num_draft_tokens=3, max_new_tokens=8))
    assert checked > 60


def test_a_tree_of_the_target_itself_is_accepted_to_its_full_depth_every_time():
    """[13, 28] The draft's cache keeps the accepted path, and nothing else, round after round."""
    lm = tiny_lm()
    paths = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0))
    rounds = list(
        speculate(lm, CandidatesDrafter(lm, paths), [[5, 9, 2], [7]], GREEDY, num_draft_tokens=3, max_new_tokens=60)
    )
    assert all(set(one.num_accepted[:1]) <= {3} for one in rounds[:-1])
    own = SamplingSettings(1.0)
    sampled = list(speculate(lm, CandidatesDrafter(lm, paths), [[5]], own, num_draft_tokens=3, max_new_tokens=30))
    assert all(one.num_accepted == [3] for one in sampled[:-1])  # p = q: a first sibling is never refused


def test_a_row_does_not_depend_on_the_rows_beside_it():
    target, settings = random_table_lm(5, 0), SamplingSettings(0.9, top_p=0.95, repetition_penalty=1.1)
    options = {"num_draft_tokens": 3, "max_new_tokens": 15}
    together = collect(speculate(target, drafter(), PROMPTS, settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, drafter(), [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    assert together == alone


def test_draft_and_target_may_have_vocabularies_of_different_widths():
    for width in (4, 7):
        small = CandidatesDrafter(random_table_lm(width, 1), full_tree((2, 1)))
        target = random_table_lm(5, 0)
        plain = collect(generate(target, PROMPTS, GREEDY, max_new_tokens=15))
        assert collect(speculate(target, small, PROMPTS, GREEDY, max_new_tokens=15)) == plain
        collect(speculate(target, small, PROMPTS, max_new_tokens=15))


def test_the_end_of_the_context_and_of_the_budget_cut_the_tree():
    small, target = CandidatesDrafter(random_table_lm(5, 1, 9), full_tree((2, 1))), random_table_lm(5, 0, 12)
    plain = collect(generate(target, [[1, 2, 3], [4]], GREEDY, max_new_tokens=30))
    assert collect(speculate(target, small, [[1, 2, 3], [4]], GREEDY, max_new_tokens=30)) == plain
    for budget in range(6):
        texts = collect(speculate(target, small, [[1, 2, 3]], max_new_tokens=budget))
        assert [len(text) for text in texts] == ([budget] if budget else []) or texts == [[]]
