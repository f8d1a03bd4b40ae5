"""Outputs for rows that a task did not learn from, kept in the run's cache: `polyhead evaluate` scores them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import numpy as np

from polyhead.encoder.data import arrays_digest
from polyhead.errors import TrainError
from polyhead.evaluate.held import held_file, held_of
from polyhead.files import make_folder, remove_leftovers, replace_file
from polyhead.train.record.draft import HeldRows
from polyhead.train.runs import cache_folder


def keep_held(
    cache: FilePath, task: str, arrays: Mapping[str, np.ndarray], held: HeldRows, computed: Mapping[str, str]
) -> None:
    """Writes them under the digest of the version's arrays; raises TrainError where the disk refuses."""
    file = held_file(cache, task, arrays_digest(arrays))
    how = {name: computed[name] for name in ("backend", "precision")}
    content = held_of(held.examples, held.outputs, folds=held.folds, computed=how).content()
    cache_folder(cache, file.parent.parent.name, task)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        make_folder(file.parent, root=cache)
        remove_leftovers(file.parent, of=file.name)
        replace_file(file, content, root=cache)
    except OSError as error:
        raise TrainError(
            f"task '{task}': answers to rows held out cannot be kept in {file.parent}",
            got=error.strerror or error,
            do="make room, or name another --cache",
        ) from None
