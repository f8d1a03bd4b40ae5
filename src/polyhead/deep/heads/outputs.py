"""Outputs of heads that are not linear, from their arrays and kept features."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from polyhead.deep.examples import FeatureExamples, module_outputs
from polyhead.deep.nn.runtime import single_thread
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Path
from polyhead.train.data.kept import KeptExamples


def part_outputs(path: Path, arrays: Mapping[str, np.ndarray], examples: KeptExamples, width: int) -> list[np.ndarray]:
    """The outputs of the part with these arrays for every example, in order; `width` is the encoder's."""
    part = PooledPart(path, width)
    part.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    with single_thread():
        return module_outputs(part.eval(), FeatureExamples(examples))
