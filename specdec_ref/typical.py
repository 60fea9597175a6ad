"""Typical acceptance, which is LOSSY: the text no longer follows the target's law.

Exact rules accept a draft token as often as the target would have said it. This one accepts every token that the target
finds likely enough, measured by how sure the target is at that place:

    accept x  if  p(x) > min(epsilon, delta * exp(-H(p)))

H is the entropy of p. Where the target is sure, only its favourite passes; where it is not, anything of some weight
does. More is accepted and likely tokens get likelier still: sampled text is drawn from another law, and its errors do
not show. At temperature 0 p is a point mass and only its token passes, so greedy text stays the target's own.

It is off unless asked for. The test of exactness fails on it, as it must.

Source
------
Cai et al. 2024, "Medusa" (arXiv 2401.10774), section 2.3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specdec_ref import trees
from specdec_ref.acceptance import Verification
from specdec_ref.device import upload
from specdec_ref.sampling import draw


@dataclass(frozen=True)
class Typical:
    """The two thresholds; both in 0..1.

    Attributes
    ----------
    epsilon : float
        A token with more probability than this always passes.
    delta : float
        What passes where the target is unsure: more than `delta * exp(-H)`.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        """Refuse thresholds that are no probabilities."""
        for name, value in vars(self).items():
            if not 0 <= value < 1:
                raise ValueError(f"{name}={value} must be in 0 <= {name} < 1")

    def threshold(self, probs: torch.Tensor) -> torch.Tensor:
        """Return what a token must exceed under each law: [...] for probs [..., V]."""
        entropy = -torch.special.xlogy(probs, probs).sum(-1)
        return (self.delta * (-entropy).exp()).clamp(max=self.epsilon)

    def verify(
        self,
        target_probs: torch.Tensor,
        draft_tokens: torch.Tensor,
        parents: torch.Tensor,
        uniforms: torch.Tensor,
        num_drafted: torch.Tensor,
    ) -> Verification:
        """Judge a tree: keep the longest path of typical tokens, then draw one token more from the target.

        Parameters
        ----------
        target_probs, draft_tokens, parents, num_drafted
            As in `verify_tree`.
        uniforms : Tensor [B] in [0, 1)
            Draws `next_token`.

        Returns
        -------
        Verification of num_accepted [B], next_token [B] and path [B, D]. Of equally long paths the first wins.
        """
        batch, count = draft_tokens.shape
        device, depth = draft_tokens.device, trees.depths(parents)
        if count == 0:
            nothing = torch.zeros(batch, 0, dtype=torch.int64, device=device)
            return Verification(nothing.sum(1), draw(target_probs[:, 0], uniforms), nothing)
        deepest = int(depth.max())
        before, depth = upload(trees.ancestors(parents)[:, 1:], device).bool(), upload(depth, device)
        law = target_probs.gather(1, upload(parents + 1, device)[..., None].expand(-1, -1, target_probs.shape[-1]))
        p = law.gather(-1, draft_tokens[..., None]).squeeze(-1)  # [B, N]: of each node, after its parent
        passes = (p > self.threshold(law)) & (torch.arange(count, device=device) < num_drafted[:, None])
        reached = (passes[:, None] | ~before).all(-1)  # [B, N]: it passes, and so do all nodes before it
        length = reached * depth  # [B, N]
        num_accepted = length.amax(1)
        place = length.argmax(1)  # the deepest such node; argmax takes the first of equals

        rows, some = torch.arange(batch, device=device), num_accepted > 0
        on_path = before[rows, place] & some[:, None]  # [B, N]
        order = torch.where(on_path, torch.arange(count, device=device), count).sort(1).values[:, :deepest]
        next_token = draw(target_probs[rows, torch.where(some, place + 1, 0)], uniforms)
        return Verification(num_accepted, next_token, torch.where(order < count, order, 0))
