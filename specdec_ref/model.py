"""A transformers language model on a `RowCache`: blocks of tokens in, one row of logits per token out.

Everything a pass needs follows from the row lengths. A token at offset t of the block sits at position `length + t`,
and sees the slots up to its own. For a tree, its position is its depth, and it sees its ancestors instead of all
earlier nodes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from transformers import PretrainedConfig, PreTrainedModel

from specdec_ref import trees
from specdec_ref.cache import RowCache
from specdec_ref.device import upload

PREFILL_BLOCK = 512  # tokens of a prompt per pass: bounds the memory of long prompts


class CachedLM:
    """A causal language model with a cache of its own.

    Parameters
    ----------
    model : PreTrainedModel
        Any full-attention causal LM of transformers that takes position ids (Llama, Qwen, GPT-2, NeoX, OPT, ...).
    vocab_size : int or None
        How many ids are real. Models often pad their vocabulary; logits of the padding are cut off. None: all.
    name : str
        How to call the model in messages.

    Raises
    ------
    ValueError
        If the model cannot run on a `RowCache`: it is recurrent, uses a sliding window or ALiBi, or fails the
        self-test.
    """

    def __init__(self, model: PreTrainedModel, *, vocab_size: int | None = None, name: str = "") -> None:
        self.model = model.eval()
        self.name = name or type(model).__name__
        self.device = model.device
        width = int(model.config.get_text_config().vocab_size)
        if vocab_size is not None and not 0 < vocab_size <= width:
            raise ValueError(f"vocab_size={vocab_size} of {self.name} must lie in 1..{width}, the width of its output")
        self.vocab_size = vocab_size or width
        self.max_length = _context(model.config.get_text_config())
        self._arguments = set(inspect.signature(model.forward).parameters)
        # Both spellings are in use: `cache` since transformers 5.24, `past_key_values` before.
        self._cache_argument = "cache" if "cache" in self._arguments else "past_key_values"
        self.cache = RowCache(0, self.device)
        refuse_unsuitable(self)

    def fresh(self, batch_size: int) -> CachedLM:
        """Return the same weights with an empty cache of `batch_size` rows. No text is shared between the two."""
        other = copy.copy(self)
        other.cache = RowCache(batch_size, self.device)
        return other

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read ragged texts into the cache without asking for logits. A text may be empty."""
        for tokens, counts in prompt_blocks(prompts):
            self.extend(upload(tokens, self.device), counts, last_only=True)

    def prefill_with_features(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read texts as `prefill` does, and return their features, [B, T, D]; T is the longest text's length."""
        blocks = [
            self.extend_with_features(upload(tokens, self.device), counts, last_only=True)[1]
            for tokens, counts in prompt_blocks(prompts)
        ]
        if not blocks:
            return torch.zeros(len(prompts), 0, self.feature_width, dtype=self.model.dtype, device=self.device)
        return torch.cat(blocks, dim=1)

    @torch.inference_mode()
    def extend(
        self,
        tokens: torch.Tensor,
        counts: torch.Tensor | None = None,
        *,
        parents: torch.Tensor | None = None,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Run one pass over a block of new tokens and add them to the cache.

        Parameters
        ----------
        tokens : Tensor [B, T] int64
            The block, right-padded.
        counts : Tensor [B] int64 on the host, or None
            How many tokens of each row are real. Padding leaves no trace in the cache. None: all T.
        parents : Tensor [B, N] int64 on the host, or None
            The block is a tree: `parents[b, i] < i` is node i's parent, -1 for a child of the text so far. N may be
            more than T: then the block holds the last T nodes, and passes before it have put the others in the cache.
        last_only : bool
            Return the logits of the last column alone, [B, 1, V]: a prompt of 500 tokens needs no 500 rows.

        Returns
        -------
        Tensor [B, T, V] of logits over the real vocabulary; row t is the law of the token after `tokens[:, t]`.
        """
        return self._pass(tokens, counts, parents, last_only)[0]

    @torch.inference_mode()
    def extend_with_features(
        self,
        tokens: torch.Tensor,
        counts: torch.Tensor | None = None,
        *,
        parents: torch.Tensor | None = None,
        last_only: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a pass as `extend` does, and return its features too: [B, T, D] for every token, `last_only` or not.

        A feature is the last hidden state after the final norm: what the output layer reads.
        """
        logits, features = self._pass(tokens, counts, parents, last_only, features=True)
        assert features is not None
        return logits, features

    @property
    def feature_width(self) -> int:
        """D, the width of the features; 0 for a model that has none."""
        return int(getattr(self.model.config.get_text_config(), "hidden_size", 0))

    def _pass(
        self,
        tokens: torch.Tensor,
        counts: torch.Tensor | None,
        parents: torch.Tensor | None,
        last_only: bool,
        features: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        length = tokens.shape[1]
        nodes = length if parents is None else parents.shape[1]
        if parents is not None and (len(parents) != len(tokens) or nodes < length):
            raise ValueError(
                f"parents has shape {tuple(parents.shape)}; tokens are {tuple(tokens.shape)}: one for each, at least"
            )
        offsets, sees = block_shape(len(tokens), nodes, parents)
        text = self.cache.lengths - (nodes - length)  # [B], without nodes of the same tree
        mask = attention_mask(text, sees[:, nodes - length :], self.model.dtype, self.device)
        output = self.run(tokens, text[:, None] + offsets[:, nodes - length :], mask, last_only, features)
        self.cache.advance(length if counts is None else counts)
        return output

    @torch.inference_mode()
    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        last_only: bool = False,
        features: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run a block [B, T] with positions [B or 1, T] on the host and a mask [B, 1, T, S], and return its logits.

        Keys and values go to the slots behind each row's text, and stay out of it until `cache.advance`.
        """
        self.cache.begin_pass(tokens.shape[1])
        # Padding may point past the model's last position; its logits are never read, so any valid position will do.
        positions = positions.clamp(max=self.max_length - 1)
        arguments: dict[str, Any] = {
            "input_ids": tokens,
            "position_ids": upload(positions, self.device),
            "attention_mask": mask,
            self._cache_argument: self.cache,
            "use_cache": True,
        }
        if last_only and "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = 1
        if features:
            arguments["output_hidden_states"] = True
        output = self.model(**arguments)
        logits = output.logits[..., -1:, : self.vocab_size] if last_only else output.logits[..., : self.vocab_size]
        return logits, output.hidden_states[-1] if features else None

    def rollback(self, counts: torch.Tensor | Sequence[int]) -> None:
        """Forget the last `counts` [B] tokens of each row."""
        self.cache.rollback(counts)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        self.cache.select(rows)


def attention_mask(lengths: torch.Tensor, sees: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the additive attention mask [B, 1, T, S]: 0 where a query may look, the lowest number elsewhere.

    Parameters
    ----------
    lengths : Tensor [B] on the host
        Tokens of each row in the cache, before the block.
    sees : Tensor [B or 1, T, N] on the host
        Which tokens of the block each token of the block looks at; see `block_shape`. N may be more than T: columns for
        nodes of the same tree that came before this block stand first.
    dtype, device
        Of the mask.
    """
    batch, length, nodes = len(lengths), *sees.shape[1:]
    slots = int(lengths.max()) + nodes
    offset = torch.arange(slots, device=device) - upload(lengths, device)[:, None, None]  # [B, 1, S]: within the block
    in_block = upload(sees, device).bool().expand(batch, -1, -1)
    in_block = in_block.gather(2, offset.clamp(0, nodes - 1).expand(-1, length, -1))  # [B, T, S]
    visible = (offset < 0) | (in_block & (offset < nodes))
    return torch.zeros((), dtype=dtype, device=device).masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def prompt_blocks(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut ragged texts into blocks of `PREFILL_BLOCK` tokens: each block right-padded [B, T], with its counts [B]."""
    longest = max(map(len, prompts), default=0)
    for start in range(0, longest, PREFILL_BLOCK):
        yield pad([prompt[start : start + PREFILL_BLOCK] for prompt in prompts])


def _context(config: PretrainedConfig) -> int:
    """Return the longest text a model reads with positions that keep their meaning."""
    longest = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        # Past the original length these turn the keys of a pass by other angles, for all its rows if one is long: keys
        # in the cache no longer fit, and a row's text would depend on its batch.
        longest = min(longest, int(rope.get("original_max_position_embeddings") or longest))
    return longest


def block_shape(batch: int, length: int, parents: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return depths in the block from 0, [B or 1, T], and which of its tokens each token sees, [B or 1, T, T].

    Raises
    ------
    ValueError
        If a parent does not come before its child.
    """
    if parents is None:
        return torch.arange(length)[None], torch.ones(length, length).tril().bool()[None]
    parents = parents.expand(batch, length)  # one tree may serve all rows
    return trees.depths(parents) - 1, trees.ancestors(parents)[:, 1:]


def pad(rows: Sequence[Sequence[int]], value: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ragged rows as one right-padded tensor [B, T], and their lengths [B]. Both on the host."""
    counts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    width = max((len(row) for row in rows), default=0)
    padded = [list(row) + [value] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int64).view(len(rows), width), counts


def refuse_unsuitable(lm: CachedLM) -> None:
    """Refuse a model that a `RowCache` cannot serve: first by what its config says, then by a short self-test.

    The test reads two short texts without any cache, and again through ragged rows, a tree and a rollback. Equal logits
    mean that positions, masks, slots and rollback all mean the same to this model as they do to us.

    Raises
    ------
    ValueError
        Names the model and the reason.
    """
    reason = _unsuitable_config(lm)
    if reason is None:
        try:
            difference = _self_test(lm)
        except Exception as error:  # a foreign model may fail in any way; whatever it is, name the model
            reason = f"the self-test stopped with {type(error).__name__}: {error}"
        else:
            allowed = 0.1 if _rounds(lm.model) else 1e-3
            if not difference <= allowed:
                reason = f"cached logits differ from uncached ones by {difference:.2g} of their size"
    if reason is not None:
        raise ValueError(f"model {lm.name!r} cannot be used here: {reason}")


def _rounds(model: PreTrainedModel) -> bool:
    """Tell whether a model computes in less than float32; with 8-bit weights a layer rounds its inputs, and says so."""
    layers = cast(torch.nn.Module, model).modules()
    return model.dtype not in (torch.float32, torch.float64) or any(
        getattr(layer, "rounds_inputs", False) for layer in layers
    )


def _unsuitable_config(lm: CachedLM) -> str | None:
    config = lm.model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {"full_attention"}:
        return f"it has layers of type {', '.join(sorted(kinds - {'full_attention'}))}; full attention is needed"
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"it attends within a sliding window of {config.sliding_window} tokens; full attention is needed"
    if "local" in getattr(config, "attention_layers", []):
        return f"it attends within a local window of {config.window_size} tokens; full attention is needed"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "it uses ALiBi, which counts distances between cache slots; position ids are needed"
    if lm._cache_argument not in lm._arguments or "position_ids" not in lm._arguments:
        return "it is recurrent, or takes no position ids; full attention over a key-value cache is needed"
    return None


@torch.inference_mode()
def _self_test(lm: CachedLM) -> float:
    """Return the largest difference between cached and uncached logits, as a share of the largest logit."""
    a, b, c, d = (token % lm.vocab_size for token in (3, 11, 7, 5))
    plain = lm.model(input_ids=upload([[a, b, c], [a, b, d]], lm.device), use_cache=False).logits
    plain = plain[..., : lm.vocab_size].float()  # [2, 3, V]: the texts a b c and a b d

    test = lm.fresh(2)
    test.prefill([[a], [a, b]])
    forest = torch.tensor([[-1, 0, 0], [-1, 0, 0]])  # row 0: b, then c or d. Row 1: d, and padding
    tree = test.extend(upload([[b, c, d], [d, a, a]], lm.device), torch.tensor([3, 1]), parents=forest)
    test.rollback([2, 0])  # row 0 is a b again, with c and d left as junk behind it
    step = test.extend(upload([[d], [a]], lm.device), torch.tensor([1, 0]))

    pairs = ((tree[0, 0], plain[0, 1]), (tree[0, 1], plain[0, 2]), (tree[0, 2], plain[1, 2]))
    pairs += ((tree[1, 0], plain[1, 2]), (step[0, 0], plain[1, 2]))
    ours, theirs = (torch.stack(side).float() for side in zip(*pairs, strict=True))
    # Equal is equal, also where both are -inf (a token the model never says) or all are 0.
    difference = torch.where(ours == theirs, 0.0, (ours - theirs).abs()).max()
    size = torch.where(theirs.isfinite(), theirs, 0.0).abs().max()
    return float(difference / size.clamp(min=torch.finfo(size.dtype).tiny))
