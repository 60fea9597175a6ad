"""Whether greedy texts agree between systems, and where they do not, how near the tie was."""

from __future__ import annotations

from typing import Any

import torch

from specdec_course.benchmark.recorder import common_prefix
from specdec_course.benchmark.run import Key, Texts
from specdec_course.benchmark.systems import System
from specdec_ref.decode import collect
from specdec_ref.device import upload
from specdec_ref.measure import Run
from specdec_ref.model import CachedLM


def differences(
    target: CachedLM, systems: list[System], suites: list[Texts], measured: dict[Key, list[Run]], reference: str
) -> list[dict[str, Any]]:
    """Compare every text of every system with that of the system `reference`.

    Returns
    -------
    list of dict
        One entry for each text that differs: `system`, `suite`, `prompt` (its number), `position` of the first
        differing token, and `top_two_gap`, the target's difference of its two largest logits there. A gap of 1e-3 or
        less is a tie that rounding may turn; anything larger is a fault.
    """
    found = []
    for suite in suites:
        expected = [text for run in measured[reference, suite.name] for text in collect(run.rounds)]
        for system in systems:
            texts = [text for run in measured[system.name, suite.name] for text in collect(run.rounds)]
            for number, text in enumerate(texts):
                prompt = number % len(suite.measured)
                shared = common_prefix(text, expected[prompt])
                if len(text) == len(expected[prompt]) == shared:
                    continue
                gap = top_two_gap(target, [*suite.measured[prompt], *text[:shared]])
                entry = {"system": system.name, "suite": suite.name, "prompt": prompt, "position": shared}
                found.append({**entry, "top_two_gap": gap})
    return found


def top_two_gap(target: CachedLM, text: list[int]) -> float:
    """Return the difference of the two largest logits for the token after `text`."""
    lm = target.fresh(1)
    lm.prefill([text[:-1]])
    top = torch.topk(lm.extend(upload([text[-1:]], lm.device))[0, -1].float(), 2).values
    return float(top[0] - top[1])
