"""Who drafts: one file per method, all behind the same two calls, `propose` and `commit`."""

from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.candidates import CandidatesDrafter
from specdec_ref.drafters.eagle import EagleDrafter
from specdec_ref.drafters.layer_skip import LayerChoice, LayerSkipDrafter
from specdec_ref.drafters.medusa import MedusaDrafter
from specdec_ref.drafters.model import ModelDrafter
from specdec_ref.drafters.ngram import NgramDrafter
from specdec_ref.drafters.other_tokenizer import ReencodingDrafter, SharedTokensDrafter
from specdec_ref.drafters.staged import StagedDrafter

__all__ = [
    "CandidatesDrafter",
    "Draft",
    "Drafter",
    "EagleDrafter",
    "LayerChoice",
    "LayerSkipDrafter",
    "MedusaDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "ReencodingDrafter",
    "SharedTokensDrafter",
    "StagedDrafter",
]
