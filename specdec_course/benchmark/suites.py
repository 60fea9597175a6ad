"""The prompts of the benchmark: held out from all training, chosen by a seeded rule, kept in `data/suites`.

Each suite has prompts to measure on, and other ones to tune on: a draft length that was chosen on the measured prompts
would flatter whoever has one to choose.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from specdec_ref.pairs import Pair
from specdec_ref.training.prompts import Prompt, all_prompts

FOLDER = Path(__file__).resolve().parents[2] / "data" / "suites"
NAMES = ("chat", "code-edit", "story", "summary")  # each is a kind of prompt
SEED = 0
MEASURED, TUNING = 6, 2  # prompts of each suite

CARD = """# Prompts of the benchmark

{total} prompts, {measured} to measure on and {tuning} to tune on for each of {suites}.
`specdec bench pair` reads them.

- **Text**: composed by `specdec_ref/training/prompts.py` from templates and words written for this course. No outside
  text is in them.
- **Held out**: no training of this course sees them or an answer to them (`Prompt.held_out`). Prompts of the same
  templates, with other words, are in the training text: figures tell how a draft does on new prompts of kinds it knows.
- **Chosen by a rule**: of each kind, the held-out prompts with the smallest SHA-256 of seed {seed}, the kind and the
  prompt's id, in that order; a prompt whose template gave one already is passed over while there are others. Nobody
  looked at answers or speeds.
- **Command**: `specdec bench suites` writes this folder anew; a test holds it to that rule.
- **Licence**: Apache-2.0, as the course.
"""


@dataclass(frozen=True)
class Suite:
    """One kind of task: prompts that are measured, and others that draft lengths are tuned on."""

    name: str
    measured: tuple[Prompt, ...]
    tuning: tuple[Prompt, ...]


def choose(name: str, seed: int = SEED) -> Suite:
    """Choose the prompts of a suite by the rule on its card."""

    def luck(prompt: Prompt) -> str:
        return hashlib.sha256(f"{seed}/{name}/{prompt.id}".encode()).hexdigest()

    candidates = sorted((one for one in all_prompts() if one.kind == name and one.held_out), key=luck)
    first: dict[str, Prompt] = {}
    for prompt in candidates:
        first.setdefault(prompt.text[:20], prompt)  # prompts of one template begin alike
    others = [prompt for prompt in candidates if prompt not in first.values()]
    chosen = [*first.values(), *others][: MEASURED + TUNING]
    return Suite(name, tuple(chosen[:MEASURED]), tuple(chosen[MEASURED:]))


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all suites and their card, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in NAMES:
        suite = choose(name)
        content = {
            "suite": name,
            "seed": SEED,
            "measured": [{"id": prompt.id, "text": prompt.text} for prompt in suite.measured],
            "tuning": [{"id": prompt.id, "text": prompt.text} for prompt in suite.tuning],
        }
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
    card = CARD.format(
        total=len(NAMES) * (MEASURED + TUNING), measured=MEASURED, tuning=TUNING, suites=", ".join(NAMES), seed=SEED
    )
    paths.append(folder / "README.md")
    paths[-1].write_text(card, encoding="utf-8", newline="\n")
    return paths


def load(name: str, folder: Path = FOLDER) -> Suite:
    """Read one suite.

    Raises
    ------
    ValueError
        If there is no such suite, or its file is damaged or holds a prompt that training may have seen.
    """
    if name not in NAMES:
        raise ValueError(f"suite={name!r} is not known; known are {', '.join(NAMES)}, all")
    path = folder / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = [tuple(Prompt(name, entry["text"]) for entry in content[part]) for part in ("measured", "tuning")]
        ids = [entry["id"] for part in ("measured", "tuning") for entry in content[part]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read as a suite ({error}): `specdec bench suites` writes it anew"
        ) from error
    prompts = parts[0] + parts[1]
    wrong = [prompt.id for prompt, id in zip(prompts, ids, strict=True) if prompt.id != id or not prompt.held_out]
    if wrong:
        raise ValueError(f"{path}: prompt {wrong[0]} was changed, or is not held out from training")
    return Suite(name, parts[0], parts[1])


def encode(pair: Pair, prompt: Prompt) -> list[int]:
    """Return the ids the target reads: a chat message for a chat model, else an opening of text to continue."""
    tokenizer = pair.tokenizer
    if tokenizer.chat_template:
        message = [{"role": "user", "content": prompt.text}]
        text = str(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))
        return tokenizer.encode(text, add_special_tokens=False)
    begin: list[int] = [] if tokenizer.bos_token_id is None else [cast(int, tokenizer.bos_token_id)]
    return [*begin, *tokenizer.encode(prompt.text, add_special_tokens=False)]
