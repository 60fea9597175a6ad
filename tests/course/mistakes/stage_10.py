"""Stage 10: wrong and right answers."""

from __future__ import annotations

import codecs

import torch

# --- 10.1 whole_characters


def with_decoder(held):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(bytes(held), False)
    return text, list(decoder.getstate()[0])


def with_tail(held):
    """The unfinished end is the longest beginning of a character that the bytes end with."""
    for length in (3, 2, 1):
        tail = bytes(held[len(held) - length :]) if length <= len(held) else b""
        if tail and is_beginning(tail):
            return bytes(held[: len(held) - length]).decode("utf-8", "replace"), list(tail)
    return bytes(held).decode("utf-8", "replace"), []


def is_beginning(tail):
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


def with_loop(held):
    text, rest = "", bytes(held)
    while rest:
        try:
            return text + rest.decode(), []
        except UnicodeDecodeError as error:
            text += rest[: error.start].decode()
            if error.reason == "unexpected end of data":
                return text, list(rest[error.start :])
            text, rest = text + "\ufffd", rest[error.end :]
    return text, []


def codec_function(held):
    text, used = codecs.utf_8_decode(bytes(held), "replace", False)
    return text, list(held[used:])


def replacement_marks(held):
    return bytes(held).decode("utf-8", "replace"), []


def replacement_marks_by_decoder(held):
    return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(held), True), []


def rest_thrown_away(held):
    return with_decoder(held)[0], []


def ignores(held):
    return bytes(held).decode("utf-8", errors="ignore"), []


def all_waits(held):
    try:
        text = bytes(held).decode("utf-8")
    except UnicodeDecodeError:
        return "", held[:]
    return text, []


def waits_for_ever(held):
    raw = bytes(held)
    try:
        return raw.decode(), []
    except UnicodeDecodeError as fault:
        return raw[: fault.start].decode(), list(raw[fault.start :])


def cuts_at_ascii(held):
    kept = list(held)
    rest = []
    while kept and kept[-1] > 127:
        rest.insert(0, kept.pop())
    return bytes(kept).decode("utf-8", "replace"), rest


def last_byte_back(held):
    if with_decoder(held)[1]:
        return bytes(held[:-1]).decode("utf-8", "replace"), held[-1:]
    return with_decoder(held)


def letters_are_bytes(held):
    return "".join(chr(value) for value in held), []


def printed_text(held):
    print(with_decoder(held)[0])


def bytes_as_rest(held):
    return with_decoder(held)[0]


# --- 10.2 rejoin


def begins(pieces, first=0):
    places, place = [], first
    for piece in pieces:
        places.append(place)
        place += len(piece)
    return [*places, place]


def with_dict(own, window, new_text, encode):
    text = "".join(own)
    known = {place: number for number, place in enumerate(begins(own))}
    again = encode(window + new_text)
    place = len(text) - len(window)
    for i, piece in enumerate(again):
        if place in known:
            return own[: known[place]] + again[i:]
        place += len(piece)
    return encode(text + new_text)


def with_text(own, window, new_text, encode):
    """Old tokens, from none to all, until the rest of the text is the end of what was encoded again."""
    text = "".join(own) + new_text
    again = encode(window + new_text)
    for kept in range(len(own) + 1):
        rest = text[len("".join(own[:kept])) :]
        for i in range(len(again)):
            if "".join(again[i:]) == rest:
                return own[:kept] + again[i:]
    return encode(text)


def with_sets(own, window, new_text, encode):
    again = encode(window + new_text)
    mine, theirs = begins(own), begins(again, len("".join(own)) - len(window))
    common = sorted(set(mine) & set(theirs[:-1]))
    if not common:
        return encode("".join(own) + new_text)
    return own[: mine.index(common[0])] + again[theirs.index(common[0]) :]


def two_fingers(own, window, new_text, encode):
    again = encode(window + new_text)
    i, j, a, b = 0, 0, 0, len("".join(own)) - len(window)
    while j < len(again):
        if a == b:
            return own[:i] + again[j:]
        if a < b and i < len(own):
            a += len(own[i])
            i += 1
        else:
            b += len(again[j])
            j += 1
    return encode("".join(own) + new_text)


def new_alone(own, window, new_text, encode):
    return [*own, *encode(new_text)]


def window_twice(own, window, new_text, encode):
    return list(own) + list(encode(window + new_text))


def counted_tokens(own, window, new_text, encode):
    drop = min(len(own), len(encode(window)))
    return own[: len(own) - drop] + encode(window + new_text)


def drops_what_reaches_in(own, window, new_text, encode):
    begin = len("".join(own)) - len(window)
    kept = []
    for piece in own:
        if len("".join([*kept, piece])) > begin:
            break
        kept.append(piece)
    return kept + encode(window + new_text)


def keeps_what_reaches_in(own, window, new_text, encode):
    begin = len("".join(own)) - len(window)
    kept = []
    for piece in own:
        if len("".join(kept)) >= begin:
            break
        kept.append(piece)
    return kept + encode(window + new_text)


def everything_again(own, window, new_text, encode):
    return encode("".join(own) + new_text)


def last_place(own, window, new_text, encode):
    again = encode(window + new_text)
    mine, theirs = begins(own), begins(again, len("".join(own)) - len(window))[:-1]
    common = sorted(set(mine) & set(theirs))
    if not common:
        return encode("".join(own) + new_text)
    return own[: mine.index(common[-1])] + again[theirs.index(common[-1]) :]


def backwards(own, window, new_text, encode):
    again = encode(window + new_text)
    mine = begins(own)
    theirs = begins(again, len("".join(own)) - len(window))
    for j in reversed(range(len(again))):
        if theirs[j] in mine:
            return own[: mine.index(theirs[j])] + again[j:]
    return encode("".join(own) + new_text)


def fails_without_a_place(own, window, new_text, encode):
    again = encode(window + new_text)
    mine, theirs = begins(own), begins(again, len("".join(own)) - len(window))[:-1]
    first = next(place for place in theirs if place in mine)
    return own[: mine.index(first)] + again[theirs.index(first) :]


def alone_without_a_place(own, window, new_text, encode):
    again = encode(window + new_text)
    mine, theirs = begins(own), begins(again, len("".join(own)) - len(window))[:-1]
    for j, place in enumerate(theirs):
        if place in mine:
            return own[: mine.index(place)] + again[j:]
    return own + encode(new_text)


def writes_into_own(own, window, new_text, encode):
    found = with_dict(own, window, new_text, encode)
    own[:] = found
    return own


def as_text(own, window, new_text, encode):
    return "".join(own) + new_text


# --- 10.3 translate


def from_the_front(window, written, encode):
    joined, place = encode(window + written), 0
    for i, piece in enumerate(joined):
        if place == len(window):
            return joined[i:]
        place += len(piece)
    return []


def from_the_back(window, written, encode):
    found = []
    for piece in reversed(encode(window + written)):
        if len("".join(found)) >= len(written):
            break
        found.insert(0, piece)
    return found if "".join(found) == written else []


def by_spelling(window, written, encode):
    joined = encode(window + written)
    return next((joined[i:] for i in range(len(joined)) if "".join(joined[i:]) == written), [])


def by_prefix(window, written, encode):
    joined = encode(window + written)
    for i in range(1, len(joined)):
        if "".join(joined[:i]) == window:
            return joined[i:]
    return []


def written_alone(window, written, encode):
    return encode(written)


def with_window(window, written, encode):
    return list(encode(window + written))


def skipped_tokens(window, written, encode):
    skip = len(encode(window))
    return encode(window + written)[skip:]


def longest_run(window, written, encode):
    before, joined = encode(window), encode(window + written)
    best = (0, 0, 0)
    for i in range(len(joined)):
        for j in range(len(before)):
            n = 0
            while i + n < len(joined) and j + n < len(before) and joined[i + n] == before[j + n]:
                n += 1
            if n > best[0]:
                best = (n, i, j)
    n, i, j = best
    return joined[i + n + (len(before) - (j + n)) :]


def with_the_straddling_one(window, written, encode):
    joined = encode(window + written)
    i, place = 0, 0
    while place + len(joined[i]) <= len(window):
        place += len(joined[i])
        i += 1
    return joined[i:]


def without_the_straddling_one(window, written, encode):
    joined = encode(window + written)
    i, place = 0, 0
    while i < len(joined) and place < len(window):
        place += len(joined[i])
        i += 1
    return joined[i:]


def else_alone(window, written, encode):
    return by_spelling(window, written, encode) or encode(written)


def text_of_the_rest(window, written, encode):
    return "".join(by_spelling(window, written, encode))


# --- 10.4 shared_tokens


def with_names(draft_tokens, target_tokens, draft_special, target_special):
    ids = {}
    for i, name in enumerate(target_tokens):
        if i not in target_special:
            ids[name] = i
    found = []
    for i, name in enumerate(draft_tokens):
        found.append(-1 if i in draft_special else ids.get(name, -1))
    return found


def with_index(draft_tokens, target_tokens, draft_special, target_special):
    ordinary = [None if i in target_special else name for i, name in enumerate(target_tokens)]
    return [
        ordinary.index(name) if i not in draft_special and name in ordinary else -1
        for i, name in enumerate(draft_tokens)
    ]


def with_two_loops(draft_tokens, target_tokens, draft_special, target_special):
    found = [-1] * len(draft_tokens)
    for i, mine in enumerate(draft_tokens):
        for j, theirs in enumerate(target_tokens):
            if mine == theirs and i not in draft_special and j not in target_special:
                found[i] = j
    return found


def with_the_intersection(draft_tokens, target_tokens, draft_special, target_special):
    mine = {name for i, name in enumerate(draft_tokens) if i not in set(draft_special)}
    theirs = {name for i, name in enumerate(target_tokens) if i not in set(target_special)}
    both = mine & theirs
    return [
        target_tokens.index(name) if name in both and i not in draft_special else -1
        for i, name in enumerate(draft_tokens)
    ]


def same_ids(draft_tokens, target_tokens, draft_special, target_special):
    return [i if i < len(target_tokens) else -1 for i, _ in enumerate(draft_tokens)]


def same_id_and_name(draft_tokens, target_tokens, draft_special, target_special):
    found = [-1] * len(draft_tokens)
    for i in range(min(len(draft_tokens), len(target_tokens))):
        if draft_tokens[i] == target_tokens[i]:
            found[i] = i
    return found


def zero_where_missing(draft_tokens, target_tokens, draft_special, target_special):
    found = with_names(draft_tokens, target_tokens, draft_special, target_special)
    return [max(token, 0) for token in found]


def special_by_id(draft_tokens, target_tokens, draft_special, target_special):
    found = with_names(draft_tokens, target_tokens, draft_special, target_special)
    for i in draft_special:
        if i < len(target_tokens):
            found[i] = i
    return found


def special_by_name(draft_tokens, target_tokens, draft_special, target_special):
    return [target_tokens.index(name) if name in target_tokens else -1 for name in draft_tokens]


def no_spaces(draft_tokens, target_tokens, draft_special, target_special):
    mine = [name.replace("Ġ", "") for name in draft_tokens]
    theirs = [name.replace("Ġ", "") for name in target_tokens]
    return with_names(mine, theirs, draft_special, target_special)


def other_way_round(draft_tokens, target_tokens, draft_special, target_special):
    return with_names(target_tokens, draft_tokens, target_special, draft_special)


def as_dict(draft_tokens, target_tokens, draft_special, target_special):
    found = with_names(draft_tokens, target_tokens, draft_special, target_special)
    return {i: token for i, token in enumerate(found) if token >= 0}


# --- 10.5 restrict_law


def kept(draft_probs, to_target, target_size):
    q = torch.zeros(target_size)
    for i, token in enumerate(to_target):
        if token >= 0:
            q[token] = draft_probs[i]
    return q


def loop_and_divide(draft_probs, to_target, target_size):
    q = kept(draft_probs, to_target, target_size)
    return q / q.sum() if q.sum() > 0 else q


def with_masks(draft_probs, to_target, target_size):
    ids = torch.tensor(to_target)
    both = ids >= 0
    q = draft_probs.new_zeros(target_size).index_add(0, ids[both], draft_probs[both])
    return torch.nn.functional.normalize(q, p=1, dim=-1)


def with_logits(draft_probs, to_target, target_size):
    wide = torch.full((target_size,), float("-inf"), dtype=torch.float64)
    for i, token in enumerate(to_target):
        if token != -1:
            wide[token] = draft_probs[i].double().log()
    return wide.softmax(-1).nan_to_num(0.0).to(draft_probs.dtype)


def with_a_matrix(draft_probs, to_target, target_size):
    carry = torch.zeros(len(to_target), target_size)
    for i, token in enumerate(to_target):
        if token >= 0:
            carry[i, token] = 1
    q = draft_probs @ carry
    return q / q.sum().clamp(min=1e-12)


def divides_by_zero(draft_probs, to_target, target_size):
    q = kept(draft_probs, to_target, target_size)
    return q / q.sum()


def softmax_divides_by_zero(draft_probs, to_target, target_size):
    wide = torch.full((target_size,), -torch.inf)
    for i, token in enumerate(to_target):
        if token >= 0:
            wide[token] = draft_probs[i].log()
    return wide.softmax(-1)


def even_where_nothing(draft_probs, to_target, target_size):
    q = kept(draft_probs, to_target, target_size)
    ids = [token for token in to_target if token >= 0]
    if q.sum() == 0 and ids:
        q[ids] = 1.0
    return q / q.sum() if q.sum() > 0 else q


def unscaled(draft_probs, to_target, target_size):
    return kept(draft_probs, to_target, target_size)


def unscaled_by_index(draft_probs, to_target, target_size):
    ids = torch.tensor(to_target)
    q = torch.zeros(target_size)
    q[ids[ids >= 0]] = draft_probs[ids >= 0]
    return q


def at_own_ids(draft_probs, to_target, target_size):
    both = torch.tensor(to_target) >= 0
    q = torch.zeros(target_size)
    q[: len(draft_probs)] = draft_probs * both
    return q / q.sum()


def assigns_at_minus_one(draft_probs, to_target, target_size):
    q = torch.zeros(target_size)
    for token, chance in zip(to_target, draft_probs, strict=True):
        q[token] = chance
    return q / q.sum()


def adds_at_minus_one(draft_probs, to_target, target_size):
    q = torch.zeros(target_size)
    for token, chance in zip(to_target, draft_probs, strict=True):
        q[token] += chance
    return q / q.sum()


def spreads(draft_probs, to_target, target_size):
    q = kept(draft_probs, to_target, target_size)
    ids = [token for token in to_target if token >= 0]
    for token in ids:
        q[token] += (1 - float(kept(draft_probs, to_target, target_size).sum())) / len(ids)
    return q


def favourite_gets_the_rest(draft_probs, to_target, target_size):
    q = kept(draft_probs, to_target, target_size)
    q[q.argmax()] += 1 - q.sum()
    return q


def softmax_of_probabilities(draft_probs, to_target, target_size):
    ids = torch.tensor(to_target)
    q = torch.zeros(target_size)
    q[ids[ids >= 0]] = draft_probs[ids >= 0].softmax(-1)
    return q


def favourite_only(draft_probs, to_target, target_size):
    q = torch.zeros(target_size)
    q[kept(draft_probs, to_target, target_size).argmax()] = 1.0
    return q


def in_the_draft_s_vocabulary(draft_probs, to_target, target_size):
    q = draft_probs * (torch.tensor(to_target) >= 0)
    return q / q.sum()


def scales_in_place(draft_probs, to_target, target_size):
    draft_probs *= torch.tensor(to_target) >= 0
    draft_probs /= draft_probs.sum().clamp(min=1e-12)
    return kept(draft_probs, to_target, target_size)


MUTANTS = {
    "10.1": {
        "half a character becomes a replacement mark": [replacement_marks, replacement_marks_by_decoder],
        "half a character is thrown away": [rest_thrown_away],
        "bytes that fit nothing are left out without a trace": [ignores],
        "the whole text waits for its last character": [all_waits],
        "bytes that can never be a character are waited for": [waits_for_ever],
        "finished characters are held back too": [cuts_at_ascii],
        "only one byte is held back": [last_byte_back],
        "each byte taken for a character": [letters_are_bytes],
        "missing return": [printed_text],
        "wrong type": [bytes_as_rest],
    },
    "10.2": {
        "no look-behind: the new text is encoded alone": [new_alone],
        "the window is written a second time": [window_twice],
        "as many old tokens dropped as the window has now": [counted_tokens],
        "letters are lost where the window begins": [drops_what_reaches_in],
        "letters stand twice where the window begins": [keeps_what_reaches_in],
        "the whole text is encoded again": [everything_again],
        "joined at the last place instead of the first": [last_place, backwards],
        "no place to join is not thought of": [fails_without_a_place, alone_without_a_place],
        "changed input": [writes_into_own],
        "wrong type": [as_text],
    },
    "10.3": {
        "no look-behind: encoded without what stands before": [written_alone],
        "the window is drafted again": [with_window],
        "the window is skipped by counting its tokens": [skipped_tokens],
        "joined behind the longest run of equal tokens": [longest_run],
        "the token across the border is drafted": [with_the_straddling_one],
        "letters behind the border are lost": [without_the_straddling_one],
        "where a token lies across the border, the rest is encoded alone": [else_alone],
        "wrong type": [text_of_the_rest],
    },
    "10.4": {
        "ids compared across tokenizers": [same_ids],
        "only tokens with the same id in both": [same_id_and_name],
        "a token that is not shared becomes token 0": [zero_where_missing],
        "special tokens mapped by their id": [special_by_id],
        "special tokens mapped by their name": [special_by_name],
        "spaces do not count": [no_spaces],
        "the map goes from the target to the draft": [other_way_round],
        "wrong type": [as_dict],
    },
    "10.5": {
        "0 / 0 where nothing is shared": [divides_by_zero, softmax_divides_by_zero],
        "a guess where the draft has nothing to say": [even_where_nothing],
        "q is not renormalised": [unscaled, unscaled_by_index],
        "draft ids used as target ids": [at_own_ids],
        "-1 taken for the last token": [assigns_at_minus_one],
        "the mass outside is added to the last token": [adds_at_minus_one],
        "the mass outside is spread evenly": [spreads],
        "the mass outside goes to the likeliest token": [favourite_gets_the_rest],
        "softmax of probabilities": [softmax_of_probabilities],
        "all on the likeliest token": [favourite_only],
        "wrong shape": [in_the_draft_s_vocabulary],
        "changed input": [scales_in_place],
    },
}

CORRECT = {
    "10.1": {
        "with a decoder": with_decoder,
        "by the tail": with_tail,
        "with a loop": with_loop,
        "with the codec's function": codec_function,
    },
    "10.2": {
        "with a dict": with_dict,
        "by comparing texts": with_text,
        "with sets": with_sets,
        "with two fingers": two_fingers,
    },
    "10.3": {
        "from the front": from_the_front,
        "from the back": from_the_back,
        "by spelling": by_spelling,
        "by the prefix": by_prefix,
    },
    "10.4": {
        "with a dict": with_names,
        "with index": with_index,
        "with two loops": with_two_loops,
        "with the intersection": with_the_intersection,
    },
    "10.5": {
        "with a loop": loop_and_divide,
        "with masks": with_masks,
        "with logits": with_logits,
        "with a matrix": with_a_matrix,
    },
}
