"""The families of encoders, one self-contained file each; a file that is added here is found."""

from __future__ import annotations

import importlib
import pkgutil

from polyhead.encoder.families.base import (
    ACTIVATIONS,
    FAMILIES,
    ClassifierForm,
    EncoderConfig,
    EncoderFamily,
    family_of,
    register_encoder_family,
)

__all__ = [
    "ACTIVATIONS",
    "FAMILIES",
    "ClassifierForm",
    "EncoderFamily",
    "EncoderConfig",
    "family_of",
    "register_encoder_family",
]

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    if _module != "base":
        importlib.import_module(f"{__name__}.{_module}")
