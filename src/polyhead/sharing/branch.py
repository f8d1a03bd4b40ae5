"""Parts of branches (Wei et al. 2021): private layers in the place of the trunk's, a pooler and a head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from polyhead.errors import PlanError
from polyhead.sharing.part import Part


class BranchPart(Part):
    """What a branch owns: layers in the place of the trunk's, a pooler where asked for, and a head."""

    def start_from(self, arrays: Mapping[str, np.ndarray], *, head: bool = False) -> None:
        """Takes the private layers' weights from arrays of a trunk or a longer branch, and with `head` the rest too.

        Of a longer branch it takes the bottommost layers (Wei et al. 2021), as they carry the same indices.
        """
        own = self.state_dict()
        wanted = [name for name in own if head or name.startswith("layers.")]
        missing = [name for name in wanted if name not in arrays or arrays[name].shape != own[name].shape]
        if missing:
            raise PlanError("a branch cannot start from these weights", got=f"none that fit for {missing[:3]}")
        self.load_state_dict({**own, **{name: torch.tensor(np.asarray(arrays[name])) for name in wanted}})
