"""Stage 08: wrong and right answers."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

# --- 8.1 head_inputs


def side_by_side(features, embedding, text):
    return torch.cat([features, embedding[torch.tensor(text[1:])]], dim=-1)


def with_a_loop(features, embedding, text):
    rows = []
    for i in range(len(features)):
        rows.append(torch.cat((features[i], embedding[text[i + 1]])))
    return torch.stack(rows)


def filled_in(features, embedding, text):
    width = features.shape[1]
    pairs = features.new_empty(len(features), 2 * width)
    pairs[:, :width] = features
    pairs[:, width:] = functional.embedding(torch.tensor(text), embedding)[1:]
    return pairs


def with_roll(features, embedding, text):
    following = torch.tensor(text).roll(-1)[:-1]
    return torch.hstack([features, embedding.index_select(0, following)])


def own_token(features, embedding, text):
    return torch.cat([features, embedding[text[:-1]]], dim=1)


def own_token_in_a_loop(features, embedding, text):
    return torch.stack([torch.cat([feature, embedding[text[i]]]) for i, feature in enumerate(features)])


def newest_left_out(features, embedding, text):
    return torch.cat([features[:-1], embedding[text[1:-1]]], dim=-1)


def two_ahead(features, embedding, text):
    return torch.cat([features[: len(text) - 2], embedding[torch.tensor(text, dtype=torch.int64)[2:]]], dim=-1)


def embedding_first(features, embedding, text):
    return torch.cat([embedding[text[1:]], features], dim=-1)


def added(features, embedding, text):
    return embedding[text[1:]] + features


def stacked(features, embedding, text):
    return torch.cat([features, embedding[text[1:]]], dim=0)


def with_ids(features, embedding, text):
    ids = torch.tensor(text[1:], dtype=features.dtype).unsqueeze(1)
    return torch.cat([features, ids], dim=1)


def last_in_every_pair(features, embedding, text):
    return torch.cat([features, embedding[text[-1]].expand_as(features)], dim=-1)


# --- 8.2 draft_token


def kept_logits(logits, top_k):
    least = logits.topk(min(top_k, len(logits))).values[-1]
    return logits.masked_fill(logits < least, float("-inf"))


def drawn_from(law, uniform):
    return int((law.cumsum(0) <= uniform).sum().clamp(max=len(law) - 1))


def scattered(law, ids, vocab_size):
    q = torch.zeros(vocab_size, dtype=law.dtype)
    q[ids] = law
    return q


def right_token(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    q = scattered(kept_logits(draft_logits, top_k).softmax(-1), draft_to_target, vocab_size)
    return drawn_from(q, uniform), q


def over_all_of_the_vocabulary(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    wide = torch.full((vocab_size,), -torch.inf, dtype=draft_logits.dtype)
    wide.scatter_(0, draft_to_target, draft_logits)
    if top_k < len(draft_logits):
        best = wide.topk(top_k).indices
        only = torch.full_like(wide, -torch.inf)
        only[best] = wide[best]
        wide = only
    q = torch.exp(wide - wide.max())
    q = q / q.sum()
    return int(torch.searchsorted(q.cumsum(0), torch.tensor(uniform, dtype=q.dtype), right=True)), q


def scaled_after_the_softmax(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    law = draft_logits.softmax(-1)
    order = law.argsort(descending=True)
    law[order[top_k:]] = 0
    law = law / law.sum()
    place, total = 0, float(law[0])
    while total <= uniform:
        place += 1
        total += float(law[place])
    return int(draft_to_target[place]), scattered(law, draft_to_target, vocab_size)


def with_numpy(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    logits, ids = draft_logits.numpy(), draft_to_target.numpy()
    keep = np.argsort(-logits)[:top_k]
    weights = np.zeros(vocab_size)
    weights[ids[keep]] = np.exp(logits[keep] - logits.max())
    q = torch.from_numpy(weights / weights.sum())
    return drawn_from(q, uniform), q


def nothing_mapped(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    law = kept_logits(draft_logits, top_k).softmax(-1)
    return drawn_from(law, uniform), functional.pad(law, (0, vocab_size - len(law)))


def token_not_mapped(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    law = kept_logits(draft_logits, top_k).softmax(-1)
    return drawn_from(law, uniform), scattered(law, draft_to_target, vocab_size)


def law_not_mapped(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    law = kept_logits(draft_logits, top_k).softmax(-1)
    q = torch.zeros(vocab_size, dtype=law.dtype)
    q[: len(law)] = law
    return draft_to_target[drawn_from(law, uniform)], q


def small_law(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    law = kept_logits(draft_logits, top_k).softmax(-1)
    return int(draft_to_target[drawn_from(law, uniform)]), law


def absent_at_zero(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    q = scattered(kept_logits(draft_logits, top_k), draft_to_target, vocab_size).softmax(-1)
    return drawn_from(q, uniform), q


def masked_only(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    law = draft_logits.softmax(-1)
    law = torch.where(draft_logits < draft_logits.topk(min(top_k, len(law))).values[-1], 0.0, law)
    q = scattered(law, draft_to_target, vocab_size)
    return drawn_from(q, uniform), q


def masked_only_and_drawn_from_the_rest(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    _, q = masked_only(draft_logits, draft_to_target, vocab_size, top_k, uniform)
    return drawn_from(q / q.sum(), uniform), q


def another_law_handed_in(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    token, _ = right_token(draft_logits, draft_to_target, vocab_size, top_k, uniform)
    return token, scattered(draft_logits.softmax(-1), draft_to_target, vocab_size)


def no_filter(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    q = scattered(draft_logits.softmax(-1), draft_to_target, vocab_size)
    return drawn_from(q, uniform), q


def favourite(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    _, q = right_token(draft_logits, draft_to_target, vocab_size, top_k, uniform)
    return int(q.argmax()), q


def favourite_of_the_logits(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    _, q = right_token(draft_logits, draft_to_target, vocab_size, top_k, uniform)
    return draft_to_target[draft_logits.argmax()].item(), q


def certain(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    token, q = right_token(draft_logits, draft_to_target, vocab_size, top_k, uniform)
    return token, functional.one_hot(torch.tensor(token), vocab_size).to(q.dtype)


def scales_the_logits_in_place(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    draft_logits -= draft_logits.max()
    return right_token(draft_logits, draft_to_target, vocab_size, top_k, uniform)


# --- 8.3 after_round


def answer_of(forget, features, tokens):
    return {"forget": forget, "features": features, "tokens": tokens}


def right_after(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    forget = len(draft_tokens) - 1 if draft_tokens else 0
    return answer_of(forget, target_features[: num_accepted + 1], [*draft_tokens[:num_accepted], next_token])


def after_with_a_loop(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    rows, tokens = [], []
    for place in range(num_accepted + 1):
        rows.append(target_features[place])
        tokens.append(draft_tokens[place] if place < num_accepted else next_token)
    return answer_of(max(len(own_features) - 1, 0), torch.stack(rows), tokens)


def after_by_the_text(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    new_text = [last_token, *draft_tokens[:num_accepted], next_token]
    features = target_features.narrow(0, 0, len(new_text) - 1).clone()
    return answer_of(sum(1 for _ in draft_tokens[1:]), features, new_text[1:])


def minus_one(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    right = right_after(last_token, draft_tokens, num_accepted, next_token, own_features, target_features)
    return {**right, "forget": len(draft_tokens) - 1}


def nothing_forgotten(*arguments):
    return {**right_after(*arguments), "forget": 0}


def accepted_pairs_kept(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    own = max(0, len(draft_tokens) - 1)
    good = min(own, num_accepted)
    tokens = [*draft_tokens[:num_accepted], next_token]
    return answer_of(own - good, target_features[good : num_accepted + 1], tokens[good:])


def own_read_again(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    features = torch.cat([own_features[:num_accepted], target_features[num_accepted : num_accepted + 1]])
    tokens = [*draft_tokens[:num_accepted], next_token]
    return answer_of(max(0, len(draft_tokens) - 1), features, tokens)


def own_only(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    tokens = [*draft_tokens[:num_accepted], next_token]
    return answer_of(max(0, len(draft_tokens) - 1), own_features[: num_accepted + 1], tokens)


def all_drafts_forgotten(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    right = right_after(last_token, draft_tokens, num_accepted, next_token, own_features, target_features)
    return {**right, "forget": len(draft_tokens)}


def refused_pairs_forgotten(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    right = right_after(last_token, draft_tokens, num_accepted, next_token, own_features, target_features)
    own = max(0, len(draft_tokens) - 1)
    return {**right, "forget": own - min(own, num_accepted)}


def everything_read(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    return answer_of(max(0, len(draft_tokens) - 1), target_features, [*draft_tokens, next_token])


def newest_read(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    return answer_of(max(0, len(draft_tokens) - 1), target_features[[num_accepted]], [next_token])


def newest_missing(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    return answer_of(max(0, len(draft_tokens) - 1), target_features[:num_accepted], list(draft_tokens[:num_accepted]))


def paired_with_own_tokens(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    tokens = [last_token, *draft_tokens][: num_accepted + 1]
    return answer_of(max(0, len(draft_tokens) - 1), target_features[: num_accepted + 1], tokens)


def refused_token_read(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    tokens = [*draft_tokens, next_token][: num_accepted + 1]
    return answer_of(max(0, len(draft_tokens) - 1), target_features[: num_accepted + 1], tokens)


def grows_the_draft(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    forget = max(0, len(draft_tokens) - 1)
    del draft_tokens[num_accepted:]
    draft_tokens.append(next_token)
    return answer_of(forget, target_features[: num_accepted + 1], draft_tokens)


# --- 8.4 draft_chain


def right_chain(head, features, tokens, draft_uniforms, pick):
    feature = head.read(features, tokens)[-1]
    drafted, laws = [], []
    for i, uniform in enumerate(draft_uniforms):
        if i:
            feature = head.read(feature[None], [drafted[-1]])[-1]
        token, law = pick(head.logits(feature), uniform)
        drafted.append(token)
        laws.append(law)
    return drafted, laws


def chain_feeding_what_is_missing(head, features, tokens, draft_uniforms, pick):
    drafted, laws = [], []
    to_read = features, list(tokens)
    while len(drafted) < len(draft_uniforms):
        output = head.read(*to_read)[-1:]
        token, law = pick(head.logits(output[0]), float(draft_uniforms[len(drafted)]))
        drafted, laws = [*drafted, token], [*laws, law]
        to_read = output, [token]
    return drafted, laws


def chain_pair_by_pair(head, features, tokens, draft_uniforms, pick):
    for feature, token in zip(features, tokens, strict=True):
        output = head.read(feature.unsqueeze(0), [token]).squeeze(0)
    token, law = pick(head.logits(output), draft_uniforms[0])
    drafted, laws = [token], [law]
    for uniform in draft_uniforms[1:]:
        output = head.read(output.unsqueeze(0), torch.tensor([token])).squeeze(0)
        token, law = pick(head.logits(output), uniform)
        drafted.append(token)
        laws.append(law)
    return drafted, torch.stack(laws)


def chain_with(change):
    """The right chain with one thing changed: `change` gets (output, features, drafted, tokens), returns a pair."""

    def chain(head, features, tokens, draft_uniforms, pick):
        output = head.read(features, tokens)[-1]
        drafted, laws = [], []
        for uniform in draft_uniforms:
            token, law = pick(head.logits(output), uniform)
            drafted.append(token)
            laws.append(law)
            if len(drafted) < len(draft_uniforms):
                feature, following = change(output, features, drafted, tokens)
                output = head.read(feature[None], [following])[0]
        return drafted, laws

    return chain


true_feature_again = chain_with(lambda output, features, drafted, tokens: (features[-1], drafted[-1]))
old_token = chain_with(lambda output, features, drafted, tokens: (output, tokens[-1]))


def nothing_fed(head, features, tokens, draft_uniforms, pick):
    logits = head.logits(head.read(features, tokens)[-1])
    both = [pick(logits, uniform) for uniform in draft_uniforms]
    return [token for token, _ in both], [law for _, law in both]


def first_output(head, features, tokens, draft_uniforms, pick):
    feature = head.read(features, tokens)[0]
    drafted, laws = [], []
    for i, uniform in enumerate(draft_uniforms):
        token, law = pick(head.logits(feature), uniform)
        drafted.append(token)
        laws.append(law)
        if i < len(draft_uniforms) - 1:
            feature = head.read(feature[None], [token])[0]
    return drafted, laws


def newest_pair_only(head, features, tokens, draft_uniforms, pick):
    return right_chain(head, features[-1:], tokens[-1:], draft_uniforms, pick)


def last_fed(head, features, tokens, draft_uniforms, pick):
    feature = head.read(features, tokens)[-1]
    drafted, laws = [], []
    for uniform in draft_uniforms:
        token, law = pick(head.logits(feature), uniform)
        drafted.append(token)
        laws.append(law)
        feature = head.read(feature[None], [token])[0]
    return drafted, laws


def argmax_chain(head, features, tokens, draft_uniforms, pick):
    def best(logits, uniform):
        _, law = pick(logits, uniform)
        return int(law.argmax()), law

    return right_chain(head, features, tokens, draft_uniforms, best)


def one_number(head, features, tokens, draft_uniforms, pick):
    return right_chain(head, features, tokens, draft_uniforms[:1].expand(len(draft_uniforms)), pick)


def first_law(head, features, tokens, draft_uniforms, pick):
    drafted, laws = right_chain(head, features, tokens, draft_uniforms, pick)
    return drafted, laws[:1] * len(laws)


def law_of_the_draft_ids(head, features, tokens, draft_uniforms, pick):
    drafted, laws = right_chain(head, features, tokens, draft_uniforms, pick)
    return drafted, [law[law > 0] for law in laws]


# --- 8.5 vocabulary_cost


def cost_of(alpha, ceiling):
    return {"alpha": float(alpha), "ceiling": float(ceiling)}


def right_cost(target_probs, draft_logits, draft_to_target):
    inside = target_probs[:, draft_to_target]
    return cost_of(torch.minimum(inside, draft_logits.softmax(-1)).sum(-1).mean(), inside.sum(-1).mean())


def cost_over_the_whole_vocabulary(target_probs, draft_logits, draft_to_target):
    q = torch.zeros_like(target_probs)
    q[:, draft_to_target] = draft_logits.softmax(-1)
    alpha = 1 - (target_probs - q).clamp(min=0).sum(-1)
    return cost_of(alpha.mean(), (target_probs * (q > 0)).sum() / len(q))


def cost_with_loops(target_probs, draft_logits, draft_to_target):
    alphas, masses = [], []
    for p, logits in zip(target_probs.tolist(), draft_logits.tolist(), strict=True):
        weights = [float(np.exp(x)) for x in logits]
        ids = draft_to_target.tolist()
        alphas.append(sum(min(p[i], w / sum(weights)) for i, w in zip(ids, weights, strict=True)))
        masses.append(sum(p[i] for i in ids))
    return cost_of(np.mean(alphas), np.mean(masses))


def cost_by_acceptance(target_probs, draft_logits, draft_to_target):
    p, q = target_probs.index_select(1, draft_to_target), draft_logits.softmax(-1)
    return cost_of((q * (p / q).clamp(max=1)).sum(-1).mean(), p.sum(-1).mean())


def ids_not_mapped(target_probs, draft_logits, draft_to_target):
    return right_cost(target_probs, draft_logits, torch.arange(draft_logits.shape[1]))


def share_of_ids(target_probs, draft_logits, draft_to_target):
    right = right_cost(target_probs, draft_logits, draft_to_target)
    return {**right, "ceiling": len(draft_to_target) / target_probs.shape[1]}


def scaled_up(target_probs, draft_logits, draft_to_target):
    inside = target_probs[:, draft_to_target]
    scaled = inside / inside.sum(-1, keepdim=True)
    return cost_of(torch.minimum(scaled, draft_logits.softmax(-1)).sum(-1).mean(), inside.sum(-1).mean())


def same_favourite(target_probs, draft_logits, draft_to_target):
    same = draft_to_target[draft_logits.argmax(-1)] == target_probs.argmax(-1)
    return {**right_cost(target_probs, draft_logits, draft_to_target), "alpha": float(same.double().mean())}


def equal_draws(target_probs, draft_logits, draft_to_target):
    inside = target_probs[:, draft_to_target]
    return cost_of((inside * draft_logits.softmax(-1)).sum(-1).mean(), inside.sum(-1).mean())


def unweighted(target_probs, draft_logits, draft_to_target):
    inside, q = target_probs[:, draft_to_target], draft_logits.softmax(-1)
    return cost_of(torch.minimum(inside / q, torch.ones_like(q)).mean(), inside.sum(-1).mean())


def summed(target_probs, draft_logits, draft_to_target):
    inside = target_probs[:, draft_to_target]
    return cost_of(torch.minimum(inside, draft_logits.softmax(-1)).sum(), inside.sum())


def favourites_inside(target_probs, draft_logits, draft_to_target):
    ids = set(draft_to_target.tolist())
    share = sum(best in ids for best in target_probs.argmax(-1).tolist()) / len(target_probs)
    return {**right_cost(target_probs, draft_logits, draft_to_target), "ceiling": share}


def zero_logits(target_probs, draft_logits, draft_to_target):
    wide = torch.zeros_like(target_probs)
    wide[:, draft_to_target] = draft_logits
    alpha = torch.minimum(target_probs, wide.softmax(-1)).sum(-1).mean()
    return cost_of(alpha, target_probs[:, draft_to_target].sum(-1).mean())


def as_tensors(target_probs, draft_logits, draft_to_target):
    right = right_cost(target_probs, draft_logits, draft_to_target)
    return {name: torch.tensor([value]) for name, value in right.items()}


MUTANTS = {
    "8.1": {
        "the feature is paired with its own token": [own_token, own_token_in_a_loop],
        "the newest pair is left out": [newest_left_out],
        "the feature is paired with the token after the next": [two_ahead],
        "the embedding comes first": [embedding_first],
        "added instead of put side by side": [added],
        "stacked one below the other": [stacked],
        "token ids instead of embeddings": [with_ids],
        "the last token stands in every pair": [last_in_every_pair],
    },
    "8.2": {
        "draft ids are used as target ids": [nothing_mapped],
        "the token handed out is a draft id": [token_not_mapped],
        "q stands at the draft's ids": [law_not_mapped],
        "q covers the draft vocabulary only": [small_law],
        "absent tokens get a logit of 0": [absent_at_zero],
        "masked after the softmax and not scaled to 1": [masked_only, masked_only_and_drawn_from_the_rest],
        "the law handed in is not the one drawn from": [another_law_handed_in],
        "the top-k filter is left out": [no_filter],
        "the likeliest token is taken instead of drawing": [favourite, favourite_of_the_logits],
        "q is a point mass on the drawn token": [certain],
        "changed input": [scales_the_logits_in_place],
    },
    "8.3": {
        "after an empty draft a negative number is forgotten": [minus_one],
        "pairs of the draft are left in the cache": [nothing_forgotten],
        "the pairs of accepted tokens are kept": [accepted_pairs_kept],
        "every feature is the head's own": [own_only],
        "the head's own features are read again": [own_read_again],
        "one pair too many is forgotten": [all_drafts_forgotten],
        "only the pairs of refused tokens are forgotten": [refused_pairs_forgotten],
        "features of refused tokens are kept": [everything_read],
        "only the newest pair is read": [newest_read],
        "the pair of the correction or bonus is missing": [newest_missing],
        "each feature is paired with its own token": [paired_with_own_tokens],
        "the refused token stands in the newest pair": [refused_token_read],
        "changed input": [grows_the_draft],
    },
    "8.4": {
        "the last true feature is fed again and again": [true_feature_again],
        "nothing is fed back": [nothing_fed],
        "the token in the pair is not the one just drawn": [old_token],
        "the feature after the first pair is used": [first_output],
        "only the newest true pair is read": [newest_pair_only],
        "the last draft token is fed as well": [last_fed],
        "the most likely token is taken instead of drawing": [argmax_chain],
        "one uniform number for all draft tokens": [one_number],
        "the first law is handed back for every token": [first_law],
        "wrong shape": [law_of_the_draft_ids],
    },
    "8.5": {
        "draft ids are used as target ids": [ids_not_mapped],
        "the share of the vocabulary instead of its mass": [share_of_ids],
        "the target's law is cut and scaled up": [scaled_up],
        "agreement of the favourites": [same_favourite],
        "products instead of minima": [equal_draws],
        "ratios averaged without their weights": [unweighted],
        "summed over the positions": [summed],
        "the ceiling counts favourites": [favourites_inside],
        "absent tokens get a logit of 0": [zero_logits],
        "wrong shape": [as_tensors],
    },
}

CORRECT = {
    "8.1": {
        "side by side": side_by_side,
        "with a loop": with_a_loop,
        "filled in": filled_in,
        "with roll": with_roll,
    },
    "8.2": {
        "scatter, then draw": right_token,
        "over all of the vocabulary": over_all_of_the_vocabulary,
        "scaled after the softmax": scaled_after_the_softmax,
        "with numpy": with_numpy,
    },
    "8.3": {"slices": right_after, "with a loop": after_with_a_loop, "by the text": after_by_the_text},
    "8.4": {
        "feed before the draw": right_chain,
        "feed what is missing": chain_feeding_what_is_missing,
        "pair by pair": chain_pair_by_pair,
    },
    "8.5": {
        "picked": right_cost,
        "over the whole vocabulary": cost_over_the_whole_vocabulary,
        "with loops": cost_with_loops,
        "by acceptance": cost_by_acceptance,
    },
}
