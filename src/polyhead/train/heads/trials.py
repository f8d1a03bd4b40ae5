"""Trials of heads over kept features: each candidate is fitted and scored on held-out rows, and one is kept.

With few labelled rows, each of them is held out once (k folds), and the kept head is trained on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.data.split import folds
from polyhead.plan import Path
from polyhead.project.strategies.base import HeadCandidate
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.kept_examples import KeptExamples, examples_of, hashed_words, tell_unread
from polyhead.train.data.prepared import FOLDS, Prepared, Split
from polyhead.train.data.source import FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads import label_words, selection_rule
from polyhead.train.heads.hashed_basis import HashedBasis
from polyhead.train.heads.inputs import head_outputs, inputs_of, shifted, solved_arrays
from polyhead.train.heads.linear import Inputs
from polyhead.train.heads.search import PENALTIES, Swept, solution_of, swept
from polyhead.train.runs import Fitted, deep, stream

REFITTED_BELOW = 10_000  # labelled rows: with fewer, a head trained in steps is trained once more, on all of them
PERFECT = 1.0  # the maximum of every metric


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its answers to rows that it was not trained on."""

    candidate: HeadCandidate
    path: Path
    outputs: list[np.ndarray]  # of the selection rows
    offset: np.ndarray | None  # added to the outputs, if rare labels count as much as frequent ones
    setting: float  # the penalty of a linear head, or the best number of updates
    fitted: Fitted
    arrays: dict[str, np.ndarray] | None  # of the part, as trained on the training rows; None with folds
    losses: np.ndarray | None = None  # for a linear head, each selection row (word, option): the smallest found
    examples: np.ndarray | None = None  # for a linear head: `Inputs.examples` of each loss
    prior: float = 0.0  # for a linear head: the strength of the prior from the labels' words


class Trials:
    """Fits the candidates of one task. `held` are the selection rows: with folds all."""

    def __init__(
        self, prepared: Prepared, source: FeatureSource, *, checkpoints: FilePath | None, events: Events
    ) -> None:
        self.prepared, self.source, self.checkpoints, self.events = prepared, source, checkpoints, events
        self._folds: list[tuple[Split, Split]] = []
        self._parts: list[list[int]] = []  # the rows that each fold holds out
        self._is_untold = prepared.train.examples.words is not None
        self._linear: list[Trial] = []  # tried so far
        self._best: dict[int, int] = {}  # number of linear heads -> index of the best of them, for spans
        self._priors: dict[Path, np.ndarray | None] = {}
        self._spans: dict[Path, HashedBasis] = {}
        self._kept: dict[int, tuple[dict[str, np.ndarray], Fitted]] = {}  # by `id` of a linear trial
        self.held = prepared.validation.examples
        whole = prepared.whole
        if whole is not None and prepared.folded:
            self._fold(whole)

    @property
    def folds(self) -> int:
        """The number of folds; 0 if validation rows decide."""
        return len(self._folds)

    @property
    def sides(self) -> list[tuple[Split, Split]]:
        """Training and held-out examples of each fold; without folds, of the training and validation splits."""
        return self._folds or [(self.prepared.train, self.prepared.validation)]

    def _fold(self, whole: Examples) -> None:
        task, seed = self.prepared.task, self.prepared.training.seed
        self._parts = folds(whole, FOLDS, stream(seed, "folds", task.name), task)
        if len(self._parts) < 2:
            return
        for held in self._parts:
            kept = sorted(set(range(len(whole.targets))) - set(held))
            self._folds.append((split_of(whole.take(kept)), split_of(whole.take(held))))
        self.held = whole.take([row for held in self._parts for row in held])

    @property
    def linear(self) -> Trial | None:
        """The best linear head so far."""
        return self.best_linear(self._linear)

    def is_beaten(self, candidate: HeadCandidate) -> bool:
        """Whether a head trained in steps cannot beat the best linear one, because that is perfect."""
        linear = self.linear
        if linear is None or candidate.solver == "linear":
            return False
        return selection_rule.choosing_score(self.prepared.task, self.held, linear.outputs) >= PERFECT

    def tried(self, candidate: HeadCandidate, path: Path) -> Trial:
        """The candidate, fitted without the selection rows."""
        self._tell_unread(path)
        if candidate.solver == "linear":
            trial = self._shifted(self._solved(candidate, path))
            self._linear.append(trial)
            return trial
        return self._shifted(deep("heads.stepped:trained")(self, candidate, path))

    def best(self, trials: Sequence[Trial]) -> Trial:
        """The best linear head by its loss, unless one trained in steps has a clearly better score."""
        linear = self.best_linear(trials)
        ranked = [*([] if linear is None else [linear]), *(trial for trial in trials if trial.losses is None)]
        return ranked[selection_rule.best_of(self.prepared.task, self.held, [trial.outputs for trial in ranked])]

    def best_linear(self, trials: Sequence[Trial]) -> Trial | None:
        """The first of the linear heads, unless the loss of a later one is clearly smaller.

        With few rows the loss shows which is better long before a score does. Not so for spans: most words are in none,
        and nearly all of the loss is theirs; the score decides. Those that read layers side by side are the first:
        held-out rows seldom tell that they are better, as they are on most tasks (decision 0065).
        """
        task, linear = self.prepared.task, [trial for trial in trials if trial.losses is not None]
        linear.sort(key=lambda trial: trial.path.pool.layers != "beside")
        if linear and kind_of(task).default_metric(task) == "span_f1":
            if (tried := len(linear)) not in self._best:  # the comparison takes seconds
                self._best[tried] = selection_rule.best_of(task, self.held, [trial.outputs for trial in linear])
            return linear[self._best[tried]]
        best: Trial | None = None
        for trial in linear:
            if best is None or _is_clearly_better(trial, best):
                best = trial
        return best

    def learns_all(self, trial: Trial) -> bool:
        """Whether the kept part is trained on all labelled rows: if validation is a share of them."""
        whole = self.prepared.whole
        if whole is None:
            return False
        is_linear = trial.candidate.solver == "linear"
        return is_linear or trial.arrays is None or len(whole.targets) < REFITTED_BELOW

    def kept(self, trial: Trial) -> tuple[dict[str, np.ndarray], Fitted]:
        """The arrays of the part for the bundle; those of a linear head tried here are solved once."""
        if not any(trial is linear for linear in self._linear):
            return self._trained(trial)
        if id(trial) not in self._kept:
            self._kept[id(trial)] = self._trained(trial)
        return self._kept[id(trial)]

    def _trained(self, trial: Trial) -> tuple[dict[str, np.ndarray], Fitted]:
        whole, arrays, fitted = self.prepared.whole, trial.arrays, trial.fitted
        if whole is not None and self.learns_all(trial):
            everything = split_of(whole)
            if trial.candidate.solver == "linear":
                inputs = self._inputs(trial.path, everything)
                prior = self._prior(trial.path) if trial.prior else None
                solution = solution_of(inputs.drawn(prior, trial.prior), trial.setting)
                arrays = solved_arrays(trial.path, solution, self._spans.get(trial.path))
            else:
                arrays, fitted = deep("heads.stepped:trained_again")(self, trial, everything)
        assert arrays is not None
        if trial.offset is not None:
            arrays = shifted(arrays, trial.offset)
        score = selection_rule.choosing_score(self.prepared.task, self.held, trial.outputs)
        return arrays, msgspec.structs.replace(fitted, score=score)

    def _shifted(self, trial: Trial) -> Trial:
        """The trial with the best offset for a metric that counts all labels equally."""
        _, outputs, offset = self.best_shift(trial.outputs, self.held)
        return msgspec.structs.replace(trial, outputs=outputs, offset=offset)

    def best_shift(
        self, outputs: list[np.ndarray], held: Examples
    ) -> tuple[float, list[np.ndarray], np.ndarray | None]:
        """The best score, its outputs, and the offset added to them."""
        task, targets = self.prepared.task, self.prepared.train.examples.targets
        offsets = [None, *kind_of(task).offsets(task, targets)]
        shifted_outputs = [outputs if offset is None else [row + offset for row in outputs] for offset in offsets]
        scores = [selection_rule.choosing_score(task, held, shifted) for shifted in shifted_outputs]
        best = int(np.argmax(scores))
        return scores[best], shifted_outputs[best], offsets[best]

    def examples(self, split: Split, path: Path) -> KeptExamples:
        """The split's rows over the features of the path."""
        return examples_of(self.prepared, split, path, self.source)

    # Linear heads

    def _solved(self, candidate: HeadCandidate, path: Path) -> Trial:
        """Each fold's heads together, from the strongest penalty on, until the loss rises.

        For pairs only the cosine is used, unless another head is clearly better.
        """
        pairs = self.sides
        label = f"{self.prepared.task.name} ({candidate.name})"
        progress = self.events.progress(label, unit="penalties", at_most=True)
        if (whole := self.prepared.whole) is not None and self._folds:
            sides = self._inputs(path, split_of(whole)).sides(self._parts)
        else:
            sides = [(self._inputs(path, train), self._inputs(path, held)) for train, held in pairs]
        first: Swept | None = None
        least, prior = list[Swept](), 0.0  # the heads with the smallest loss, then heads with weaker penalties
        strengths, penalties = label_words.settings_to_try(self._prior(path), PENALTIES)
        for strength in strengths:
            drawn = [(train.drawn(self._prior(path), strength), held) for train, held in sides]
            steps = list[Swept]()
            for number, step in enumerate(swept(drawn, penalties), start=1):
                progress.update(number, len(penalties) + path.head.separate)
                first = first or step
                is_least = not steps or step.losses.mean() < steps[0].losses.mean()
                steps = [step] if is_least else [*steps, step]
            if not least or selection_rule.clearly_less(steps[0].losses, least[0].losses, least_errors=1.0):
                least, prior = steps, strength
        progress.finish()
        assert first is not None
        if path.head.separate and not selection_rule.clearly_less(least[0].losses, first.losses):
            least = [first]  # the cosine alone
        least = least if selection_rule.compares_penalties(self.prepared.task) else least[:1]
        answered: list[list[np.ndarray]] = []  # outputs of all held-out rows with each penalty
        for step in least:
            parts = [solved_arrays(path, solution, self._spans.get(path)) for solution in step.heads]
            sides_outputs = [self.outputs(path, arrays, held) for arrays, (_, held) in zip(parts, pairs, strict=True)]
            answered.append([row for outputs in sides_outputs for row in outputs])
        best = selection_rule.best_penalty(self.prepared.task, self.held, answered)
        return Trial(
            candidate=candidate,
            path=path,
            outputs=answered[best],
            offset=None,
            setting=least[best].heads[0].penalty,
            losses=least[0].losses,
            examples=np.concatenate([held.examples for _, held in sides]),
            prior=prior,
            fitted=Fitted(),
            arrays=None if self._folds else solved_arrays(path, least[best].heads[0], self._spans.get(path)),
        )

    def outputs(self, path: Path, arrays: Mapping[str, np.ndarray], split: Split) -> list[np.ndarray]:
        """The outputs of the part with these arrays for the split's rows."""
        return head_outputs(path, arrays, self.examples(split, path), self.source.facts.architecture.width)

    def _inputs(self, path: Path, split: Split) -> Inputs:
        kind, examples = kind_of(self.prepared.task), self.examples(split, path)
        inputs = inputs_of(path, examples, loss=kind.loss, outputs=path.head.width)
        inputs = msgspec.structs.replace(inputs, weights=self.class_weights())
        hashed = hashed_words(split.examples, path)
        return inputs if hashed is None else inputs.beside(self._span(path, inputs.values), hashed)

    def _span(self, path: Path, values: np.ndarray) -> HashedBasis:
        """Coordinates for the hashed words of all labelled texts, scaled to the dense inputs (rows, inputs)."""
        if path not in self._spans:
            each = hashed_words(self.prepared.whole or self.prepared.train.examples, path) or []
            texts = [text for row_texts in each for text in row_texts]
            self._spans[path] = HashedBasis(texts, path.head.words, beside=values)
        return self._spans[path]

    def _prior(self, path: Path) -> np.ndarray | None:
        if path not in self._priors:
            applied = label_words.applies(self.prepared, self.source)
            self._priors[path] = label_words.prior_of(path, self.prepared.task, self.source) if applied else None
        return self._priors[path]

    def class_weights(self) -> np.ndarray | None:
        """Class weights, if the task wants them."""
        prepared = self.prepared
        if not prepared.training.class_weights:
            return None
        balanced = kind_of(prepared.task).class_weights(prepared.task, prepared.train.examples.taught)
        return None if balanced is None else balanced.astype(np.float32)

    def _tell_unread(self, path: Path) -> None:
        """Reports once, before training on words or places, which of them no answer can represent."""
        if self._is_untold:
            self._is_untold, whole = False, self.prepared.whole
            split = split_of(whole) if whole is not None and self._folds else self.prepared.train
            prepared = msgspec.structs.replace(self.prepared, train=split)
            tell_unread(prepared, self.examples(split, path), self.source.facts.settings.max_tokens, self.events)


def _is_clearly_better(trial: Trial, before: Trial) -> bool:
    """Whether a linear head's loss is clearly smaller, by the examples that both read: of wide inputs fewer fit."""
    assert trial.losses is not None and before.losses is not None
    assert trial.examples is not None and before.examples is not None
    losses = trial.losses[np.isin(trial.examples, before.examples)]
    return selection_rule.clearly_less(losses, before.losses[np.isin(before.examples, trial.examples)])


def split_of(examples: Examples) -> Split:
    """Rows to learn from."""
    return Split(name="train", examples=examples)
