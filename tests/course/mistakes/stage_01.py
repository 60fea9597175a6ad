"""Stage 01: wrong and right answers."""

from __future__ import annotations

import bisect
import itertools
import math

import numpy as np
import torch

# --- 1.1 softmax


def one_hot(logits, index):
    law = torch.zeros_like(logits)
    law[index] = 1
    return law


def refuse_negative(temperature):
    if temperature < 0:
        raise ValueError(f"temperature={temperature} is below 0")


def right_softmax(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    powers = torch.exp((logits - logits.max()) / temperature)
    return powers / powers.sum()


def ready_made_softmax(logits, temperature):
    if temperature < 0:
        raise ValueError("no such temperature")
    return torch.softmax(logits / temperature, dim=-1) if temperature else one_hot(logits, int(torch.argmax(logits)))


def softmax_in_a_loop(logits, temperature):
    refuse_negative(temperature)
    largest = max(logits.tolist())
    if temperature == 0:
        numbers = [0.0] * len(logits)
        numbers[logits.tolist().index(largest)] = 1.0
    else:
        powers = [math.exp((x - largest) / temperature) for x in logits.tolist()]
        numbers = [power / sum(powers) for power in powers]
    return torch.tensor(numbers, dtype=logits.dtype)


def softmax_by_logsumexp(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
    scaled = logits.div(temperature)
    return (scaled - scaled.logsumexp(0)).exp()


def negative_allowed(logits, temperature):
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    return torch.softmax(logits / temperature, -1)


def negative_as_zero(logits, temperature):
    return right_softmax(logits, max(temperature, 0.0))


def ties_share(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        best = (logits == logits.max()).to(logits.dtype)
        return best / best.sum()
    return right_softmax(logits, temperature)


def ties_all_one(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return (logits == logits.max()).to(logits.dtype)
    return right_softmax(logits, temperature)


def last_of_ties(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, (logits == logits.max()).nonzero()[-1])
    return right_softmax(logits, temperature)


def zero_not_handled(logits, temperature):
    refuse_negative(temperature)
    powers = torch.exp((logits - logits.max()) / temperature)
    return powers / powers.sum()


def zero_is_python_error(logits, temperature):
    refuse_negative(temperature)
    return torch.softmax(logits * (1 / temperature), -1)


def zero_is_default(logits, temperature):
    return right_softmax(logits, temperature or 1.0)


def no_maximum(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    powers = (logits / temperature).exp()
    return powers / powers.sum()


def no_maximum_no_cases(logits, temperature):
    powers = torch.exp(logits / temperature)
    return powers / torch.sum(powers)


def multiplied(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    return torch.softmax(logits * temperature, -1)


def temperature_unused(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    powers = torch.exp(logits - logits.max())
    return powers / powers.sum()


def temperature_afterwards(logits, temperature):
    refuse_negative(temperature)
    heated = torch.softmax(logits, -1) / temperature
    return heated / heated.sum()


def not_normalised(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    return torch.exp((logits - logits.max()) / temperature)


def writes_into_logits(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return one_hot(logits, logits.argmax())
    logits -= logits.max()
    return torch.softmax(logits / temperature, -1)


def greedy_token_only(logits, temperature):
    refuse_negative(temperature)
    if temperature == 0:
        return int(logits.argmax())
    return right_softmax(logits, temperature)


def always_double(logits, temperature):
    return right_softmax(logits.double(), temperature)


# --- 1.2 keep


def right_keep(probs, top_k, top_p):
    if top_k is not None:
        best = probs.topk(min(top_k, len(probs))).indices
        left = torch.zeros_like(probs)
        left[best] = probs[best]
        probs = left / left.sum()
    best, order = probs.sort(descending=True)
    stays = best.cumsum(0) - best < top_p
    kept = torch.zeros_like(probs)
    kept[order[stays]] = best[stays]
    return kept / kept.sum()


def keep_in_a_loop(probs, top_k, top_p):
    law = probs.tolist()
    order = sorted(range(len(law)), key=lambda token: -law[token])[: top_k or len(law)]
    total = sum(law[token] for token in order)
    kept, mass = {}, 0.0
    for token in order:
        kept[token] = law[token]
        mass += law[token] / total
        if mass >= top_p and top_p < 1:
            break
    return torch.tensor([kept.get(token, 0.0) / sum(kept.values()) for token in range(len(law))], dtype=probs.dtype)


def keep_with_numpy(probs, top_k, top_p):
    law = probs.numpy().copy()
    order = np.argsort(-law)
    if top_k is not None:
        law[order[top_k:]] = 0
        law /= law.sum()
    if top_p < 1:
        count = int(np.searchsorted(np.cumsum(law[order]), top_p)) + 1
        law[order[count:]] = 0
    return torch.from_numpy(law / law.sum())


def keep_by_scatter(probs, top_k, top_p):
    count = len(probs) if top_k is None else min(top_k, len(probs))
    best, order = torch.topk(probs, count)
    best = best / best.sum()
    best = torch.where(best.cumsum(-1) - best < top_p, best, 0.0)
    return torch.zeros_like(probs).scatter(0, order, best / best.sum())


def large_k_fails(probs, top_k, top_p):
    if top_k is not None:
        limit = probs.topk(top_k).values[-1]
        probs = torch.where(probs >= limit, probs, 0.0)
        probs = probs / probs.sum()
    return right_keep(probs, None, top_p)


def crossing_dropped(probs, top_k, top_p):
    probs = right_keep(probs, top_k, 1.0)
    best, order = probs.sort(descending=True)
    kept = torch.zeros_like(probs)
    stays = best.cumsum(0) <= top_p
    kept[order[stays]] = best[stays]
    return kept / kept.sum()


def crossing_dropped_but_one_kept(probs, top_k, top_p):
    probs = right_keep(probs, top_k, 1.0)
    best, order = probs.sort(descending=True)
    count = max(1, int((best.cumsum(0) < top_p).sum()))
    kept = torch.zeros_like(probs)
    kept[order[:count]] = best[:count]
    return kept / kept.sum()


def one_too_many(probs, top_k, top_p):
    probs = right_keep(probs, top_k, 1.0)
    best, order = probs.sort(descending=True)
    count = int((best.cumsum(0) < top_p).sum()) + 2
    kept = torch.zeros_like(probs)
    kept[order[:count]] = best[:count]
    return kept / kept.sum()


def top_p_first(probs, top_k, top_p):
    return right_keep(right_keep(probs, None, top_p), top_k, 1.0)


def both_masks_of_the_whole_law(probs, top_k, top_p):
    best, order = probs.sort(descending=True)
    stays = best.cumsum(0) - best < top_p
    if top_k is not None:
        stays[top_k:] = False
    kept = torch.zeros_like(probs)
    kept[order[stays]] = best[stays]
    return kept / kept.sum()


def sorted_result(probs, top_k, top_p):
    best = probs.sort(descending=True).values
    if top_k is not None:
        best = torch.where(torch.arange(len(best)) < top_k, best, 0.0)
        best = best / best.sum()
    best = torch.where(best.cumsum(0) - best < top_p, best, 0.0)
    return best / best.sum()


def not_scaled(probs, top_k, top_p):
    return torch.where(right_keep(probs, top_k, top_p) > 0, probs, 0.0)


def top_p_unsorted(probs, top_k, top_p):
    probs = right_keep(probs, top_k, 1.0)
    kept = torch.where(probs.cumsum(0) - probs < top_p, probs, 0.0)
    return kept / kept.sum()


def first_k_ids(probs, top_k, top_p):
    if top_k is not None:
        probs = torch.where(torch.arange(len(probs)) < top_k, probs, 0.0)
        probs = probs / probs.sum()
    return right_keep(probs, None, top_p)


def both_unsorted(probs, top_k, top_p):
    if top_k is not None:
        probs = torch.cat([probs[:top_k], torch.zeros_like(probs[top_k:])])
        probs = probs / probs.sum()
    kept = torch.where(probs.cumsum(0) - probs < top_p, probs, 0.0)
    return kept / kept.sum()


def only_what_is_left(probs, top_k, top_p):
    law = right_keep(probs, top_k, top_p)
    return law[law > 0]


def filters_in_place(probs, top_k, top_p):
    law = right_keep(probs, top_k, top_p)
    probs[law == 0] = 0
    return probs / probs.sum()


# --- 1.3 draw


def right_draw(probs, uniform):
    edges = probs.cumsum(0)
    return int((edges <= uniform * edges[-1]).sum())


def draw_in_a_loop(probs, uniform):
    law, edge, token = probs.tolist(), 0.0, 0
    point = uniform * sum(law)
    for i, chance in enumerate(law):
        if chance > 0:
            token = i
            edge += chance
            if edge > point:
                break
    return token


def draw_by_search(probs, uniform):
    edges = probs.cumsum(-1) / probs.sum()
    place = torch.searchsorted(edges, torch.tensor([uniform], dtype=probs.dtype), right=True)
    last = probs.nonzero()[-1]
    return torch.minimum(place, last)[0]


def draw_with_bisect(probs, uniform):
    edges = list(itertools.accumulate(probs.tolist()))
    return bisect.bisect_right(edges, uniform * edges[-1])


def draw_by_argmax(probs, uniform):
    edges = torch.cumsum(probs / probs.sum(), 0)
    edges[probs.nonzero()[-1] :] = 1.0
    return int((edges > uniform).int().argmax())


def not_scaled_by_the_sum(probs, uniform):
    return int((probs.cumsum(0) <= uniform).sum())


def clamped_at_the_end(probs, uniform):
    token = int(torch.searchsorted(probs.cumsum(0), torch.tensor(uniform, dtype=probs.dtype), right=True))
    return min(token, len(probs) - 1)


def nothing_above(probs, uniform):
    return int((probs.cumsum(0) > uniform).nonzero()[0])


def nothing_above_is_zero(probs, uniform):
    return int((probs.cumsum(0) > uniform).int().argmax())


def right_edge(probs, uniform):
    edges = probs.cumsum(0)
    return int((edges < uniform * edges[-1]).sum())


def left_search(probs, uniform):
    return int(torch.searchsorted(probs.cumsum(0), torch.tensor(uniform, dtype=probs.dtype)))


def too_far(probs, uniform):
    return right_draw(probs, uniform) + 1


def too_few(probs, uniform):
    return right_draw(probs, uniform) - 1


def each_probability(probs, uniform):
    return int((probs > uniform).int().argmax())


def each_probability_or_error(probs, uniform):
    return int((probs > uniform).nonzero()[0])


def sorted_first(probs, uniform):
    best, order = probs.sort(descending=True)
    edges = best.cumsum(0)
    return int(order[int((edges <= uniform * edges[-1]).sum())])


def equally_likely(probs, uniform):
    return int(uniform * len(probs))


def likeliest(probs, uniform):
    return int(torch.argmax(probs))


def own_luck(probs, uniform):
    return int(torch.multinomial(probs, 1))


def probability_of_it(probs, uniform):
    return float(probs[right_draw(probs, uniform)])


# --- 1.4 write


def right_write(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    new_tokens = []
    for uniform in uniforms[:max_new_tokens]:
        new_tokens.append(choose(model(prompt + new_tokens)[-1], uniform))
        if new_tokens[-1] in eos_ids:
            break
    return new_tokens


def write_while(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    text = list(prompt)
    finished = max_new_tokens == 0
    while not finished:
        logits = model(torch.tensor(text))
        token = choose(logits[len(text) - 1], float(uniforms[len(text) - len(prompt)]))
        text.append(token)
        finished = token in set(eos_ids) or len(text) == len(prompt) + max_new_tokens
    return text[len(prompt) :]


def write_recursively(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    if max_new_tokens == 0:
        return []
    token = choose(model(prompt)[-1], uniforms[0])
    if token in eos_ids:
        return [token]
    return [token, *write_recursively(model, [*prompt, token], choose, uniforms[1:], eos_ids, max_new_tokens - 1)]


def write_with_tensors(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    text = torch.tensor(prompt)
    for step in range(max_new_tokens):
        token = choose(model(text)[-1], uniforms[step])
        text = torch.cat([text, torch.tensor([token])])
        if any(token == eos for eos in eos_ids):
            break
    return text[len(prompt) :].tolist()


def writer(
    count=lambda prompt, budget: budget,
    reads=lambda prompt, new: prompt + new,
    row=-1,
    number=lambda uniforms, i: uniforms[i],
    ends=lambda token, eos_ids: token in eos_ids,
    finish=lambda prompt, new, eos_ids: new,
    greedy=False,
    again=False,
):
    """A loop in which one thing can be wrong."""

    def write(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
        new = []
        for i in range(count(prompt, max_new_tokens)):
            logits = model(reads(prompt, new))
            token = int(logits[row].argmax()) if greedy else choose(logits[row], number(uniforms, i))
            new.append(token)
            if ends(token, eos_ids):
                break
        if again:
            model(reads(prompt, new))
        return finish(prompt, new, eos_ids)

    return write


def without_eos(prompt, new, eos_ids):
    return [token for token in new if token not in eos_ids]


def pass_first_question_later(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    new = []
    while True:
        logits = model(prompt + new)
        if len(new) >= max_new_tokens or (new and new[-1] in eos_ids):
            return new
        new.append(choose(logits[-1], uniforms[len(new)]))


def at_least_one(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    new = []
    while True:
        new.append(choose(model(prompt + new)[-1], uniforms[len(new)]))
        if len(new) >= max_new_tokens or new[-1] in eos_ids:
            return new


def stops_at_the_prompt(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    text = list(prompt)
    while len(text) - len(prompt) < max_new_tokens and text[-1] not in eos_ids:
        text.append(choose(model(text)[-1], uniforms[len(text) - len(prompt)]))
    return text[len(prompt) :]


def any_eos_in_the_text(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    text = list(prompt)
    for i in range(max_new_tokens):
        text.append(choose(model(text)[-1], uniforms[i]))
        if any(token in eos_ids for token in text):
            break
    return text[len(prompt) :]


def appends_to_the_prompt(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    start = len(prompt)
    for i in range(max_new_tokens):
        prompt.append(choose(model(prompt)[-1], uniforms[i]))
        if prompt[-1] in eos_ids:
            break
    return prompt[start:]


def all_rows_at_once(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    return [choose(model(prompt), uniforms[0]) for _ in range(max_new_tokens)]


def text_so_far_as_tuple_of_counts(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    return len(right_write(model, prompt, choose, uniforms, eos_ids, max_new_tokens))


# --- 1.5 write_cached


def as_block(tokens):
    return torch.tensor([list(tokens)], dtype=torch.int64)


def right_cached(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    block, new = prompt, []
    for uniform in uniforms[:max_new_tokens]:
        token = choose(model.extend(as_block(block))[0, -1], uniform)
        new.append(token)
        if token in eos_ids:
            break
        block = [token]
    return new


def cached_prefill_apart(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    if len(prompt) > 1:
        model.extend(as_block(prompt[:-1]))
    text, count = list(prompt), 0
    while count < max_new_tokens:
        logits = model.extend(as_block(text[-1:]))
        text.append(choose(logits[0, 0], uniforms[count]))
        count += 1
        if text[-1] in eos_ids:
            break
    return text[len(prompt) :]


def cached_one_by_one(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    for token in prompt:
        row = model.extend(as_block([token]))[0, -1]
    new = []
    for i in range(max_new_tokens):
        if new:
            row = model.extend(as_block(new[-1:]))[0, -1]
        new.append(choose(row, float(uniforms[i])))
        if new[-1] in eos_ids:
            return new
    return new


def cached_by_lengths(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    text = list(prompt)
    while len(text) < len(prompt) + max_new_tokens:
        missing = text[int(model.lengths[0]) :]
        text += [choose(model.extend(as_block(missing))[0, -1], uniforms[len(text) - len(prompt)])]
        if text[-1] in eos_ids:
            break
    return text[len(prompt) :]


def cached_writer(
    count=lambda prompt, budget: budget,
    first=lambda prompt: prompt,
    later=lambda prompt, new: new[-1:],
    row=-1,
    number=lambda uniforms, i: uniforms[i],
    ends=lambda token, eos_ids: token in eos_ids,
    finish=lambda prompt, new, eos_ids: new,
    greedy=False,
    again=False,
):
    """A loop with a cache in which one thing can be wrong."""

    def write_cached(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
        new, block = [], first(prompt)
        for i in range(count(prompt, max_new_tokens)):
            logits = model.extend(as_block(block))[0, row]
            new.append(int(logits.argmax()) if greedy else choose(logits, number(uniforms, i)))
            if ends(new[-1], eos_ids):
                break
            block = later(prompt, new)
        if again and new:
            model.extend(as_block(new[-1:]))
        return finish(prompt, new, eos_ids)

    return write_cached


def prefill_and_feed_again(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    model.extend(as_block(prompt))
    text = list(prompt)
    for i in range(max_new_tokens):
        text.append(choose(model.extend(as_block(text[-1:]))[0, -1], uniforms[i]))
        if text[-1] in eos_ids:
            break
    return text[len(prompt) :]


def last_prompt_token_forgotten(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    block, new = prompt[:-1], []
    for i in range(max_new_tokens):
        new.append(choose(model.extend(as_block(block))[0, -1], uniforms[i]))
        if new[-1] in eos_ids:
            break
        block = new[-1:]
    return new


def feed_then_ask(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    row, new = model.extend(as_block(prompt))[0, -1], []
    for i in range(max_new_tokens):
        new.append(choose(row, uniforms[i]))
        row = model.extend(as_block(new[-1:]))[0, -1]
        if new[-1] in eos_ids:
            break
    return new


def cached_at_least_one(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    block, new = prompt, []
    while True:
        new.append(choose(model.extend(as_block(block))[0, -1], uniforms[len(new)]))
        block = new[-1:]
        if len(new) >= max_new_tokens or new[-1] in eos_ids:
            return new


def cached_stops_at_the_prompt(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    text, block = list(prompt), prompt
    while len(text) - len(prompt) < max_new_tokens and text[-1] not in eos_ids:
        text.append(choose(model.extend(as_block(block))[0, -1], uniforms[len(text) - len(prompt)]))
        block = text[-1:]
    return text[len(prompt) :]


def no_batch_dimension(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    return [choose(model.extend(torch.tensor(prompt))[-1], uniforms[0])]


def cached_without_return(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    right_cached(model, prompt, choose, uniforms, eos_ids, max_new_tokens)


# --- 1.6 pass_seconds


def right_pass(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return max(num_weights * bytes_per_weight / bandwidth, 2 * num_weights * num_tokens / peak)


def pass_by_turning_point(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    turn = peak * bytes_per_weight / (2 * bandwidth)
    floor = num_weights * bytes_per_weight / bandwidth
    return floor if num_tokens < turn else floor * num_tokens / turn


def pass_by_rate(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    operations = 2 * num_weights * num_tokens
    intensity = operations / (num_weights * bytes_per_weight)
    return operations / min(peak, intensity * bandwidth)


def pass_with_tensor(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    times = [num_weights * bytes_per_weight / bandwidth, 2 * num_weights * num_tokens / peak]
    return torch.tensor(times, dtype=torch.float64).max()


def added(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return num_weights * bytes_per_weight / bandwidth + 2 * num_weights * num_tokens / peak


def smaller(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return min(num_weights * bytes_per_weight / bandwidth, 2 * num_weights * num_tokens / peak)


def read_each(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return max(num_tokens * num_weights * bytes_per_weight / bandwidth, 2 * num_weights * num_tokens / peak)


def one_operation(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return max(num_weights * bytes_per_weight / bandwidth, num_weights * num_tokens / peak)


def one_token(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return max(num_weights * bytes_per_weight / bandwidth, 2 * num_weights / peak)


def no_bytes(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return max(num_weights / bandwidth, 2 * num_weights * num_tokens / peak)


def bits(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return max(num_weights * bytes_per_weight / 8 / bandwidth, 2 * num_weights * num_tokens / peak)


def both_times(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    return num_weights * bytes_per_weight / bandwidth, 2 * num_weights * num_tokens / peak


def printed_only(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    print(max(num_weights * bytes_per_weight / bandwidth, 2 * num_weights * num_tokens / peak))


def loop_mutants(make):
    return {
        "EOS is missed": [make(ends=lambda token, eos_ids: False)],
        "only the first EOS id is known": [make(ends=lambda token, eos_ids: token in eos_ids[:1])],
        "EOS itself is dropped": [make(finish=without_eos)],
        "one token more than the budget": [make(count=lambda prompt, budget: budget + 1)],
        "the prompt counts against the budget": [make(count=lambda prompt, budget: budget - len(prompt))],
        "one uniform number for all tokens": [make(number=lambda uniforms, i: uniforms[0])],
        "the likeliest token is taken instead of calling choose": [make(greedy=True)],
        "the prompt is handed back too": [make(finish=lambda prompt, new, eos_ids: prompt + new)],
        "the first row of logits is used": [make(row=0)],
    }


MUTANTS = {
    "1.1": {
        "a negative temperature is not refused": [negative_allowed, negative_as_zero],
        "at temperature 0 equal logits share the probability": [ties_share],
        "at temperature 0 each of the equal logits gets 1": [ties_all_one],
        "at temperature 0 the last of equal logits is taken": [last_of_ties],
        "temperature 0 is not handled": [zero_not_handled, zero_is_python_error, zero_is_default],
        "the largest logit is not subtracted": [no_maximum, no_maximum_no_cases],
        "multiplied by the temperature": [multiplied],
        "the temperature has no effect": [temperature_unused, temperature_afterwards],
        "the powers are not divided by their sum": [not_normalised],
        "changed input": [writes_into_logits],
        "wrong type": [greedy_token_only],
        "wrong dtype": [always_double],
    },
    "1.2": {
        "a top_k above the vocabulary fails": [large_k_fails],
        "the token that crosses top_p is dropped": [crossing_dropped, crossing_dropped_but_one_kept],
        "one token too many after the crossing one": [one_too_many],
        "top-p looks at the whole law, not at what top-k left": [top_p_first, both_masks_of_the_whole_law],
        "the probabilities come back in sorted order": [sorted_result],
        "what is left is not scaled up": [not_scaled],
        "top-p takes the tokens in the order of their ids": [top_p_unsorted],
        "top-k keeps the first k ids instead of the k likeliest": [first_k_ids],
        "both filters take the tokens in the order of their ids": [both_unsorted],
        "wrong shape": [only_what_is_left],
        "changed input": [filters_in_place],
    },
    "1.3": {
        "a number behind the last edge": [
            not_scaled_by_the_sum,
            clamped_at_the_end,
            nothing_above,
            nothing_above_is_zero,
        ],
        "a piece has its right edge instead of its left": [right_edge, left_search],
        "one token too far": [too_far],
        "one token too few": [too_few],
        "the number is compared with each probability, not with their running sum": [
            each_probability,
            each_probability_or_error,
        ],
        "the tokens are sorted by probability first": [sorted_first],
        "every token is equally likely": [equally_likely],
        "the likeliest token is taken": [likeliest],
        "wrong random generator": [own_luck],
        "wrong type": [probability_of_it],
    },
    "1.4": {
        **loop_mutants(writer),
        "a budget of 0 gives a token": [at_least_one],
        "an EOS in the prompt ends the text": [stops_at_the_prompt, any_eos_in_the_text],
        "only the newest token is read": [writer(reads=lambda prompt, new: (prompt + new)[-1:])],
        "the new tokens are not read": [writer(reads=lambda prompt, new: prompt)],
        "a pass after the last token": [writer(again=True), pass_first_question_later],
        "changed input": [appends_to_the_prompt],
        "own exception": [all_rows_at_once],
        "wrong type": [text_so_far_as_tuple_of_counts],
    },
    "1.5": {
        **loop_mutants(cached_writer),
        "a budget of 0 gives a token": [cached_at_least_one],
        "an EOS in the prompt ends the text": [cached_stops_at_the_prompt],
        "the whole text is fed in every pass": [cached_writer(later=lambda prompt, new: prompt + new)],
        "the last token of the prompt is fed twice": [prefill_and_feed_again],
        "the last token of the prompt is never fed": [last_prompt_token_forgotten],
        "the last token of the prompt is fed in every pass": [cached_writer(later=lambda prompt, new: prompt[-1:])],
        "the last new token is fed as well": [cached_writer(again=True), feed_then_ask],
        "own exception": [no_batch_dimension],
        "missing return": [cached_without_return],
    },
    "1.6": {
        "the two times are added": [added],
        "the smaller of the two times": [smaller],
        "the weights are read once for each token": [read_each],
        "one operation per weight and token": [one_operation],
        "the arithmetic does not grow with the tokens": [one_token],
        "the bytes of a weight are left out": [no_bytes],
        "bytes taken for bits": [bits],
        "wrong type": [both_times],
        "missing return": [printed_only],
    },
}

CORRECT = {
    "1.1": {
        "formula": right_softmax,
        "torch's softmax": ready_made_softmax,
        "in a loop": softmax_in_a_loop,
        "with logsumexp": softmax_by_logsumexp,
    },
    "1.2": {
        "sorted and put back": right_keep,
        "in a loop": keep_in_a_loop,
        "with numpy": keep_with_numpy,
        "with topk and scatter": keep_by_scatter,
    },
    "1.3": {
        "counted": right_draw,
        "in a loop": draw_in_a_loop,
        "searched": draw_by_search,
        "with bisect": draw_with_bisect,
        "with argmax": draw_by_argmax,
    },
    "1.4": {
        "for": right_write,
        "while": write_while,
        "recursive": write_recursively,
        "on tensors": write_with_tensors,
    },
    "1.5": {
        "prompt in the first pass": right_cached,
        "prefill apart": cached_prefill_apart,
        "token by token": cached_one_by_one,
        "what the cache lacks": cached_by_lengths,
    },
    "1.6": {
        "the larger": right_pass,
        "turning point": pass_by_turning_point,
        "operations over rate": pass_by_rate,
        "a tensor": pass_with_tensor,
    },
}
