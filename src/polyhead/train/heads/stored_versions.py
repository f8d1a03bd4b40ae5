"""Comparison of two versions of a task by a store's features: no text is encoded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft
from polyhead.data.read import Examples
from polyhead.plan import Path
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.prepare import wanted_of
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.stored import StoredFeatures
from polyhead.train.events import Events
from polyhead.train.heads.inputs import head_outputs
from polyhead.train.record.comparison import Ask, Asked, Outputs


def asked_of_features(source: StoredFeatures) -> Ask:
    """A function that runs versions on a store's features; it raises StoreError for a version that reads others."""

    def outputs(prepared: Prepared, examples: Examples, path: Path, arrays: Mapping[str, np.ndarray]) -> Outputs:
        split = Split(name="validation", examples=examples)
        source.check_kept(prepared.task.name, path)
        source.fill(wanted_of(prepared, split, path, source))
        kept = examples_of(prepared, split, path, source)
        return head_outputs(path, arrays, kept, source.facts.architecture.width)

    def ask(
        bundle: Bundle, prepared: Prepared, draft: Draft, _: Mapping[str, Mapping[str, np.ndarray]], __: Events
    ) -> Asked:
        name = prepared.task.name
        return (
            lambda examples: outputs(prepared, examples, bundle.tasks[name].path, bundle.part(name)),
            lambda examples: outputs(prepared, examples, draft.record.path, draft.arrays),
        )

    return ask
