"""Several thousand prompts, composed of templates and words of ours: the questions that the target answers.

A prompt is a pure function of its kind and a number, and everything else about it (its id, whether it is held out, the
temperature and the seed of its answer) is a pure function of its text. So a new template or word changes no other
prompt's fate, and a prompt that is held out stays held out for ever.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from specdec_ref.training.prompt_parts import COUNTS, PARTS, TEMPLATES

TEMPERATURES = (0.0, 0.7, 1.0)
HELD_OUT_SHARE = 20  # one prompt in twenty is held out

_PATIENCE = 1000  # so many compositions in a row without a new prompt mean that there are no more
_SLOT = re.compile(r"\$([a-z_]+)\d?")  # `$name2` is filled from the block `name`, like `$name`, with another value


@dataclass(frozen=True)
class Prompt:
    """One question for the target.

    Attributes
    ----------
    kind : str
        What sort of task it is: story, explain, howto, question, chat, summary, rewrite, code or code-edit.
    text : str
        What the user says.
    """

    kind: str
    text: str

    @cached_property
    def id(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def held_out(self) -> bool:
        """Whether no training may see this prompt: true for about 5 % of all prompts."""
        return _number("held out", self.id) % HELD_OUT_SHARE == 0

    @property
    def temperature(self) -> float:
        """The temperature of its answer: 0, 0.7 or 1, for about a third of the prompts each."""
        return TEMPERATURES[_number("temperature", self.id) % len(TEMPERATURES)]

    @property
    def seed(self) -> int:
        """The row seed of its answer: 64 bits."""
        return int(self.id, 16)


def compose(kind: str, number: int) -> Prompt:
    """Compose one prompt of a kind: the digits of `number` choose the template, then the value of each slot.

    Raises
    ------
    ValueError
        If there is no such kind, or the number is negative.
    """
    if kind not in TEMPLATES:
        raise ValueError(f"kind={kind!r} is not known; known are {', '.join(TEMPLATES)}")
    if number < 0:
        raise ValueError(f"number={number} must be >= 0")
    number, index = divmod(number, len(TEMPLATES[kind]))
    text = TEMPLATES[kind][index]
    chosen: dict[str, str] = {}

    def value(slot: re.Match[str]) -> str:
        nonlocal number
        if slot[0] not in chosen:
            options = [option for option in PARTS[slot[1]] if option not in chosen.values()]
            number, index = divmod(number, len(options))
            chosen[slot[0]] = options[index]
        return chosen[slot[0]]

    while _SLOT.search(text):  # a value may hold slots itself
        text = _SLOT.sub(value, text)
    return Prompt(kind, text)


def all_prompts(seed: int = 0, counts: Mapping[str, int] = COUNTS) -> list[Prompt]:
    """Return distinct prompts, `counts[kind]` of each kind, in shuffled order: any prefix is a balanced sample.

    Raises
    ------
    ValueError
        If the templates of a kind cannot give as many different prompts.
    """
    found: dict[str, Prompt] = {}
    for kind, count in counts.items():
        goal, tries, in_vain = len(found) + count, 0, 0
        while len(found) < goal:
            prompt = compose(kind, _number("prompt", str(seed), kind, str(tries)))
            in_vain = in_vain + 1 if prompt.id in found else 0
            if in_vain == _PATIENCE:
                raise ValueError(f"counts[{kind!r}]={count} is more than the different prompts of that kind")
            found.setdefault(prompt.id, prompt)
            tries += 1
    return sorted(found.values(), key=lambda prompt: _number("order", str(seed), prompt.id))


def _number(*parts: str) -> int:
    """Return 256 bits that depend on every part: the luck of this file."""
    return int.from_bytes(hashlib.sha256("/".join(parts).encode()).digest(), "big")
