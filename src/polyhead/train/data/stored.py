"""Features and scores of a corpus store, for training; nothing is encoded.

The values that tasks read are copied, still packed, into the stores that training keeps for a run, with words selected
from the tokens of their texts. So a head is trained on the exact bytes that a backfill reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead import plan as planning
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.codecs import NO_TOKEN
from polyhead.data.shares import STORED, Stored
from polyhead.encoder.data import TrunkFacts
from polyhead.engine.backends.prefix import with_every_token
from polyhead.errors import ConfigError, StoreError, TrainError, WrongTrunk
from polyhead.plan import Path
from polyhead.plan.coding import encode
from polyhead.project.strategies.base import with_codec
from polyhead.project.tables import Project
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.base import CorpusStore, FeatureColumn, PackedRows, ResultFacts
from polyhead.store.corpus.ids import document_id, window_id
from polyhead.store.taps import kept_in_words, path_text
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Example, RowKind, Task
from polyhead.text.question import texts_of
from polyhead.text.tokenize import Input, Tokenizer, windows_of
from polyhead.text.words import first_subtokens
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import Extraction, FeatureRequest, FeatureSource, Filled, Per

AT_ONCE = 4096  # texts copied at a time
SHOWN = 5  # rows named in an error


class StoredFeatures(FeatureSource):
    """A store of a corpus as a source for training. Raises StoreError for a store over another trunk."""

    doing = "reading the store"
    encodes = False

    def __init__(self, location: str, facts: TrunkFacts, *, folder: FilePath, precision: str) -> None:
        """`folder` is for the copies; `precision` is assumed for features whose precision the store does not state."""
        self.location, self.facts, self.corpus = location, facts, open_corpus(location)
        source = self.corpus.schema.source
        trunk = source.get("trunk", "that it does not name")
        if trunk != facts.digest:
            raise StoreError(
                f"{location} holds features of another trunk than the tasks stand on",
                got=f"trunk {trunk}",
                allowed=f"trunk {facts.digest} ({facts.name}, max_tokens {facts.settings.max_tokens})",
                do="give the store's own trunk and max_tokens, or extract the features anew with this trunk",
            )
        self.precision = source.get("precision", precision)
        self.folder = folder / self.precision
        # The trunk's digest covers the tokenizer and its settings, so the store has the same.
        self.tokenizer = Tokenizer(facts.tokenizer, facts.settings)

    def check_fits(self, prepared: Sequence[Prepared]) -> None:
        """Raises TrainError for tasks that need more than kept features, and for another precision than the store's."""
        for p in prepared:
            if not p.strategy.reads_kept_features:
                raise TrainError(
                    f"task '{p.task.name}' cannot be trained from a store",
                    got=f"strategy '{p.strategy.kind}', which runs layers on texts or on states inside the trunk",
                    allowed="a strategy that reads kept features of the whole trunk",
                    do="choose another strategy, or train the task without the store",
                )
            if p.training.precision not in ("auto", self.precision):
                raise TrainError(
                    f"{self.location} holds features of a trunk in another precision than task '{p.task.name}' names",
                    got=f"training.precision '{p.training.precision}'",
                    allowed=f"'{self.precision}'",
                    do="leave training.precision out, or extract the features anew in that precision",
                )

    def has_words(self, task: Task) -> bool:
        """Whether the store keeps hashes of the words that heads of this task read: of single texts."""
        return self.corpus.schema.words and isinstance(kind_of(task), RowKind) and task.pair == "none"

    def keeps(self, path: Path, *, is_named: bool) -> bool:
        """Whether the store has a column for the path."""
        return self._column(path, is_named=is_named) is not None

    def coded(self, path: Path, *, is_named: bool, per: Per, inputs: Callable[[], Sequence[Input]]) -> Path:
        """The path with the codec of the store, including constants; raises StoreError if it is not in the store."""
        column = self._column(path, is_named=is_named)
        if column is None:
            raise StoreError(f"{self.location} keeps no features of this path", got=path.stored().pool)
        return with_codec(path, column.codec)

    def columns(self, paths: Sequence[Path], *, is_named: bool) -> tuple[str, ...]:
        """Digests of the columns that these paths read."""
        columns = [self._column(path, is_named=is_named) for path in paths]
        return tuple(dict.fromkeys(column.digest for column in columns if column is not None))

    def check_kept(self, task: str, path: Path) -> None:
        """Raises StoreError unless a column holds exactly the path's value."""
        if all(column.digest != self.digest(path) for column in self.corpus.schema.features):
            raise self.lacks(path, task=task, is_named=True)

    def digest(self, path: Path) -> str:
        """The digest of the column for a path with its codec."""
        return planning.digest(with_every_token(path.stored()))

    def lacks(self, path: Path, *, task: str, is_named: bool) -> StoreError:
        """The error for a task that reads a path which is not in the store."""
        pool, others = path.stored().pool, [column.codec.name for column in self._columns(path)]
        if is_named and others:
            return StoreError(
                f"task '{task}' names another codec than that by which {self.location} keeps what it reads",
                got=f"codec '{pool.codec.name}'",
                allowed=[f"codec '{name}'" for name in others],
                do="leave 'codec' out of the strategy, or extract the features anew",
            )
        return StoreError(
            f"{self.location} does not keep what task '{task}' reads",
            got=path_text(with_every_token(path.stored())),
            allowed=[kept_in_words(column) for column in self.corpus.schema.features],
            do="extract these features, or set the strategy to what is kept",
        )

    def _column(self, path: Path, *, is_named: bool) -> FeatureColumn | None:
        """The column for the path, with its own codec if it `is_named`; of several, the one with its own codec."""
        columns, wanted = self._columns(path), path.stored().pool.codec
        alike = [c for c in columns if (c.codec.name, c.codec.before_mean) == (wanted.name, wanted.before_mean)]
        if is_named or alike:
            return alike[0] if alike else None
        if len({(c.codec.name, c.codec.before_mean) for c in columns}) > 1:
            raise StoreError(
                f"{self.location} keeps what a task reads by several codecs",
                got=[column.codec.name for column in columns],
                do="say which in the task's strategy: codec = '...'",
            )
        return columns[0] if columns else None

    def _columns(self, path: Path) -> list[FeatureColumn]:
        """The columns for the path, whatever their codec."""
        return [
            column
            for column in self.corpus.schema.features
            if self.digest(with_codec(path, column.codec)) == column.digest
        ]

    def fill(self, wanted: Sequence[FeatureRequest], *, update: Filled | None = None) -> Extraction:
        """Copies the requested values; raises StoreError if the store lacks texts, before anything is copied."""
        began = time.monotonic()
        self.check(wanted)
        lacking = [self._by_place(request, self.store(request.path).missing(request.keys())) for request in wanted]
        total, done = sum(map(len, lacking)), 0
        reused = sum(len(request.inputs) for request in wanted) - total
        for request, indices in zip(wanted, lacking, strict=True):
            keys, ids = (request.keys(), stored_ids(request)) if indices else ([], [])
            for start in range(0, len(indices), AT_ONCE):
                piece = indices[start : start + AT_ONCE]
                self._copy(request, piece, keys, ids)
                done += len(piece)
                if update is not None:
                    update(done, total, done / total)
        return Extraction(passes=0, reused=reused + total, tokens=0, cut=0, seconds=time.monotonic() - began)

    def summary(self, extraction: Extraction) -> str:
        """A line that describes the work of `fill`."""
        return f"took {extraction.reused:,} values from {self.location} and encoded nothing"

    def check(self, wanted: Sequence[FeatureRequest]) -> None:
        """Raises StoreError that names the first rows whose texts the store lacks."""
        absent: dict[str, list[int]] = {}
        ids: set[bytes] = set()
        for request in wanted:
            keys = stored_ids(request)
            for index in np.flatnonzero(self.corpus.find(keys)[:, 0] < 0).tolist():
                ids.add(keys[index])
                absent.setdefault(request.origin, []).append(_row(request, index))
        if not ids:
            return
        shown = {origin: list(dict.fromkeys(rows)) for origin, rows in absent.items()}
        extract = "polyhead features extract" + " --long-texts windows" * any(request.windows for request in wanted)
        raise StoreError(
            f"{self.location} lacks {len(ids):,} of the texts that the tasks need",
            got=[_shown(origin, rows) for origin, rows in shown.items()],
            do=f"extract these files into the store with `{extract}`, or train without the store",
            rows=shown,
        )

    def _by_place(self, request: FeatureRequest, indices: Sequence[int]) -> list[int]:
        """These inputs in corpus order, so that each fragment is read once."""
        ids = stored_ids(request)
        places = self.corpus.find([ids[index] for index in indices])
        ordered: list[int] = np.asarray(indices, np.int64)[np.lexsort((places[:, 1], places[:, 0]))].tolist()
        return ordered

    def _copy(
        self, request: FeatureRequest, indices: Sequence[int], keys: Sequence[bytes], ids: Sequence[bytes]
    ) -> None:
        """Copies the values of some of the request's inputs; `keys` and `ids` are those of all."""
        chosen, first = [], set[bytes]()
        for index in indices:
            if keys[index] not in first:
                first.add(keys[index])
                chosen.append(index)
        packed = self.corpus.take([ids[index] for index in chosen], self.digest(request.path))
        if request.words is not None:
            packed = self._of_words(request, chosen, packed)
        self.store(request.path).append_packed([keys[index] for index in chosen], packed)

    def _of_words(self, request: FeatureRequest, chosen: Sequence[int], packed: PackedRows) -> PackedRows:
        """The value at the first token of each word; zeros for a word without one."""
        assert request.words is not None
        texts = list(dict.fromkeys(request.inputs[index] for index in chosen))
        is_windowed = request.windows is not None
        windows = windows_of(self.tokenizer.max_tokens) if is_windowed else None
        encoded = {(texts[e.row], e.window): e for e in self.tokenizer.encode(texts, windows=windows)}
        column = self.corpus.schema.column(self.digest(request.path))
        zeros, no_token = np.zeros((column.layers, column.width), np.float32), np.array([NO_TOKEN])
        nothing = encode(zeros, column.codec, no_token).reshape(1, -1)
        parts = []
        for place, index in enumerate(chosen):
            row = packed.data[packed.offsets[place] : packed.offsets[place + 1]]
            encoding = encoded[request.inputs[index], request.numbers[index]]
            if len(encoding.ids) != len(row):
                raise StoreError(
                    f"{self.location} keeps another number of tokens than the tokenizer gives",
                    got=f"{len(row)} in {request.origin}, row {_row(request, index)}",
                    allowed=f"{len(encoding.ids)}",
                    do="extract the texts anew with this trunk",
                )
            tokens = first_subtokens(encoding, request.words[index])
            parts.append(np.where(tokens[:, None] >= 0, row[np.maximum(tokens, 0)], nothing))
        lengths = [len(part) for part in parts]
        return PackedRows.of(lengths, np.concatenate(parts) if parts else packed.data[:0])


def known_trunk(project: Project, folder: FilePath, root: FilePath) -> TrunkFacts | None:
    """The trunk of the bundle at `root`, else of the project's, without reading weights.

    None if weights must be read, since the project's trunk is not a bundle. Raises WrongTrunk if the bundle's length
    limit differs from the project's.
    """
    limit = project.trunk.max_tokens
    if (root / BUNDLE).is_file():
        facts = Bundle.open(root).trunk_facts()
        if limit is not None and limit != facts.settings.max_tokens:
            raise WrongTrunk(
                f"the bundle {root.name} stands on a trunk of another max_tokens",
                got=f"trunk.max_tokens = {limit}",
                allowed=str(facts.settings.max_tokens),
                do="name another bundle in the project file, or give the bundle's own max_tokens",
            )
        return facts
    place = FilePath(project.trunk.place(folder))
    if not (place / BUNDLE).is_file():
        return None
    facts = Bundle.open(place).trunk_facts()
    if limit not in (None, facts.settings.max_tokens):
        return None
    return msgspec.structs.replace(facts, name=project.trunk.name)


def stored_ids(request: FeatureRequest) -> list[bytes]:
    """The ids in a corpus store of the inputs, or their windows, that a request reads."""
    pairs = zip(request.inputs, request.numbers, strict=True)
    return [window_id(text, window) for text, window in pairs]


def _row(request: FeatureRequest, index: int) -> int:
    return index if request.rows is None else request.rows[index]


def _shown(origin: str, rows: Sequence[int]) -> str:
    first = ", ".join(map(str, rows[:SHOWN]))
    more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    return f"{origin}: row{'s' if len(rows) > 1 else ''} {first}{more}"


SCORES = "scores"  # the array of a column with the scores of all labels


class StoredScores:
    """The columns of scores of one store."""

    def __init__(self, location: str) -> None:
        self._location, self._corpus = location, open_corpus(location)

    def of(self, task: Task, soft: str) -> Stored:
        """The scores to learn from; `soft` is "store:" and a column, or a task with a single such column.

        Raises StoreError if there is no such column, ConfigError if it has other labels.
        """
        column, facts = self._column(soft.removeprefix(STORED))
        if facts.kind != task.kind or set(facts.labels) != set(task.labels):
            raise ConfigError(
                f"task '{task.name}' cannot learn from column '{column}', which answers something else",
                got=f"kind '{facts.kind}', labels {list(facts.labels)}",
                allowed=f"kind '{task.kind}', labels {list(task.labels)}",
            )
        if task.pair == "separate":
            raise ConfigError(
                f"task '{task.name}' reads the two texts of a pair separately, and a store answers single documents",
                do="set pair = 'joined', or give soft labels in the task's files",
            )
        order = [facts.labels.index(label) for label in task.labels]

        def scores(examples: Sequence[Example]) -> list[np.ndarray | None]:
            row_scores = _scores_of(self._corpus, self._location, task, column, examples)
            return [None if np.isnan(row).any() else row for row in row_scores[:, order]]

        return scores

    def _column(self, name: str) -> tuple[str, ResultFacts]:
        """The column with this name, or the only one of the task with this name."""
        columns = {column: facts for column, facts in self._corpus.described().items() if SCORES in facts.arrays}
        chosen = [column for column, facts in columns.items() if name in (column, facts.task)]
        if len(chosen) == 1:
            return chosen[0], columns[chosen[0]]
        raise StoreError(
            f"{self._location} has {'several columns' if chosen else 'no column'} of scores named '{name}'",
            got=chosen or f"{STORED}{name}",
            allowed=sorted(columns) or "columns that `polyhead backfill --scores` made",
            do="name one column" if chosen else "backfill that task with --scores first",
        )


def _scores_of(corpus: CorpusStore, location: str, task: Task, column: str, examples: Sequence[Example]) -> np.ndarray:
    """The scores of these examples, float32 (rows, labels)."""
    places = corpus.find([document_id(texts_of(example.input)) for example in examples])
    scores = np.full((len(examples), len(task.labels)), np.nan, np.float32)
    lacking, fragments = places[:, 0] < 0, corpus.fragments
    for number in np.unique(places[~lacking, 0]).tolist():
        results, is_here = corpus.results(fragments[number].name, column), places[:, 0] == number
        if results is None:
            lacking |= is_here
        else:
            scores[is_here] = results[SCORES][places[is_here, 1]]
    if lacking.any():
        rows = [examples[index].row for index in np.flatnonzero(lacking).tolist()]
        source = next(examples[index].source for index in np.flatnonzero(lacking).tolist())
        raise StoreError(
            f"task '{task.name}': column '{column}' of {location} has no scores for {len(rows):,} rows of {source}",
            got=f"rows {', '.join(map(str, rows[:SHOWN]))}{' and more' if len(rows) > SHOWN else ''}",
            do="extract these texts into the store, and run that backfill again",
            rows=rows,
        )
    return scores
