"""A task's outputs for held-out rows: training keeps them in its cache, as numbers without texts.

The rows are read again from the project's file and identified by their digests, so a row that was added, moved or
relabelled since is scored in its current form.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from polyhead.data.columns import Source
from polyhead.data.read import Examples, read
from polyhead.data.split import kept_together, texts_key
from polyhead.errors import BundleError, CorruptFile, DataError
from polyhead.evaluate.scores import SplitOutputs
from polyhead.files import read_plain
from polyhead.progress import counted
from polyhead.tasks.task import Task
from polyhead.text.question import Question, texts_of
from polyhead.values import Value

_FOLDER = "held"  # of the cache
_KEY_BYTES = 16
_LARGEST = 2**31  # bytes of a file


class HeldOutFacts(Value):
    """How held-out outputs were computed."""

    folds: int  # number of parts, each trained on the other rows; 0: the rows were held out of one training
    sha256: str  # digest of the rows, as in a task's training record
    computed: dict[str, str]  # backend and precision

    @property
    def split(self) -> str:
        """The name of these rows in scores."""
        return "out of fold" if self.folds else "held out"


class HeldOutAnswers(Value, eq=False):
    """Outputs of rows, and the identity of each row."""

    facts: HeldOutFacts
    rows: tuple[int, ...]  # numbers in the file
    keys: tuple[bytes, ...]
    arrays: tuple[tuple[str, tuple[int, ...], bytes], ...]  # type, shape and bytes of each output
    learned: tuple[bytes, ...] | None = None  # marks of the rows that the version learned from; None: not known

    @property
    def outputs(self) -> list[np.ndarray]:
        """The output of each row."""
        return [np.frombuffer(content, kind).reshape(shape) for kind, shape, content in self.arrays]

    def places(self, examples: Examples) -> dict[int, int]:
        """The index of the outputs for each held-out example: by the row's number, else the first equal row."""
        keys = _keys(examples)
        by_key: dict[bytes, list[int]] = {}
        for place, key in enumerate(keys):
            by_key.setdefault(key, []).append(place)
        by_row = {row: place for place, row in enumerate(examples.rows)}
        places: dict[int, int] = {}
        moved = []
        for number, (row, key) in enumerate(zip(self.rows, self.keys, strict=True)):
            row_place = by_row.get(row)
            if row_place is not None and keys[row_place] == key:
                places[row_place] = number
            else:
                moved.append((number, key))
        unused = {key: iter([place for place in equal if place not in places]) for key, equal in by_key.items()}
        for number, key in moved:
            like = next(unused.get(key, iter(())), None)
            if like is not None:
                places[like] = number
        return places

    def unlearned(self, task: Task, examples: Examples) -> list[int] | None:
        """The examples that the version answered, or can answer, without having learned from them; None: not known."""
        if self.learned is None:
            return None
        answered, learned = self.places(examples), set(self.learned)
        marks = enumerate(_marks(task, examples))
        return [place for place, of_row in marks if place in answered or learned.isdisjoint(of_row)]

    def content(self) -> bytes:
        """The bytes of the file."""
        return msgspec.msgpack.encode(self)


def held_out_file(cache: Path, task: str, part: str) -> Path:
    """The file with the outputs of one version: `part` is the digest of its arrays."""
    return cache / _FOLDER / task / f"{part[:16]}.msgpack"


def encode_held_out(
    examples: Examples,
    outputs: Sequence[np.ndarray],
    *,
    task: Task,
    folds: int,
    computed: dict[str, str],
    learned: Examples | None = None,
) -> HeldOutAnswers:
    """Outputs in the form that is stored; `learned` are all rows that the version learned from in the end."""
    marks = None if learned is None else tuple(sorted(set[bytes]().union(*_marks(task, learned))))
    return HeldOutAnswers(
        facts=HeldOutFacts(folds=folds, sha256=examples.digest, computed=computed),
        rows=tuple(examples.rows),
        keys=tuple(_keys(examples)),
        arrays=tuple((each.dtype.str, each.shape, each.tobytes()) for each in map(np.asarray, outputs)),
        learned=marks,
    )


def read_held_out(file: Path) -> HeldOutAnswers:
    """The outputs that training stored; raises BundleError if there are none, CorruptFile if they are damaged."""
    again = (
        f"train again with `polyhead train --retrain {file.parent.name}` (if the recipe refuses that, under another "
        "bundle name), or give labelled rows with --data FILE"
    )
    try:
        raw = read_plain(file, limit=_LARGEST)
    except FileNotFoundError:
        problem = f"no answers to rows held out are kept in {file.parent.parent}"
        raise BundleError(problem, do=f"name its folder with --cache, {again}") from None
    except OSError as error:
        raise CorruptFile(f"{file} cannot be read", got=error.strerror or error, do=again, path=file) from None
    try:
        held = msgspec.msgpack.decode(raw, type=HeldOutAnswers)
        if not len(held.rows) == len(held.keys) == len(held.outputs):
            raise ValueError("its arrays do not fit each other")
        return held
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise CorruptFile(f"{file} cannot be read", got=error, do=f"delete it, and {again}", path=file) from None


class RestoredAnswers(Value, eq=False):
    """Stored outputs with their rows as they are in the file now, in the order of the file."""

    answered: SplitOutputs
    facts: HeldOutFacts
    lacking: int  # number of held-out rows that the file no longer has
    is_same: bool  # whether all of them are there, with their former labels


def restore_answers(task: Task, source: Source, cache: Path, part: str) -> RestoredAnswers:
    """The stored answers to held-out rows of the version whose arrays have the digest `part`.

    Raises BundleError if `cache` has no such answers, DataError if the file has none of the rows.
    """
    return match_rows(task, source, read_held_out(held_out_file(cache, task.name, part)), read(source, task))


def match_rows(task: Task, source: Source, held: HeldOutAnswers, examples: Examples) -> RestoredAnswers:
    """Stored outputs matched with `examples`, the rows of `source`; raises DataError if it has none of their rows."""
    places = held.places(examples)
    if not places:
        raise DataError(
            f"task '{task.name}': none of {counted(len(held.rows), 'row')} held out in training is in {source.path}",
            do="train the task again on this file, or give labelled rows with --data FILE",
        )
    order, lacking, outputs = sorted(places), len(held.rows) - len(places), held.outputs
    stored = examples.take(sorted(places, key=places.__getitem__))
    answered = SplitOutputs(
        task=task, source=source, examples=examples.take(order), outputs=[outputs[places[place]] for place in order]
    )
    is_same = not lacking and stored.digest == held.facts.sha256
    return RestoredAnswers(answered=answered, facts=held.facts, lacking=lacking, is_same=is_same)


def shared_rows(after: SplitOutputs, before: SplitOutputs) -> tuple[SplitOutputs, SplitOutputs]:
    """Both sets of answers, limited to their common rows; raises DataError if there are none."""
    rows = set(after.examples.rows) & set(before.examples.rows)
    if not rows:
        raise DataError(
            f"task '{after.task.name}': the two versions held out different rows, so nothing is compared",
            do="give labelled rows with --data FILE",
        )
    return _with_rows(after, rows), _with_rows(before, rows)


def _with_rows(answered: SplitOutputs, rows: set[int]) -> SplitOutputs:
    places = [place for place, row in enumerate(answered.examples.rows) if row in rows]
    outputs = [answered.outputs[place] for place in places]
    return msgspec.structs.replace(answered, examples=answered.examples.take(places), outputs=outputs)


def _keys(examples: Examples) -> list[bytes]:
    """A digest of each row's input: its texts, and the places of the words to answer."""
    keys = []
    for place, value in enumerate(examples.inputs):
        texts = [text.encode("utf-8", "surrogatepass").hex() for text in texts_of(value)]
        parts = [texts, len(value.options) if isinstance(value, Question) else -1]
        total = blake2b(msgspec.json.encode(parts), digest_size=_KEY_BYTES)
        if examples.words is not None:
            total.update(np.ascontiguousarray(examples.words[place], np.int32).tobytes())
        keys.append(total.digest())
    return keys


def _marks(task: Task, examples: Examples) -> list[set[bytes]]:
    """Digests of each row's texts, ignoring case and spaces, and of its group or context; rows alike share one.

    No text can be recovered from them.
    """
    together = zip(examples.inputs, kept_together(examples, task), strict=True)
    return [{_mark(texts_key(value)), _mark(key)} for value, key in together]


def _mark(key: Hashable) -> bytes:
    return blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
