"""Choose the draft length while decoding: from the acceptance this very text shows, and the times of this machine.

A drafter may always propose fewer tokens than it is asked for, so this is a drafter around a drafter, and the rules of
acceptance stay untouched. The choice looks only at rounds that are over: exactness does not depend on it.

Everything learnt belongs to one call. A text full of surprises leaves no mark on the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.economics import best_num_draft_tokens
from specdec_ref.measure import interpolate

if TYPE_CHECKING:
    import torch

    from specdec_ref.acceptance import Verification
    from specdec_ref.model import CachedLM
    from specdec_ref.rows import Rows

PRIOR_WEIGHT = 8  # the first guess of alpha counts like so many judged tokens
MEMORY = 0.95  # what a round keeps of older counts: the acceptance of a text changes along the way
PROBE_EVERY = 8  # where not drafting is best, one token is drafted this often, to notice a change


class AdaptiveDrafter(Drafter):
    """Let `drafter` propose the number of tokens that promises the largest speedup, for each row by itself.

    Parameters
    ----------
    drafter : Drafter
        Who proposes, in chains: the counts of a tree say little about alpha.
    pass_seconds : dict of int to float
        Seconds of a target pass by block length.
    draft_step_s : float
        Seconds per draft token.
    alpha : float
        First guess of the acceptance, before anything was judged.
    max_draft_tokens : int
        Longest draft considered; `num_draft_tokens` of `speculate` caps it as well.
    """

    def __init__(
        self,
        drafter: Drafter,
        pass_seconds: dict[int, float],
        draft_step_s: float,
        *,
        alpha: float = 0.6,
        max_draft_tokens: int = 12,
    ) -> None:
        step = interpolate(pass_seconds, 1)
        self.drafter, self.alpha, self.max_draft_tokens = drafter, alpha, max_draft_tokens
        self.wants_features = drafter.wants_features
        self.draft_cost = draft_step_s / step
        self.verify_costs = [interpolate(pass_seconds, 1 + count) / step for count in range(max_draft_tokens + 1)]
        self.accepted: list[float] = []  # of each row, older rounds counting less
        self.judged: list[float] = []
        self.rounds: list[int] = []
        self.drafted: list[int] = []

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy that has seen nothing."""
        other = super().fresh(target, rows)
        other.drafter = self.drafter.fresh(target, rows)
        other.accepted = [self.alpha * PRIOR_WEIGHT] * len(rows)
        other.judged = [float(PRIOR_WEIGHT)] * len(rows)
        other.rounds, other.drafted = [0] * len(rows), [0] * len(rows)
        return other

    def num_draft_tokens(self, row: int) -> int:
        """Return the best draft length for a row, by the acceptance it has shown."""
        alpha = self.accepted[row] / self.judged[row]
        best = int(best_num_draft_tokens(alpha, self.draft_cost, self.verify_costs, self.max_draft_tokens))
        return best or int(self.rounds[row] % PROBE_EVERY == 0)

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Ask for the best number of tokens for each row, within `limits`."""
        draft = self.drafter.propose(rows, [min(limit, self.num_draft_tokens(b)) for b, limit in enumerate(limits)])
        self.drafted = draft.counts.tolist()
        return draft

    def commit(self, verification: Verification) -> None:
        """Count what was accepted of what was judged, and pass the verdict on."""
        self.drafter.commit(verification)
        for row, (drafted, accepted) in enumerate(zip(self.drafted, verification.num_accepted.tolist(), strict=True)):
            self.rounds[row] += 1
            if drafted:
                self.accepted[row] = MEMORY * self.accepted[row] + accepted
                self.judged[row] = MEMORY * self.judged[row] + accepted + (accepted < drafted)

    def take_features(self, features: torch.Tensor, counts: torch.Tensor) -> None:
        """Pass the target's features on."""
        self.drafter.take_features(features, counts)

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows."""
        self.drafter.select(keep)
        for name in ("accepted", "judged", "rounds", "drafted"):
            setattr(self, name, [getattr(self, name)[row] for row in keep])
