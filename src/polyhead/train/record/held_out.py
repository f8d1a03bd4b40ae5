"""Held-out rows: their outputs are stored in the run's cache, and their profile with the task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import MOST, RowProfile, centre_distances
from polyhead.bundle.write import Draft
from polyhead.certify.annotations import with_sections
from polyhead.codecs import EXACT, HALF
from polyhead.data.read import Examples
from polyhead.encoder.data import arrays_digest
from polyhead.engine.familiar import LEAST, directions, reads_one_text
from polyhead.engine.session import Session, vector_path
from polyhead.errors import PolyheadError, TrainError
from polyhead.evaluate.drift import profile_of
from polyhead.evaluate.held_out import HeldOutAnswers, encode_held_out, held_out_file, read_held_out
from polyhead.evaluate.profile import ModelView, as_texts, asked, profile_rows, profile_texts, sample
from polyhead.files import make_folder, remove_leftovers, replace_file
from polyhead.plan import Path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.record.draft import HeldOutRows, Trained
from polyhead.train.runs import cache_folder


def held_out_answers(
    task: Task, held: HeldOutRows, computed: Mapping[str, str], learned: Examples | None = None
) -> HeldOutAnswers:
    """Held-out rows and their outputs in the form that is stored; `learned` are the rows that the part learned from."""
    how = {name: computed[name] for name in ("backend", "precision")}
    return encode_held_out(held.examples, held.outputs, task=task, folds=held.folds, computed=how, learned=learned)


def new_answers(prepared: Prepared, trained: Trained, computed: Mapping[str, str]) -> HeldOutAnswers | None:
    """A trained part's outputs for held-out rows; None if no rows were held out."""
    learned = prepared.whole if trained.refitted and prepared.whole is not None else prepared.train.examples
    return None if trained.held is None else held_out_answers(prepared.task, trained.held, computed, learned)


def live_answers(cache: FilePath, bundle: Bundle, task: str) -> HeldOutAnswers | None:
    """The live version's stored outputs for held-out rows; None if the cache does not have them."""
    try:
        return read_held_out(held_out_file(cache, task, bundle.record(task).arrays))
    except PolyheadError:
        return None


def write_held_out(cache: FilePath, task: str, arrays: Mapping[str, np.ndarray], held: HeldOutAnswers) -> None:
    """Writes outputs under the digest of the version's arrays; raises TrainError if the file cannot be written."""
    file, content = held_out_file(cache, task, arrays_digest(arrays)), held.content()
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
# Training rows that centres are means of, in all, and at least so many of each label. On clinc150's out-of-scope rows
# the area under the ROC curve is 0.956 with them and 0.960 with all 15,000 rows (docs/project/log.md, 2026-11-28).
LEARNED, OF_LABEL = 2048, 8
AT_ONCE = 256  # rows whose tokens are read at a time


def vectors_wanted(prepared: Prepared, source: FeatureSource) -> list[FeatureRequest]:
    """The mean vectors that `with_profile` will read, so that the pass over the texts computes them too."""
    examples = prepared.validation.examples
    if prepared.folded and prepared.whole is not None:
        examples = prepared.whole
    elif len(examples.inputs) >= LEAST:
        examples = examples.take(_places(examples))
    else:
        return []
    requests = [_vectors(prepared.task, rows, source) for rows in (examples, _learned(prepared)) if rows is not None]
    return [request for request in requests if request is not None]


def with_profile(draft: Draft, held: HeldOutRows | None, source: FeatureSource, prepared: Prepared) -> Draft:
    """The draft with the profile of rows that its part was not trained on, at most `bundle.row_profile.MOST` of them.

    It also has the centres of training rows, if the task answers one label per text. Unchanged if there are too few
    rows, or if a store that encodes nothing has no mean vectors of their texts.
    """
    task = draft.record.task
    if held is None or len(held.examples.inputs) < LEAST:
        return draft
    places = _places(held.examples)
    taken = held.examples.take(places)
    vectors, learned = _vectors_of(task, taken, source), _learned(prepared)
    if vectors is None:
        return draft
    if held.folds:
        seen = profile_texts(taken.inputs, vectors)
    else:
        outputs = [held.outputs[place] for place in places]
        seen = profile_rows(task, taken.inputs, ModelView(outputs=outputs, vectors=vectors))
    read = None if learned is None else _vectors_of(task, learned, source)
    if learned is None or read is None:
        return _with(draft, seen)
    return _with(draft, with_centres(seen, taken if held.folds else None, read, learned))


def with_profile_from(draft: Draft, prepared: Prepared, session: Session) -> Draft:
    """The same from a session with the task, of validation rows that it was not trained on."""
    task, examples = draft.record.task, prepared.validation.examples
    if len(examples.inputs) < LEAST:
        return draft
    taken, learned = examples.take(_places(examples)), _learned(prepared)
    seen = profile_rows(task, taken.inputs, asked(session, task.name, taken.inputs, taken.words))
    if learned is not None:
        seen = with_centres(seen, None, asked(session, task.name, learned.inputs).vectors, learned)
    return _with(draft, seen)


def with_centres(seen: RowProfile, profile: Examples | None, vectors: np.ndarray, learned: Examples) -> RowProfile:
    """The profile with the centres of `learned`, whose directions are `vectors` (rows, width).

    `profile` are its rows, where they are training rows too: each is left out of the centre that it is compared with,
    as a new text is in none.
    """
    labels, label = np.unique(np.array(learned.targets), return_inverse=True)
    sums = np.zeros((len(labels), vectors.shape[1]), np.float32)
    np.add.at(sums, label, vectors)
    kept = seen.with_centres(directions(sums))
    if profile is None:
        return kept
    distances = centre_distances(kept.vectors, directions(sums))
    is_learned, sizes = np.isin(profile.rows, learned.rows), np.bincount(label)
    for place in np.flatnonzero(is_learned).tolist():
        at = int(np.searchsorted(labels, profile.targets[place]))
        without = directions(sums[at] - kept.vectors[place])
        apart = centre_distances(kept.vectors[place : place + 1], without[None])
        distances[place, at] = apart[0, 0] if sizes[at] > 1 else np.inf
    return msgspec.structs.replace(kept, far=distances.min(axis=1))


def _learned(prepared: Prepared) -> Examples | None:
    """A sample of the training rows, of each label alike many where it has them; None for other kinds and inputs."""
    task = prepared.task
    if kind_of(task).loss != "cross_entropy" or not reads_one_text(task):
        return None
    examples = prepared.whole if prepared.folded and prepared.whole is not None else prepared.train.examples
    targets, most = np.array(examples.targets), max(OF_LABEL, LEARNED // len(task.labels))
    order = np.random.default_rng(SEED).permutation(len(targets))
    rows = [order[targets[order] == label][:most] for label in range(len(task.labels))]
    return examples.take(np.sort(np.concatenate(rows)).tolist())


def _vectors_of(task: Task, examples: Examples, source: FeatureSource) -> np.ndarray | None:
    """The directions of their mean vectors, float32 (rows, width); None where the source has none."""
    request = _vectors(task, examples, source)
    if request is None:
        return None
    source.fill([request])
    kept, count = source.store(request.path).features(request.keys()), len(examples.inputs)
    means = []
    for start in range(0, count, AT_ONCE):
        read = kept.take(range(start, min(start + AT_ONCE, count)))
        shares = read.mask / np.maximum(read.mask.sum(axis=1, keepdims=True), 1)
        means.append(np.einsum("rt,rtd->rd", shares.astype(np.float32), read.values[:, :, 0]))
    return directions(np.concatenate(means))


def _with(draft: Draft, seen: RowProfile) -> Draft:
    kept = profile_of(draft.record.task, seen)
    assert kept.seen is not None
    return msgspec.structs.replace(draft, seen=kept.seen.content(), card=with_sections(draft.card, kept.card))


def _places(examples: Examples) -> list[int]:
    return sample(len(examples.inputs), MOST, SEED)


def _vectors(task: Task, examples: Examples, source: FeatureSource) -> FeatureRequest | None:
    """Their mean vectors, in a precision without effect on comparisons; of a store without these all tokens' states.

    None if the source has none of these texts.
    """
    if not source.encodes and not reads_one_text(task):
        return None  # a store's document is never several texts of a row, read as one
    of_mean = [
        vector_path(source.facts.digest, source.facts.architecture.layers, codec=codec) for codec in (HALF, EXACT)
    ]
    of_tokens = [_of_tokens(path) for path in of_mean]
    for path in (*of_mean, *of_tokens):
        if source.keeps(path, is_named=True):
            coded = source.coded(path, is_named=True, per="tensor", inputs=list)
            origin = f"task '{task.name}', rows held out"
            return FeatureRequest(path=coded, inputs=as_texts(examples.inputs), origin=origin, rows=examples.rows)
    return None


def _of_tokens(path: Path) -> Path:
    """The path with every token in place of their mean."""
    return Path(nodes=(*path.nodes[:-1], msgspec.structs.replace(path.pool, positions="all")))
