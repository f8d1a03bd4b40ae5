"""Trials of heads over kept features: each candidate is fitted and scored on held-out rows, and one is kept.

With few labelled rows, each of them is held out once (k folds), and the kept head is trained on all of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch

from polyhead.data.read import Examples
from polyhead.data.split import folds
from polyhead.deep.examples import FeatureExamples, module_outputs, tell_unread
from polyhead.deep.features import examples_of, hashed_words
from polyhead.deep.heads.folds import FoldRun, rounds_of
from polyhead.deep.heads.inputs import inputs_of, set_head
from polyhead.deep.heads.label_words import STRENGTHS, applies, prior_of
from polyhead.deep.loop.fit import Course
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Path
from polyhead.project.strategies.base import HeadCandidate
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.prepared import FOLDS, Prepared, Split
from polyhead.train.data.source import FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads import rule
from polyhead.train.heads.linear import PENALTIES, Inputs, Swept, solution_of, swept
from polyhead.train.heads.span import HashedSpan
from polyhead.train.runs import SUFFIX, Fitted, stream

REFITTED_BELOW = 10_000  # labelled rows: with fewer, a head trained in steps is trained once more, on all of them
RACED = 1 / 3  # share of its rounds after which a head far behind the best linear one is dropped
FAR = 2  # standard errors of the difference
PERFECT = 1.0  # the maximum of every metric


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its answers to rows that it was not trained on."""

    candidate: HeadCandidate
    path: Path
    outputs: list[np.ndarray]  # of the selection rows
    offset: np.ndarray | None  # added to the outputs, if rare labels count as much as frequent ones
    setting: float  # the penalty of a linear head, or the best number of updates
    fitted: Fitted
    module: PooledPart | None  # as trained on the training rows; None with folds
    losses: np.ndarray | None = None  # for a linear head, each selection row (word, option): the smallest found
    prior: float = 0.0  # for a linear head: the strength of the prior from the labels' words


class Trials:
    """Fits the candidates of one task, `threads` folds at once. `held` are the selection rows: with folds all."""

    def __init__(
        self,
        prepared: Prepared,
        source: FeatureSource,
        *,
        checkpoints: FilePath | None,
        events: Events,
        threads: int = 1,
    ) -> None:
        self._prepared, self._source, self._threads = prepared, source, threads
        self._checkpoints, self._events = checkpoints, events
        self._folds: list[tuple[Split, Split]] = []
        self._parts: list[list[int]] = []  # the rows that each fold holds out
        self._is_untold = prepared.train.examples.words is not None
        self._linear: list[Trial] = []  # tried so far
        self._best: dict[int, int] = {}  # number of linear heads -> index of the best of them, for spans
        self._priors: dict[Path, np.ndarray | None] = {}
        self._spans: dict[Path, HashedSpan] = {}
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
        return self._folds or [(self._prepared.train, self._prepared.validation)]

    def _fold(self, whole: Examples) -> None:
        task, seed = self._prepared.task, self._prepared.training.seed
        self._parts = folds(whole, FOLDS, stream(seed, "folds", task.name), task)
        if len(self._parts) < 2:
            return
        for held in self._parts:
            kept = sorted(set(range(len(whole.targets))) - set(held))
            self._folds.append((_split(whole.take(kept)), _split(whole.take(held))))
        self.held = whole.take([row for held in self._parts for row in held])

    def is_beaten(self, candidate: HeadCandidate) -> bool:
        """Whether a head trained in steps cannot beat the best linear one, because that is perfect."""
        linear = self.best_linear(self._linear)
        if linear is None or candidate.solver == "linear":
            return False
        return rule.choosing_score(self._prepared.task, self.held, linear.outputs) >= PERFECT

    def tried(self, candidate: HeadCandidate, path: Path) -> Trial:
        """The candidate, fitted without the selection rows."""
        self._tell_unread(path)
        if candidate.solver == "linear":
            trial = self._shifted(self._solved(candidate, path))
            self._linear.append(trial)
            return trial
        return self._shifted(self._trained(candidate, path))

    def best(self, several: Sequence[Trial]) -> Trial:
        """The best linear head by its loss, unless one trained in steps has a clearly better score."""
        linear = self.best_linear(several)
        ranked = [*([] if linear is None else [linear]), *(trial for trial in several if trial.losses is None)]
        return ranked[rule.best_of(self._prepared.task, self.held, [trial.outputs for trial in ranked])]

    def best_linear(self, several: Sequence[Trial]) -> Trial | None:
        """The first of the linear heads, unless the loss of a later one is clearly smaller.

        With few rows the loss shows which is better long before a score does. Not so for spans: most words are in none,
        and nearly all of the loss is theirs; the score decides.
        """
        task, linear = self._prepared.task, [trial for trial in several if trial.losses is not None]
        if linear and kind_of(task).default_metric(task) == "span_f1":
            if (tried := len(linear)) not in self._best:  # the comparison takes seconds
                self._best[tried] = rule.best_of(task, self.held, [trial.outputs for trial in linear])
            return linear[self._best[tried]]
        best: Trial | None = None
        for trial in linear:
            assert trial.losses is not None
            if best is None or best.losses is None or rule.clearly_less(trial.losses, best.losses):
                best = trial
        return best

    def learns_all(self, trial: Trial) -> bool:
        """Whether the kept part is trained on all labelled rows: if validation is a share of them."""
        whole = self._prepared.whole
        if whole is None:
            return False
        is_linear = trial.candidate.solver == "linear"
        return is_linear or trial.module is None or len(whole.targets) < REFITTED_BELOW

    def kept(self, trial: Trial) -> tuple[PooledPart, Fitted]:
        """The part for the bundle."""
        whole, module, fitted = self._prepared.whole, trial.module, trial.fitted
        if whole is not None and self.learns_all(trial):
            everything = _split(whole)
            if trial.candidate.solver == "linear":
                module = self._module(trial.path)
                inputs = self._inputs(module, everything)
                prior = self._prior(module) if trial.prior else None
                set_head(
                    module, solution_of(inputs.drawn(prior, trial.prior), trial.setting), self._spans.get(trial.path)
                )
            else:
                module, fitted = self._again(trial, everything)
        assert module is not None
        if trial.offset is not None:
            module = copy.deepcopy(module)  # the trial's own may be needed again
            with torch.no_grad():
                module.head.output.bias.data.add_(torch.from_numpy(trial.offset))
        return module, msgspec.structs.replace(
            fitted, score=rule.choosing_score(self._prepared.task, self.held, trial.outputs)
        )

    def _shifted(self, trial: Trial) -> Trial:
        """The trial with the best offset for a metric that counts all labels equally."""
        _, outputs, offset = self._best_shift(trial.outputs, self.held)
        return msgspec.structs.replace(trial, outputs=outputs, offset=offset)

    def _best_shift(
        self, outputs: list[np.ndarray], held: Examples
    ) -> tuple[float, list[np.ndarray], np.ndarray | None]:
        """The best score, its outputs, and the offset added to them."""
        task, targets = self._prepared.task, self._prepared.train.examples.targets
        offsets = [None, *kind_of(task).offsets(task, targets)]
        several = [outputs if offset is None else [row + offset for row in outputs] for offset in offsets]
        scores = [rule.choosing_score(task, held, shifted) for shifted in several]
        best = int(np.argmax(scores))
        return scores[best], several[best], offsets[best]

    def _module(self, path: Path) -> PooledPart:
        prepared = self._prepared
        generator = torch.Generator().manual_seed(stream(prepared.training.seed, "init", prepared.task.name))
        width = self._source.facts.architecture.width
        return PooledPart(path, width, dropout=prepared.training.dropout, generator=generator)

    def _examples(self, split: Split, path: Path) -> FeatureExamples:
        return examples_of(self._prepared, split, path, self._source)

    # Linear heads

    def _solved(self, candidate: HeadCandidate, path: Path) -> Trial:
        """Each fold's heads together, from the strongest penalty on, until the loss rises.

        For pairs only the cosine is used, unless another head is clearly better.
        """
        module, pairs = self._module(path), self.sides
        label = f"{self._prepared.task.name} ({candidate.name})"
        progress = self._events.progress(label, unit="penalties", at_most=True)
        if (whole := self._prepared.whole) is not None and self._folds:
            sides = self._inputs(module, _split(whole)).sides(self._parts)
        else:
            sides = [(self._inputs(module, train), self._inputs(module, held)) for train, held in pairs]
        first: Swept | None = None
        least, prior = list[Swept](), 0.0  # the heads with the smallest loss, then heads with weaker penalties
        for strength in (0.0, *STRENGTHS) if self._prior(module) is not None else (0.0,):
            drawn = [(train.drawn(self._prior(module), strength), held) for train, held in sides]
            for number, step in enumerate(swept(drawn), start=1):
                progress.update(number, len(PENALTIES) + module.separate)
                first = first or step
                if not least or step.losses.mean() < least[0].losses.mean():
                    least, prior = [step], strength
                elif strength == prior:
                    least.append(step)
        progress.finish()
        assert first is not None
        if module.separate and not rule.clearly_less(least[0].losses, first.losses):
            least = [first]  # the cosine alone
        best = least[rule.best_penalty(self._prepared.task, self.held, least)]
        outputs: list[np.ndarray] = []
        for solution, (_, held) in zip(best.heads, pairs, strict=True):
            set_head(module, solution, self._spans.get(path))
            outputs += module_outputs(module, self._examples(held, path))
        return Trial(
            candidate=candidate,
            path=path,
            outputs=outputs,
            offset=None,
            setting=best.heads[0].penalty,
            losses=least[0].losses,
            prior=prior,
            fitted=Fitted(),
            module=None if self._folds else module,
        )

    def _inputs(self, module: PooledPart, split: Split) -> Inputs:
        kind, examples = kind_of(self._prepared.task), self._examples(split, module.path)
        inputs = inputs_of(module, examples, loss=kind.loss, outputs=module.path.head.width)
        inputs = msgspec.structs.replace(inputs, weights=self._class_weights())
        hashed = hashed_words(split.examples, module.path)
        return inputs if hashed is None else inputs.beside(self._span(module.path, inputs.values), hashed)

    def _span(self, path: Path, values: np.ndarray) -> HashedSpan:
        """Coordinates for the hashed words of all labelled texts, scaled to the dense inputs (rows, inputs)."""
        if path not in self._spans:
            each = hashed_words(self._prepared.whole or self._prepared.train.examples, path) or []
            texts = [text for several in each for text in several]
            self._spans[path] = HashedSpan(texts, path.head.words, beside=values)
        return self._spans[path]

    def _prior(self, module: PooledPart) -> np.ndarray | None:
        if module.path not in self._priors:
            applied = applies(self._prepared, self._source)
            self._priors[module.path] = prior_of(module, self._prepared.task, self._source) if applied else None
        return self._priors[module.path]

    def _class_weights(self) -> np.ndarray | None:
        """Class weights, if the task wants them."""
        prepared = self._prepared
        if not prepared.training.class_weights:
            return None
        balanced = kind_of(prepared.task).class_weights(prepared.task, prepared.train.examples.targets)
        return None if balanced is None else balanced.astype(np.float32)

    # Heads trained in steps

    def _trained(self, candidate: HeadCandidate, path: Path) -> Trial:
        if self._folds:
            return self._trained_by_folds(candidate, path)
        prepared, module = self._prepared, self._module(path)
        train, validation = self._examples(prepared.train, path), self._examples(prepared.validation, path)
        kept = self._checkpoints / f"{prepared.task.name}-{candidate.name}{SUFFIX}" if self._checkpoints else None
        course = self._course(module, train, validation, checkpoint=kept, events=self._events)
        raced = math.ceil(course.most * RACED)
        course.advance(raced)
        # A resumed run that is beyond this round has passed it.
        if course.passed(raced) or not self._far_behind(module_outputs(module.eval(), validation), course.best_score):
            course.advance()
        fitted = course.finish()
        return Trial(
            candidate=candidate,
            path=path,
            outputs=module_outputs(module, validation),
            offset=None,
            setting=fitted.best_update,
            fitted=fitted,
            module=module,
        )

    def _trained_by_folds(self, candidate: HeadCandidate, path: Path) -> Trial:
        """All folds trained side by side and validated together; the best state for all of them is kept.

        A single fold holds out too few rows to decide when to stop.
        """
        task = self._prepared.task
        runs = []
        for train, left_out in self._folds:
            module = self._module(path)
            course = self._course(module, self._examples(train, path), None)
            runs.append(FoldRun(module=module, course=course, held=self._examples(left_out, path)))
        label = f"{task.name} ({candidate.name}, {self.folds} folds)"
        progress = self._events.progress(label, unit="rounds", at_most=True)
        best_score, best_round, best_outputs = -float("inf"), 0, list[np.ndarray]()
        rounds = list[list[np.ndarray]]()
        most, patience = runs[0].course.most, runs[0].course.schedule.patience
        raced = math.ceil(most * RACED)
        with rounds_of(runs, threads=self._threads) as trained:
            for number, outputs in enumerate(trained, start=1):
                score = self._best_shift(outputs, self.held)[0]
                if score > best_score:
                    best_score, best_round, best_outputs = score, number, outputs
                if len(self.held.targets) < rule.FEW:
                    rounds.append(outputs)
                note = f"validation {score:.4f}, best {best_score:.4f}"
                progress.update(number, most, note=note)
                progress.lap("round", number, most, note)
                if number - best_round >= patience or (number == raced and self._far_behind(best_outputs, best_score)):
                    break
        seconds, fitted = progress.finish(), runs[0].course.finish()
        if rounds:  # with few rows the best of many rounds is better than chance by chance
            best_outputs = rule.of_best_rounds(task, self.held, rounds, [run.held.count for run in runs])
        return Trial(
            candidate=candidate,
            path=path,
            outputs=best_outputs,
            offset=None,
            setting=best_round * fitted.steps,
            fitted=msgspec.structs.replace(fitted, best_epoch=best_round, seconds=seconds),
            module=None,
        )

    def _far_behind(self, outputs: list[np.ndarray], best: float) -> bool:
        """Whether the best linear head is significantly better than this one ever was."""
        linear, task = self.best_linear(self._linear), self._prepared.task
        if linear is None:
            return False
        lost = rule.choosing_score(task, self.held, linear.outputs) - best
        shifted = self._best_shift(outputs, self.held)[1]
        return lost > 0 and lost > FAR * rule.paired_error(task, self.held, shifted, linear.outputs)

    def _again(self, trial: Trial, everything: Split) -> tuple[PooledPart, Fitted]:
        """The head trained on all rows for the best number of updates."""
        module = self._module(trial.path)
        examples = self._examples(everything, trial.path)
        course = self._course(module, examples, None, events=self._events)
        course.advance(max(1, round(trial.setting / course.steps)))
        return module, course.finish()

    def _tell_unread(self, path: Path) -> None:
        """Reports once, before training on words or places, which of them no answer can represent."""
        if self._is_untold:
            self._is_untold, whole = False, self._prepared.whole
            split = _split(whole) if whole is not None and self._folds else self._prepared.train
            prepared = msgspec.structs.replace(self._prepared, train=split)
            tell_unread(prepared, self._examples(split, path), self._source.facts.settings.max_tokens, self._events)

    def _course(
        self,
        module: PooledPart,
        train: FeatureExamples,
        validation: FeatureExamples | None,
        *,
        checkpoint: FilePath | None = None,
        events: Events | None = None,
    ) -> Course:
        """A training run; without `validation` nothing stops it early, and its last weights are kept."""
        prepared, task, kind = self._prepared, self._prepared.task, kind_of(self._prepared.task)
        weights = self._class_weights()

        def score() -> float | None:
            if validation is None:
                return None
            return self._best_shift(module_outputs(module, validation), prepared.validation.examples)[0]

        return Course(
            module,
            train,
            loss=LOSSES[kind.loss],
            score=score,
            training=prepared.training,
            weights=None if weights is None else torch.from_numpy(weights),
            checkpoint=checkpoint,
            events=events,
            label=f"{task.name} ({module.path.pool.positions})",
            last=validation is None,
        )


def _split(examples: Examples) -> Split:
    return Split(name="train", examples=examples)
