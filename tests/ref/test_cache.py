"""The cache with one length per row: writing, hiding, rolling back, keeping a path of a tree, dropping rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref import cache as cache_module
from specdec_ref.cache import RowCache
from specdec_ref.decode import speculate
from specdec_ref.drafters import ModelDrafter
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY
from tests.ref.helpers import (
    PlannedDrafter,
    Watched,
    cycle_lm,
    random_table_lm,
    script_lm,
    scripted_drafter,
    tiny_lm,
    uncached,
)

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TEXTS = [[5, 9, 2, 33, 7, 1, 60], [8, 8, 4], [12, 50, 3, 21, 6]]


def close(ours, wanted):
    torch.testing.assert_close(ours, wanted, atol=1e-10, rtol=0)


def write(cache, block):
    """One pass of a one-layer model whose keys and values are the tokens themselves."""
    states = torch.tensor(block, dtype=torch.float64)[:, None, :, None]  # [B, 1 head, T, 1]
    cache.begin_pass(states.shape[2])
    return cache.update(states, -states, 0)


def held(cache):
    """What each row holds, read from the storage."""
    return [cache.keys[0][row, :length, 0, 0].tolist() for row, length in enumerate(cache.lengths.tolist())]


# --- lengths


def test_each_row_writes_at_its_own_slot():
    cache = RowCache(2, CPU)
    write(cache, [[1, 2, 3], [4, 5, 0]])
    cache.advance(torch.tensor([3, 2]))
    keys, values = write(cache, [[7], [8]])
    cache.advance(1)
    assert held(cache) == [[1, 2, 3, 7], [4, 5, 8]]
    assert keys.shape == (2, 1, 4, 1)
    assert torch.equal(values, -keys)
    assert cache.get_seq_length() == 4


def test_rollback_changes_lengths_and_touches_no_storage():
    cache = RowCache(3, CPU)
    write(cache, [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    cache.advance(4)
    storage, contents = cache.keys[0], cache.keys[0].clone()
    cache.rollback([0, 4, 3])
    assert cache.lengths.tolist() == [4, 0, 1]
    assert cache.keys[0] is storage, "the storage was replaced"
    assert torch.equal(storage, contents), "the storage was written to"


def test_rolling_back_nothing_keeps_everything_and_rolling_back_all_keeps_nothing():
    cache = RowCache(1, CPU)
    write(cache, [[1, 2, 3]])
    cache.advance(3)
    cache.rollback([0])
    assert held(cache) == [[1, 2, 3]]
    cache.rollback([3])
    assert held(cache) == [[]]
    write(cache, [[4]])
    cache.advance(1)
    assert held(cache) == [[4]]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([-1, 0], r"counts\[0\]=-1: row 0 holds 3 tokens"),
        ([0, 3], r"counts\[1\]=3: row 1 holds 2 tokens"),
        ([1], r"counts has shape \(1,\); the cache has 2 rows"),
        ([[1, 1]], r"counts has shape \(1, 2\)"),
        (1, r"counts has shape \(\)"),
    ],
)
def test_rollback_refuses_what_it_cannot_do_and_changes_nothing(counts, message):
    cache = RowCache(2, CPU)
    write(cache, [[1, 2, 3], [4, 5, 6]])
    cache.advance(torch.tensor([3, 2]))
    with pytest.raises(ValueError, match=message):
        cache.rollback(counts)
    assert cache.lengths.tolist() == [3, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_of_passes_and_rollbacks_holds_what_plain_lists_hold(data):
    batch = data.draw(st.integers(1, 3))
    cache, lists, token = RowCache(batch, CPU), [[] for _ in range(batch)], 1
    for _ in range(data.draw(st.integers(1, 6))):
        length = data.draw(st.sampled_from([1, 2, 5, 60, 130]))
        counts = data.draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch))
        block = [[token + row * length + t for t in range(length)] for row in range(batch)]
        token += batch * length
        keys, _ = write(cache, block)
        assert keys.shape[2] == max(map(len, lists)) + length
        cache.advance(torch.tensor(counts))
        for row, count in enumerate(counts):
            lists[row] += block[row][:count]
        removed = [data.draw(st.integers(0, len(row))) for row in lists]
        cache.rollback(removed)
        lists = [row[: len(row) - count] for row, count in zip(lists, removed, strict=True)]
        assert held(cache) == lists


def test_storage_grows_by_blocks_and_keeps_what_it_holds():
    cache, block = RowCache(1, CPU), cache_module.BLOCK
    written = 0
    for length in (block - 1, 1, 1, block, 3 * block):
        write(cache, [list(range(written, written + length))])
        cache.advance(length)
        written += length
        assert held(cache) == [list(range(written))]
        assert cache.keys[0].shape[1] % block == 0
        assert written <= cache.keys[0].shape[1] < written + block


def test_select_keeps_rows_in_the_order_asked_for():
    cache = RowCache(3, CPU)
    write(cache, [[1, 2], [3, 4], [5, 6]])
    cache.advance(torch.tensor([2, 1, 2]))
    cache.select([2, 0])
    assert held(cache) == [[5, 6], [1, 2]]
    write(cache, [[7], [8]])
    cache.advance(1)
    assert held(cache) == [[5, 6, 7], [1, 2, 8]]


def test_select_before_the_first_pass_changes_the_number_of_rows():
    cache = RowCache(3, CPU)
    cache.select([1])
    write(cache, [[4, 5]])
    cache.advance(2)
    assert held(cache) == [[4, 5]]


# --- under a real model


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_ragged_rows_equal_their_solo_runs_after_uneven_rollbacks(name):
    base = tiny_lm(name)
    lm, texts = base.fresh(3), [list(text) for text in TEXTS]
    lm.prefill(texts)
    generator = torch.Generator().manual_seed(1)
    for counts, removed in (([4, 1, 3], [2, 0, 3]), ([1, 4, 4], [1, 1, 0]), ([2, 2, 1], [0, 2, 1])):
        block = torch.randint(0, 64, (3, max(counts)), generator=generator)
        logits = lm.extend(block, torch.tensor(counts))
        for row, count in enumerate(counts):
            texts[row] += block[row, :count].tolist()
            close(logits[row, :count], uncached(base, texts[row])[-count:])
        lm.rollback(removed)
        texts = [text[: len(text) - count] for text, count in zip(texts, removed, strict=True)]
    assert lm.cache.lengths.tolist() == list(map(len, texts))


def test_junk_behind_a_row_is_never_seen():
    """Any finite junk. A key or value of NaN would be seen (0 * NaN is NaN); but a pass that writes one has NaN logits
    itself, and the decoder ends there.
    """
    base = tiny_lm("llama")
    logits = []
    for junk in (0.0, 1e9, -1e9):
        lm = base.fresh(3)
        lm.prefill(TEXTS)
        with torch.inference_mode():
            for layer in lm.cache.keys + lm.cache.values:
                for row, length in enumerate(lm.cache.lengths.tolist()):
                    layer[row, length:] = junk
        logits.append(lm.extend(torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([2, 1, 2])))
    for row, count in enumerate([2, 1, 2]):
        assert torch.equal(logits[0][row, :count], logits[1][row, :count])
        assert torch.equal(logits[0][row, :count], logits[2][row, :count])


def test_a_text_longer_than_a_prefill_block_and_a_storage_block():
    base = tiny_lm("llama", max_position_embeddings=2048)
    long = torch.randint(0, 64, (700,), generator=torch.Generator().manual_seed(2)).tolist()
    lm = base.fresh(2)
    lm.prefill([long, [3]])
    logits = lm.extend(torch.tensor([[4], [5]]))
    close(logits[0], uncached(base, [*long, 4])[-1:])
    close(logits[1], uncached(base, [3, 5])[-1:])


# --- trees


@st.composite
def trees(draw, batch, most=7):
    size = draw(st.integers(1, most))
    return [[draw(st.integers(-1, node - 1)) for node in range(size)] for _ in range(batch)]


def path_to(parents, node):
    """Nodes from the root to `node`."""
    path = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def test_positions_of_a_tree_are_depths():
    lm = tiny_lm("llama").fresh(1)
    seen = []
    handle = lm.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"].tolist()), with_kwargs=True
    )
    try:
        lm.prefill([[1, 2, 3]])
        # root -> {a, b}, a -> {c, d}, b -> {e}
        lm.extend(torch.tensor([[4, 5, 6, 7, 8, 9]]), parents=torch.tensor([[-1, 0, 0, 1, 1, 2]]))
    finally:
        handle.remove()
    assert seen == [[[0, 1, 2]], [[3, 4, 4, 5, 5, 5]]]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_node_of_a_tree_equals_a_plain_run_over_its_path_and_so_does_what_follows_the_kept_path(data):
    """Two rounds over three ragged rows, each with a tree of its own."""
    base = tiny_lm(data.draw(st.sampled_from(["llama", "opt"])))
    lm, texts = base.fresh(3), [list(text) for text in TEXTS]
    lm.prefill(texts)
    for _ in range(2):
        parents = data.draw(trees(batch=3))
        size = len(parents[0])
        counts = data.draw(st.lists(st.integers(1, size), min_size=3, max_size=3))
        block = torch.tensor(
            data.draw(st.lists(st.lists(st.integers(0, 63), min_size=size, max_size=size), min_size=3, max_size=3))
        )
        start = lm.cache.lengths.clone()
        logits = lm.extend(block, torch.tensor(counts), parents=torch.tensor(parents))
        paths = []
        for row in range(3):
            for node in range(counts[row]):
                way = [block[row, step].item() for step in path_to(parents[row], node)]
                close(logits[row, node], uncached(base, texts[row] + way)[-1])
            last = data.draw(st.integers(-1, counts[row] - 1))  # -1: the whole tree is refused
            paths.append(path_to(parents[row], last))
            texts[row] += [block[row, step].item() for step in paths[row]]
        longest = max(map(len, paths))
        padded = torch.tensor([path + [0] * (longest - len(path)) for path in paths]).long().view(3, longest)
        lm.cache.keep_path(start, padded, [len(path) for path in paths])
        assert lm.cache.lengths.tolist() == list(map(len, texts))
    following = lm.extend(torch.tensor([[1], [2], [3]]))
    for row, token in enumerate((1, 2, 3)):
        close(following[row, 0], uncached(base, [*texts[row], token])[-1])


def test_the_path_0_2_5_is_moved_together():
    cache = RowCache(2, CPU)
    write(cache, [[1, 2, 3], [4, 0, 0]])
    cache.advance(torch.tensor([3, 1]))
    start = cache.lengths.clone()
    write(cache, [[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]])
    cache.advance(6)
    cache.keep_path(start, torch.tensor([[0, 2, 5], [0, 1, 0]]), [3, 2])
    assert held(cache) == [[1, 2, 3, 10, 12, 15], [4, 20, 21]]


@pytest.mark.parametrize("parents", [[[0]], [[-1, 1]], [[-1, 2, 0]], [[-2]]])
def test_a_tree_whose_child_comes_before_its_parent_is_refused(parents):
    lm = tiny_lm("llama").fresh(1)
    with pytest.raises(ValueError, match="parents: node"):
        lm.extend(torch.zeros(1, len(parents[0]), dtype=torch.int64), parents=torch.tensor(parents))


# --- the round table: n committed tokens, K drafted, a accepted


@pytest.mark.parametrize("accepted", range(5))
def test_the_target_holds_one_token_less_than_the_text_before_and_after_a_round(accepted, monkeypatch):
    """With n committed tokens: n-1 before the round, n+a after it, which is n'-1 for the new n'."""
    vocab, prompt = 5, [0, 1, 2]
    script = [(x % vocab) for x in range(200)]
    target, lengths = cycle_lm(vocab), []
    original = type(target).extend

    def note(lm, tokens, *args, **kwargs):
        if lm.model is target.model:
            lengths.append(lm.cache.lengths.tolist()[0])
        return original(lm, tokens, *args, **kwargs)

    monkeypatch.setattr(type(target), "extend", note)
    drafter = scripted_drafter(script, vocab, [accepted] * 99)
    rounds = list(speculate(target, drafter, [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=20))
    n = len(prompt)
    assert lengths.pop(0) == 0  # the prefill
    for held_before, result in zip(lengths, rounds, strict=True):
        assert held_before == n - 1
        if result.num_drafted == [4]:  # not shortened by the budget
            assert result.num_accepted == [accepted]
        n += len(result.tokens[0])


@pytest.mark.parametrize("accepted", range(5))
def test_the_drafter_is_fed_one_token_next_round_or_two_after_full_acceptance(accepted):
    vocab, prompt = 7, [3, 1, 4]
    draft = cycle_lm(vocab, step=1)
    # A target that agrees with the draft for `accepted` tokens of the first round, then says something else.
    text = list(prompt)
    while len(text) < 60:
        text.append((text[-1] + 1) % vocab)
        if len(text) == len(prompt) + accepted + 1:
            text[-1] = (text[-1] + 1) % vocab  # the correction (or, after full acceptance, another bonus)
    target = script_lm(text, vocab)
    fed, held_after = [], []

    def listen(event, drafter, argument):
        if event == "commit":
            held_after.append(drafter.lm.cache.lengths.tolist()[0])

    handle = draft.model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].tolist()[0]), with_kwargs=True
    )
    try:
        rounds = list(
            speculate(
                target, Watched(ModelDrafter(draft), listen), [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=15
            )
        )
    finally:
        handle.remove()
    n = len(prompt)
    assert rounds[0].num_accepted == [accepted]
    assert held_after[0] == min(n + 3, n + accepted)
    # prompt without its last two tokens, the last two, then three drafts; then the next round begins
    assert fed[:5] == [prompt[:1], prompt[1:], text[3:4] if accepted else [(4 + 1) % vocab], *fed[3:5]]
    n += accepted + 1
    assert fed[5] == (text[n - 2 : n] if accepted == 4 else text[n - 1 : n])
    assert len(fed[5]) == (2 if accepted == 4 else 1)


def test_the_drafter_table_holds_for_many_rounds_and_rows():
    """Whatever is accepted: after each round every row's draft cache holds min(n + K - 1, n + a)."""
    target, draft = random_table_lm(5, 0), random_table_lm(5, 1)
    events = []
    drafter = Watched(ModelDrafter(draft), lambda event, inner, argument: events.append((event, inner, argument)))
    prompts = [[1], [2, 3], [4, 0, 1, 2, 3, 3]]
    seen = 0
    n = [len(prompt) for prompt in prompts]
    for result in speculate(target, drafter, prompts, num_draft_tokens=4, max_new_tokens=40):
        if any(drafted != 4 for drafted in result.num_drafted):
            break  # some row is near its budget
        commit = next(event for event in reversed(events) if event[0] == "commit")
        wanted = [min(length + 3, length + a) for length, a in zip(n, result.num_accepted, strict=True)]
        assert commit[1].lm.cache.lengths.tolist() == wanted
        n = [length + len(new) for length, new in zip(n, result.tokens, strict=True)]
        seen += 1
    assert seen > 5


def test_finished_rows_leave_the_cache():
    target = cycle_lm(5)
    shapes = []
    handle = target.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        drafter = PlannedDrafter(lambda text, number: [])
        list(speculate(target, drafter, [[0], [2]], GREEDY, max_new_tokens=6, stop=Stop(token_ids=(4,))))
    finally:
        handle.remove()
    assert shapes == [2, 2, 1, 1]  # row 1 writes 3 4; row 0 writes 1 2 3 4
