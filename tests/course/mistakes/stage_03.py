"""Stage 03: wrong and right answers."""

from __future__ import annotations

import numpy as np
import torch

# --- 3.1


def restarted(lengths, block_length):
    return torch.arange(block_length).repeat(len(lengths), 1)


def after_longest(lengths, block_length):
    return (torch.arange(block_length) + int(max(lengths))).repeat(len(lengths), 1)


def after_first(lengths, block_length):
    return (lengths[0] + torch.arange(block_length)).repeat(len(lengths), 1)


def counted_from_one(lengths, block_length):
    return lengths.unsqueeze(1) + torch.arange(1, block_length + 1)


def last_held(lengths, block_length):
    return torch.stack([torch.arange(int(n) - 1, int(n) - 1 + block_length) for n in lengths])


def one_place(lengths, block_length):
    return lengths.repeat_interleave(block_length).view(-1, block_length)


def flat_positions(lengths, block_length):
    return lengths[0] + torch.arange(block_length)


def as_floats(lengths, block_length):
    return lengths[:, None] + torch.arange(float(block_length))


def positions_in_place(lengths, block_length):
    line = torch.arange(block_length)
    rows = []
    for b in range(len(lengths)):
        rows.append(lengths[b] + line)
    lengths += block_length
    return torch.stack(rows)


def positions_by_loop(lengths, block_length):
    return torch.tensor([[n + t for t in range(block_length)] for n in lengths.tolist()])


def positions_vectorised(lengths, block_length):
    return lengths.unsqueeze(1) + torch.arange(block_length).unsqueeze(0)


def positions_by_cumsum(lengths, block_length):
    steps = torch.ones(len(lengths), block_length, dtype=torch.int64)
    steps[:, 0] = lengths
    return steps.cumsum(1)


# --- 3.2


def mask_by_rule(lengths, block_length, rule):
    slots = max(lengths.tolist()) + block_length
    rows = [[[rule(s, n, t) for s in range(slots)] for t in range(block_length)] for n in lengths.tolist()]
    return torch.tensor(rows)


def mask_right(lengths, block_length):
    return mask_by_rule(lengths, block_length, lambda s, n, t: s <= n + t)


def mask_vectorised(lengths, block_length):
    slots = torch.arange(int(lengths.max()) + block_length)
    return slots <= (lengths[:, None] + torch.arange(block_length))[:, :, None]


def mask_from_triangles(lengths, block_length):
    slots = int(lengths.max()) + block_length
    mask = torch.zeros(len(lengths), block_length, slots, dtype=torch.bool)
    for b, n in enumerate(lengths.tolist()):
        mask[b, :, :n] = True
        mask[b, :, n : n + block_length] = torch.ones(block_length, block_length).tril().bool()
    return mask


def mask_inverted(lengths, block_length):
    return ~mask_vectorised(lengths, block_length)


def mask_open_block(lengths, block_length):
    return mask_by_rule(lengths, block_length, lambda s, n, t: s < n + block_length)


def mask_not_itself(lengths, block_length):
    return mask_by_rule(lengths, block_length, lambda s, n, t: s < n + t)


def mask_block_only(lengths, block_length):
    return mask_by_rule(lengths, block_length, lambda s, n, t: n <= s <= n + t)


def mask_empty_cache(lengths, block_length):
    slots = int(lengths.max()) + block_length
    return torch.ones(block_length, slots).tril().bool().repeat(len(lengths), 1, 1)


def mask_of_longest(lengths, block_length):
    longest = int(lengths.max())
    return torch.ones(block_length, longest + block_length).tril(longest).bool().repeat(len(lengths), 1, 1)


def mask_of_first(lengths, block_length):
    slots = int(lengths.max()) + block_length
    return torch.ones(block_length, slots).tril(int(lengths[0])).bool().repeat(len(lengths), 1, 1)


def mask_additive(lengths, block_length):
    return torch.zeros(()).masked_fill(mask_vectorised(lengths, block_length).logical_not(), -torch.inf)


# --- 3.3


def leading(agrees):
    count = 0
    for agreed in agrees:
        if not agreed:
            break
        count += 1
    return count


def judged(rule):
    """A loop over the rows; `rule(wanted, draft)` gives count and next token of one row."""

    def judge_block(logits, draft_tokens, vocab_size):
        wanted = logits[:, :, :vocab_size].argmax(-1).tolist()
        pairs = [rule(w, d) for w, d in zip(wanted, draft_tokens.tolist(), strict=True)]
        return torch.tensor([count for count, _ in pairs]), torch.tensor([token for _, token in pairs])

    return judge_block


def prefix(wanted, draft):
    return leading(w == d for w, d in zip(wanted, draft, strict=False))


def judge_by_while(logits, draft_tokens, vocab_size):
    counts, following = [], []
    for b in range(len(draft_tokens)):
        a = 0
        while a < draft_tokens.shape[1] and logits[b, a, :vocab_size].argmax() == draft_tokens[b, a]:
            a += 1
        counts.append(a)
        following.append(int(logits[b, a, :vocab_size].argmax()))
    return torch.tensor(counts), torch.tensor(following)


def judge_vectorised(logits, draft_tokens, vocab_size):
    wanted = logits[..., :vocab_size].argmax(-1)
    count = (wanted[:, :-1] == draft_tokens).long().cumprod(-1).sum(-1)
    return count, wanted.gather(1, count[:, None])[:, 0]


def judge_by_first_refusal(logits, draft_tokens, vocab_size):
    masked = logits.clone()
    masked[..., vocab_size:] = -torch.inf
    wanted = masked.argmax(-1)
    refused = torch.cat([wanted[:, :-1] != draft_tokens, torch.ones(len(wanted), 1, dtype=torch.bool)], dim=1)
    first = refused.long().argmax(-1)
    return first, wanted[torch.arange(len(wanted)), first]


def judge_padding(logits, draft_tokens, vocab_size):
    return judge_vectorised(logits, draft_tokens, logits.shape[-1])


def judge_first_free(logits, draft_tokens, vocab_size):
    wanted = logits[..., :vocab_size].argmax(-1)
    later = (wanted[:, 1:-1] == draft_tokens[:, 1:]).long().cumprod(-1).sum(-1)
    return 1 + later, wanted.gather(1, 1 + later[:, None])[:, 0]


def slipped(next_row):
    """Draft i judged by the row after it; people differ in the row of the next token."""

    def judge_block(logits, draft_tokens, vocab_size):
        wanted = logits[..., :vocab_size].argmax(-1)
        count = (wanted[:, 1:] == draft_tokens).long().cumprod(-1).sum(-1)
        row = (count + next_row).clamp(max=draft_tokens.shape[1])
        return count, wanted.gather(1, row[:, None])[:, 0]

    return judge_block


def judge_sum(logits, draft_tokens, vocab_size):
    wanted = logits[..., :vocab_size].argmax(-1)
    count = (wanted[:, :-1] == draft_tokens).sum(-1)
    return count, wanted.gather(1, count[:, None])[:, 0]


def judge_slowest(logits, draft_tokens, vocab_size):
    count, _ = judge_vectorised(logits, draft_tokens, vocab_size)
    least = torch.full_like(count, int(count.min()))
    return least, logits[:, int(count.min()), :vocab_size].argmax(-1)


def judge_column(logits, draft_tokens, vocab_size):
    count, token = judge_vectorised(logits, draft_tokens, vocab_size)
    return count[:, None], token[:, None]


def judge_lists(logits, draft_tokens, vocab_size):
    count, token = judge_vectorised(logits, draft_tokens, vocab_size)
    return count.tolist(), token.tolist()


def judge_in_place(logits, draft_tokens, vocab_size):
    logits[..., vocab_size:] = -torch.inf
    return judge_vectorised(logits, draft_tokens, vocab_size)


# --- 3.4


def write_loop(store, lengths, states, counts):
    new = store.clone()
    for b in range(len(lengths)):
        for t in range(int(counts[b])):
            new[b, int(lengths[b]) + t] = states[b, t]
    return new, lengths + counts


def write_slices(store, lengths, states, counts):
    new = store.clone()
    for b, (n, c) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        new[b, n : n + c] = states[b, :c]
    return new, lengths + counts


def write_padding_too(store, lengths, states, counts):
    """As the reference does: padding lies behind the length, where nobody looks."""
    new = store.clone()
    slots = lengths[:, None] + torch.arange(states.shape[1])
    new[torch.arange(len(lengths))[:, None], slots] = states
    return new, lengths + counts


def write_where(store, lengths, states, counts):
    slot = torch.arange(store.shape[1])[None]
    offset = slot - lengths[:, None]
    fresh = (offset >= 0) & (offset < counts[:, None])
    chosen = states.gather(1, offset.clamp(0, states.shape[1] - 1)[..., None].expand(-1, -1, store.shape[2]))
    return torch.where(fresh[..., None], chosen, store), lengths + counts


def written_from(first):
    def write_block(store, lengths, states, counts):
        new = store.clone()
        for b, c in enumerate(counts.tolist()):
            start = int(first(lengths, b))
            new[b, start : start + c] = states[b, :c]
        return new, lengths + counts

    return write_block


def write_overwrites(store, lengths, states, counts):
    new = store.clone()
    for b in range(len(lengths)):
        for t in range(int(counts[b])):
            slot = int(lengths[b]) + t - 1
            if slot >= 0:
                new[b, slot] = states[b, t]
    return new, lengths + counts


def write_appended(store, lengths, states, counts):
    return torch.cat((store, states), dim=1), lengths + counts


def write_grows_by_width(store, lengths, states, counts):
    new, _ = write_padding_too(store, lengths, states, counts)
    return new, lengths + states.shape[1]


def write_keeps_lengths(store, lengths, states, counts):
    new, _ = write_slices(store, lengths, states, counts)
    return new, lengths


def write_left_padded(store, lengths, states, counts):
    new = store.clone()
    width = states.shape[1]
    for b in range(len(lengths)):
        n, c = int(lengths[b]), int(counts[b])
        new[b, n : n + c] = states[b, width - c : width]
    return new, lengths + counts


def write_in_place(store, lengths, states, counts):
    for b in range(len(lengths)):
        for t in range(int(counts[b])):
            store[b, lengths[b] + t] = states[b, t]
    return store, lengths + counts


# --- 3.5


def verdict(logits, drafts):
    return judge_vectorised(logits, drafts, logits.shape[-1])


def played(undo):
    def verify_round(target, last_tokens, draft_tokens):
        block = torch.cat([last_tokens.unsqueeze(1), draft_tokens], dim=1)
        count, token = verdict(target.extend(block), draft_tokens)
        target.rollback(undo(count, draft_tokens.shape[1]))
        return count, token

    return verify_round


def round_right(target, last_tokens, draft_tokens):
    return played(lambda count, width: width - count)(target, last_tokens, draft_tokens)


def round_with_lists(target, last_tokens, draft_tokens):
    block = [[x, *draft] for x, draft in zip(last_tokens.tolist(), draft_tokens.tolist(), strict=True)]
    wanted = target.extend(torch.tensor(block)).argmax(-1).tolist()
    counts = [prefix(w, d) for w, d in zip(wanted, draft_tokens.tolist(), strict=True)]
    target.rollback([draft_tokens.shape[1] - a for a in counts])
    return torch.tensor(counts), torch.tensor([w[a] for w, a in zip(wanted, counts, strict=True)])


def round_by_lengths(target, last_tokens, draft_tokens):
    before = target.lengths
    logits = target.extend(torch.cat([last_tokens[:, None], draft_tokens], dim=1))
    count, token = verdict(logits, draft_tokens)
    target.rollback(target.lengths - (before + 1 + count))
    return count, token


def round_many_passes(target, last_tokens, draft_tokens):
    logits = [target.extend(last_tokens[:, None])]
    for i in range(draft_tokens.shape[1]):
        logits.append(target.extend(draft_tokens[:, i : i + 1]))
    count, token = verdict(torch.cat(logits, dim=1), draft_tokens)
    target.rollback(draft_tokens.shape[1] - count)
    return count, token


def round_no_rollback(target, last_tokens, draft_tokens):
    return verdict(target.extend(torch.cat([last_tokens[:, None], draft_tokens], dim=1)), draft_tokens)


def round_feeds_next(target, last_tokens, draft_tokens):
    count, token = round_right(target, last_tokens, draft_tokens)
    target.extend(token[:, None])
    return count, token


def round_without_last(target, last_tokens, draft_tokens):
    wanted = target.extend(draft_tokens).argmax(-1)
    count = (wanted == draft_tokens).long().cumprod(-1).sum(-1)
    target.rollback(draft_tokens.shape[1] - count)
    return count, wanted.gather(1, count[:, None].clamp(max=wanted.shape[1] - 1))[:, 0]


def round_shape_mixed_up(target, last_tokens, draft_tokens):
    return verdict(target.extend(torch.cat([last_tokens, draft_tokens], dim=1)), draft_tokens)


# --- 3.6


def drafts_right(text_lengths, num_draft_tokens, num_accepted):
    held = torch.minimum(text_lengths - 1 + num_draft_tokens, text_lengths + num_accepted)
    return held, text_lengths + num_accepted + 1 - held


def drafts_where(text_lengths, num_draft_tokens, num_accepted):
    full = (num_accepted == num_draft_tokens).long()
    return text_lengths + num_accepted - full, 1 + full


def drafts_loop(text_lengths, num_draft_tokens, num_accepted):
    held, feed = [], []
    for n, a in zip(text_lengths.tolist(), num_accepted.tolist(), strict=True):
        kept = min(a, num_draft_tokens - 1)  # the last draft was never fed
        held.append(n + kept)
        feed.append(n + a + 1 - held[-1])
    return torch.tensor(held), torch.tensor(feed)


def drafts_numpy(text_lengths, num_draft_tokens, num_accepted):
    n, a = text_lengths.numpy(), num_accepted.numpy()
    held = np.minimum(n - 1 + num_draft_tokens, n + a)
    return torch.from_numpy(held), torch.from_numpy(n + a + 1 - held)


def drafts_like_target(text_lengths, num_draft_tokens, num_accepted):
    return text_lengths + num_accepted, torch.ones_like(num_accepted)


def drafts_feed(count):
    def draft_cache_after(text_lengths, num_draft_tokens, num_accepted):
        return drafts_right(text_lengths, num_draft_tokens, num_accepted)[0], torch.full_like(num_accepted, count)

    return draft_cache_after


def drafts_hold_next(text_lengths, num_draft_tokens, num_accepted):
    return text_lengths + num_accepted + 1, torch.zeros_like(num_accepted)


def drafts_not_rolled_back(text_lengths, num_draft_tokens, num_accepted):
    held = text_lengths + num_draft_tokens - 1
    return held, text_lengths + num_accepted + 1 - held


def drafts_forgotten(text_lengths, num_draft_tokens, num_accepted):
    return text_lengths.clone(), num_accepted + 1


def drafts_held_only(text_lengths, num_draft_tokens, num_accepted):
    return drafts_right(text_lengths, num_draft_tokens, num_accepted)[0]


MUTANTS = {
    "3.1": {
        "positions start at 0 again": [restarted],
        "all rows placed after the longest": [after_longest],
        "all rows placed after the first row": [after_first],
        "positions one too far": [counted_from_one],
        "positions one too early": [last_held],
        "the whole block at one position": [one_place],
        "wrong shape": [flat_positions],
        "wrong dtype": [as_floats],
        "changed input": [positions_in_place],
    },
    "3.2": {
        "visible and hidden mixed up": [mask_inverted],
        "drafts see the drafts after them": [mask_open_block],
        "a token does not see itself": [mask_not_itself],
        "the earlier text is hidden": [mask_block_only],
        "the mask of an empty cache": [mask_empty_cache],
        "short rows see what lies behind them": [mask_of_longest],
        "every row uses the first row's length": [mask_of_first],
        "wrong dtype": [mask_additive],
    },
    "3.3": {
        "padding of the vocabulary counted": [judge_padding],
        "the first draft is never judged": [judge_first_free],
        "drafts judged by the row after them": [slipped(0), slipped(1)],
        "all agreements counted, not the leading run": [judge_sum],
        "next token always from the last row": [judged(lambda w, d: (prefix(w, d), w[-1]))],
        "next token always from row 0": [judged(lambda w, d: (prefix(w, d), w[0]))],
        "next token from the row after the refusal": [
            judged(lambda w, d: (prefix(w, d), w[min(prefix(w, d) + 1, len(d))])),
        ],
        "the refused draft is emitted": [judged(lambda w, d: (prefix(w, d), [*d, w[-1]][prefix(w, d)]))],
        "all rows held back by the slowest": [judge_slowest],
        "wrong shape": [judge_column],
        "wrong type": [judge_lists],
        "changed input": [judge_in_place],
    },
    "3.4": {
        "appended behind all slots": [write_appended],
        "all rows written behind the longest": [written_from(lambda lengths, b: max(lengths))],
        "all rows written behind the first row's text": [written_from(lambda lengths, b: lengths[0])],
        "the last token of the text is overwritten": [write_overwrites],
        "one slot left empty": [written_from(lambda lengths, b: lengths[b] + 1)],
        "written from slot 0": [written_from(lambda lengths, b: 0)],
        "padding counted as text": [write_grows_by_width],
        "lengths not moved": [write_keeps_lengths],
        "padding expected on the left": [write_left_padded],
        "changed input": [write_in_place],
    },
    "3.5": {
        "one pass for each token": [round_many_passes],
        "refused tokens left in the cache": [round_no_rollback],
        "accepted tokens rolled back instead of refused ones": [played(lambda count, width: count)],
        "one token too many rolled back": [played(lambda count, width: width + 1 - count)],
        "all rows rolled back like the slowest": [
            played(lambda count, width: torch.full_like(count, width - int(count.min())))
        ],
        "the next token is fed as well": [round_feeds_next],
        "the last token is not fed": [round_without_last],
        "own exception": [round_shape_mixed_up],
    },
    "3.6": {
        "the last draft counted as held": [drafts_like_target],
        "always one token to feed": [drafts_feed(1)],
        "always two tokens to feed": [drafts_feed(2)],
        "the next token counted as held": [drafts_hold_next],
        "refused drafts left in the cache": [drafts_not_rolled_back],
        "accepted drafts thrown away": [drafts_forgotten],
        "wrong type": [drafts_held_only],
    },
}

CORRECT = {
    "3.1": {"loop": positions_by_loop, "vectorised": positions_vectorised, "cumulative sum": positions_by_cumsum},
    "3.2": {"loop": mask_right, "vectorised": mask_vectorised, "from triangles": mask_from_triangles},
    "3.3": {
        "while": judge_by_while,
        "vectorised": judge_vectorised,
        "first refusal": judge_by_first_refusal,
        "lists": judged(lambda w, d: (prefix(w, d), w[prefix(w, d)])),
    },
    "3.4": {
        "loop": write_loop,
        "slices": write_slices,
        "padding too": write_padding_too,
        "where": write_where,
    },
    "3.5": {"vectorised": round_right, "lists": round_with_lists, "by lengths": round_by_lengths},
    "3.6": {
        "minimum": drafts_right,
        "where": drafts_where,
        "loop": drafts_loop,
        "numpy": drafts_numpy,
    },
}
