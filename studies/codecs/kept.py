"""Features of a study's tasks, kept once as float32, held in memory as a codec gives them back; one head over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import torch

from polyhead.codecs import EXACT, NO_TOKEN
from polyhead.data.read import Examples, read
from polyhead.deep.examples import FeatureExamples, module_outputs
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.nn.runtime import precision_of
from polyhead.deep.sharing.part import PooledPart
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.base import FeatureBatch
from polyhead.plan import Codec
from polyhead.plan import Path as TaskPath
from polyhead.plan.coding import calibrate, through
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Input
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import KeptExamples
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Split
from polyhead.train.data.source import FeatureRequest
from studies.shared.data import Set, drawn, entry_of

MAX_TOKENS = 128
TRAIN, VALIDATION = 2400, 400  # rows, drawn once from the training file
OF = 4  # last layers whose mean is kept, as `pooled` has it by default
ATTENTION = Pooled(layers="mean", of=OF, positions="attention", codec=EXACT)
AT_ONCE = 512  # texts read from the store at a time


def training_of(seed: int) -> Training:
    """The settings of every run: light, and the same for all codecs."""
    return Training(seed=seed, epochs=6, patience=6, batch=32, learning_rate=5e-4)


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """A data set as a task of these studies."""

    dataset: Set
    told: dict[str, object] = {}  # more of the task: its positive label, say

    def task(self, data: Path) -> Task:
        """The declared task; pairs are read as two texts, whose features a store of single texts keeps."""
        return msgspec.structs.replace(entry_of(data, self.dataset).task(), **self.told)

    def splits(self, data: Path) -> dict[str, Split]:
        """Drawn training and validation rows, and the whole reported split."""
        entry, task = entry_of(data, self.dataset), self.task(data)
        examples = read(entry.source(entry.train, Path()), task)
        assert entry.test is not None
        reported = read(entry.source(entry.test, Path()), task)
        order = np.random.default_rng(0).permutation(len(examples.targets))
        held, used = order[:VALIDATION], order[VALIDATION:][:TRAIN]
        return {
            "train": drawn("train", examples, used),
            "validation": drawn("validation", examples, held),
            "test": Split(name="test", examples=reported),
        }


class Values(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Float32 values of texts in memory: (tokens, width), one text after another. Taken as a store's features are."""

    values: np.ndarray
    lengths: np.ndarray  # (texts,)
    tokens: np.ndarray  # int64 (tokens,): the number of each in the vocabulary, -1 for what is no token's

    @property
    def starts(self) -> np.ndarray:
        """The first token of each text."""
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def take(self, indices: Sequence[int] | np.ndarray) -> FeatureBatch:
        """These texts, padded to the longest of them."""
        lengths = self.lengths[indices]
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        places = self.starts[indices][:, None] + np.arange(mask.shape[1])
        values = self.values[np.where(mask, places, 0)]
        values[~mask] = 0
        return FeatureBatch(values=values[:, :, None], mask=mask)

    def coded(self, codec: Codec) -> Values:
        """As a reader of a store with this codec sees them."""
        coded = through(self.values, codec, self.tokens)
        return Values(values=coded, lengths=self.lengths, tokens=self.tokens)

    def means(self) -> Values:
        """One vector a text: the mean over its tokens."""
        totals = np.add.reduceat(self.values, self.starts, axis=0, dtype=np.float64)
        means = (totals / self.lengths[:, None]).astype(np.float32)
        single = np.ones(len(self.lengths), np.int64)
        return Values(values=means, lengths=single, tokens=np.full(len(means), NO_TOKEN))


class Held:
    """A task's rows, and the values of its texts by split: one `Values`, or two where pairs are compared."""

    def __init__(self, task: Task, splits: Mapping[str, Split], values: Mapping[str, list[Values]]) -> None:
        self.task, self.splits, self.values = task, splits, values

    def examples(self, split: str) -> FeatureExamples:
        """What a head reads."""
        first, *second = self.values[split]
        kept = KeptExamples(first, self.of(split).targets, second=second[0] if second else None)  # type: ignore[arg-type]
        return FeatureExamples(kept)

    def of(self, split: str) -> Examples:
        """The rows of a split."""
        return self.splits[split].examples

    def each(self, change: Callable[[Values], Values]) -> Held:
        """The same rows with other values."""
        values = {split: [change(one) for one in several] for split, several in self.values.items()}
        return Held(self.task, self.splits, values)

    def tokens(self) -> float:
        """Mean number of tokens of a text of the reported split."""
        return float(np.concatenate([one.lengths for one in self.values["test"]]).mean())


class Kept:
    """The frozen trunk, and the features that it computed for these tasks, kept in a folder."""

    def __init__(self, data: Path, tasks: Mapping[str, StudyTask], folder: Path) -> None:
        self.data, self.tasks, self.folder = data, tasks, folder

    @cached_property
    def extractor(self) -> Extractor:
        """Opened when it is first needed."""
        trunk = load_trunk("minilm", max_tokens=MAX_TOKENS)
        return Extractor(trunk, folder=self.folder / "features", precision=precision_of(Training()))

    def path(self, strategy: Pooled, task: Task) -> TaskPath:
        """A task's path over the trunk; what is kept of it is float32."""
        facts = self.extractor.facts
        return strategy.path(task, trunk=facts.digest, shape=facts.architecture, codec=Codec(name=EXACT))

    def fill(self, strategies: Sequence[Pooled]) -> None:
        """Encodes the texts of every task once, for all that is kept of them."""
        requests = []
        for name in self.tasks:
            task, splits = self.task(name), self.tasks[name].splits(self.data)
            for strategy in strategies:
                for split in splits.values():
                    requests += self._requests(strategy, task, split)
        self.extractor.fill(requests)

    def task(self, name: str) -> Task:
        """The declared task of this name."""
        return self.tasks[name].task(self.data)

    def held(self, name: str, strategy: Pooled) -> Held:
        """The task with the values that the trunk computed."""
        task, splits = self.task(name), self.tasks[name].splits(self.data)
        values = {
            split: [self._values(request) for request in self._requests(strategy, task, rows)]
            for split, rows in splits.items()
        }
        return Held(task, splits, values)

    def calibrated(self, strategy: Pooled, codec: str, texts: int) -> Codec:
        """The codec with its constants fixed from so many training texts, as many of each task."""
        several = []
        for name in self.tasks:
            inputs = single_inputs(self.tasks[name].splits(self.data)["train"].examples.inputs, self.task(name))[0]
            spaced = np.unique(np.linspace(0, len(inputs) - 1, -(-texts // len(self.tasks))).round().astype(int))
            several.append(self._values(self._request(strategy, self.task(name), [inputs[i] for i in spaced])))
        return calibrate(
            np.concatenate([one.values for one in several]),
            name=codec,
            tokens=np.concatenate([one.tokens for one in several]),
            words=self.extractor.data.arrays[WORD_VECTORS],
        )

    def _requests(self, strategy: Pooled, task: Task, split: Split) -> list[FeatureRequest]:
        return [self._request(strategy, task, list(inputs)) for inputs in single_inputs(split.examples.inputs, task)]

    def _request(self, strategy: Pooled, task: Task, inputs: Sequence[Input]) -> FeatureRequest:
        return FeatureRequest(path=self.path(strategy, task), inputs=inputs)

    def _values(self, request: FeatureRequest) -> Values:
        features = self.extractor.store(request.path).features(request.keys())
        pieces = []
        for start in range(0, len(features), AT_ONCE):
            taken = features.take(range(start, min(start + AT_ONCE, len(features))))
            pieces.append(taken.values[taken.mask][:, 0])
        ids = self.extractor.tokenizer.encodings(list(request.inputs)).ids
        return Values(values=np.concatenate(pieces), lengths=features.lengths, tokens=ids)


def head_over(held: Held, path: TaskPath, seed: int) -> dict[str, object]:
    """Trains one head, keeps the epoch that is best on validation, and scores the whole reported split."""
    torch.manual_seed(seed)
    training, task = training_of(seed), held.task
    kind, metric = kind_of(task), kind_of(task).default_metric(task)
    module = PooledPart(
        path,
        held.values["train"][0].values.shape[-1],
        dropouts=training.dropouts,
        generator=torch.Generator().manual_seed(seed),
    )
    train, validation, test = (held.examples(split) for split in ("train", "validation", "test"))

    def score() -> float:
        return held.of("validation").scores(task, module_outputs(module, validation))[metric]

    began = time.perf_counter()
    loop = TaskLoop(module, train, loss=LOSSES[kind.loss], score=score, training=training)
    loop.advance()
    fitted = loop.finish()
    outputs = module_outputs(module.eval(), test)
    return {
        "metric": metric,
        "validation": fitted.score,
        "test": held.of("test").scores(task, outputs)[metric],
        "epoch": fitted.best_epoch,
        "rows": train.count,
        "test_rows": test.count,
        "seconds": round(time.perf_counter() - began, 2),
    }
