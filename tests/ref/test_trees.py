"""Draft trees: their shape, the exact rule counted to 1e-12, the lossy one caught, and decoding with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from specdec_ref.acceptance import Verification, verify_tree
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, Drafter, MedusaDrafter
from specdec_ref.heads import MedusaHeads, MedusaShape
from specdec_ref.law import (
    Trees,
    fixed_draft,
    fixed_tree,
    round_law,
    target_law,
    text_law,
    tree_round_law,
)
from specdec_ref.model import CachedLM, pad
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings
from specdec_ref.trees import ancestors, chain, depths, full_tree, parents_of, twins
from specdec_ref.typical import Typical
from tests.ref.helpers import VOCAB, position_lm, position_text, random_table_lm, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = 1e-12
TEXT = (0, 1)
PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8], [40, 41]]

# Tokens and parents over a vocabulary of at least three; "wide" is root->{a,b}, a->{c,d}, b->{e}.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "nothing": ((), ()),
    "one": ((2,), (-1,)),
    "two siblings": ((2, 0), (-1, -1)),
    "three siblings": ((1, 2, 0), (-1, -1, -1)),
    "chain": ((1, 0), (-1, 0)),
    "wide": ((1, 0, 2, 1, 0), (-1, -1, 0, 0, 1)),
    "same token on two branches": ((0, 1, 2, 2), (-1, -1, 0, 1)),
    "deep": ((2, 1, 0, 1), (-1, 0, 1, -1)),
}


def random_table(vocab: int, seed: int) -> torch.Tensor:
    logits = torch.randn(vocab, vocab, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (2 * logits).softmax(-1)


def difference(table: torch.Tensor, tree_after: Callable, length: int, rounds: int = 1, **rule: Callable) -> float:
    """Largest difference, over all texts of that length, between the law with trees and the target's own."""
    law = text_law(table, lambda text: tree_round_law(table, tree_after(text), text, **rule), TEXT, length, rounds)
    assert float(law.sum()) == pytest.approx(1, abs=EXACT)
    return float((law - target_law(table, TEXT, length)).abs().max())


# Shape


def test_depths_and_ancestors_of_a_tree():
    parents = torch.tensor([[-1, -1, 0, 0, 1]])
    assert depths(parents).tolist() == [[1, 1, 2, 2, 2]]
    assert ancestors(parents)[0].int().tolist() == [
        [0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1],
    ]
    assert chain(2, 3).tolist() == [[-1, 0, 1]] * 2


@pytest.mark.parametrize("parents", [[0], [1, -1], [-2], [-1, 1]], ids=["itself", "later", "below -1", "itself, 2"])
def test_a_parent_comes_before_its_child(parents: list[int]):
    with pytest.raises(ValueError, match="a parent is -1 or an earlier node"):
        depths(torch.tensor([parents]))


def test_twins_are_real_siblings_with_one_token():
    parents = torch.tensor([[-1, -1, 0, 1]])
    real = torch.tensor([[True, True, True, True]])
    assert not twins(torch.tensor([[4, 5, 6, 6]]), parents, real).any()  # cousins may be equal
    assert twins(torch.tensor([[4, 4, 6, 7]]), parents, real).all()
    assert not twins(torch.tensor([[4, 4, 6, 7]]), parents, torch.tensor([[True, False, False, False]])).any()


def test_a_full_tree_has_each_combination_of_ranks_shallow_ones_first():
    assert full_tree((2, 1)) == ((0,), (1,), (0, 0), (1, 0))
    assert parents_of(full_tree((2, 1))) == [-1, -1, 0, 1]
    assert len(full_tree((3, 2, 1))) == 15


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([(0,), (0,)], "stands twice"),
        ([()], "is empty"),
        ([(0, 1), (0,)], "comes before its parent"),
        ([(0,), (0, 1), (1,)], "comes after a deeper one"),
    ],
)
def test_paths_that_are_no_tree_are_refused(paths: list[tuple[int, ...]], message: str):
    with pytest.raises(ValueError, match=message):
        parents_of(paths)


# The exact rule


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("vocab", [3, 4])
def test_a_round_with_a_tree_emits_the_targets_law(shape: str, vocab: int):
    tokens, parents = SHAPES[shape]
    table = random_table(vocab, seed=vocab)
    assert difference(table, lambda text: fixed_tree(tokens, parents), length=4) < EXACT


def test_two_rounds_with_trees_that_depend_on_the_text_emit_the_targets_law():
    table = random_table(3, seed=7)

    def tree_after(text: Sequence[int]) -> Trees:
        tokens, parents = SHAPES[("wide", "two siblings", "chain")[text[-1]]]
        return fixed_tree(tuple((token + text[-2]) % 3 for token in tokens), parents)

    assert difference(table, tree_after, length=5, rounds=2) < EXACT


def test_trees_chosen_at_random_and_padded_emit_the_targets_law():
    table = random_table(3, seed=2)
    drawn = Trees(
        tokens=torch.tensor([[0, 1, 2, 0], [2, 0, 0, 0]]),
        parents=torch.tensor([[-1, -1, 0, 1], [-1, 0, -1, -1]]),
        weights=torch.tensor([0.25, 0.75], dtype=torch.float64),
        num_drafted=torch.tensor([4, 2]),
    )
    assert difference(table, lambda text: drawn, length=4) < EXACT


def test_laws_with_tokens_that_never_come_stay_exact():
    table = random_table(4, seed=5)
    table[:, :, 1] = 0
    table = table / table.sum(-1, keepdim=True)
    tokens, parents = SHAPES["wide"]
    assert difference(table, lambda text: fixed_tree(tokens, parents), length=3) < EXACT


def test_a_chain_as_a_tree_is_judged_like_a_deterministic_chain():
    table = random_table(4, seed=1)
    as_tree = tree_round_law(table, fixed_tree((1, 2, 0), (-1, 0, 1)), TEXT)
    as_chain = round_law(table, fixed_draft((1, 2, 0)), TEXT)
    for one, other in zip(as_tree, as_chain, strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=0)


def wrong_row(p: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, uniforms: torch.Tensor, num=None):
    """Look up a node's law by its depth: right for a chain, wrong for a tree."""
    by_depth = torch.nn.functional.pad(depths(parents), (1, 0))
    return verify_tree(p.gather(1, by_depth[..., None].expand_as(p)), tokens, parents, uniforms, num)


def same_uniform(p: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, uniforms: torch.Tensor, num=None):
    """Draw at every depth with the first number."""
    return verify_tree(p, tokens, parents, uniforms[:, :1].expand_as(uniforms), num)


def any_node(p: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, uniforms: torch.Tensor, num=None):
    """Forget to ask whose child a node is."""
    flat = torch.full_like(parents, -1)
    found = verify_tree(p, tokens, flat, uniforms[:, :2], num)
    assert found.path is not None
    path = torch.nn.functional.pad(found.path, (0, uniforms.shape[1] - 1 - found.path.shape[1]))
    return Verification(found.num_accepted, found.next_token, path)


@pytest.mark.parametrize("rule", [wrong_row, same_uniform, any_node])
def test_a_wrong_rule_is_caught(rule: Callable[..., Verification]):
    tree = fixed_tree((0, 1, 2), (-1, -1, 0)) if rule is any_node else fixed_tree(*SHAPES["wide"])
    assert difference(random_table(3, seed=0), lambda text: tree, length=3, verify=rule) > 1e-3


def test_bad_trees_are_refused_by_the_rule():
    p = torch.full((1, 3, 4), 0.25)
    tokens, parents, numbers = torch.tensor([[1, 2]]), torch.tensor([[-1, 0]]), torch.zeros(1, 3)
    verify_tree(p, tokens, parents, numbers)
    with pytest.raises(ValueError, match="a parent is -1 or an earlier node"):
        verify_tree(p, tokens, torch.tensor([[1, -1]]), numbers)
    with pytest.raises(ValueError, match="row 0 has two children of a node with one token"):
        verify_tree(p, torch.tensor([[1, 1]]), torch.tensor([[-1, -1]]), numbers[:, :2])
    with pytest.raises(ValueError, match="draft_tokens holds 4"):
        verify_tree(p, torch.tensor([[1, 4]]), parents, numbers)
    with pytest.raises(ValueError, match="uniforms has shape"):
        verify_tree(p, tokens, parents, numbers[:, :2])
    with pytest.raises(ValueError, match="target_probs has shape"):
        verify_tree(p[:, :2], tokens, parents, numbers)
    with pytest.raises(ValueError, match="NaN"):
        verify_tree(p * float("nan"), tokens, parents, numbers)


# The lossy rule


def lossy(typical: Typical) -> Callable[..., Verification]:
    return lambda p, tokens, parents, uniforms, num: typical.verify(
        p, tokens, parents, uniforms[:, -1], torch.full((len(p),), tokens.shape[1]) if num is None else num
    )


def test_typical_acceptance_is_not_exact_and_this_is_its_error():
    """p = .5, .3, .2 after any text, and token 1 drafted: .3 is above the threshold of .09, so it always passes."""
    table = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(3, 3, 3).contiguous()
    found = difference(table, lambda text: fixed_tree((1,), (-1,)), length=1, verify=lossy(Typical()))
    assert found == pytest.approx(0.7, abs=EXACT)
    tokens, parents = SHAPES["wide"]
    table = random_table(3, seed=0)
    assert difference(table, lambda text: fixed_tree(tokens, parents), length=3, verify=lossy(Typical())) > 0.05


def test_typical_acceptance_keeps_the_first_of_the_longest_typical_paths():
    law = torch.tensor([0.4, 0.3, 0.25, 0.05])
    p = law.expand(1, 6, 4)
    tokens, parents = torch.tensor([[3, 2, 0, 1, 3]]), torch.tensor([[-1, -1, 1, 1, 2]])
    found = Typical().verify(p, tokens, parents, torch.tensor([0.5]), torch.tensor([5]))
    assert found.path is not None
    assert (found.num_accepted.tolist(), found.path.tolist()) == ([2], [[1, 2, 0]])
    assert found.next_token.tolist() == [1]
    none = Typical().verify(p, torch.tensor([[3]]), torch.tensor([[-1]]), torch.tensor([0.0]), torch.tensor([1]))
    assert (none.num_accepted.tolist(), none.next_token.tolist()) == ([0], [0])


def test_the_threshold_is_the_papers():
    law = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    found = Typical(epsilon=0.2, delta=0.3).threshold(law)
    torch.testing.assert_close(found, torch.tensor([0.15, 0.2]))  # exp(-ln 2) * .3, and the cap
    with pytest.raises(ValueError, match=r"epsilon=1\.5"):
        Typical(epsilon=1.5)


# Decoding


class TreeDrafter(Drafter):
    """Propose the tree that `plan(text)` says: tokens and parents, cut at the limit's depth."""

    def __init__(self, plan: Callable[[list[int]], tuple[Sequence[int], Sequence[int]]]) -> None:
        self.plan = plan

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        drafts, hung = [], []
        for text, limit in zip(rows.tokens, limits, strict=True):
            tokens, parents = self.plan(text)
            if len(tokens):
                kept = int((depths(torch.tensor([list(parents)])) <= limit).sum())
                tokens, parents = tokens[:kept], parents[:kept]
            drafts.append(list(tokens))
            hung.append(list(parents))
        tokens, counts = pad(drafts)
        return Draft(tokens, counts, parents=pad(hung, value=-1)[0])


def test_the_right_branch_of_a_tree_is_taken_and_the_text_is_the_targets():
    """The right text hides in the second child of each node; positions follow depth, or the model would say so."""
    target, prompts = position_lm(), [[3, 5], [1, 1, 4], [6]]

    def plan(text: list[int]) -> tuple[list[int], list[int]]:
        a, b, c = position_text(text, 3)
        wrong = [(token + 1) % 7 for token in (a, b, c)]
        return [wrong[0], a, wrong[1], b, c, wrong[2]], [-1, -1, 1, 1, 3, 3]

    for settings in (GREEDY, SamplingSettings(0.02)):
        rounds = list(speculate(target, TreeDrafter(plan), prompts, settings, num_draft_tokens=3, max_new_tokens=17))
        assert collect(rounds) == [position_text(prompt, 17) for prompt in prompts]
        assert [one.num_accepted for one in rounds[:4]] == [[3, 3, 3]] * 4
        assert len(rounds) == 5


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_greedy_text_with_random_trees_is_the_targets_own(name: str, penalty: float):
    target, settings = tiny_lm(name), SamplingSettings(0.0, repetition_penalty=penalty)
    plain = collect(generate(target, PROMPTS, settings, max_new_tokens=25, stop=Stop((11,))))
    whole = [prompt + text for prompt, text in zip(PROMPTS, plain, strict=True)]

    def plan(text: list[int]) -> tuple[list[int], list[int]]:
        luck = torch.Generator().manual_seed(sum(text) + len(text))
        right = next((one[len(text) :] for one in whole if one[: len(text)] == text), [])
        count = int(torch.randint(0, 8, (), generator=luck))
        parents = [int(torch.randint(-1, node, (), generator=luck)) if node else -1 for node in range(count)]
        depth = depths(torch.tensor([parents]))[0].tolist() if count else []
        order = sorted(range(count), key=lambda node: depth[node])  # shallow ones first
        place = {-1: -1} | {node: number for number, node in enumerate(order)}
        tokens: list[int] = []
        for number, node in enumerate(order):
            siblings = [t for t, o in zip(tokens, order, strict=False) if parents[o] == parents[node]]
            ahead = right[depth[node] - 1 : depth[node]]
            free = [t for t in range(VOCAB) if t not in siblings]
            tokens.append(ahead[0] if ahead and ahead[0] in free and number % 3 != 1 else free[number])
        return tokens, [place[parents[node]] for node in order]

    rounds = list(
        speculate(target, TreeDrafter(plan), PROMPTS, settings, num_draft_tokens=4, max_new_tokens=25, stop=Stop((11,)))
    )
    assert collect(rounds) == plain
    accepted = [count for one in rounds for count in one.num_accepted]
    assert max(accepted) >= 2
    assert 0 in accepted


def test_parents_that_do_not_fit_their_tokens_are_refused_by_the_model():
    side = tiny_lm().fresh(1)
    for parents in ([[-1]], [[-1, 0], [-1, 0]]):
        with pytest.raises(ValueError, match="one for each, at least"):
            side.extend(torch.tensor([[3, 4]]), parents=torch.tensor(parents))


def test_a_tree_that_breaks_the_contract_is_refused():
    def run(tokens: list[int], parents: list[int], **changes: object) -> None:
        class Bad(Drafter):
            def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
                return Draft(
                    torch.tensor([tokens]), torch.tensor([len(tokens)]), parents=torch.tensor([parents]), **changes
                )  # pyright: ignore[reportArgumentType]

        list(speculate(tiny_lm(), Bad(), [[1, 2]], GREEDY, num_draft_tokens=2, max_new_tokens=9))

    with pytest.raises(ValueError, match="a parent is -1 or an earlier node"):
        run([3, 4], [1, -1])
    with pytest.raises(ValueError, match=r"trees of depth \[3\] are deeper than their limits \[2\]"):
        run([3, 4, 5], [-1, 0, 1])
    with pytest.raises(ValueError, match="two children of a node of row 0 are the same token"):
        run([3, 3], [-1, -1])
    with pytest.raises(ValueError, match=r"parents has shape \(1, 1\), its tokens \(1, 2\)"):
        run([3, 4], [-1])


# Medusa


def new_medusa(target: CachedLM, count: int = 3) -> MedusaHeads:
    heads = MedusaHeads(MedusaShape(32, VOCAB, count)).double()
    luck = torch.Generator().manual_seed(0)
    for layer in heads.layers:
        weight = layer.get_parameter("weight")
        weight.data = torch.randn(weight.shape, generator=luck, dtype=torch.float64)
    heads.borrow(target.model)
    return heads.eval()


@pytest.mark.parametrize("prompts", [PROMPTS, [[7], [8]]], ids=["ragged", "one token"])
def test_medusa_writes_the_targets_greedy_text(prompts: list[list[int]]):
    target = tiny_lm()
    plain = collect(generate(target, prompts, GREEDY, max_new_tokens=20, stop=Stop((11,))))
    drafter = MedusaDrafter(new_medusa(target), full_tree((3, 2, 1)))
    rounds = list(speculate(target, drafter, prompts, GREEDY, num_draft_tokens=3, max_new_tokens=20, stop=Stop((11,))))
    assert collect(rounds) == plain
    assert max(map(max, (one.num_drafted for one in rounds))) == 15


def test_medusa_guesses_from_the_last_feature_that_the_target_has_read():
    target = tiny_lm()
    heads = new_medusa(target)
    drafter = MedusaDrafter(heads, [(0,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0)])
    rounds = list(speculate(target, drafter, PROMPTS, GREEDY, num_draft_tokens=3, max_new_tokens=12))
    texts = [list(prompt) for prompt in PROMPTS]
    checked = 0
    for one in rounds:
        for row, draft in enumerate(one.drafts):
            if draft:
                ids = torch.tensor([texts[row][:-1]])
                feature = target.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
                first, second, third = heads.logits(feature).sort(-1, descending=True).indices.tolist()
                wanted = [first[0], first[2], second[0], second[1], second[0], third[0]]
                assert draft == wanted[: len(draft)]
                checked += 1
            texts[row] += one.tokens[row]
    assert checked > 20


def test_a_budget_cuts_the_tree_at_its_depth():
    target = tiny_lm()
    drafter = MedusaDrafter(new_medusa(target), full_tree((2, 2, 2)))
    for room, nodes in ((1, 0), (2, 2), (3, 6), (4, 14)):
        first = next(iter(speculate(target, drafter, [[5, 9, 2]], GREEDY, num_draft_tokens=9, max_new_tokens=room)))
        assert first.num_drafted == [nodes]


def test_sampled_medusa_text_is_that_of_a_row_alone_and_typical_acceptance_takes_more():
    target, settings = tiny_lm(), SamplingSettings(1.0, top_k=8)
    drafter = MedusaDrafter(new_medusa(target))
    options = {"num_draft_tokens": 3, "max_new_tokens": 12}
    together = collect(speculate(target, drafter, PROMPTS, settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, drafter, [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    assert together == alone
    exact, typical = (
        list(speculate(target, drafter, PROMPTS * 8, settings, seeds=5, typical=rule, **options))
        for rule in (None, Typical(0.02, 0.1))
    )
    assert len(typical) <= len(exact)
    assert sum(map(sum, (one.num_accepted for one in typical))) > sum(map(sum, (one.num_accepted for one in exact)))


def test_typical_acceptance_of_greedy_text_changes_nothing():
    target = tiny_lm()
    plain = collect(generate(target, PROMPTS, GREEDY, max_new_tokens=15))
    drafter = MedusaDrafter(new_medusa(target))
    assert collect(speculate(target, drafter, PROMPTS, GREEDY, max_new_tokens=15, typical=Typical())) == plain


def test_heads_that_do_not_fit_the_tree_or_the_target_are_refused():
    target = tiny_lm()
    with pytest.raises(ValueError, match="paths are up to 4 long; there are 3 heads"):
        MedusaDrafter(new_medusa(target), full_tree((1, 1, 1, 1)))
    with pytest.raises(ValueError, match="read features of width 32"):
        speculate(random_table_lm(), MedusaDrafter(new_medusa(target)), [[1, 2]])


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_node_has_the_logits_of_its_path_alone_in_the_second_round_too(blocks: int):
    """20 random trees on a text that is in the cache already, and one more on what was kept of it.

    A drafter feeds its trees level by level; so a tree may also come in two blocks, wherever it is cut.
    """
    lm = tiny_lm()
    for seed in range(20):
        luck = torch.Generator().manual_seed(seed)
        text, side = [5, 9, 2], lm.fresh(1)
        side.prefill([text])
        for _ in range(2):
            count = int(torch.randint(1, 9, (), generator=luck))
            parents = [int(torch.randint(-1, node, (), generator=luck)) if node else -1 for node in range(count)]
            tokens = torch.randint(0, VOCAB, (1, count), generator=luck)
            cut = int(torch.randint(0, count, (), generator=luck)) if blocks == 2 else 0
            parts = [side.extend(tokens[:, :cut], parents=torch.tensor([parents[:cut]]))] if cut else []
            logits = torch.cat([*parts, side.extend(tokens[:, cut:], parents=torch.tensor([parents]))], dim=1)[0]
            before = ancestors(torch.tensor([parents]))[0]
            for node in range(count):
                alone = uncached(lm, [*text, *tokens[0, before[node + 1]].tolist()])[-1]
                torch.testing.assert_close(logits[node], alone)
            last = int(torch.randint(0, count, (), generator=luck))
            path = before[last + 1].nonzero()[:, 0]
            side.cache.keep_path([len(text)], path[None], [len(path)])
            text += tokens[0, path].tolist()
