"""Stage 06: wrong and right answers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch

# --- 6.1 copy_draft


def with_loops(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n - 1, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n : place + n + limit]
    return []


def with_a_dictionary(text, limit, max_ngram):
    follower = {}
    for position in range(1, len(text)):
        for n in range(1, min(max_ngram, position) + 1):
            follower[tuple(text[position - n : position])] = position
    for n in range(min(max_ngram, len(text)), 0, -1):
        start = follower.get(tuple(text[-n:]))
        if start is not None:
            return text[start : start + limit]
    return []


def with_numpy(text, limit, max_ngram):
    ids = np.array(text)
    for n in range(min(max_ngram, len(ids) - 1), 0, -1):
        windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], n)
        found = np.flatnonzero((windows == ids[-n:]).all(axis=1))
        if len(found):
            start = found[-1] + n
            return ids[start : start + limit].tolist()
    return []


def by_extending_the_last_token(text, limit, max_ngram):
    """From each place of the last token, count how many tokens agree to the left."""
    best, start = 0, None
    for end in range(len(text) - 2, -1, -1):
        agree = 0
        while agree < max_ngram and agree <= end and text[end - agree] == text[-1 - agree]:
            agree += 1
        if agree > best:
            best, start = agree, end + 1
    return [] if start is None else list(text[start : start + limit])


def dummy_zero(text, limit, max_ngram):
    return with_loops(text, limit, max_ngram) or [0]


def dummy_last_token(text, limit, max_ngram):
    found = with_loops(text, limit, max_ngram)
    if not found and limit > 0:
        return [text[-1]] * limit
    return found


def fails_on_a_miss(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n - 1, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n : place + n + limit]
    raise LookupError("no match")


def finds_itself(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n, -1, -1):
            if text[place : place + n] == text[-n:]:
                return text[place + n : place + n + limit]
    return []


def finds_itself_in_windows(text, limit, max_ngram):
    n = min(max_ngram, len(text))
    windows = [text[place : place + n] for place in range(len(text) - n + 1)]
    place = max(i for i, window in enumerate(windows) if window == text[-n:])
    return text[place + n :][:limit]


def oldest(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n : place + n + limit]
    return []


def shortest(text, limit, max_ngram):
    for n in range(1, max_ngram + 1):
        for place in range(len(text) - n - 1, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n : place + n + limit]
    return []


def single_tokens(text, limit, max_ngram):
    for place in range(len(text) - 2, -1, -1):
        if text[place] == text[-1]:
            return text[place + 1 : place + 1 + limit]
    return []


def one_size(text, limit, max_ngram):
    n = max_ngram
    for place in range(len(text) - n - 1, -1, -1):
        if text[place : place + n] == text[len(text) - n :]:
            return text[place + n : place + n + limit]
    return []


def no_overlap(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - 2 * n, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n : place + n + limit]
    return []


def copies_the_match(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n - 1, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place : place + limit]
    return []


def one_further(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n - 1, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n + 1 : place + n + 1 + limit]
    return []


def to_the_end(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n - 1, -1, -1):
            if text[place : place + n] == text[len(text) - n :]:
                return text[place + n :]
    return []


def only_whole_drafts(text, limit, max_ngram):
    for n in range(max_ngram, 0, -1):
        for place in range(len(text) - n - 1, -1, -1):
            follows = text[place + n : place + n + limit]
            if text[place : place + n] == text[len(text) - n :] and len(follows) == limit:
                return follows
    return []


def filled_with_zeros(text, limit, max_ngram):
    found = with_loops(text, limit, max_ngram)
    return found + [0] * (limit - len(found))


def filled_with_itself(text, limit, max_ngram):
    found = with_loops(text, limit, max_ngram) or [text[-1]]
    return (found * (limit + 1))[:limit]


def shortens_the_text(text, limit, max_ngram):
    suffix = []
    while len(suffix) < min(max_ngram, len(text)):
        suffix.insert(0, text.pop())
    text += suffix[:-1]
    return with_loops(text + suffix[-1:], limit, max_ngram)


def none_on_a_miss(text, limit, max_ngram):
    return with_loops(text, limit, max_ngram) or None


# --- 6.2 index_new


def by_position(index, text, seen, max_ngram):
    for position in range(max(seen, 1), len(text)):
        for n in range(1, min(max_ngram, position) + 1):
            index[tuple(text[position - n : position])] = position


def by_size(index, text, seen, max_ngram):
    for n in range(max_ngram, 0, -1):
        for start in range(max(seen - n, 0), len(text) - n):
            index[tuple(text[start : start + n])] = start + n


def with_update(index, text, seen, max_ngram):
    found = {}
    for offset, _ in enumerate(text[seen:]):
        position = seen + offset
        before = text[:position]
        found.update({tuple(before[-n:]): position for n in range(1, max_ngram + 1) if n <= position})
    index.update(found)


def newest_first(index, text, seen, max_ngram):
    done = set()
    for position in range(len(text) - 1, max(seen, 1) - 1, -1):
        for start in range(max(position - max_ngram, 0), position):
            key = tuple(text[start:position])
            if key not in done:
                done.add(key)
                index[key] = position
    return index


def anew(index, text, seen, max_ngram):
    by_position(index, text, 0, max_ngram)


def cleared_and_anew(index, text, seen, max_ngram):
    index.clear()
    by_size(index, text, 0, max_ngram)


def new_tokens_alone(index, text, seen, max_ngram):
    new = text[seen:]
    for position in range(1, len(new)):
        for n in range(1, min(max_ngram, position) + 1):
            index[tuple(new[position - n : position])] = seen + position


def seam_token_forgotten(index, text, seen, max_ngram):
    for position in range(seen + 1, len(text)):
        for n in range(1, min(max_ngram, position) + 1):
            index[tuple(text[position - n : position])] = position


def with_the_end(index, text, seen, max_ngram):
    for position in range(max(seen, 1), len(text) + 1):
        for n in range(1, min(max_ngram, position) + 1):
            index[tuple(text[position - n : position])] = position


def first_places(index, text, seen, max_ngram):
    for position in range(max(seen, 1), len(text)):
        for n in range(1, min(max_ngram, position) + 1):
            index.setdefault(tuple(text[position - n : position]), position)


def largest_only(index, text, seen, max_ngram):
    for position in range(max(seen, max_ngram), len(text)):
        index[tuple(text[position - max_ngram : position])] = position


def largest_missing(index, text, seen, max_ngram):
    for position in range(max(seen, 1), len(text)):
        for n in range(1, max_ngram):
            if n <= position:
                index[tuple(text[position - n : position])] = position


def where_it_starts(index, text, seen, max_ngram):
    for position in range(max(seen, 1), len(text)):
        for n in range(1, min(max_ngram, position) + 1):
            index[tuple(text[position - n : position])] = position - n


def negative_slices(index, text, seen, max_ngram):
    for position in range(max(seen, 1), len(text)):
        for n in range(1, max_ngram + 1):
            index[tuple(text[position - n : position])] = position


# --- 6.3 judge_copy


def inverse(probs, uniform):
    cdf = probs.cumsum(-1)
    return int(((cdf <= uniform * cdf[-1]) & (cdf < cdf[-1])).sum())


def judge_with_loop(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    for i, token in enumerate(draft_tokens):
        if accept_uniforms[i] >= target_probs[i, token]:
            rest = target_probs[i].clone()
            rest[token] = 0
            return [*draft_tokens[:i], inverse(rest / rest.sum(), correct_uniform)]
    return [*draft_tokens, inverse(target_probs[-1], correct_uniform)]


def judge_vectorised(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    tokens = torch.tensor(draft_tokens, dtype=torch.int64)
    k = len(tokens)
    passes = accept_uniforms < target_probs[:k].gather(1, tokens[:, None]).squeeze(1)
    a = int(passes.long().cumprod(0).sum())
    left = target_probs[a].clone()
    left[tokens[a : a + 1]] = 0
    return [*draft_tokens[:a], inverse(left, correct_uniform)]


def judge_by_the_rule_of_stage_02(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    emitted = []
    for p, token, uniform in zip(target_probs, draft_tokens, accept_uniforms.tolist(), strict=False):
        point = torch.eye(len(p), dtype=p.dtype)[token]
        if uniform < p[token] / point[token]:
            emitted.append(token)
            continue
        missing = (p - point).clamp(min=0)
        return [*emitted, inverse(missing / missing.sum(), correct_uniform)]
    return [*emitted, inverse(target_probs[len(emitted)], correct_uniform)]


def judge_drawing_from_the_other_end(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    """Cuts the unit interval from the last token to the first: another use of the same number."""
    a = 0
    while a < len(draft_tokens) and accept_uniforms[a] < target_probs[a, draft_tokens[a]]:
        a += 1
    left = target_probs[a].clone()
    if a < len(draft_tokens):
        left[draft_tokens[a]] = 0
    return [*draft_tokens[:a], len(left) - 1 - inverse(left.flip(0), correct_uniform)]


def judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, keeps, corrects, row=lambda a, k: a):
    """Loop over a draft; `keeps(p, token, u)` says what passes, `corrects(p, token)` what replaces it."""
    k, a = len(draft_tokens), 0
    while a < k and keeps(target_probs[a], draft_tokens[a], float(accept_uniforms[a])):
        a += 1
    p = target_probs[row(a, k)]
    if a < k:
        p = corrects(p, draft_tokens[a])
    return [*draft_tokens[:a], inverse(p, correct_uniform)]


def passes_with_p(p, token, uniform):
    return uniform < p[token]


def without(p, token):
    rest = p.clone()
    rest[token] = 0
    return rest


def kept_at_zero(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    def keeps(p, token, uniform):
        return uniform <= p[token]

    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, keeps, without)


def all_kept(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    return [*draft_tokens, inverse(target_probs[-1], correct_uniform)]


def kept_as_if_drawn_from_p(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    def keeps(p, token, uniform):
        q = p[token]  # "the copy is what the target would have drawn"
        return q == 0 or uniform < p[token] / q

    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, keeps, without)


def favourites_only(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    def keeps(p, token, uniform):
        return p.argmax() == token

    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, keeps, without)


def flat_q(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    vocab = target_probs.shape[1]

    def keeps(p, token, uniform):
        return uniform < p[token] / (1 / vocab)

    def corrects(p, token):
        missing = (p - 1 / vocab).clamp(min=0)
        return missing / missing.sum()

    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, keeps, corrects)


def corrected_from_p(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, passes_with_p, lambda p, token: p)


def corrected_by_favourite(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    def corrects(p, token):
        best = int(without(p, token).argmax())
        return torch.eye(len(p), dtype=p.dtype)[best]

    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, passes_with_p, corrects)


def never_draws(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    for i, token in enumerate(draft_tokens):
        if accept_uniforms[i] >= target_probs[i, token]:
            return [*draft_tokens[:i], int(without(target_probs[i], token).argmax())]
    return [*draft_tokens, int(target_probs[-1].argmax())]


def all_passes_counted(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    k = len(draft_tokens)
    a = sum(bool(accept_uniforms[i] < target_probs[i, token]) for i, token in enumerate(draft_tokens))
    p = target_probs[a] if a == k else without(target_probs[a], draft_tokens[a])
    return [*draft_tokens[:a], inverse(p, correct_uniform)]


def corrected_from_last_row(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    return judge(target_probs, draft_tokens, accept_uniforms, correct_uniform, passes_with_p, without, lambda a, k: k)


def corrected_from_next_row(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    return judge(
        target_probs,
        draft_tokens,
        accept_uniforms,
        correct_uniform,
        passes_with_p,
        without,
        lambda a, k: a + 1 if a < k else k,
    )


def judged_by_next_row(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    a = 0
    while a < len(draft_tokens) and accept_uniforms[a] < target_probs[a + 1, draft_tokens[a]]:
        a += 1
    p = target_probs[a]
    if a < len(draft_tokens):
        p = without(p, draft_tokens[a])
    return [*draft_tokens[:a], inverse(p, correct_uniform)]


def no_bonus(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    found = judge_with_loop(target_probs, draft_tokens, accept_uniforms, correct_uniform)
    return found[: len(draft_tokens)]


def accepted_alone(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    return judge_with_loop(target_probs, draft_tokens, accept_uniforms, correct_uniform)[:-1]


def zeroes_in_place(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    for i, token in enumerate(draft_tokens):
        if accept_uniforms[i] >= target_probs[i, token]:
            target_probs[i, token] = 0
            return [*draft_tokens[:i], inverse(target_probs[i], correct_uniform)]
    return [*draft_tokens, inverse(target_probs[-1], correct_uniform)]


def luck_of_its_own(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    accept = torch.rand(len(draft_tokens), dtype=torch.float64)
    return judge_with_loop(target_probs, draft_tokens, accept, correct_uniform)


# --- 6.4 choose_layers


def greedy(worth, num_layers):
    kept, best = list(range(num_layers)), None
    while len(kept) > 1:
        scores = {layer: worth[tuple(one for one in kept if one != layer)] for layer in kept}
        kept.remove(max(scores, key=scores.get))
        if best is None or worth[tuple(kept)] > worth[tuple(best)]:
            best = list(kept)
    return best


def greedy_by_recursion(worth, num_layers):
    def way(kept):
        if len(kept) == 1:
            return []
        fewer = max(combinations(kept, len(kept) - 1), key=lambda one: worth[one])
        return [fewer, *way(fewer)]

    return list(max(way(tuple(range(num_layers))), key=lambda one: worth[one]))


def greedy_with_masks(worth, num_layers):
    keep = np.ones(num_layers, dtype=bool)
    best, most = (), -1.0
    for _ in range(num_layers - 1):
        tries = []
        for layer in np.flatnonzero(keep):
            keep[layer] = False
            tries.append((worth[tuple(np.flatnonzero(keep).tolist())], layer))
            keep[layer] = True
        value, layer = max(tries)
        keep[layer] = False
        if value > most:
            best, most = tuple(np.flatnonzero(keep).tolist()), value
    return best


def whole_model_too(worth, num_layers):
    kept = tuple(range(num_layers))
    best = kept
    while len(kept) > 1:
        kept = max(combinations(kept, len(kept) - 1), key=lambda one: worth[one])
        if worth[kept] > worth[best]:
            best = kept
    return list(best)


def ranked_once(worth, num_layers):
    whole = tuple(range(num_layers))
    gain = {layer: worth[whole[:layer] + whole[layer + 1 :]] for layer in whole}
    kept, best = list(whole), None
    for layer in sorted(gain, key=gain.get, reverse=True)[:-1]:
        kept.remove(layer)
        if best is None or worth[tuple(kept)] > worth[tuple(best)]:
            best = list(kept)
    return best


def climbs(worth, num_layers):
    kept = max(combinations(range(num_layers), num_layers - 1), key=lambda one: worth[one])
    while len(kept) > 1:
        fewer = max(combinations(kept, len(kept) - 1), key=lambda one: worth[one])
        if worth[fewer] <= worth[kept]:
            break
        kept = fewer
    return list(kept)


def to_the_last(worth, num_layers):
    kept = tuple(range(num_layers))
    while len(kept) > 1:
        kept = max(combinations(kept, len(kept) - 1), key=lambda one: worth[one])
    return list(kept)


def one_less(worth, num_layers):
    return list(max(combinations(range(num_layers), num_layers - 1), key=lambda one: worth[one]))


def worst_first(worth, num_layers):
    kept, way = tuple(range(num_layers)), []
    while len(kept) > 1:
        kept = min(combinations(kept, len(kept) - 1), key=lambda one: worth[one])
        way.append(kept)
    return list(max(way, key=lambda one: worth[one]))


def exhaustive(worth, num_layers):
    return list(max((kept for kept in worth if len(kept) < num_layers), key=lambda one: worth[one]))


def only_its_worth(worth, num_layers):
    return worth[tuple(greedy(worth, num_layers))]


# --- 6.5 draft_until_unsure


def with_break(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        tokens.append(pick(law, uniform))
        if law.max() < stop_below:
            break
    return tokens


def with_while(next_law, pick, draft_uniforms, stop_below):
    tokens, sure = [], True
    while sure and len(tokens) < len(draft_uniforms):
        law = next_law(list(tokens))
        sure = bool((law >= stop_below).any())
        tokens = [*tokens, int(pick(law, float(draft_uniforms[len(tokens)])))]
    return tokens


def by_recursion(next_law, pick, draft_uniforms, stop_below, tokens=()):
    if len(draft_uniforms) == 0:
        return list(tokens)
    law = next_law(tokens)
    tokens = (*tokens, pick(law, draft_uniforms[0]))
    return by_recursion(next_law, pick, draft_uniforms[1 if max(law) >= stop_below else 9 :], stop_below, tokens)


def drops_unlikely(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        token = pick(law, uniform)
        if law[token] < stop_below:
            break
        tokens.append(token)
    return tokens


def drops_unlikely_afterwards(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        tokens.append(pick(law, uniform))
        if float(law[tokens[-1]]) < stop_below:
            return tokens[:-1]
    return tokens


def token_decides(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        tokens.append(pick(law, uniform))
        if law[tokens[-1]] < stop_below:
            break
    return tokens


def ends_before(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        if law.max() < stop_below:
            break
        tokens.append(pick(law, uniform))
    return tokens


def ends_when_sure(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        tokens.append(pick(law, uniform))
        if law.max() >= stop_below:
            break
    return tokens


def ends_at_threshold(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        tokens.append(pick(law, uniform))
        if not law.max() > stop_below:
            break
    return tokens


def never_ends(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for uniform in draft_uniforms:
        tokens.append(pick(next_law(tokens), uniform))
    return tokens


def takes_favourites(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    for _ in draft_uniforms:
        law = next_law(tokens)
        tokens.append(int(law.argmax()))
        if law.max() < stop_below:
            break
    return tokens


def asks_ahead(next_law, pick, draft_uniforms, stop_below):
    tokens = []
    law = next_law(tokens)
    for uniform in draft_uniforms:
        tokens.append(pick(law, uniform))
        if law.max() < stop_below:
            break
        law = next_law(tokens)
    return tokens


MUTANTS = {
    "6.1": {
        "something is proposed where nothing matches": [dummy_zero, dummy_last_token, fails_on_a_miss],
        "the suffix matches itself": [finds_itself, finds_itself_in_windows],
        "the oldest match instead of the newest": [oldest],
        "the shortest match instead of the longest": [shortest, single_tokens],
        "only the longest n is tried": [one_size],
        "matches that overlap the suffix are passed over": [no_overlap],
        "the matched tokens are copied, not what follows": [copies_the_match],
        "the first token after the match is left out": [one_further],
        "the limit is not kept": [to_the_end],
        "a match with few tokens behind it is passed over": [only_whole_drafts],
        "the draft is filled up to the limit": [filled_with_zeros, filled_with_itself],
        "changed input": [shortens_the_text],
        "missing return": [none_on_a_miss],
    },
    "6.2": {
        "everything is indexed anew each round": [anew, cleared_and_anew],
        "n-grams across the seam of two rounds are lost": [new_tokens_alone],
        "the first new token is passed over": [seam_token_forgotten],
        "the end of the text is indexed too": [with_the_end],
        "the oldest place is kept": [first_places],
        "only n-grams of the largest size": [largest_only],
        "n-grams of the largest size are missing": [largest_missing],
        "where the n-gram starts is noted, not what follows": [where_it_starts],
        "n-grams that would start before the text": [negative_slices],
    },
    "6.3": {
        "a token with p = 0 is kept when u = 0": [kept_at_zero],
        "every copied token is kept": [all_kept, kept_as_if_drawn_from_p],
        "kept only if it is the target's favourite": [favourites_only],
        "an invented q, the same for every token": [flat_q],
        "the correction may be the refused token again": [corrected_from_p],
        "the correction is the likeliest other token": [corrected_by_favourite],
        "the likeliest token is taken instead of drawing": [never_draws],
        "drafts behind a refusal are counted": [all_passes_counted],
        "the correction comes from the last row": [corrected_from_last_row],
        "the correction comes from the row after the refusal": [corrected_from_next_row],
        "draft i is judged by row i + 1": [judged_by_next_row],
        "the bonus token is left out": [no_bonus],
        "only the accepted drafts are returned": [accepted_alone],
        "changed input": [zeroes_in_place],
        "wrong random generator": [luck_of_its_own],
    },
    "6.4": {
        "the whole model is among the choices": [whole_model_too],
        "each layer is judged alone": [ranked_once],
        "stops at the first step that is no better": [climbs],
        "the last set instead of the best": [to_the_last],
        "only one layer is left out": [one_less],
        "the most useful layer goes first": [worst_first],
        "every set is tried": [exhaustive],
        "wrong type": [only_its_worth],
    },
    "6.5": {
        "a drawn token is dropped because it looks unlikely": [drops_unlikely, drops_unlikely_afterwards],
        "the drawn token's probability decides": [token_decides],
        "the last token is left out although its law was paid for": [ends_before],
        "ends where the draft is sure": [ends_when_sure],
        "ends at the threshold itself": [ends_at_threshold],
        "the draft never ends early": [never_ends],
        "the most likely token is taken instead of drawing": [takes_favourites],
        "one law too many is asked for": [asks_ahead],
    },
}

CORRECT = {
    "6.1": {
        "with loops": with_loops,
        "with a dictionary": with_a_dictionary,
        "with numpy": with_numpy,
        "by extending the last token": by_extending_the_last_token,
    },
    "6.2": {"by position": by_position, "by size": by_size, "with update": with_update, "newest first": newest_first},
    "6.3": {
        "with a loop": judge_with_loop,
        "vectorised": judge_vectorised,
        "by the rule of stage 02": judge_by_the_rule_of_stage_02,
        "drawing from the other end": judge_drawing_from_the_other_end,
    },
    "6.4": {"with a list": greedy, "by recursion": greedy_by_recursion, "with masks": greedy_with_masks},
    "6.5": {"with break": with_break, "with while": with_while, "by recursion": by_recursion},
}
