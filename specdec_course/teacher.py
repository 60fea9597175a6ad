"""What `specdec train corpus` does: the target answers prompts for hours, with a progress bar, and may be stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from specdec_course.corpus_card import card
from specdec_ref import kernels, store
from specdec_ref.model import CachedLM
from specdec_ref.training import corpus
from specdec_ref.training.answering import TOP, Pass, Question, answer_all, laws
from specdec_ref.training.features import plan_passes, text_lengths
from specdec_ref.training.prompts import Prompt, all_prompts

T = TypeVar("T")


@dataclass(frozen=True)
class TeacherText:
    """One set of choices for the teacher text: the options of `specdec train corpus`.

    Attributes
    ----------
    shards_folder : Path
        The wide record: ids and laws.
    ids_folder : Path
        The narrow record: ids alone, in the repository.
    batch_size, max_new_tokens, tokens_per_shard : int
        Answers written side by side, the longest answer, and how much work a kill can cost.
    seed : int
        Which prompts are composed, and in which order.
    threads : int or None
        Threads of torch; None leaves them as they are.
    dtype : str
        Of the target's arithmetic: "bfloat16" is several times as fast where the processor has matrix units for it.
    extend : bool
        Go on from the ids in the repository: their prompts are not asked again, their tokens count towards the goal,
        and `export` keeps them.
    part, parts : int
        With `parts` programs at work on one folder, each answers every `parts`-th prompt, from `part` on (counted from
        0), and writes its share of the tokens.
    """

    shards_folder: Path
    ids_folder: Path
    batch_size: int = 48
    max_new_tokens: int = 256
    tokens_per_shard: int = 20_000
    seed: int = 0
    threads: int | None = None
    dtype: str = "float32"
    part: int = 0
    parts: int = 1
    extend: bool = False

    def write(self, num_tokens: int) -> None:
        """Answer prompts until there are `num_tokens` tokens of answers, or every prompt is answered."""
        shards = self._open_shards()
        answered = set(shards.finished)
        if self.extend:
            ids, _ = corpus.load(self._ids_paths())
            elsewhere = ~np.isin(ids.prompt_ids, list(shards.finished))
            answered |= set(ids.prompt_ids.tolist())
            num_tokens -= int(ids.lengths[elsewhere].sum())
        num_tokens = -(-max(num_tokens, 0) // self.parts)  # the share of this program
        lm, tokenizer = load_target(self.threads, self.dtype)
        ours = all_prompts(self.seed)[self.part :: self.parts]
        new = [prompt for prompt in ours if prompt.id not in answered]
        with Meter(shards.num_tokens, num_tokens) as meter:
            meter.say(f"{len(answered):,} answers are there, {len(new):,} prompts are left")
            questions = (Question(prompt, chat(tokenizer, prompt)) for prompt in new)
            passes = answer_all(
                lm,
                until(questions, lambda: meter.done >= num_tokens),
                batch_size=self.batch_size,
                max_new_tokens=self.max_new_tokens,
                eos_token_ids=(cast(int, tokenizer.eos_token_id),),
            )
            for written in corpus.collect(meter.count(passes), shards, self.tokens_per_shard):
                meter.say(f"{len(shards.finished):,} answers, {written:,} tokens in {self.shards_folder}")

    def rebuild(self) -> None:
        """Make the shards from the ids in the repository: the target reads each answer and gives its laws anew.

        Several programs may share this work too: each reads every `parts`-th answer.

        Raises
        ------
        ValueError
            If the ids are not there, or another model wrote them.
        """
        ids, recipe = corpus.load(self._ids_paths())
        shards = self._open_shards(recipe)
        lm, _ = load_target(self.threads, self.dtype)
        ids = ids.take(range(self.part, len(ids), self.parts))
        left = ids.take(~np.isin(ids.prompt_ids, list(shards.finished)))
        with Meter(shards.num_tokens, len(ids.tokens)) as meter:
            for piece in left.pieces(self.tokens_per_shard):
                prompts = [prompt.tolist() for prompt in piece.prompts()]
                answers = [answer.tolist() for answer in piece.answers()]
                found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
                for rows in plan_passes(text_lengths(piece)):
                    found |= zip(rows, laws(lm, [prompts[i] for i in rows], [answers[i] for i in rows]), strict=True)
                    meter.add(sum(len(answers[i]) for i in rows))
                shards.append(piece.with_laws([found[row] for row in range(len(piece))]))
                meter.say(f"{len(shards.finished):,} answers, {shards.num_tokens:,} tokens in {self.shards_folder}")

    def export(self) -> list[Path]:
        """Gather the ids of all shards into the repository, with a data card, and return the files."""
        kept = self._ids_paths() if self.extend else []
        train, held_out, recipe = corpus.split([*corpus.shard_paths(self.shards_folder), *kept])
        paths = [self.ids_folder / name for name in ("train.npz", "held-out.npz", "README.md")]
        train.save(paths[0], recipe)
        held_out.save(paths[1], recipe)
        paths[2].write_text(card(train, held_out, recipe, self.seed), encoding="utf-8", newline="\n")
        return paths

    def _ids_paths(self) -> list[Path]:
        return sorted(self.ids_folder.glob("*.npz"))

    def _open_shards(self, recipe: dict[str, object] | None = None) -> corpus.Shards:
        """Open the folder of shards for the target that is here; `recipe` is what the target must be."""
        manifest = store.check_folder(store.smol_folder())
        ours = {
            "model_sha256": manifest["files"]["model.safetensors"]["sha256"],
            "max_new_tokens": self.max_new_tokens,
            "top": TOP,
            "dtype": self.dtype,
        }
        if recipe is not None and recipe["model_sha256"] != ours["model_sha256"]:
            raise ValueError(f"another model than the one in {store.smol_folder()} wrote the ids in {self.ids_folder}")
        return corpus.Shards(self.shards_folder, recipe or ours, self.part, self.parts)


def stop_gently() -> None:
    """Let a request to end (SIGTERM) do what Ctrl-C does: what is finished is written first."""
    with suppress(ValueError):  # only the main thread may choose, and only there does a signal arrive
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def load_target(threads: int | None = None, dtype: str = "float32") -> tuple[CachedLM, PreTrainedTokenizerBase]:
    """Load SmolLM2 on the CPU, and its tokenizer.

    With bfloat16 the output layer alone stays in float32: of 8 bits, logits between 16 and 32 would lie 0.125 apart,
    and the likeliest token would often be a tie.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    folder = store.smol_folder()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), use_safetensors=True)
    if dtype != "float32":
        head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False)
        head.weight = torch.nn.Parameter(model.lm_head.weight.detach().float())  # a copy: the embedding stays as it is
        head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
        model.lm_head = head
    else:
        kernels.prepare(model, dtype)
    return CachedLM(model, name="SmolLM2-135M-Instruct"), AutoTokenizer.from_pretrained(folder)


def chat(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[int, ...]:
    """Return the ids that the target reads: the chat template with its default system line, and the prompt."""
    message = [{"role": "user", "content": prompt.text}]
    encoding = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
    return tuple(cast(dict[str, list[int]], encoding)["input_ids"])


def until(items: Iterable[T], enough: Callable[[], bool]) -> Iterator[T]:
    """Yield items until there is enough."""
    for item in items:
        if enough():
            return
        yield item


class Meter:
    """A progress bar on stderr that counts tokens as they are written, and tells tokens per second and the time left.

    Parameters
    ----------
    already, goal : int
        Tokens that were there before, and that there shall be.
    """

    def __init__(self, already: int, goal: int) -> None:
        self.done = already
        self._already, self._goal, self._began = already, goal, time.monotonic()
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens, {task.fields[rate]:.0f} tokens/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=600,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("teacher text", total=goal, completed=already, rate=0.0)

    def __enter__(self) -> Meter:
        """Show the bar."""
        self._began = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    @property
    def rate(self) -> float:
        """Tokens per second since the bar was shown."""
        return (self.done - self._already) / max(time.monotonic() - self._began, 1e-9)

    def count(self, passes: Iterable[Pass]) -> Iterator[Pass]:
        """Hand the passes on, and count their tokens."""
        for one in passes:
            self.add(one.num_tokens)
            yield one

    def add(self, num_tokens: int) -> None:
        """Count tokens."""
        self.done += num_tokens
        self._bar.update(self._task, completed=self.done, rate=self.rate)

    def say(self, what: str) -> None:
        """Print a line above the bar: the time, what has happened, the rate, and the time that is left."""
        line = f"{time.strftime('%H:%M')} {what}"
        if self.done > self._already:
            hours = max(self._goal - self.done, 0) / self.rate / 3600
            line += f"; {self.rate:.1f} tokens/s, about {hours:.1f} h left"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
