"""`specdec train`: the recipes that made the weights in `models/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make the training text and train the draft models.", no_args_is_help=True)


@app.callback()
def _train() -> None:
    """Keep `corpus` a sub-command even while it is the only one."""


@app.command()
def corpus(
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens of answers the folder shall hold.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Answers written side by side.")] = 48,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    out: Annotated[Path | None, typer.Option(help="Folder of the wide record. Default: `corpus` in the cache.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")] = None,
    seed: Annotated[int, typer.Option(help="Which prompts are composed, and in which order.")] = 0,
    dtype: Annotated[str, typer.Option(help="Of the arithmetic: float32 or bfloat16.")] = "float32",
    part: Annotated[
        str, typer.Option(help="I/N: be the I-th of N programs at work on one folder, each on prompts of its own.")
    ] = "1/1",
    shard_tokens: Annotated[int, typer.Option(min=1, help="A shard is written each time so many are ready.")] = 20_000,
    export: Annotated[bool, typer.Option("--export", help="Only gather the ids into the repository.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the wide record again from those ids.")] = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add to those ids: their prompts are not asked again, their tokens count.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the ids. Default: data/corpus in the repository.")
    ] = None,
) -> None:
    """Let SmolLM2 answer several thousand prompts, and keep its words and its 16 likeliest tokens at each of them.

    Takes hours. Stop it at any time: the same command goes on where the last shard ended.
    """
    from specdec_course.errors import CourseError
    from specdec_course.teacher import TeacherText, stop_gently
    from specdec_ref import store

    if export and rebuild:
        raise CourseError("--export writes the ids that --rebuild reads: ask for one of them")
    if dtype not in ("float32", "bfloat16"):
        raise CourseError(f"--dtype {dtype}: choose float32 or bfloat16")
    share = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    if share is None or int(share[1]) > int(share[2]):
        raise CourseError(f"--part {part}: write 1/2 and 2/2 for two programs")
    work = TeacherText(
        shards_folder=out or store.home() / "corpus",
        ids_folder=data or Path(__file__).parents[2] / "data" / "corpus",
        batch_size=batch,
        max_new_tokens=max_new_tokens,
        tokens_per_shard=shard_tokens,
        seed=seed,
        threads=threads,
        dtype=dtype,
        part=int(share[1]) - 1,
        parts=int(share[2]),
        extend=extend,
    )
    stop_gently()
    try:
        if export:
            for path in work.export():
                typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
        elif rebuild:
            work.rebuild()
        else:
            work.write(tokens)
    except ValueError as error:
        raise CourseError(str(error)) from error


Shards = Annotated[Path | None, typer.Option(help="Folder of the teacher text. Default: `corpus` in the cache.")]
Work = Annotated[Path | None, typer.Option(help="Folder of checkpoints. Default: one in the cache.")]
Out = Annotated[Path | None, typer.Option(help="Folder that receives the models. Default: models in the repository.")]
Epochs = Annotated[float, typer.Option(min=0, help="How often each text is read.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")]
Seed = Annotated[int, typer.Option(min=0, help="Of weights, order and luck.")]


@app.command(name="smol-draft")
def smol_draft(
    epochs: Epochs = 8,
    layers: Annotated[int, typer.Option(min=1, help="Layers: each costs time in every draft step.")] = 2,
    width: Annotated[int, typer.Option(min=1, help="Width: 49,152 rows of so many numbers are the embedding.")] = 192,
    mlp: Annotated[int, typer.Option(min=1, help="Width of the MLPs.")] = 2048,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Answers in a batch.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Its peak.")] = 1.5e-3,
    tv_weight: Annotated[float, typer.Option(min=0, help="Share of the total variation in the loss.")] = 1.0,
    negatives: Annotated[
        int, typer.Option(min=0, help="Ids that stand for the rest of the vocabulary; 0 sums over all of it.")
    ] = 4096,
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the activations that is dropped.")] = 0.0,
    begin_with: Annotated[
        Path | None, typer.Option(help="Folder of a draft of this shape, whose training goes on.")
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 200,
    look_every: Annotated[int, typer.Option(min=1, help="Steps between looks at held-out text.")] = 500,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts that are decoded at the end.")] = 32,
    seed: Seed = 0,
    threads: Threads = None,
    shards: Shards = None,
    work: Work = None,
    out: Out = None,
) -> None:
    """Distil SmolLM2 into a draft of about 12 million parameters, from the text of `specdec train corpus`.

    Takes hours. Stop it at any time: the same command goes on from the last checkpoint.
    """
    from specdec_course.training_runs import command_line, running, show
    from specdec_ref import store
    from specdec_ref.training import smol_draft as recipes
    from specdec_ref.training.artefact import Shape
    from specdec_ref.training.distill import Plan

    plan = Plan(
        epochs,
        batch_size=batch,
        learning_rate=learning_rate,
        tv_weight=tv_weight,
        num_negatives=negatives,
        dropout=dropout,
        save_every=save_every,
        look_every=look_every,
    )
    folder = (out or Path(__file__).parents[2] / "models") / recipes.NAME
    with running(threads) as bars:
        figures = recipes.run(
            recipes.Recipe(Shape(width, layers, heads, mlp), plan, seed, num_prompts=prompts, begin_with=begin_with),
            shards=shards or store.home() / "corpus",
            target_folder=store.smol_folder(),
            work=work or store.home() / "training" / recipes.NAME,
            out=folder,
            command=command_line(),
            tell=bars.tell,
        )
    show(recipes.NAME, figures, folder)


@app.command()
def tiny(
    epochs: Annotated[float | None, typer.Option(min=0, help="For every model. Default: each its own.")] = None,
    stories: Annotated[int, typer.Option(min=1, help="Stories that tiny-target learns to write from.")] = 30_000,
    texts: Annotated[int, typer.Option(min=1, help="Texts that each model writes for the next smaller one.")] = 10_000,
    vocabulary: Annotated[int, typer.Option(min=258, help="Tokens of the family's tokenizer.")] = 2048,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out openings that are decoded at the end.")] = 64,
    seed: Seed = 0,
    threads: Threads = None,
    work: Work = None,
    out: Out = None,
) -> None:
    """Train the tiny family, tokenizer included: tiny-target on stories, the smaller two by distillation.

    Takes an hour. Stop it at any time: the same command goes on from the last checkpoint.
    """
    from dataclasses import replace

    from specdec_course.training_runs import command_line, running, show
    from specdec_ref import store
    from specdec_ref.training import tiny as recipes

    students = recipes.Recipe().students
    if epochs is not None:
        students = tuple(replace(one, plan=replace(one.plan, epochs=epochs)) for one in students)
    recipe = recipes.Recipe(students, vocabulary, stories, num_texts=texts, seed=seed, num_prompts=prompts)
    folder = out or Path(__file__).parents[2] / "models"
    with running(threads) as bars:
        place = recipes.Place(work or store.home() / "training" / "tiny", folder, command_line(), bars.tell)
        figures = recipes.run(recipe, place)
    for name, values in figures.items():
        show(name, values, folder / name)


Target = Annotated[str, typer.Option(help="Whose head: smol or tiny.")]
Features = Annotated[Path | None, typer.Option(help="Folder of the target's hidden states. Default: in the cache.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Tokens of answers to learn from. Default: all.")]
LookTokens = Annotated[int, typer.Option(min=1, help="Tokens of held-out answers to measure on.")]
Batch = Annotated[int, typer.Option(min=1, help="Answers in a batch.")]
SaveEvery = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")]
LookEvery = Annotated[int, typer.Option(min=1, help="Steps between looks at held-out text.")]
Dtype = Annotated[str, typer.Option(help="Of the matrix products: bfloat16 or float32.")]


@app.command()
def eagle(
    target: Target = "smol",
    epochs: Epochs = 3,
    tokens: Tokens = None,
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="Tokens it can draft. Default: 8000, tiny 1536.")
    ] = None,
    mlp: Annotated[int | None, typer.Option(min=1, help="Width of its MLP. Default: 1152, tiny 128.")] = None,
    passes: Annotated[int, typer.Option(min=1, help="Draft tokens that training unrolls.")] = 3,
    batch: Batch = 8,
    learning_rate: Annotated[float, typer.Option(help="Its peak.")] = 1e-3,
    tv_weight: Annotated[float, typer.Option(min=0, help="Share of the total variation in the loss.")] = 1.0,
    feature_weight: Annotated[float, typer.Option(min=0, help="Share of the distance between features.")] = 0.1,
    look_tokens: LookTokens = 20_000,
    save_every: SaveEvery = 200,
    look_every: LookEvery = 500,
    dtype: Dtype = "bfloat16",
    seed: Seed = 0,
    threads: Threads = None,
    shards: Shards = None,
    features: Features = None,
    work: Work = None,
    out: Out = None,
) -> None:
    """Train an EAGLE head: one decoder layer that drafts from the target's own hidden states.

    Stop it at any time: the same command goes on from the last checkpoint.
    """
    from specdec_course.training_runs import head_place, running, show
    from specdec_ref.training.eagle import EaglePlan
    from specdec_ref.training.heads import run_eagle

    plan = EaglePlan(
        epochs,
        batch_size=batch,
        learning_rate=learning_rate,
        num_passes=passes,
        tv_weight=tv_weight,
        feature_weight=feature_weight,
        dtype=dtype,
        save_every=save_every,
        look_every=look_every,
    )
    with running(threads) as bars:
        place = head_place("eagle", target, dtype, shards, features, work, out, bars.tell)
        figures = run_eagle(
            place,
            plan,
            vocabulary=vocabulary or (8000 if target == "smol" else 1536),
            mlp=mlp or (1152 if target == "smol" else 128),
            kv_heads=None if target == "smol" else 1,  # so that both tiny heads stay small
            tokens=tokens,
            look_tokens=look_tokens,
            seed=seed,
        )
    show(place.out.name, figures, place.out)


@app.command()
def medusa(
    target: Target = "smol",
    epochs: Epochs = 2,
    tokens: Tokens = None,
    heads: Annotated[int | None, typer.Option(min=1, help="How many. Default: 4, tiny 3.")] = None,
    batch: Batch = 4,
    learning_rate: Annotated[float, typer.Option(help="Its peak.")] = 1e-3,
    negatives: Annotated[
        int, typer.Option(min=0, help="Ids that stand for the rest of the vocabulary; 0 sums over all of it.")
    ] = 2048,
    look_tokens: LookTokens = 20_000,
    save_every: SaveEvery = 200,
    look_every: LookEvery = 500,
    dtype: Dtype = "bfloat16",
    seed: Seed = 0,
    threads: Threads = None,
    shards: Shards = None,
    features: Features = None,
    work: Work = None,
    out: Out = None,
) -> None:
    """Train Medusa heads: several guesses further ahead from one hidden state of the target.

    Stop it at any time: the same command goes on from the last checkpoint.
    """
    from specdec_course.training_runs import head_place, running, show
    from specdec_ref.training.heads import run_medusa
    from specdec_ref.training.medusa import MedusaPlan

    plan = MedusaPlan(
        epochs,
        batch_size=batch,
        learning_rate=learning_rate,
        num_negatives=negatives,
        dtype=dtype,
        save_every=save_every,
        look_every=look_every,
    )
    with running(threads) as bars:
        place = head_place("medusa", target, dtype, shards, features, work, out, bars.tell)
        count = heads or (4 if target == "smol" else 3)
        figures = run_medusa(place, plan, heads=count, tokens=tokens, look_tokens=look_tokens, seed=seed)
    show(place.out.name, figures, place.out)


@app.command(name="layer-skip")
def layer_skip(
    target: Target = "smol",
    texts: Annotated[int, typer.Option(min=1, help="Texts to search on.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 48,
    num_draft_tokens: Annotated[int, typer.Option(min=1, help="The longest draft that is considered.")] = 4,
    verify_cost: Annotated[float, typer.Option(min=1, help="A target pass over a draft, in plain steps.")] = 1.1,
    patience: Annotated[int, typer.Option(min=1, help="End after so many removals that found nothing better.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    threads: Threads = None,
    work: Work = None,
    out: Out = None,
) -> None:
    """Find the layers that a target can draft with by itself. No training: a search on texts that it writes.

    Stop it at any time: the same command goes on from its journal.
    """
    from transformers import AutoTokenizer

    from specdec_course.errors import CourseError
    from specdec_course.teacher import chat
    from specdec_course.training_runs import command_line, running, show
    from specdec_ref import store
    from specdec_ref.training.layer_recipe import run
    from specdec_ref.training.layer_skip import SkipPlan
    from specdec_ref.training.prompts import all_prompts

    if target not in ("smol", "tiny"):
        raise CourseError(f"--target {target}: choose smol or tiny")
    models = out or Path(__file__).parents[2] / "models"
    folder, prompts = store.trained_folder("tiny-target"), None
    with running(threads) as bars:
        if target == "smol":
            folder = store.smol_folder()
            store.check_sizes(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            sides = [[one for one in all_prompts(seed) if one.held_out == side][:texts] for side in (False, True)]
            prompts = ([chat(tokenizer, one) for one in sides[0]], [chat(tokenizer, one) for one in sides[1]])
        figures = run(
            folder,
            SkipPlan(tokens, num_draft_tokens, verify_cost, patience),
            prompts=prompts,
            count=texts,
            seed=seed,
            work=work or store.home() / "training" / f"{target}-layer-skip",
            out=models / f"{target}-layer-skip",
            command=command_line(),
            tell=bars.tell,
        )
    show(f"{target}-layer-skip", figures, models / f"{target}-layer-skip")
