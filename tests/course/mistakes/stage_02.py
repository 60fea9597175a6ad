"""Stage 02: wrong and right answers."""

from __future__ import annotations

import numpy as np
import torch


def no_refusal(target_probs, draft_probs, token, uniform):
    return bool(uniform < target_probs[token] / draft_probs[token])


def no_refusal_with_floats(target_probs, draft_probs, token, uniform):
    return uniform < target_probs[token].item() / draft_probs[token].item()


def refused(draft_probs, token):
    if draft_probs[token] <= 0:
        raise ValueError("not drawn from this law")


def not_strict(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform <= target_probs[token] / draft_probs[token])


def swapped(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform < draft_probs[token] / target_probs[token])


def swapped_and_no_refusal(target_probs, draft_probs, token, uniform):
    return bool(uniform < draft_probs[token] / target_probs[token])


def target_alone(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform < target_probs[token])


def no_luck(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(target_probs[token] >= draft_probs[token])


def favourite(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return int(target_probs.argmax()) == token


def inverted(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform > target_probs[token] / draft_probs[token])


def own_luck(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(torch.rand(()) < target_probs[token] / draft_probs[token])


def every_token(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return uniform < target_probs / draft_probs


def probability(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return min(1.0, float(target_probs[token] / draft_probs[token]))


def in_place(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return bool(uniform < target_probs.div_(draft_probs)[token])


def nothing_handed_back(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    bool(uniform < target_probs[token] / draft_probs[token])


def clamped(target_probs, draft_probs, token, uniform):
    refused(draft_probs, token)
    return uniform < (target_probs[token] / draft_probs[token]).clamp(max=1.0)


def multiplied(target_probs, draft_probs, token, uniform):
    p, q = target_probs[token].item(), draft_probs[token].item()
    if q <= 0:
        raise ValueError("q must be positive")
    return uniform * q < p


def with_numpy(target_probs, draft_probs, token, uniform):
    p, q = np.asarray(target_probs), np.asarray(draft_probs)
    if not q[token] > 0:
        raise ValueError("q must be positive")
    return np.minimum(1.0, p / np.where(q > 0, q, 1.0))[token] > uniform


MUTANTS = {
    "2.1": {
        "q = 0 is not refused": [no_refusal, no_refusal_with_floats],
        "a token with p = 0 is kept when u = 0": [not_strict],
        "p and q swapped": [swapped, swapped_and_no_refusal],
        "u compared with p(x) alone": [target_alone],
        "kept only where p(x) >= q(x)": [no_luck],
        "kept only if it is the target's favourite": [favourite],
        "kept and refused mixed up": [inverted],
        "wrong random generator": [own_luck],
        "wrong shape": [every_token],
        "wrong type": [probability],
        "changed input": [in_place],
        "missing return": [nothing_handed_back],
    }
}

CORRECT = {"2.1": {"clamped": clamped, "multiplied": multiplied, "with numpy": with_numpy}}
