"""A trunk and parts: runs a plan with gradients, and gives the values that a store keeps."""

from polyhead.model.model import Model
from polyhead.model.values import Pooled, TextBatch, coded, stored_value

__all__ = ["Model", "Pooled", "TextBatch", "coded", "stored_value"]
