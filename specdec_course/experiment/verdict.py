"""From numbers to a recommendation: enable for these, not for those, and why. The losing cells are named one by one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

FEW_TOKENS = 100  # in a cell: a few rounds more or less then change a speedup by more than the margin
MARGIN = 1.02  # a gain below 2 % is not worth a second model, nor told from noise
FACTORS = ("text", "length", "temperature", "batch")
Measured = dict[str, Any]


def pays(cell: Measured) -> bool:
    """Tell whether speculation pays in a cell: a median gain above 2 %, and no repetition in which it lost."""
    speedup = cell["speedup"]
    return speedup["median"] is not None and speedup["median"] > MARGIN and speedup["low"] > 1


def word(cell: Measured) -> str:
    """Say in a word what a cell shows."""
    if "not_run" in cell:
        return "not run"
    if pays(cell):
        return "faster"
    high = cell["speedup"]["high"]
    return "SLOWER" if high is not None and high < 1 else "no clear gain"


def decide(cells: Sequence[Measured]) -> dict[str, Any]:
    """Return the verdict: a sentence, its reasons, and every cell in which speculation does not pay."""
    ran = [cell for cell in cells if "not_run" not in cell]
    yes, no = [cell for cell in ran if pays(cell)], [cell for cell in ran if not pays(cell)]
    if not ran:
        sentence = "Nothing could be measured."
    elif not no:
        sentence = f"Enable for everything that was measured, because {reason(yes)}."
    elif not yes:
        sentence = f"Do not enable for anything that was measured, because {reason(no)}."
    else:
        sentence = (
            f"Enable for {where(yes, ran)}, because there {reason(yes)}; not for {where(no, ran)}, "
            f"because there {reason(no)}."
        )
    wrong = sum(len(cell["texts"]["differences"]) for cell in ran if cell["texts"])
    return {
        "sentence": sentence,
        "enable": [name(cell) for cell in yes],
        "losing": [losing_line(cell) for cell in no],
        "not_run": [f"{name(cell)}: {cell['not_run']}" for cell in cells if "not_run" in cell],
        "texts": texts_line(ran, wrong),
        "caution": caution(ran),
    }


def caution(ran: Sequence[Measured]) -> str | None:
    """Say where the cells are too small to decide by; None where they are not."""
    fewest = min((min(cell[side]["new_tokens"] for side in ("off", "on")) for cell in ran), default=FEW_TOKENS)
    if fewest >= FEW_TOKENS:
        return None
    return f"Some cells rest on no more than {fewest} tokens: too few to decide by. More prompts make them larger."


def name(cell: Measured) -> str:
    """Name a cell for people."""
    return f"{cell['text']}, {cell['length']}, T = {cell['temperature']:g}, batch {cell['batch']}"


def where(chosen: Sequence[Measured], everything: Sequence[Measured]) -> str:
    """Describe some of all cells exactly: whole values of a factor first ("all of batch 1"), then single cells."""
    left, parts = list(chosen), []
    while left:
        whole = [
            (len(members), f"all of {_value(factor, value)}", members)
            for factor in FACTORS
            for value in dict.fromkeys(cell[factor] for cell in left)
            if len(members := [cell for cell in left if cell[factor] == value]) > 1
            and all(cell in chosen for cell in everything if cell[factor] == value)
        ]
        if not whole:
            return _joined([*parts, *(f"({name(cell)})" for cell in left)])
        _, words, members = max(whole, key=lambda one: one[0])
        parts.append(words)
        left = [cell for cell in left if cell not in members]
    return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]


def _value(factor: str, value: Any) -> str:
    if factor == "temperature":
        return f"T = {value:g}"
    return {"text": f"{value}", "length": f"{value} answers", "batch": f"batch {value}"}[factor]


def reason(cells: Sequence[Measured]) -> str:
    """Say why: what a round gives and costs in the cell in the middle, by speedup, and what share prompts have."""
    known = [cell for cell in cells if cell["round_cost"] is not None and cell["on"]["emitted_per_round"] is not None]
    parts = []
    if known:
        middle = sorted(known, key=lambda cell: cell["speedup"]["median"])[len(known) // 2]
        of = f" (in the middle one of {len(known)})" if len(known) > 1 else ""
        emitted, cost = middle["on"]["emitted_per_round"], middle["round_cost"]
        parts.append(f"a round emits {emitted:.2f} tokens and costs {cost:.2f} plain steps{of}")
    prompts = statistics.median(prompt_share(cell) for cell in cells)
    return " and ".join(
        [*parts, f"the first round, which reads the prompt, is {prompts:.0%} of the time without speculation"]
    )


def prompt_share(cell: Measured) -> float:
    """Return the share of the time without speculation that went into first rounds, prompts included."""
    return max(0.0, 1 - cell["off"]["decode_s"] / cell["off"]["seconds"])


def losing_line(cell: Measured) -> str:
    """Say what one losing cell shows."""
    speedup = cell["speedup"]
    if speedup["median"] is None:
        return f"{name(cell)}: the answers were too short to measure a speed."
    range_ = f"{speedup['median']:.2f} times the speed ({speedup['low']:.2f} to {speedup['high']:.2f})"
    return f"{name(cell)}: {word(cell)}, {range_}: {reason([cell])}."


def texts_line(ran: Sequence[Measured], wrong: int) -> str:
    """Say whether the greedy texts were equal."""
    compared = sum(cell["texts"]["compared"] for cell in ran if cell["texts"])
    if not compared:
        return "No greedy float32 texts were compared."
    if not wrong:
        return f"All {compared} greedy texts are the same with and without speculation, token for token."
    gaps = [one["top_two_gap"] for cell in ran if cell["texts"] for one in cell["texts"]["differences"]]
    return (
        f"{wrong} of {compared} greedy texts DIFFER; where they part, the target's two best logits lie up to "
        f"{max(gaps):.2g} apart: up to 1e-3 it is a tie that rounding turns, beyond that a fault."
    )
