"""The demonstration: decode one prompt speculatively in sight, then plainly, and put both on one bill."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Drafter
from specdec_ref.measure import Run, predicted_speedup, time_draft_step, time_passes, timed
from specdec_ref.pairs import Pair
from specdec_ref.rows import Round, Stop
from specdec_ref.sampling import SamplingSettings
from specdec_ref.text import TextStream

DEFAULT_PROMPT = """Add a method `transfer` to this class and write out the whole class.

```python
class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
```"""
OPENING = "Once upon a time there was a"  # for models that write stories and know no questions

# What a token was, and how it is shown: (colour, mark before, mark after). Marks serve those who see no colour.
STYLES = {
    "accepted": ("green", "", ""),
    "correction": ("bold yellow underline", "[", "]"),
    "bonus": ("bold cyan", "{", "}"),
    "plain": ("none", "", ""),
}
LEGEND = {
    "accepted": "accepted draft tokens",
    "correction": "the target's correction of a refused draft token",
    "bonus": "bonus token after a fully accepted draft",
    "plain": "tokens of rounds without a draft",
}


@dataclass(frozen=True)
class Request:
    """What the demo decodes. `batch` copies of the prompt are decoded together; the first is shown."""

    prompt: str
    num_draft_tokens: int
    settings: SamplingSettings
    max_new_tokens: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse what cannot be decoded before any model is loaded."""
        if not self.prompt:
            raise ValueError("prompt is empty: give the model something to answer")
        if self.num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens={self.num_draft_tokens} (--k) must be >= 0")
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be >= 0")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} must be at least 1")


def token_kinds(result: Round, row: int) -> Iterator[tuple[int, str]]:
    """Yield each new token of a row with what it was: accepted, correction, bonus or plain."""
    accepted, drafted = result.num_accepted[row], result.num_drafted[row]
    for place, token in enumerate(result.tokens[row]):
        if place < accepted:
            yield token, "accepted"
        else:
            yield token, "plain" if drafted == 0 else "bonus" if accepted == drafted else "correction"


def run_demo(
    pair: Pair,
    drafter: Drafter,
    request: Request,
    show: Callable[[Round], None],
    finish: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode speculatively, then plainly, and return the figures of the demo.

    `show` is called after each speculative round and `finish` after the last, before any progress bar is drawn: a bar
    wipes the line it is on.

    Figures that this run does not determine are None: the text of a sampled run need not equal that of another, and
    nothing is known about acceptance where nothing was drafted.
    """
    target = pair.target
    prompts = [encode_prompt(pair, request.prompt)] * request.batch
    stop = Stop(token_ids=pair.eos_token_ids)
    common: dict[str, Any] = {"stop": stop, "seeds": request.seed}
    count = request.num_draft_tokens

    def speculative(max_new_tokens: int) -> Iterator[Round]:
        return speculate(
            target, drafter, prompts, request.settings, num_draft_tokens=count, max_new_tokens=max_new_tokens, **common
        )

    def plain(max_new_tokens: int) -> Iterator[Round]:
        return generate(target, prompts, request.settings, max_new_tokens=max_new_tokens, **common)

    for warm_up in (speculative(4), plain(4)):
        for _ in warm_up:
            pass
    fast, slow = Run(), Run()
    for result in timed(speculative(request.max_new_tokens), fast, target.device):
        show(result)
    finish()
    with progress() as bar:
        task = bar.add_task("the same with plain decoding", total=request.max_new_tokens)
        for _ in timed(plain(request.max_new_tokens), slow, target.device):
            bar.advance(task)

    lengths = sorted({1, count // 2 + 1, count + 1})
    with progress() as bar:
        bar.add_task("timing single passes", total=None)
        passes = time_passes(target, lengths, context=len(prompts[0]), batch_size=request.batch)
        draft_s = time_draft_step(drafter, target, prompts, count, request.settings) if count else None
    return figures(pair, request, len(prompts[0]), fast, slow, passes, draft_s)


def figures(
    pair: Pair,
    request: Request,
    prompt_tokens: int,
    fast: Run,
    slow: Run,
    passes: dict[int, float],
    draft_s: float | None,
) -> dict[str, Any]:
    """Put the numbers of both runs together. Unknown values are None."""
    count = request.num_draft_tokens
    speeds = fast.tokens_per_s, slow.tokens_per_s
    return {
        "pair": pair.name,
        "device": str(pair.target.device),
        "dtype": pair.dtype,
        "batch": request.batch,
        "temperature": request.settings.temperature,
        "seed": request.seed,
        "prompt_tokens": prompt_tokens,
        "new_tokens": fast.new_tokens,
        "num_draft_tokens": count,
        "rounds": len([result for result in fast.rounds if any(result.tokens)]),
        "drafted": fast.drafted,
        "accepted": fast.accepted,
        "emitted_per_round": fast.emitted_per_round,
        "acceptance_rate": fast.acceptance_rate,
        "alpha": fast.alpha,
        "text_equal": collect(fast.rounds) == collect(slow.rounds) if request.settings.greedy else None,
        "plain_tokens_per_s": speeds[1],
        "spec_tokens_per_s": speeds[0],
        "speedup": speeds[0] / speeds[1] if speeds[0] and speeds[1] else None,
        "target_step_ms": passes[1] * 1e3,
        "verify_ms": passes[count + 1] * 1e3,
        "draft_step_ms": None if draft_s is None else draft_s * 1e3,
        "predicted_speedup": predicted_speedup(fast, passes, draft_s or 0.0),
    }


def encode_prompt(pair: Pair, prompt: str) -> list[int]:
    """Return the prompt's token ids, as a chat message where the model is a chat model."""
    if pair.tokenizer.chat_template:
        message = [{"role": "user", "content": prompt}]
        prompt = cast(str, pair.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))
        return pair.tokenizer.encode(prompt, add_special_tokens=False)
    return pair.tokenizer.encode(prompt)


def progress() -> Progress:
    """A progress bar on stderr that leaves no trace when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


class Painter:
    """Prints a row's text as it grows: colours on a terminal, marks where colour is unwanted, plain text in a pipe."""

    def __init__(self, pair: Pair, console: Console) -> None:
        self.console, self.stream = console, TextStream(pair.tokenizer)
        self.started = False

    def legend(self) -> None:
        """Say what the colours and marks mean; nothing in a pipe."""
        if self.console.is_terminal:
            for kind, meaning in LEGEND.items():
                self._print(meaning, kind)
                self.console.print()

    def show(self, result: Round) -> None:
        """Print the first row's new text; before the first of it, the legend."""
        if not self.started:
            self.legend()
            self.started = True
        for token, kind in token_kinds(result, 0):
            self._print(self.stream.push(token), kind)

    def finish(self) -> None:
        """Print what was held back, and end the line."""
        self._print(self.stream.finish(), "plain")
        self.console.print()

    def _print(self, piece: str, kind: str) -> None:
        if not piece:
            return
        colour, before, after = STYLES[kind]
        if not self.console.is_terminal:
            before = after = ""
        if self.console.is_terminal and not self.console.no_color:
            self.console.print(Text(piece, style=colour), end="", soft_wrap=True, highlight=False)
        else:
            self.console.file.write(before + piece + after)
        self.console.file.flush()


def report(numbers: dict[str, Any], drafter: str) -> Table:
    """Return the small table under the text."""

    def show(key: str, form: str) -> str:
        return "unknown" if numbers[key] is None else format(numbers[key], form)

    where = f"{numbers['pair']}, {numbers['dtype']} on {numbers['device']}"
    title = f"{where}, drafter {drafter}, K = {numbers['num_draft_tokens']}"
    table = Table("", "plain", "speculative", title=title, title_justify="left")
    table.add_row("tokens per second", show("plain_tokens_per_s", ".1f"), show("spec_tokens_per_s", ".1f"))
    table.add_row("new tokens", "", show("new_tokens", "d"))
    table.add_row("rounds", "", show("rounds", "d"))
    table.add_row("tokens emitted per round", "1", show("emitted_per_round", ".2f"))
    table.add_row("accepted of drafted", "", f"{numbers['accepted']} of {numbers['drafted']}")
    table.add_row("acceptance alpha (accepted of judged)", "", show("alpha", ".2f"))
    table.add_row("target pass, milliseconds", show("target_step_ms", ".0f"), show("verify_ms", ".0f"))
    table.add_row("draft token, milliseconds", "", show("draft_step_ms", ".2f"))
    table.add_row("speedup predicted from this bill", "", show("predicted_speedup", ".2f"))
    table.add_row("speedup measured", "", show("speedup", ".2f"))
    return table


def verdict(numbers: dict[str, Any]) -> str:
    """Say in one sentence whether the two texts agree, and in one whether speculation paid."""
    equal = {
        True: "Both texts are equal, token for token.",
        False: "The texts differ: two logits were nearly equal somewhere, and the two block lengths round differently.",
        None: "Sampled texts of two runs need not be equal; their distribution is.",
    }[numbers["text_equal"]]
    gain = numbers["speedup"]
    if gain is None:
        return equal + " The run was too short to measure a speed."
    if gain > 1:
        return equal + " Speculation was faster here."
    return equal + " Speculation was slower here: its drafts did not repay the bill."


def stdout_console() -> Console:
    """The console the demo writes to; NO_COLOR is honoured by rich."""
    return Console(file=sys.stdout, highlight=False)
