"""Held-out rows: their outputs are stored in the run's cache, and their profile with the task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.bundle.seen import MOST, Seen
from polyhead.bundle.write import Draft
from polyhead.certify.beside import with_sections
from polyhead.codecs import EXACT, HALF
from polyhead.data.read import Examples
from polyhead.encoder.data import arrays_digest
from polyhead.engine.familiar import LEAST, directions, reads_one_text
from polyhead.engine.session import Session, vector_path
from polyhead.errors import TrainError
from polyhead.evaluate.drift import profile_of
from polyhead.evaluate.held import held_file, held_of
from polyhead.evaluate.profile import ModelView, as_texts, asked, sample, seen_rows, seen_texts
from polyhead.files import make_folder, remove_leftovers, replace_file
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.record.draft import HeldRows
from polyhead.train.runs import cache_folder


def keep_held(
    cache: FilePath, task: str, arrays: Mapping[str, np.ndarray], held: HeldRows, computed: Mapping[str, str]
) -> None:
    """Writes them under the digest of the version's arrays; raises TrainError if the disk refuses."""
    file = held_file(cache, task, arrays_digest(arrays))
    how = {name: computed[name] for name in ("backend", "precision")}
    content = held_of(held.examples, held.outputs, folds=held.folds, computed=how).content()
    cache_folder(cache, file.parent.parent.name, task)
    try:
        make_folder(file.parent, root=cache)
        remove_leftovers(file.parent, of=file.name)
        replace_file(file, content)
    except OSError as error:
        raise TrainError(
            f"task '{task}': answers to rows held out cannot be kept in {file.parent}",
            got=error.strerror or error,
            do="make room, or name another --cache",
        ) from None


SEED = 0  # of sampling the rows


def vectors_wanted(prepared: Prepared, source: FeatureSource) -> list[FeatureRequest]:
    """The mean vectors that `with_seen` will read, so that the pass over the texts computes them too."""
    examples = prepared.validation.examples
    if prepared.folded and prepared.whole is not None:
        examples = prepared.whole
    elif len(examples.inputs) >= LEAST:
        examples = examples.take(_places(examples))
    else:
        return []
    request = _vectors(prepared.task, examples, source)
    return [] if request is None else [request]


def with_seen(draft: Draft, held: HeldRows | None, source: FeatureSource) -> Draft:
    """The draft with the profile of rows that its part was not trained on, at most `bundle.seen.MOST` of them.

    Unchanged if there are too few rows, or if a store that encodes nothing has no mean vectors of their texts.
    """
    task = draft.record.task
    if held is None or len(held.examples.inputs) < LEAST:
        return draft
    places = _places(held.examples)
    taken = held.examples.take(places)
    request = _vectors(task, taken, source)
    if request is None:
        return draft
    source.fill([request])
    features = source.store(request.path).features(request.keys()).take(range(len(places)))
    vectors = directions(features.values[:, 0, 0])
    if held.folds:
        return _with(draft, seen_texts(taken.inputs, vectors))
    outputs = [held.outputs[place] for place in places]
    return _with(draft, seen_rows(task, taken.inputs, ModelView(outputs=outputs, vectors=vectors)))


def with_seen_by(draft: Draft, examples: Examples, session: Session) -> Draft:
    """The same from a session with the task, for rows that it was not trained on."""
    task = draft.record.task
    if len(examples.inputs) < LEAST:
        return draft
    taken = examples.take(_places(examples))
    return _with(draft, seen_rows(task, taken.inputs, asked(session, task.name, taken.inputs, taken.words)))


def _with(draft: Draft, seen: Seen) -> Draft:
    kept = profile_of(draft.record.task, seen)
    assert kept.seen is not None
    return msgspec.structs.replace(draft, seen=kept.seen.content(), card=with_sections(draft.card, kept.card))


def _places(examples: Examples) -> list[int]:
    return sample(len(examples.inputs), MOST, SEED)


def _vectors(task: Task, examples: Examples, source: FeatureSource) -> FeatureRequest | None:
    """Their mean vectors, in a precision without effect on comparisons; None if the source has none of these texts."""
    if not source.encodes and not reads_one_text(task):
        return None  # a store's document is never several texts of a row, read as one
    for codec in (HALF, EXACT):
        path = vector_path(source.facts.digest, source.facts.architecture.layers, codec=codec)
        if source.keeps(path, is_named=True):
            coded = source.coded(path, is_named=True, per="tensor", inputs=list)
            origin = f"task '{task.name}', rows held out"
            return FeatureRequest(path=coded, inputs=as_texts(examples.inputs), origin=origin, rows=examples.rows)
    return None
