"""Small networks that ride on a target: they read its last hidden states and draft without a model of their own."""

from specdec_ref.heads.eagle import EagleHead, EagleShape, load_eagle
from specdec_ref.heads.medusa import MedusaHeads, MedusaShape, load_medusa

__all__ = ["EagleHead", "EagleShape", "MedusaHeads", "MedusaShape", "load_eagle", "load_medusa"]
