"""The recipes of both heads, from the target's text to a folder with a card."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import torch
from transformers import LlamaForCausalLM

from specdec_ref import store
from specdec_ref.heads.eagle import EagleHead, EagleShape
from specdec_ref.heads.medusa import MedusaHeads, MedusaShape
from specdec_ref.training import eagle, medusa
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.eagle import EaglePlan
from specdec_ref.training.features import FeatureBatches
from specdec_ref.training.ground import Place, prepare, save, some, teach
from specdec_ref.training.held_out import Figures
from specdec_ref.training.medusa import MedusaPlan
from specdec_ref.training.rounds import draft_hits, tokens_per_round


def run_eagle(
    place: Place,
    plan: EaglePlan,
    *,
    mlp: int,
    vocabulary: int,
    heads: int | None = None,
    kv_heads: int | None = None,
    tokens: int | None = None,
    look_tokens: int | None = 20_000,
    seed: int = 0,
) -> Figures:
    """Train, measure and save an EAGLE head; a run that was stopped goes on.

    Parameters
    ----------
    place, plan
        Where and how.
    mlp, vocabulary : int
        Width of its MLP, and tokens it can draft.
    heads, kv_heads : int or None
        Of its attention. None: as many as the target has.
    tokens, look_tokens : int or None
        Tokens of answers that are learned from, and that the held-out figures are measured on; None: all.
    seed : int
        Of weights and order.

    Returns
    -------
    dict: held-out figures.
    """
    ground = prepare(place, tokens=tokens, look_tokens=look_tokens, dtype=plan.dtype)
    config = ground.target.config
    learned = ground.learned.corpus
    usable = min(vocabulary, len(np.unique(learned.tokens)))
    shape = EagleShape(
        width=config.hidden_size,
        target_vocab=config.vocab_size,
        draft_vocab=usable,
        heads=heads or config.num_attention_heads,
        kv_heads=kv_heads or config.num_key_value_heads,
        mlp=mlp,
        rope_theta=float((config.rope_parameters or {}).get("rope_theta", 10_000.0)),
    )
    with torch.random.fork_rng(devices=[]):  # the caller's luck is left alone
        torch.manual_seed(seed)
        head = EagleHead(shape)
    head.draft_to_target.copy_(eagle.draft_vocabulary(learned, usable, config.vocab_size))
    head.borrow(ground.target)
    with torch.no_grad():  # its features shall be of the size of the target's from the first step on
        head.norm.weight.copy_(cast(torch.Tensor, ground.target.base_model.get_parameter("norm.weight")))
    back = eagle.inverse(head.draft_to_target, config.vocab_size)
    batches = FeatureBatches(learned, ground.learned.features, plan.batch_size, seed)
    look = some(ground.held_out, plan.look_at)
    teach(
        head,
        lambda step: eagle.loss(head, batches[step], back, plan),
        lambda: eagle.estimate(head, look.corpus, look.features),
        len(batches),
        plan,
        place,
        ground,
        seed,
    )
    figures = eagle.estimate(head, ground.held_out.corpus, ground.held_out.features)
    figures |= _beside(place.draft, ground.held_out.corpus)
    save(
        head,
        "eagle",
        place,
        ground,
        what=(
            f"An EAGLE head for {ground.owner.name}: one decoder layer that predicts the target's next feature from "
            f"its last one and the next token, and drafts {usable:,} of its {config.vocab_size:,} tokens."
        ),
        recipe=(
            f"{shape}; KL to the target's law plus total variation plus smooth L1 to its features, over "
            f"{plan.num_passes} unrolled draft tokens; AdamW, cosine; {plan}."
        ),
        seed=seed,
        figures=figures,
    )
    return figures


def run_medusa(
    place: Place,
    plan: MedusaPlan,
    *,
    heads: int = 4,
    tokens: int | None = None,
    look_tokens: int | None = 20_000,
    seed: int = 0,
) -> Figures:
    """Train, measure and save Medusa heads; a run that was stopped goes on. Arguments as in `run_eagle`."""
    ground = prepare(place, tokens=tokens, look_tokens=look_tokens, dtype=plan.dtype)
    shape = MedusaShape(ground.target.config.hidden_size, ground.target.config.vocab_size, heads)
    module = MedusaHeads(shape)
    module.borrow(ground.target)
    batches = FeatureBatches(ground.learned.corpus, ground.learned.features, plan.batch_size, seed)
    look = some(ground.held_out, plan.look_at)
    teach(
        module,
        lambda step: medusa.loss(module, batches[step], plan, (seed << 32) + step),
        lambda: medusa.estimate(module, look.corpus, look.features),
        len(batches),
        plan,
        place,
        ground,
        seed,
    )
    figures = medusa.estimate(module, ground.held_out.corpus, ground.held_out.features)
    save(
        module,
        "medusa",
        place,
        ground,
        what=(
            f"{heads} Medusa heads for {ground.owner.name}: head k guesses the token k places after the next one, "
            "through the target's own output layer."
        ),
        recipe=f"{shape}; KL to the target's law further on, {plan.num_negatives} negatives; AdamW, cosine; {plan}.",
        seed=seed,
        figures=figures,
    )
    return figures


def _beside(draft: Path | None, held_out: Corpus, num_draft_tokens: int = 4) -> Figures:
    """Return tokens per round of a draft model on the same greedy texts, where there is such a model."""
    if draft is None or not draft.is_dir():
        return {}
    store.check_folder(draft)
    model = LlamaForCausalLM.from_pretrained(draft, dtype=torch.float32, use_safetensors=True)
    hits = draft_hits(model.eval(), held_out.take(held_out.temperatures == 0), num_draft_tokens)
    return {
        f"for comparison, {draft.name}: alpha_greedy": eagle.conditional(hits, 1),
        f"for comparison, {draft.name}: tokens per round, K={num_draft_tokens}, greedy": tokens_per_round(hits),
    }
