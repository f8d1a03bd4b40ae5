"""Arrays of a trunk under the names of a checkpoint, and back."""

import numpy as np

from polyhead.encoder.names import places_of, trunk_names


def to_hugging_face(arrays, family):
    """The arrays under the names of the bare `transformers` encoder, those that it fuses joined."""
    found = {}
    for name, place in places_of(arrays, family).items():
        found.setdefault(place.name, {})[place.part] = arrays[name]
    return {
        name: np.concatenate([parts[i] for i in range(len(parts))]) if len(parts) > 1 else parts[0]
        for name, parts in found.items()
    }


def from_hugging_face(arrays, family):
    """The trunk's arrays among those of a checkpoint, by our names; fused ones are split."""
    places = trunk_names(arrays, family)
    return {ours: arrays[at.name][slice(*at.bounds(len(arrays[at.name])))] for ours, at in places.items()}
