"""Stage 05: wrong and right answers."""

from __future__ import annotations

import math

import numpy as np
import torch

# --- 5.1 expected_tokens


def closed_formula(alpha, num_draft_tokens):
    return (1 - alpha ** (num_draft_tokens + 1)) / (1 - alpha)


def closed_formula_with_numpy(alpha, num_draft_tokens):
    alpha = np.float64(alpha)
    with np.errstate(all="ignore"):
        return float((1 - alpha ** (num_draft_tokens + 1)) / (1 - alpha))


def special_case_at_one(alpha, num_draft_tokens):
    if alpha == 1:
        return float(num_draft_tokens + 1)
    return closed_formula(alpha, num_draft_tokens)


def wide_special_case(alpha, num_draft_tokens):
    if abs(1 - alpha) < 1e-2:
        return num_draft_tokens + 1.0
    return (alpha ** (num_draft_tokens + 1) - 1) / (alpha - 1)


def rounded_special_case(alpha, num_draft_tokens):
    if round(alpha, 2) == 1:
        return float(num_draft_tokens + 1)
    return closed_formula(alpha, num_draft_tokens)


def small_number_below(alpha, num_draft_tokens):
    return (1 - alpha ** (num_draft_tokens + 1)) / (1 - alpha + 1e-10)


def smaller_number_below(alpha, num_draft_tokens):
    return (1 - alpha ** (num_draft_tokens + 1)) / max(1 - alpha, 1e-9)


def accepted_only(alpha, num_draft_tokens):
    total = 0.0
    for power in range(1, num_draft_tokens + 1):
        total += alpha**power
    return total


def accepted_only_by_formula(alpha, num_draft_tokens):
    return alpha * (1 - alpha**num_draft_tokens) / (1 - alpha)


def k_terms(alpha, num_draft_tokens):
    return float(sum(alpha**power for power in range(num_draft_tokens)))


def k_terms_by_formula(alpha, num_draft_tokens):
    if alpha == 1:
        return float(num_draft_tokens)
    return (1 - alpha**num_draft_tokens) / (1 - alpha)


def each_draft_alone(alpha, num_draft_tokens):
    return 1 + alpha * num_draft_tokens


def all_or_none(alpha, num_draft_tokens):
    everything = alpha**num_draft_tokens
    return everything * (num_draft_tokens + 1) + (1 - everything) * 1


def endless(alpha, num_draft_tokens):
    return 1 / (1 - alpha) if alpha < 1 else math.inf


def refusals(alpha, num_draft_tokens):
    return sum((1 - alpha) ** i for i in range(num_draft_tokens + 1)) * 1.0


def printed(alpha, num_draft_tokens):
    print(sum(alpha**i for i in range(num_draft_tokens + 1)))


def horner(alpha, num_draft_tokens):
    total = 1.0
    for _ in range(num_draft_tokens):
        total = 1 + alpha * total
    return total


def with_torch(alpha, num_draft_tokens):
    return torch.tensor(alpha, dtype=torch.float64).pow(torch.arange(num_draft_tokens + 1)).sum()


def by_outcomes(alpha, num_draft_tokens):
    """Mean of the tokens over what can happen: n accepted and then a refusal, or all accepted."""
    refused = [(n + 1) * alpha**n * (1 - alpha) for n in range(num_draft_tokens)]
    return math.fsum(refused) + (num_draft_tokens + 1) * alpha**num_draft_tokens


def with_expm1(alpha, num_draft_tokens):
    if alpha in (0, 1):
        return 1.0 if alpha == 0 else num_draft_tokens + 1.0
    return math.expm1((num_draft_tokens + 1) * math.log(alpha)) / (alpha - 1)


# --- 5.2 speedup


def right_speedup(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return horner(alpha, num_draft_tokens) * target_step_s / (num_draft_tokens * draft_step_s + verify_s)


def draft_for_free(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return right_speedup(alpha, num_draft_tokens, target_step_s, 0, verify_s)


def one_draft_step(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return horner(alpha, num_draft_tokens) * target_step_s / (draft_step_s + verify_s)


def pass_for_each_draft(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    seconds = 0.0
    for _ in range(num_draft_tokens):
        seconds += draft_step_s
        seconds += verify_s
    return horner(alpha, num_draft_tokens) * target_step_s / (seconds or verify_s)


def pass_for_each_token(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return right_speedup(alpha, num_draft_tokens, target_step_s, draft_step_s, (num_draft_tokens + 1) * verify_s)


def pass_as_cheap_as_a_step(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return right_speedup(alpha, num_draft_tokens, target_step_s, draft_step_s, target_step_s)


def at_the_same_time(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    seconds = max(num_draft_tokens * draft_step_s, verify_s)
    return horner(alpha, num_draft_tokens) * target_step_s / seconds


def tokens_a_second(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return horner(alpha, num_draft_tokens) / (num_draft_tokens * draft_step_s + verify_s)


def slowdown(*arguments):
    return 1 / right_speedup(*arguments)


def slowdown_with_names(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    round_s = num_draft_tokens * draft_step_s + verify_s
    return round_s / (target_step_s * with_torch(alpha, num_draft_tokens).item())


def bonus_forgotten(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    seconds = num_draft_tokens * draft_step_s + verify_s
    return accepted_only(alpha, num_draft_tokens) * target_step_s / seconds


def all_accepted(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return (num_draft_tokens + 1) * target_step_s / (num_draft_tokens * draft_step_s + verify_s)


def k_times(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    return num_draft_tokens * target_step_s / (num_draft_tokens * draft_step_s + verify_s)


def drafts_times_alpha(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    emitted = 1 + num_draft_tokens * alpha
    return emitted * target_step_s / (num_draft_tokens * draft_step_s + verify_s)


def in_target_steps(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    c, v = draft_step_s / target_step_s, verify_s / target_step_s
    return by_outcomes(alpha, num_draft_tokens) / (num_draft_tokens * c + v)


def time_for_a_token(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    seconds = sum([verify_s] + [draft_step_s] * num_draft_tokens)
    return target_step_s / (seconds / horner(alpha, num_draft_tokens))


# --- 5.3 best_num_draft_tokens


def speeds(alpha, draft_step_s, verify_s):
    """Tokens a second for each K; plain decoding first."""
    return [1 / verify_s[0]] + [horner(alpha, k) / (k * draft_step_s + verify_s[k]) for k in range(1, len(verify_s))]


def with_loop(alpha, draft_step_s, verify_s):
    best, most = 0, 1.0
    for k in range(1, len(verify_s)):
        gain = right_speedup(alpha, k, verify_s[0], draft_step_s, verify_s[k])
        if gain > most:
            best, most = k, gain
    return best


def with_numpy(alpha, draft_step_s, verify_s):
    ks = np.arange(len(verify_s))
    emitted = np.cumsum(alpha**ks)
    gain = emitted * verify_s[0] / (ks * draft_step_s + np.array(verify_s))
    return int(np.argmax(gain))


def least_time_per_token(alpha, draft_step_s, verify_s):
    times = [(k * draft_step_s + seconds) / horner(alpha, k) for k, seconds in enumerate(verify_s)]
    return times.index(min(times))


def always_drafts(alpha, draft_step_s, verify_s):
    gains = speeds(alpha, draft_step_s, verify_s)[1:]
    return 1 + gains.index(max(gains))


def longest_of_equals(alpha, draft_step_s, verify_s):
    best, most = 0, 1.0
    for k in range(1, len(verify_s)):
        gain = right_speedup(alpha, k, verify_s[0], draft_step_s, verify_s[k])
        if gain >= most:
            best, most = k, gain
    return best


def gives_up(alpha, draft_step_s, verify_s):
    most = 1.0
    for k in range(1, len(verify_s)):
        gain = right_speedup(alpha, k, verify_s[0], draft_step_s, verify_s[k])
        if gain <= most:
            return k - 1
        most = gain
    return len(verify_s) - 1


def best_with_free_drafts(alpha, draft_step_s, verify_s):
    return with_loop(alpha, 0.0, verify_s)


def best_with_flat_passes(alpha, draft_step_s, verify_s):
    return with_loop(alpha, draft_step_s, [verify_s[0]] * len(verify_s))


def one_entry_off(alpha, draft_step_s, verify_s):
    return with_loop(alpha, draft_step_s, [verify_s[0], *verify_s[:-1]])


def most_tokens(alpha, draft_step_s, verify_s):
    emitted = [horner(alpha, k) for k in range(len(verify_s))]
    return emitted.index(max(emitted))


def cheapest(alpha, draft_step_s, verify_s):
    costs = [k * draft_step_s + seconds for k, seconds in enumerate(verify_s)]
    return costs.index(min(costs))


def last_that_pays(alpha, draft_step_s, verify_s):
    last = 0
    for k in range(1, len(verify_s)):
        if right_speedup(alpha, k, verify_s[0], draft_step_s, verify_s[k]) > 1:
            last = k
    return last


def speed_of_the_best(alpha, draft_step_s, verify_s):
    return max(gain * verify_s[0] + 0.001 for gain in speeds(alpha, draft_step_s, verify_s))


# --- 5.4 estimate_alpha


def alpha_with_loop(traces):
    accepted = judged = 0
    for trace in traces:
        for drafted, passed in trace:
            accepted += passed
            judged += min(passed + 1, drafted)
    return accepted / judged if judged else math.nan


def alpha_with_numpy(traces):
    rounds = np.array([one for trace in traces for one in trace], dtype=np.float64).reshape(-1, 2)
    drafted, passed = rounds[:, 0], rounds[:, 1]
    refusals_seen = np.count_nonzero(passed < drafted)
    with np.errstate(invalid="ignore"):
        return float(np.divide(passed.sum(), passed.sum() + refusals_seen))


def alpha_by_verdicts(traces):
    verdicts = []
    for trace in traces:
        for drafted, passed in trace:
            verdicts.extend([1] * passed)
            if passed != drafted:
                verdicts.append(0)
    return torch.tensor(verdicts, dtype=torch.float64).mean()  # of nothing: NaN


def zero_if_nothing_judged(traces):
    value = alpha_with_loop(traces)
    return 0.0 if math.isnan(value) else value


def fails_if_nothing_judged(traces):
    rounds = [one for trace in traces for one in trace]
    passed = sum(a for _, a in rounds)
    return passed / (passed + sum(1 for d, a in rounds if a < d))


def over_drafted(traces):
    drafted = sum(d for trace in traces for d, _ in trace)
    return sum(a for trace in traces for _, a in trace) / drafted if drafted else math.nan


def refusal_in_each_round(traces):
    rounds = [one for trace in traces for one in trace]
    judged = sum(a + 1 for _, a in rounds)
    return sum(a for _, a in rounds) / judged if judged else math.nan


def refusal_in_each_drafted_round(traces):
    rounds = [(d, a) for trace in traces for d, a in trace if d]
    return sum(a for _, a in rounds) / sum(a + 1 for _, a in rounds) if rounds else math.nan


def only_refused_rounds(traces):
    return alpha_with_loop([[(d, a) for d, a in trace if a < d] for trace in traces])


def bonus_accepted(traces):
    rounds = [one for trace in traces for one in trace]
    return sum(a + 1 for _, a in rounds) / sum(d + 1 for d, _ in rounds) if rounds else math.nan


def first_drafts(traces):
    firsts = [a >= 1 for trace in traces for d, a in trace if d >= 1]
    return sum(firsts) / len(firsts) if firsts else math.nan


def mean_over_texts(traces):
    values = [value for value in (alpha_with_loop([trace]) for trace in traces) if not math.isnan(value)]
    return sum(values) / len(values) if values else math.nan


def mean_over_rounds(traces):
    values = [a / min(a + 1, d) for trace in traces for d, a in trace if d]
    return float(np.mean(values)) if values else math.nan


def empties_the_traces(traces):
    value = alpha_with_loop(traces)
    traces.clear()
    return value


# --- 5.5 read_experiment


def pairs_of(records):
    off = {r["prompt"]: r for r in records if not r["speculation"]}
    on = {r["prompt"]: r for r in records if r["speculation"]}
    return [(name, off[name], on[name]) for name in sorted(off) if name in on]


def whole(record):
    return record["prompt_s"] + record["decode_s"]


def answer_of(decode, request, slower):
    return {"decode_speedup": decode, "request_speedup": request, "slower": slower}


def reader_with_dicts(records):
    pairs = pairs_of(records)
    return answer_of(
        sum(a["decode_s"] for _, a, _ in pairs) / sum(b["decode_s"] for _, _, b in pairs),
        sum(whole(a) for _, a, _ in pairs) / sum(whole(b) for _, _, b in pairs),
        [name for name, a, b in pairs if whole(b) > whole(a)],
    )


def reader_with_loops(records):
    totals = {"decode": [0.0, 0.0], "request": [0.0, 0.0]}
    slower = []
    for name in sorted({record["prompt"] for record in records}):
        sides = [None, None]
        for record in records:
            if record["prompt"] == name:
                sides[int(record["speculation"])] = record
        if None in sides:
            continue
        for place, record in enumerate(sides):
            totals["decode"][place] += record["decode_s"]
            totals["request"][place] += record["prompt_s"] + record["decode_s"]
        if whole(sides[1]) > whole(sides[0]):
            slower += [name]
    (a, b), (c, d) = totals.values()
    return answer_of(a / b, c / d, slower)


def reader_with_numpy(records):
    pairs = pairs_of(records)
    prompt, decode = (np.array([[side[k] for side in one[1:]] for one in pairs]) for k in ("prompt_s", "decode_s"))
    request = prompt + decode
    names = np.array([name for name, *_ in pairs])
    slower = names[request[:, 1] > request[:, 0]].tolist()
    return answer_of(decode[:, 0].sum() / decode[:, 1].sum(), request[:, 0].sum() / request[:, 1].sum(), slower)


def ratios_averaged(records):
    pairs = pairs_of(records)
    decode = [a["decode_s"] / b["decode_s"] for _, a, b in pairs]
    request = [whole(a) / whole(b) for _, a, b in pairs]
    slower = reader_with_dicts(records)["slower"]
    return answer_of(sum(decode) / len(decode), sum(request) / len(request), slower)


def changed_reading(**parts):
    return lambda records: {**reader_with_dicts(records), **{k: part(records) for k, part in parts.items()}}


def request_of(records):
    return reader_with_dicts(records)["request_speedup"]


def decode_of(records):
    return reader_with_dicts(records)["decode_speedup"]


def slower_by_decoding(records):
    return [name for name, a, b in pairs_of(records) if b["decode_s"] > a["decode_s"]]


def plain_prompt_time_for_both(records):
    prompt = {name: a["prompt_s"] for name, a, _ in pairs_of(records)}
    return reader_with_dicts([{**r, "prompt_s": prompt.get(r["prompt"], r["prompt_s"])} for r in records])


def reversed_sides(records):
    right = reader_with_dicts(records)
    return answer_of(1 / right["decode_speedup"], 1 / right["request_speedup"], right["slower"])


def all_records(records):
    off = [r for r in records if not r["speculation"]]
    on = [r for r in records if r["speculation"]]
    decode = sum(r["decode_s"] for r in off) / sum(r["decode_s"] for r in on)
    request = sum(map(whole, off)) / sum(map(whole, on))
    return answer_of(decode, request, reader_with_dicts(records)["slower"])


def winners_only(records):
    slower = reader_with_dicts(records)["slower"]
    winners = [r for r in records if r["prompt"] not in slower]
    if not pairs_of(winners):
        return answer_of(1.0, 1.0, slower)
    return {**reader_with_dicts(winners), "slower": slower}


def reader_as_tuple(records):
    return tuple(reader_with_dicts(records).values())


def sorts_in_place(records):
    records.sort(key=lambda record: record["prompt"])
    return reader_with_dicts(records)


MUTANTS = {
    "5.1": {
        "a small number in the denominator hides 0 / 0": [small_number_below, smaller_number_below],
        "the special case for alpha = 1 is too wide": [wide_special_case, rounded_special_case],
        "0 / 0 at alpha = 1": [closed_formula, closed_formula_with_numpy],
        "the correction or bonus is left out": [accepted_only, accepted_only_by_formula],
        "at most K tokens a round": [k_terms, k_terms_by_formula],
        "drafts behind a refusal are counted": [each_draft_alone],
        "all drafts or none": [all_or_none],
        "no end to the draft": [endless],
        "alpha taken for the chance of a refusal": [refusals],
        "missing return": [printed],
    },
    "5.2": {
        "T_d left out": [draft_for_free],
        "one draft step billed instead of K": [one_draft_step],
        "K verification passes billed": [pass_for_each_draft],
        "K + 1 verification passes billed": [pass_for_each_token],
        "T_v taken for T_t": [pass_as_cheap_as_a_step],
        "draft and target billed as if they worked at the same time": [at_the_same_time],
        "tokens per second instead of a speedup": [tokens_a_second],
        "turned upside down": [slowdown, slowdown_with_names],
        "the correction or bonus is left out": [bonus_forgotten],
        "every round taken for K + 1 tokens": [all_accepted],
        "every round taken for K tokens": [k_times],
        "drafts behind a refusal are counted": [drafts_times_alpha],
    },
    "5.3": {
        "not speculating is never considered": [always_drafts],
        "ties go to the longer draft": [longest_of_equals],
        "stops at the first K that is no better": [gives_up],
        "T_d left out": [best_with_free_drafts],
        "T_v taken for T_t": [best_with_flat_passes],
        "the pass over K tokens is billed": [one_entry_off],
        "the most tokens a round": [most_tokens],
        "the cheapest round": [cheapest],
        "the longest draft that still pays": [last_that_pays],
        "wrong type": [speed_of_the_best],
    },
    "5.4": {
        "where nothing was judged, the answer is not NaN": [zero_if_nothing_judged, fails_if_nothing_judged],
        "accepted over drafted": [over_drafted],
        "a refusal counted in every round": [refusal_in_each_round],
        "a refusal counted in every round with a draft": [refusal_in_each_drafted_round],
        "rounds with all drafts accepted are left out": [only_refused_rounds],
        "the bonus counted as an accepted draft": [bonus_accepted],
        "only the first draft of each round is looked at": [first_drafts],
        "the mean of the texts' alphas": [mean_over_texts],
        "the mean of the rounds' ratios": [mean_over_rounds],
        "changed input": [empties_the_traces],
    },
    "5.5": {
        "the mean of ratios": [ratios_averaged],
        "prompt time mixed into decoding": [changed_reading(decode_speedup=request_of)],
        "prompt time left out of the request": [changed_reading(request_speedup=decode_of)],
        "prompt time left out everywhere": [changed_reading(request_speedup=decode_of, slower=slower_by_decoding)],
        "the draft's own prompt work is left out": [plain_prompt_time_for_both],
        "turned upside down": [reversed_sides],
        "prompts measured one way only are counted": [all_records],
        "prompts that lost are left out of the totals": [winners_only],
        "slower judged by decoding alone": [changed_reading(slower=slower_by_decoding)],
        "slower prompts are not named": [changed_reading(slower=lambda records: [])],
        "wrong type": [reader_as_tuple],
        "changed input": [sorts_in_place],
    },
}

CORRECT = {
    "5.1": {
        "Horner": horner,
        "with torch": with_torch,
        "by outcomes": by_outcomes,
        "with expm1": with_expm1,
        "closed formula with a special case": special_case_at_one,
    },
    "5.2": {
        "seconds": right_speedup,
        "in target steps": in_target_steps,
        "time for a token": time_for_a_token,
    },
    "5.3": {"with a loop": with_loop, "with numpy": with_numpy, "least time per token": least_time_per_token},
    "5.4": {"with a loop": alpha_with_loop, "with numpy": alpha_with_numpy, "by verdicts": alpha_by_verdicts},
    "5.5": {"with dicts": reader_with_dicts, "with loops": reader_with_loops, "with numpy": reader_with_numpy},
}
