"""Stage 04: wrong and right answers."""

from __future__ import annotations

import torch

# --- 4.1 propose


def as_block(*tokens):
    return torch.tensor([list(tokens)], dtype=torch.int64)


def only_last_fed(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(text[-1]))[0, -1]
    tokens, laws = [], []
    for u in draft_uniforms:
        token, law = pick(logits, u)
        tokens.append(token)
        laws.append(law)
        if len(tokens) < len(draft_uniforms):
            logits = draft.extend(as_block(token))[0, -1]
    return tokens, laws


def only_last_fed_after_the_prompt(draft, text, draft_uniforms, pick):
    """Reads the prompt rightly, and one token later on."""
    if int(draft.lengths[0]) == 0:
        return right_propose(draft, text, draft_uniforms, pick)
    return only_last_fed(draft, text, draft_uniforms, pick)


def right_propose(draft, text, draft_uniforms, pick):
    tokens, laws = list(text), []
    while len(laws) < len(draft_uniforms):
        missing = tokens[int(draft.lengths[0]) :]
        token, law = pick(draft.extend(as_block(*missing))[0, -1], draft_uniforms[len(laws)])
        tokens.append(token)
        laws.append(law)
    return tokens[len(text) :], laws


def one_token_a_pass(draft, text, draft_uniforms, pick):
    for token in text[int(draft.lengths[0]) :]:
        logits = draft.extend(as_block(token))
    drafted, laws = [], []
    for i in range(len(draft_uniforms)):
        token, law = pick(logits[0, -1], float(draft_uniforms[i]))
        drafted += [token]
        laws += [law]
        if i + 1 < len(draft_uniforms):
            logits = draft.extend(as_block(token))
    return drafted, laws


def stacked_laws(draft, text, draft_uniforms, pick):
    tokens, laws = right_propose(draft, text, draft_uniforms, pick)
    return tokens, torch.stack(laws)


def text_fed_again(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(*text))[0, -1]
    return continue_drafting(draft, logits, draft_uniforms, pick)


def continue_drafting(draft, logits, draft_uniforms, pick):
    tokens, laws = [], []
    for i, u in enumerate(draft_uniforms):
        if i:
            logits = draft.extend(as_block(tokens[-1]))[0, -1]
        token, law = pick(logits, u)
        tokens.append(token)
        laws.append(law)
    return tokens, laws


def first_row(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(*text[int(draft.lengths[0]) :]))[0][0]
    return continue_drafting(draft, logits, draft_uniforms, pick)


def never_fed(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(*text[int(draft.lengths[0]) :]))[0, -1]
    drawn = [pick(logits, u) for u in draft_uniforms]
    return [token for token, _ in drawn], [law for _, law in drawn]


def last_fed(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(*text[int(draft.lengths[0]) :]))[0, -1]
    tokens, laws = [], []
    for u in draft_uniforms:
        token, law = pick(logits, u)
        tokens.append(token)
        laws.append(law)
        logits = draft.extend(as_block(token))[0, -1]
    return tokens, laws


def greedy_draft(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(*text[int(draft.lengths[0]) :]))[0, -1]
    tokens, laws = [], []
    for i, u in enumerate(draft_uniforms):
        if i:
            logits = draft.extend(as_block(tokens[-1]))[0, -1]
        _, law = pick(logits, u)
        tokens.append(int(law.argmax()))
        laws.append(law)
    return tokens, laws


def raw_law(draft, text, draft_uniforms, pick):
    logits = draft.extend(as_block(*text[int(draft.lengths[0]) :]))[0, -1]
    tokens, laws = [], []
    for i, u in enumerate(draft_uniforms):
        if i:
            logits = draft.extend(as_block(tokens[-1]))[0, -1]
        tokens.append(pick(logits, u)[0])
        laws.append(torch.softmax(logits.double(), dim=-1))
    return tokens, laws


def one_number(draft, text, draft_uniforms, pick):
    return right_propose(draft, text, draft_uniforms[:1].expand(len(draft_uniforms)), pick)


def laws_forgotten(draft, text, draft_uniforms, pick):
    return right_propose(draft, text, draft_uniforms, pick)[0]


# --- 4.2 cut_block


def only_last_looked_at(new_tokens, remaining, eos_ids):
    if new_tokens[-1] in eos_ids:
        return new_tokens[:remaining]
    return new_tokens[:remaining]


def eos_dropped(new_tokens, remaining, eos_ids):
    kept = []
    for token in new_tokens:
        if token in eos_ids or len(kept) == remaining:
            break
        kept.append(token)
    return kept


def no_budget(new_tokens, remaining, eos_ids):
    for place, token in enumerate(new_tokens):
        if token in eos_ids:
            return new_tokens[: place + 1]
    return list(new_tokens)


def one_too_many(new_tokens, remaining, eos_ids):
    kept = []
    for token in new_tokens:
        kept.append(token)
        if token in eos_ids or len(kept) > remaining:
            break
    return kept


def one_id(new_tokens, remaining, eos_ids):
    kept = []
    for token in new_tokens[:remaining]:
        kept.append(token)
        if eos_ids and token == eos_ids[0]:
            break
    return kept


def last_eos(new_tokens, remaining, eos_ids):
    new_tokens = new_tokens[:remaining]
    for place in reversed(range(len(new_tokens))):
        if new_tokens[place] in eos_ids:
            return new_tokens[: place + 1]
    return new_tokens


def ids_in_their_order(new_tokens, remaining, eos_ids):
    new_tokens = new_tokens[:remaining]
    for token in eos_ids:
        if token in new_tokens:
            return new_tokens[: new_tokens.index(token) + 1]
    return new_tokens


def in_place(new_tokens, remaining, eos_ids):
    del new_tokens[remaining:]
    return no_budget(new_tokens, remaining, eos_ids)


def with_next(new_tokens, remaining, eos_ids):
    end = next((i + 1 for i, token in enumerate(new_tokens) if token in eos_ids), len(new_tokens))
    return new_tokens[: min(end, remaining)]


def with_while(new_tokens, remaining, eos_ids):
    count = 0
    while count < min(remaining, len(new_tokens)):
        count += 1
        if new_tokens[count - 1] in set(eos_ids):
            break
    return list(new_tokens)[:count]


def with_tensor(new_tokens, remaining, eos_ids):
    tokens = torch.tensor(new_tokens)
    ends = torch.isin(tokens, torch.tensor(eos_ids, dtype=torch.int64)).nonzero().flatten().tolist()
    return tokens[: min([remaining, *[end + 1 for end in ends]])].tolist()


# --- 4.3 speculative_generate


def room_limit(most, room):
    return max(0, min(most, room - 1))


def loop(
    target,
    draft,
    prompt,
    propose,
    judge,
    num_draft_tokens,
    max_new_tokens,
    eos_ids,
    *,
    limit=room_limit,
    target_forgets=lambda k, a: k - a,
    draft_forgets=lambda held, n, k, a: max(0, held - n - a),
    written=lambda tokens, a, extra: [*tokens[:a], extra],
    finish=with_next,
):
    """The loop in other words: it counts what was written, and keeps the parts of the text apart."""
    output = []
    while len(output) < max_new_tokens:
        text = prompt + output
        tokens, laws = propose(draft, text, limit(num_draft_tokens, max_new_tokens - len(output)))
        logits = target.extend(torch.tensor(text[-1:] + tokens)[None]).squeeze(0)
        a, extra = judge(logits, tokens, laws)
        target.rollback([target_forgets(len(tokens), a)])
        draft.rollback([draft_forgets(int(draft.lengths[0]), len(text), len(tokens), a)])
        new = finish(written(tokens, a, extra), max_new_tokens - len(output), eos_ids)
        output += new
        yield new, len(tokens), a
        if new and new[-1] in eos_ids:
            break


def changed(**parts):
    def answer(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
        yield from loop(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids, **parts)

    return answer


def gathered(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
    rounds = []
    for result in loop(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
        rounds.append(result)
    return rounds


def token_by_token(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
    text, left = list(prompt), max_new_tokens
    while left > 0:
        k = min(num_draft_tokens, left - 1)
        tokens, laws = propose(draft, text, k)
        rows = [target.extend(torch.tensor([[token]]))[0, 0] for token in [text[-1], *tokens]]
        a, extra = judge(torch.stack(rows), tokens, laws)
        target.rollback([k - a])
        draft.rollback([max(0, int(draft.lengths[0]) - len(text) - a)])
        new = with_next([*tokens[:a], extra], left, eos_ids)
        text, left = text + new, left - len(new)
        yield new, k, a
        if new[-1] in eos_ids:
            return


def as_a_class(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
    """A right answer as an iterator of its own."""
    return Decoder(target, draft, list(prompt), propose, judge, num_draft_tokens, max_new_tokens, eos_ids)


class Decoder:
    def __init__(self, target, draft, text, propose, judge, most, left, ends):
        self.target, self.draft, self.text, self.propose, self.judge = target, draft, text, propose, judge
        self.most, self.left, self.ends = most, left, ends

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        n = len(self.text)
        tokens, laws = self.propose(self.draft, self.text, min(self.most, self.left - 1))
        block = torch.tensor([self.text[-1:] + tokens])
        a, extra = self.judge(self.target.extend(block)[0], tokens, laws)
        self.target.rollback(torch.tensor([len(tokens) - a]))
        over = int(self.draft.lengths[0]) - (n + a)
        if over > 0:
            self.draft.rollback(torch.tensor([over]))
        new = with_while([*tokens[:a], extra], self.left, self.ends)
        self.text = self.text + new
        self.left = 0 if new[-1] in self.ends else self.left - len(new)
        return new, len(tokens), a


def lists_for_tuples(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
    arguments = (target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids)
    for new, drafted, accepted in loop(*arguments):
        yield [new, drafted, accepted]


# --- 4.4 run_statistics


def three(alpha, per_drafted, per_round):
    return {"alpha": alpha, "accepted_per_drafted": per_drafted, "emitted_per_round": per_round}


def sums(rounds):
    return (sum(column) for column in zip(*rounds, strict=True))


def alpha_over_drafted(rounds):
    drafted, accepted, emitted = sums(rounds)
    return three(accepted / drafted, accepted / drafted, emitted / len(rounds))


def one_refusal_each(rounds):
    drafted, accepted, emitted = sums(rounds)
    return three(accepted / (accepted + len(rounds)), accepted / drafted, emitted / len(rounds))


def right_alpha(rounds):
    judged = accepted = 0
    for d, a, _ in rounds:
        accepted += a
        judged += min(a + 1, d)
    return accepted / judged


def accepted_plus_one(rounds):
    drafted, accepted, _ = sums(rounds)
    return three(right_alpha(rounds), accepted / drafted, accepted / len(rounds) + 1)


def drafting_rounds(rounds):
    drafted, accepted, emitted = sums(rounds)
    return three(right_alpha(rounds), accepted / drafted, emitted / len([r for r in rounds if r[0] > 0]))


def mean_of_ratios(rounds):
    drafting = [r for r in rounds if r[0] > 0]
    alphas = [a / min(a + 1, d) for d, a, _ in drafting]
    shares = [a / d for d, a, _ in drafting]
    emitted = [e for _, _, e in rounds]
    return three(sum(alphas) / len(alphas), sum(shares) / len(shares), sum(emitted) / len(emitted))


def emitted_over_drafted(rounds):
    drafted, accepted, emitted = sums(rounds)
    return three(right_alpha(rounds), accepted / drafted, emitted / drafted)


def statistics_with_loop(rounds):
    drafted, accepted, emitted = sums(rounds)
    return three(right_alpha(rounds), accepted / drafted, emitted / len(rounds))


def statistics_with_torch(rounds):
    d, a, e = torch.tensor(rounds, dtype=torch.float64).T
    return three(float(a.sum() / (a + (a < d)).sum()), float(a.sum() / d.sum()), float(e.mean()))


def statistics_as_tensors(rounds):
    table = torch.tensor(rounds)
    d, a, e = (table[:, i].sum().double() for i in range(3))
    judged = torch.minimum(table[:, 1] + 1, table[:, 0]).sum()
    return three(a / judged, a / d, e / len(rounds))


def statistics_as_tuple(rounds):
    return tuple(statistics_with_loop(rounds).values())


# --- 4.5 stream_text


def one_by_one(tokens, decode):
    for token in tokens:
        yield decode([token])


def without_marks(tokens, decode):
    for token in tokens:
        yield decode([token]).replace("\ufffd", "")


def impatient(tokens, decode):
    seen, length = [], 0
    for token in tokens:
        seen.append(token)
        text = decode(seen)
        yield text[length:]
        length = len(text)


def again_and_again(tokens, decode):
    seen, shown = [], ""
    for token in tokens:
        seen.append(token)
        text = decode(seen)
        if not text.endswith("\ufffd"):
            yield text
            shown = text
    yield decode(seen)[len(shown) :]


def without_rest(tokens, decode):
    seen, length = [], 0
    for token in tokens:
        seen.append(token)
        text = decode(seen)
        if text[-1] != "\ufffd":
            yield text[length:]
            length = len(text)


def all_at_once(tokens, decode):
    yield decode(list(tokens))


def list_first(tokens, decode):
    pieces = list(with_buffer(tokens, decode))
    return ["".join(pieces)]


def with_buffer(tokens, decode):
    """Right: only the bytes that are still open are decoded again."""
    waiting = []
    for token in tokens:
        waiting.append(token)
        text = decode(waiting)
        if not text.endswith("\ufffd"):
            waiting = []
            yield text
    if waiting:
        yield decode(waiting)


def with_empty_pieces(tokens, decode):
    seen, shown = [], ""
    for token in tokens:
        seen.append(token)
        text = decode(seen)
        piece = text[len(shown) :]
        if piece[-1:] == "\ufffd":
            piece = ""
        shown += piece
        yield piece
    yield decode(seen)[len(shown) :]


def with_prefixes(tokens, decode):
    seen, length = [], 0
    for token in tokens:
        seen = [*seen, token]
        whole = decode(seen)
        if "\ufffd" not in whole[length:]:
            yield whole[length:]
            length = len(whole)
    rest = decode(seen)[length:]
    if rest:
        yield rest


# --- 4.6 batch_round


def pad(texts, drafts, width, fill=0):
    rows = [[text[-1], *(draft + [fill] * width)[:width]] for text, draft in zip(texts, drafts, strict=True)]
    return torch.tensor(rows)


def run_length(draft, wanted):
    count = 0
    for mine, theirs in zip(draft, wanted, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def right_batch(target, texts, drafts, fill=0):
    width = max(map(len, drafts))
    wanted = target.extend(pad(texts, drafts, width, fill)).argmax(-1).tolist()
    accepted = [run_length(draft, row) for draft, row in zip(drafts, wanted, strict=True)]
    target.rollback(torch.tensor([width - a for a in accepted]))
    return [[*draft[:a], row[a]] for draft, a, row in zip(drafts, accepted, wanted, strict=True)]


def padded_with_ones(target, texts, drafts):
    return right_batch(target, texts, drafts, fill=1)


def vectorised(target, texts, drafts):
    width = max(len(draft) for draft in drafts)
    block = pad(texts, drafts, width)
    wanted = target.extend(block).argmax(-1)
    real = torch.arange(width) < torch.tensor([len(draft) for draft in drafts])[:, None]
    accepted = ((block[:, 1:] == wanted[:, :-1]) & real).long().cumprod(1).sum(1)
    target.rollback(width - accepted)
    return [[*draft[:a], int(row[a])] for draft, a, row in zip(drafts, accepted.tolist(), wanted, strict=True)]


def padding_kept(target, texts, drafts):
    width = max(map(len, drafts))
    wanted = target.extend(pad(texts, drafts, width)).argmax(-1).tolist()
    accepted = [run_length(draft, row) for draft, row in zip(drafts, wanted, strict=True)]
    target.rollback([len(draft) - a for draft, a in zip(drafts, accepted, strict=True)])
    return [[*draft[:a], row[a]] for draft, a, row in zip(drafts, accepted, wanted, strict=True)]


def padding_judged(target, texts, drafts):
    width = max(map(len, drafts))
    block = pad(texts, drafts, width)
    wanted = target.extend(block).argmax(-1)
    accepted = (block[:, 1:] == wanted[:, :-1]).long().cumprod(1).sum(1)
    target.rollback(width - accepted)
    rows = zip(block.tolist(), accepted.tolist(), wanted.tolist(), strict=True)
    return [[*row[1 : 1 + a], favourites[a]] for row, a, favourites in rows]


def bonus_at_the_end(target, texts, drafts):
    width = max(map(len, drafts))
    wanted = target.extend(pad(texts, drafts, width)).argmax(-1).tolist()
    accepted = [run_length(draft, row) for draft, row in zip(drafts, wanted, strict=True)]
    target.rollback([width - a for a in accepted])
    return [
        [*draft[:a], row[a] if a < len(draft) else row[-1]]
        for draft, a, row in zip(drafts, accepted, wanted, strict=True)
    ]


def shortest(target, texts, drafts):
    width = min(map(len, drafts))
    return right_batch(target, texts, [draft[:width] for draft in drafts])


def counted(target, texts, drafts):
    width = max(map(len, drafts))
    wanted = target.extend(pad(texts, drafts, width)).argmax(-1).tolist()
    accepted = [sum(a == b for a, b in zip(d, w, strict=False)) for d, w in zip(drafts, wanted, strict=True)]
    target.rollback([width - a for a in accepted])
    return [[*draft[:a], row[a]] for draft, a, row in zip(drafts, accepted, wanted, strict=True)]


def without_next(target, texts, drafts):
    return [row[:-1] for row in right_batch(target, texts, drafts)]


def texts_changed(target, texts, drafts):
    new = right_batch(target, texts, drafts)
    for text, tokens in zip(texts, new, strict=True):
        text += tokens
    return new


MUTANTS = {
    "4.1": {
        "only the last token of the text is fed": [only_last_fed],
        "after full acceptance only one token is fed": [only_last_fed_after_the_prompt],
        "the whole text is fed again": [text_fed_again],
        "logits of the first fed token are used": [first_row],
        "draft tokens are not fed back": [never_fed],
        "the last draft token is fed as well": [last_fed],
        "the most likely token is taken instead of drawing": [greedy_draft],
        "the law is not the one that was drawn from": [raw_law],
        "one uniform number for all draft tokens": [one_number],
        "wrong type": [laws_forgotten],
    },
    "4.2": {
        "EOS inside the block is missed": [only_last_looked_at],
        "EOS itself is dropped": [eos_dropped],
        "the budget is not kept": [no_budget],
        "one token more than the budget": [one_too_many],
        "only the first EOS id is known": [one_id],
        "cut at the last EOS instead of the first": [last_eos],
        "the order of the EOS ids decides": [ids_in_their_order],
        "changed input": [in_place],
    },
    "4.3": {
        "all rounds come at the end": [gathered],
        "one pass for each token of the block": [token_by_token],
        "refused drafts stay in the target's cache": [changed(target_forgets=lambda k, a: 0)],
        "accepted drafts are rolled back instead of refused ones": [changed(target_forgets=lambda k, a: a)],
        "the draft's cache is not rolled back": [changed(draft_forgets=lambda held, n, k, a: 0)],
        "the draft's cache is cut one token too far": [
            changed(draft_forgets=lambda held, n, k, a: k - a),
            changed(draft_forgets=lambda held, n, k, a: max(0, held - (n + a - 1))),
        ],
        "the draft is not limited by the budget": [changed(limit=lambda most, room: most)],
        "no room is left for the correction or bonus": [changed(limit=min)],
        "the block is not cut to the budget": [changed(limit=lambda most, room: most, finish=no_budget)],
        "EOS inside the block is missed": [changed(finish=only_last_looked_at)],
        "the correction or bonus is left out": [changed(written=lambda tokens, a, extra: tokens[:a])],
        "refused drafts are written": [changed(written=lambda tokens, a, extra: [*tokens, extra])],
    },
    "4.4": {
        "alpha taken for accepted over drafted": [alpha_over_drafted],
        "a refusal counted in every round": [one_refusal_each],
        "emitted taken for accepted + 1": [accepted_plus_one],
        "rounds without a draft left out": [drafting_rounds],
        "the mean of the rounds' ratios": [mean_of_ratios],
        "emitted per drafted token": [emitted_over_drafted],
        "wrong type": [statistics_as_tuple],
    },
    "4.5": {
        "each token is decoded by itself": [one_by_one],
        "half characters are thrown away": [without_marks],
        "half characters are shown": [impatient],
        "the whole text is shown again": [again_and_again],
        "the rest is not shown at the end": [without_rest],
        "nothing is shown before the end": [all_at_once, list_first],
    },
    "4.6": {
        "padding is left in the cache": [padding_kept],
        "padding is judged like a draft": [padding_judged],
        "the bonus is read behind the padding": [bonus_at_the_end],
        "all drafts are cut to the shortest": [shortest],
        "agreements are counted instead of the leading run": [counted],
        "the correction or bonus is left out": [without_next],
        "changed input": [texts_changed],
    },
}

CORRECT = {
    "4.1": {"text kept whole": right_propose, "one token a pass": one_token_a_pass, "stacked laws": stacked_laws},
    "4.2": {"with next": with_next, "with while": with_while, "with a tensor": with_tensor},
    "4.3": {"in other words": changed(), "an iterator": as_a_class, "lists for tuples": lists_for_tuples},
    "4.4": {
        "with a loop": statistics_with_loop,
        "with torch": statistics_with_torch,
        "as tensors": statistics_as_tensors,
    },
    "4.5": {"with a buffer": with_buffer, "with empty pieces": with_empty_pieces, "with prefixes": with_prefixes},
    "4.6": {"loops": right_batch, "padded with ones": padded_with_ones, "vectorised": vectorised},
}
