"""A training run that may be killed at any moment and still ends with the same weights.

Two things make that so. The loss is a pure function of the weights and of the step's number, so there is no state of
luck to keep. And a checkpoint is ONE file, weights, optimiser and history together, put in place by a rename: there is
the old one or the new one, never half of one.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

CHECKPOINT = "checkpoint.safetensors"
CURVE = "curve.json"

Advance = Callable[[int, float], object]  # told the number of steps done and the loss of the last one


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how fast.

    Attributes
    ----------
    steps, warmup_steps : int
        Steps in all. The learning rate rises over the first ones, then falls along half a cosine.
    learning_rate, final_share : float
        Its peak, and what share of the peak is left at the end.
    weight_decay, clip : float
        AdamW's decay (of matrices only), and the largest norm of a gradient.
    save_every, look_every : int
        Steps between two checkpoints (what a kill can cost), and between two looks at the held-out text.
    """

    steps: int
    learning_rate: float = 1.5e-3
    warmup_steps: int = 100
    final_share: float = 0.03
    weight_decay: float = 0.05
    clip: float = 1.0
    save_every: int = 200
    look_every: int = 500

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        low = self.final_share
        return self.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass
class History:
    """What a run has seen so far: kept in the checkpoint, and beside it as `curve.json`.

    Attributes
    ----------
    losses : list of float
        Training loss of each step.
    looks : list of dict
        Held-out figures, each with the number of steps done (`step`).
    """

    losses: list[float] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)


def train(
    model: nn.Module,
    loss_of: Callable[[int], torch.Tensor],
    schedule: Schedule,
    folder: Path,
    recipe: Mapping[str, Any],
    *,
    look: Callable[[], Mapping[str, Any]] | None = None,
    advance: Advance = lambda done, loss: None,
) -> History:
    """Train a model, or go on where an earlier call in this folder was stopped.

    Parameters
    ----------
    model : Module
        Trained in place. A run that goes on takes its weights from the checkpoint.
    loss_of : callable(int) -> Tensor
        The loss of a step, computed with `model`. Depends on nothing but the weights and the number.
    schedule : Schedule
        Steps and learning rates.
    folder : Path
        Of the checkpoint and the curve.
    recipe : mapping
        All that the run depends on, as JSON. A folder belongs to one recipe.
    look : callable() -> mapping, or None
        Measures on held-out text, now and then and at the end.
    advance : callable(int, float)
        Told of each step.

    Returns
    -------
    History

    Raises
    ------
    ValueError
        If the folder belongs to another recipe, its checkpoint is damaged, or the loss is not a number.
    KeyboardInterrupt
        If Ctrl-C or SIGTERM came: the step is ended and a checkpoint written first.
    """
    ours = json.loads(json.dumps({**recipe, "schedule": vars(schedule)}))
    names = [name for name, _ in model.named_parameters()]
    matrices = [name for name, value in model.named_parameters() if value.dim() > 1]
    names = matrices + [name for name in names if name not in matrices]  # the order of the optimiser's groups
    weights = dict(model.named_parameters())
    groups = [
        {"params": [weights[name] for name in matrices], "weight_decay": schedule.weight_decay},
        {"params": [weights[name] for name in names[len(matrices) :]], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    path = folder / CHECKPOINT
    history = _load(path, names, weights, optimizer, ours) if path.exists() else History()
    with _asked_to_stop() as asked:
        for step in range(len(history.losses), schedule.steps):
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(step)
            model.train()
            loss = loss_of(step)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(weights.values(), schedule.clip)
            if not bool(torch.isfinite(norm)):
                raise ValueError(
                    f"step {step}: loss {float(loss.detach())} has no finite gradient: lower the learning rate"
                )
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done, value = step + 1, float(loss.detach())
            history.losses.append(value)
            if look is not None and (done % schedule.look_every == 0 or done == schedule.steps):
                model.eval()
                history.looks.append({"step": done, **look()})
            stopping = bool(asked)
            if done % schedule.save_every == 0 or done == schedule.steps or stopping:
                _save(path, names, weights, optimizer, history, ours)
            advance(done, value)
            if stopping:
                raise KeyboardInterrupt
    model.eval()
    return history


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C and SIGTERM add to, so that a step in the middle of its work is never cut."""
    asked: list[int] = []
    before: dict[int, Any] = {}
    try:
        for kind in (signal.SIGINT, signal.SIGTERM):
            before[kind] = signal.signal(kind, lambda number, _: asked.append(number))
    except ValueError:
        pass  # only the main thread may choose, and only there does a signal arrive
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _save(
    path: Path,
    names: list[str],
    weights: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    history: History,
    recipe: dict[str, Any],
) -> None:
    tensors = {f"weights/{name}": weights[name].detach() for name in names}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{names[index]}/{kind}": value for kind, value in values.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    save_file(tensors, unfinished, metadata={"history": json.dumps(vars(history)), "recipe": json.dumps(recipe)})
    unfinished.replace(path)
    curve = json.dumps({"recipe": recipe, **vars(history)}, indent=1) + "\n"
    (path.parent / CURVE).write_text(curve, encoding="utf-8", newline="\n")


def _load(
    path: Path,
    names: list[str],
    weights: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    recipe: dict[str, Any],
) -> History:
    """Fill weights and optimiser from a checkpoint, and return its history."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            theirs = json.loads(metadata["recipe"])
            if theirs != recipe:
                differing = sorted(key for key in {*theirs, *recipe} if theirs.get(key) != recipe.get(key))
                raise ValueError(
                    f"the folder {path.parent} holds a run made otherwise (another {', '.join(differing)}): "
                    "choose another folder, or delete this one"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise ValueError(f"the checkpoint {path} is damaged ({error}): delete it and start anew") from error
    with torch.no_grad():
        for name in names:
            weights[name].copy_(tensors[f"weights/{name}"])
    state = optimizer.state_dict()
    kinds = ("step", "exp_avg", "exp_avg_sq")
    state["state"] = {
        index: {kind: tensors[f"optimizer/{name}/{kind}"] for kind in kinds} for index, name in enumerate(names)
    }
    optimizer.load_state_dict(state)
    return History(**json.loads(metadata["history"]))
