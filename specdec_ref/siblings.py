"""Several candidates for one place, sampled: if the first is refused, the second may still pass.

A tree of sampled tokens says more than a chain, and the rule for it is the rule of a chain, said again and again. A
node's children are judged in order. The first is judged by p and q, as ever. If it is refused, what is missing of p is
max(0, p - q), scaled; and that is the law that the NEXT child has to complete, since the first has had its turn:

    judge child 1 by p and q1        refused:  p becomes residual(p, q1)
    judge child 2 by that and q2     refused:  p becomes residual(p, q2)
    ...                              all refused: the next token is drawn from what is left of p

Each q is the law that child was really drawn from, given its elder siblings. Children drawn without replacement never
repeat one another, so q2 is q1 without the first child, scaled.

Source
------
Yang et al. 2024, "Multi-candidate speculative decoding" (arXiv 2401.06706); Jeon et al. 2024, "Recursive speculative
decoding" (arXiv 2402.14160); Chen et al. 2024, "Sequoia" (arXiv 2402.12374). The rule for siblings that are drawn
independently is SpecInfer's (Miao et al. 2024, arXiv 2305.09781).
"""

from __future__ import annotations

import torch

from specdec_ref import trees
from specdec_ref.acceptance import Verification, accept_probability, residual
from specdec_ref.device import upload
from specdec_ref.sampling import draw


def draw_siblings(law: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw tokens one after the other without replacement.

    Parameters
    ----------
    law : Tensor [..., V]
        Of the first.
    uniforms : Tensor [..., C] in [0, 1)
        One number for each; C is at most V.

    Returns
    -------
    Tokens [..., C], all different, and the law each was drawn from, [..., C, V]. Where the law has fewer tokens than C,
    the others are all alike: something has to be proposed, and the law that is handed in says how.
    """
    tokens, laws = [], []
    left = torch.ones_like(law)
    for number in range(uniforms.shape[-1]):
        some = law * left
        total = some.sum(-1, keepdim=True)
        law = torch.where(total > 0, some / total, left / left.sum(-1, keepdim=True))
        tokens.append(draw(law, uniforms[..., number]))
        laws.append(law)
        left = left.scatter(-1, tokens[-1][..., None], 0.0)
    return torch.stack(tokens, -1), torch.stack(laws, -2)


def verify_siblings(
    target_probs: torch.Tensor,
    draft_tokens: torch.Tensor,
    parents: torch.Tensor,
    draft_probs: torch.Tensor,
    accept_uniforms: torch.Tensor,
    correct_uniforms: torch.Tensor,
    num_drafted: torch.Tensor | None = None,
    *,
    check: bool = True,
) -> Verification:
    """Judge a tree of sampled tokens: siblings in order, until one passes or all are refused.

    Parameters
    ----------
    target_probs : Tensor [B, N+1, V]
        Row 0 is the target's law after the text, row i+1 its law after node i.
    draft_tokens : Tensor [B, N] int64
        The nodes.
    parents : Tensor [B, N] int64 on the host
        The parent of each node: -1 for a child of the text, else an earlier node. Of two siblings the earlier node was
        drawn first.
    draft_probs : Tensor [B, N, V]
        The law each node was drawn from, given its parent and its elder siblings.
    accept_uniforms : Tensor [B, N] in [0, 1)
        One number for each node, used if that node is judged.
    correct_uniforms : Tensor [B] in [0, 1)
        Draws `next_token`.
    num_drafted : Tensor [B] int64, or None
        How many nodes each row really has; later ones are padding. None: all N.
    check : bool
        Raise for bad probabilities. The decoder turns this off and checks once a round.

    Returns
    -------
    Verification of num_accepted [B], next_token [B] and path [B, D].

    Raises
    ------
    ValueError
        If shapes do not fit, a parent does not come before its child, a probability is NaN, or a node has q = 0 (it
        cannot have been drawn from q).
    """
    batch, count = draft_tokens.shape
    device, vocab = draft_tokens.device, target_probs.shape[-1]
    depth = trees.depths(parents)
    if num_drafted is None:
        num_drafted = torch.full((batch,), count, device=device)
    wanted = {
        "target_probs": (target_probs, (batch, count + 1, vocab)),
        "parents": (parents, (batch, count)),
        "draft_probs": (draft_probs, (batch, count, vocab)),
        "accept_uniforms": (accept_uniforms, (batch, count)),
        "correct_uniforms": (correct_uniforms, (batch,)),
        "num_drafted": (num_drafted, (batch,)),
    }
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; {batch} trees of {count} nodes need {shape}")
    drafted = torch.arange(count, device=device) < num_drafted[:, None]  # [B, N]
    q = draft_probs.gather(-1, draft_tokens[..., None]).squeeze(-1)  # [B, N]: of each node
    impossible = drafted & ~((q > 0) & ~draft_probs.isnan().any(-1))  # [B, N]
    if check and bool(target_probs.isnan().any() | impossible.any()):
        raise ValueError(
            "target_probs or draft_probs holds NaN, or draft_probs gives a node probability 0: not drawn from that law"
        )

    rows = torch.arange(batch, device=device)
    hung, level = upload(parents, device), upload(depth, device)
    deepest = int(depth.max()) if depth.numel() else 0
    path = torch.zeros(batch, deepest, dtype=torch.int64, device=device)
    place = torch.full((batch,), -1, device=device)  # the node each row has come to; -1 is the text
    num_accepted = torch.zeros(batch, dtype=torch.int64, device=device)
    p = target_probs[:, 0]  # [B, V]: what the next token has to follow, siblings that were refused seen to
    for node in range(count):  # siblings come in order, and children after their parents: one way through serves all
        judged = drafted[:, node] & (hung[:, node] == place)
        p_node = p[rows, draft_tokens[:, node]]
        passes = judged & (accept_uniforms[:, node] < accept_probability(p_node, q[:, node]))
        left = residual(p, draft_probs[:, node].to(p.dtype), check=False)
        p = torch.where(passes[:, None], target_probs[:, node + 1], torch.where(judged[:, None], left, p))
        place = torch.where(passes, node, place)
        num_accepted = num_accepted + passes
        at = (level[:, node] - 1)[:, None]
        path = path.scatter(1, at, torch.where(passes[:, None], node, path.gather(1, at)))
    return Verification(num_accepted, draw(p, correct_uniforms), path)
