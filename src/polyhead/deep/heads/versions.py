"""Two versions of a task asked with features of a store: no text is encoded to compare them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft
from polyhead.data.read import Examples
from polyhead.deep.examples import module_outputs
from polyhead.deep.features import examples_of
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Path
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.stored import StoredFeatures
from polyhead.train.data.wanted import wanted_of
from polyhead.train.events import Events
from polyhead.train.record.compared import Asked, Outputs


class AskedOfFeatures:
    """Outputs of versions whose features a store keeps; raises StoreError for a version that reads others."""

    def __init__(self, source: StoredFeatures) -> None:
        self._source = source

    def __call__(
        self,
        bundle: Bundle,
        prepared: Prepared,
        draft: Draft,
        others: Mapping[str, Mapping[str, np.ndarray]],
        _: Events,
    ) -> Asked:
        """What the live version and the new one put out."""
        name = prepared.task.name

        def live(examples: Examples) -> Outputs:
            return self._outputs(prepared, examples, bundle.record(name).path, bundle.part(name))

        def new(examples: Examples) -> Outputs:
            return self._outputs(prepared, examples, draft.record.path, draft.arrays)

        return live, new

    def _outputs(self, prepared: Prepared, examples: Examples, path: Path, arrays: Mapping[str, np.ndarray]) -> Outputs:
        source, split = self._source, Split(name="validation", examples=examples)
        source.check_kept(prepared.task.name, path)
        source.fill(wanted_of(prepared, split, path, source))
        part = PooledPart(path, source.facts.architecture.width)
        part.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in arrays.items()})
        return module_outputs(part.eval(), examples_of(prepared, split, path, source))
