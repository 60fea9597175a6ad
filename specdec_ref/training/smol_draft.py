"""`smol-draft`: a Llama of width 192 that learns to guess SmolLM2's next token.

Its vocabulary is the target's, 49,152 tokens, so three quarters of it are embedding. That makes the shape: a draft
step reads the output layer once (38 MB in float32) and pays the overhead of each layer, so there are few, wide layers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from specdec_ref import store
from specdec_ref.rows import Stop
from specdec_ref.training import artefact, corpus
from specdec_ref.training.artefact import Card, Shape
from specdec_ref.training.distill import Plan, distill
from specdec_ref.training.held_out import Figures, decode_both, estimate
from specdec_ref.training.tell import Tell

NAME = "smol-draft"


@dataclass(frozen=True)
class Recipe:
    """How the draft is made.

    Attributes
    ----------
    shape, plan, seed : Shape, Plan, int
        Sizes, and how it is trained.
    num_prompts, max_new_tokens : int
        How many held-out prompts are decoded at the end, of how many tokens each.
    begin_with : Path or None
        Folder of a draft of the same shape whose training goes on, on other text perhaps; None begins anew.
    """

    shape: Shape = field(default_factory=lambda: Shape(192, layers=2, heads=3, mlp=2048))
    plan: Plan = field(default_factory=lambda: Plan(epochs=8, num_negatives=4096))
    seed: int = 0
    num_prompts: int = 32
    max_new_tokens: int = 96
    begin_with: Path | None = None


def run(
    recipe: Recipe, *, shards: Path, target_folder: Path, work: Path, out: Path, command: str, tell: Tell
) -> Figures:
    """Train, measure and save the draft; a run that was stopped goes on.

    Parameters
    ----------
    recipe : Recipe
        How.
    shards : Path
        Folder of the teacher text, with laws.
    target_folder : Path
        The converted target: its tokenizer, its embedding, and the final measurement.
    work : Path
        Folder of checkpoint and curve.
    out : Path
        Folder that the model is put into.
    command : str
        For the card.
    tell : Tell
        Told of the progress.

    Returns
    -------
    dict: held-out figures.

    Raises
    ------
    ValueError
        If the text is missing or was written by another target, `work` holds another run, or the draft to begin with
        has another shape.
    """
    text, its_recipe = corpus.load(corpus.shard_paths(shards))
    manifest = store.check_folder(target_folder)
    if its_recipe.get("model_sha256") != manifest["files"]["model.safetensors"]["sha256"]:
        raise ValueError(f"the text in {shards} was not written by the target in {target_folder}: write it anew")
    text = text.take(text.prompt_ids.argsort())  # the same order, however the shards were cut
    learned, held_out = text.take(~text.held_out), text.take(text.held_out)
    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    target = artefact.load(target_folder)
    model = artefact.new_llama(tokenizer, target.vocab_size, recipe.shape, recipe.seed)
    begun = _begin(model, recipe, cast(torch.Tensor, target.model.get_input_embeddings().weight))
    distill(
        model,
        learned,
        held_out,
        recipe.plan,
        work,
        seed=recipe.seed,
        recipe={"shape": asdict(recipe.shape), "target": its_recipe["model_sha256"], "begun": begun},
        tell=tell,
    )
    draft = artefact.round_to_half(model, NAME)
    prompts = [prompt.tolist() for prompt in held_out.prompts()[: recipe.num_prompts]]
    stop = Stop((cast(int, tokenizer.eos_token_id),))
    figures = estimate(model, held_out) | decode_both(target, draft, prompts, stop, recipe.max_new_tokens, tell)
    card = Card(
        what=(
            "A draft model for speculative decoding with SmolLM2-135M-Instruct (the dequantised one that "
            "`specdec models fetch smol` makes). It shares the target's tokenizer and is of no use alone."
        ),
        data=(
            f"{len(learned):,} answers with {len(learned.tokens):,} tokens that the target wrote itself, with its 16 "
            f"likeliest tokens at each (`data/corpus`); {len(held_out):,} other answers are held out."
        ),
        recipe=(
            f"Llama of {recipe.shape} with tied embeddings, begun with {begun}; KL to the target's law plus total "
            f"variation, on answers only; AdamW, cosine; {recipe.plan}."
        ),
        command=command,
        seed=recipe.seed,
        figures=figures,
    )
    artefact.save(model, target_folder, out, card, work / "curve.json")
    return figures


def _begin(model: LlamaForCausalLM, recipe: Recipe, target_embedding: torch.Tensor) -> str:
    """Give the model its first weights, and tell in words what they are."""
    if recipe.begin_with is None:
        first = principal_components(target_embedding, recipe.shape.width)
        with torch.no_grad():
            cast(torch.Tensor, model.get_input_embeddings().weight).copy_(first)
        return f"the {recipe.shape.width} principal components of the target's embedding"
    earlier = artefact.load(recipe.begin_with).model
    ours, theirs = ({name: value.shape for name, value in one.state_dict().items()} for one in (model, earlier))
    if ours != theirs:
        raise ValueError(f"the draft in {recipe.begin_with} is no Llama of {recipe.shape}: it cannot go on as one")
    model.load_state_dict(earlier.state_dict())
    files = store.check_folder(recipe.begin_with)["files"]
    return f"the weights of an earlier draft (SHA-256 {files['model.safetensors']['sha256']})"


def principal_components(embedding: torch.Tensor, width: int) -> torch.Tensor:
    """Return the best `width` numbers for each row of an embedding [V, D], scaled so that first logits are of size 1.

    Dot products between rows, which is what an output layer works with, are kept as well as `width` numbers can.
    """
    embedding = embedding.double()
    directions = torch.linalg.eigh(embedding.T @ embedding).eigenvectors[:, -width:]  # [D, width], largest last
    reduced = (embedding @ directions).flip(1)
    return (reduced / reduced.square().mean().sqrt() / width**0.5).float()
