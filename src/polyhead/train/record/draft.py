"""Trained tasks in the form in which a bundle stores them: record, arrays, scores, probes and card."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from polyhead._version import __version__
from polyhead.bundle.live_versions import HeldOutCalibration, Probe
from polyhead.bundle.lost_labels import NO_ROWS
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.owners import task_names
from polyhead.bundle.write import Draft
from polyhead.data.read import Examples
from polyhead.encoder.data import TrunkFacts
from polyhead.encoder.decoder import Decoder
from polyhead.evaluate.probabilities import error_of, label_scores_of
from polyhead.plan import Path, Plan, cost, merge
from polyhead.progress import counted
from polyhead.project.strategies.branch import private_layers
from polyhead.tasks.calibration import Calibration, calibrator_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import TaskInput, texts_of
from polyhead.train.data.prepared import Prepared, split_rows
from polyhead.train.record.selection import Fingerprint, tag
from polyhead.train.runs import Fitted


class HeldOutRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a part, or one fold's part for each row, was not trained on, and the outputs for them."""

    examples: Examples
    outputs: list[np.ndarray]  # one per example
    # Parts of folds are less confident, or more, than the final one. Of ten samples of new rows (emotion and sst2,
    # minilm, 800 rows, attention heads) five had other scores than theirs, with p below 0.01; with a held-out share,
    # none of 39 (eight sets, 3,000 rows) had.
    folds: int = 0


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained part, its path, and its results on whole splits."""

    path: Path
    arrays: dict[str, np.ndarray]
    scores: dict[str, dict[str, float]]  # split -> metric -> value
    fitted: Fitted
    tried: dict[str, float]  # candidate -> score on held-out rows, if a head was chosen
    chosen: str = ""  # the chosen candidate
    folds: int = 0  # folds that replace a validation split
    refitted: bool = False  # whether it was trained on the validation rows too, after they had chosen it
    baselines: Baselines = {}  # baselines -> split -> metric -> value
    held: HeldOutRows | None = None  # their profile is stored with the task, their outputs in the cache
    task: Task | None = None  # with the decisions that held-out rows chose; None: as it was declared
    scale: float = 1.0  # of the head's outputs, in its weights, by which it is as sure as it is right

    def notes(self, task: Task) -> dict[str, Any]:
        """The notes stored with the part: scores, baselines, candidate heads, and the history of training.

        They contain no seconds: the same seed gives the same bundle. Branches from a resumed run come from a file,
        where an epoch's number has become a float.
        """
        history = [
            {"epoch": int(row["epoch"]), **{n: v for n, v in row.items() if n not in ("epoch", "seconds")}}
            for row in self.fitted.history
        ]
        baselines = {name: finite_scores(scores) for name, scores in self.baselines.items()}
        notes: dict[str, Any] = {"splits": finite_scores(self.scores), "baselines": baselines, "tried": self.tried}
        notes["history"] = history
        if self.chosen:
            notes["chosen"] = self.chosen
        if self.folds:
            notes["folds"] = self.folds
        if self.refitted:
            notes["refitted"] = True
        if self.scale != 1:
            notes["scale"] = self.scale
        if self.held is not None and (calibration := held_calibration(task, self.held)) is not None:
            notes["calibration"] = msgspec.to_builtins(calibration)
        return notes


def finite_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The same without values that are no finite numbers: JSON holds none."""
    return {
        split: {metric: value for metric, value in values.items() if isfinite(value)}
        for split, values in scores.items()
    }


def held_calibration(task: Task, held: HeldOutRows) -> HeldOutCalibration | None:
    """The calibration errors on held-out rows; None for kinds without one probability per label."""
    targets = held.examples.targets
    if calibrator_of(task) is None or kind_of(task).scores == "range" or not targets:
        return None
    rows = label_scores_of(task, held.outputs, targets)
    error = error_of(rows, Calibration().probabilities(task, rows.logarithms))
    return HeldOutCalibration(error=error, rows=len(targets))


Baselines = dict[str, dict[str, dict[str, float]]]


def drafts_of(
    trained_tasks: Sequence[tuple[Prepared, Trained]],
    data: TrunkFacts,
    prints: Mapping[str, Fingerprint],
    label: Mapping[str, str],
) -> list[Draft]:
    """The drafts of these tasks, which are written in one step; `label` describes the numerics."""
    plan = merge({p.task.name: trained.path for p, trained in trained_tasks})
    drafts = []
    for p, trained in trained_tasks:
        fingerprint = prints[p.task.name]
        # Test rows count too: they decide nothing in training, but scores are measured on them.
        facts = {**fingerprint, "data": split_rows(p.splits), "numerics": dict(label)}
        facts |= {NO_ROWS: unseen} if (unseen := labels_without_rows(p)) else {}
        record = TaskRecord(
            task=trained.task or p.task,
            path=trained.path,
            trunk=data.digest,
            trained_with={"fingerprint": tag(fingerprint), "polyhead": __version__, **facts},
        )
        draft = Draft(
            record=record,
            arrays=trained.arrays,
            scores=trained.notes(p.task),
            probes=validation_probes(p),
            card=task_card(p, trained, data, plan),
        )
        drafts.append(draft)
    return drafts


def labels_without_rows(prepared: Prepared) -> list[str]:
    """The labels of a task that none of its training rows has."""
    unseen = dict(enumerate(prepared.task.labels))
    for target in (prepared.whole or prepared.train.examples).targets if unseen else ():
        for index in _labels_in(target) & unseen.keys():
            del unseen[index]
        if not unseen:
            break
    return list(unseen.values())


PROBES = 64  # at least this many, if the validation split has them


def validation_probes(prepared: Prepared) -> list[dict[str, object]]:
    """PROBES inputs of the validation split in file order, or all of a smaller one.

    They include every label that occurs, the longest text and a text that is not ASCII; if these are more than PROBES,
    all of them and no others.
    """
    examples = prepared.validation.examples
    needed = _with_every_label(examples.targets) | {_longest(examples.inputs), *_unlike_ascii(examples.inputs)}
    others = [index for index in range(len(examples.inputs)) if index not in needed]
    spread = _spread(others, PROBES - len(needed))
    return [_probe(prepared, index) for index in sorted([*needed, *spread])]


def _with_every_label(targets: Sequence[np.ndarray]) -> set[int]:
    """The rows that cover all labels first."""
    chosen, seen = set(), set[int]()
    for index, target in enumerate(targets):
        new = _labels_in(target) - seen
        if new:
            chosen.add(index)
            seen |= new
    return chosen


def _labels_in(target: np.ndarray) -> set[int]:
    """Indices of the labels in a target: one, one per word, or where it is 1; empty for a number.

    For answers in a text, whether there is one.
    """
    if target.ndim == 2:
        return {int(target[0, 1] > 0)}
    if np.issubdtype(target.dtype, np.integer):
        return set(np.unique(target).tolist())
    return set(np.flatnonzero(target).tolist()) if target.ndim else set()


def _longest(inputs: Sequence[TaskInput]) -> int:
    return max(range(len(inputs)), key=lambda index: sum(len(text) for text in texts_of(inputs[index])))


def _unlike_ascii(inputs: Sequence[TaskInput]) -> list[int]:
    """The first row with the most unusual characters: combining or astral ones, else any beyond ASCII."""
    strange = [max(_strangeness(text) for text in texts_of(value)) for value in inputs]
    most = max(strange)
    return [strange.index(most)] if most else []


def _strangeness(text: str) -> int:
    if text.isascii():
        return 0
    return 2 if any(ord(c) > 0xFFFF or unicodedata.combining(c) for c in text) else 1


def _spread(rows: Sequence[int], count: int) -> list[int]:
    """At most `count` of the rows, evenly spaced."""
    count = max(0, min(count, len(rows)))
    return [rows[(2 * place + 1) * len(rows) // (2 * count)] for place in range(count)]


def _probe(prepared: Prepared, index: int) -> dict[str, object]:
    examples = prepared.validation.examples
    return Probe.of(examples.inputs[index], examples.whole_words(index)).line()


def task_card(prepared: Prepared, trained: Trained, trunk: TrunkFacts, plan: Plan, *, learned: bool = False) -> str:
    """Markdown for the task's README.md; `plan` has all tasks that are written with it."""
    task, path = trained.task or prepared.task, trained.path
    added = cost.added(plan, task.name, trunk.architecture, tokens=32, folded=True)
    metric, calibration = kind_of(task).default_metric(task), f"{_scaled(trained)}{_error_of(task, trained)}"
    return "\n".join(
        [
            f"# {task.name}",
            "",
            f"A `{task.kind}` task" + (f" on pairs read {task.pair}" if task.pair != "none" else "") + ".",
            *about_task(task),
            f"Team: {prepared.team or 'not stated'}.",
            "",
            "## Trained on",
            "",
            f"{_examples(prepared, trained)}; seed {prepared.training.seed}{_kept(trained, metric)}. The trunk "
            f"`{trunk.name}` {'learned with it' if learned else 'was frozen'}.{calibration}",
            "",
            *score_table(trained.scores, trained.baselines),
            "## Path and cost",
            "",
            f"{_described(path)} {added.parameters:,} parameters and "
            f"{added.flops / 1e6:.2f} MFLOP of its own on a text of 32 tokens.",
            "",
            "## Limits",
            "",
            "Scores hold for texts like those of the splits above. Inputs over "
            f"{trunk.settings.max_tokens} tokens are {'read in windows' if task.long_texts == 'windows' else 'cut'}."
            f"{_written(task)}",
            "",
        ]
    )


def _scaled(trained: Trained) -> str:
    """A sentence on the scale, after a blank; empty for 1."""
    how = f" Outputs are multiplied by {trained.scale:.2f}, so that probabilities are right on rows held out."
    return "" if trained.scale == 1 else how


def _error_of(task: Task, trained: Trained) -> str:
    """A sentence on the calibration error, with a blank before it; empty if the error is unknown."""
    if trained.held is None or (calibration := held_calibration(task, trained.held)) is None:
        return ""
    return f" Probabilities of held-out rows are off by {calibration.error:.3f} on average."


def about_task(task: Task) -> list[str]:
    """Lines about the task's labels or range."""
    labels = [f"Labels, in order: {', '.join(task.labels)}."] if task.labels else []
    labels += [f"A label is given from {task.threshold:g} on."] if "threshold" in kind_of(task).uses else []
    return labels + ([f"Range: {task.range[0]:g} to {task.range[1]:g}."] if task.range else [])


def _examples(prepared: Prepared, trained: Trained) -> str:
    """The number of examples of each split, in words."""
    sizes = [f"{len(s.examples.targets):,} {s.name}" for s in prepared.splits]
    if trained.folds and prepared.whole is not None:
        sizes[:2] = [f"{len(prepared.whole.targets):,} train (each held out once, in {trained.folds} folds)"]
    return ", ".join(sizes) + " examples"


def _kept(trained: Trained, metric: str) -> str:
    """The head and epoch that held-out rows chose, in words."""
    chosen = f"; head: {trained.chosen}" if trained.chosen else ""
    best = trained.fitted.best_epoch
    return chosen + (f"; best epoch {best} by validation {metric}" if best else "")


def score_table(
    scores: Mapping[str, Mapping[str, float]], baselines: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None
) -> list[str]:
    """A section with every metric (columns) of every split (rows), with baselines on the same rows below each."""
    names = list(next(iter(scores.values())))
    rows = []
    for split, values in scores.items():
        lines = {split: values} | {
            f"{split}, {name}": of[split] for name, of in (baselines or {}).items() if split in of
        }
        rows += [
            f"| {title} | " + " | ".join(f"{line[name]:.4f}" if name in line else "" for name in names) + " |"
            for title, line in lines.items()
        ]
    head = ["| split | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    return ["## Scores on whole splits", "", *head, *rows, ""]


def _written(task: Task) -> str:
    """Sentences on what a task writes, after a blank; empty for other tasks."""
    rules = task.generation
    if rules is msgspec.UNSET:
        return ""
    how = "greedily" if rules.beams == 1 else f"with {rules.beams} beams"
    return f" At most {rules.tokens} tokens are written, {how}; what is written was not checked for truth."


def _described(path: Path) -> str:
    private, pool, decoder = private_layers(path), path.pool, path.head.decoder
    read = f"positions `{pool.positions}`, codec `{pool.codec.name}`."
    if isinstance(decoder, Decoder):
        read = f"{read[:-1]}, read by a decoder of {counted(decoder.layers, 'layer')} that writes text."
    deltas = [node for node in path.layers if node.delta is not None]
    if path.embed.prompts:
        rows = sum(prompt.rows for prompt in path.embed.prompts)
        seen = "which the text does not see" if path.embed.isolated else "which the text sees"
        prompt_rows = counted(rows, "prompt row")
        return f"{prompt_rows}, {seen}{_group(path)}, {read}"
    if deltas:
        spans = ", ".join(
            f"`{n.delta.kind}` in layers {n.start} to {n.stop - 1}" for n in deltas if n.delta is not None
        )
        return f"Adapters: {spans}, {read}"
    if private:
        return f"{counted(len(private), 'private layer')} above layer {private.start} of the trunk, {read}"
    return f"Layers `{pool.layers}` (of {pool.of}), {read}"


def _group(path: Path) -> str:
    """The owners of the prompt rows in words, if not all are the task's own."""
    owner, prompts = path.head.part, path.embed.prompts
    whose = []
    for prompt in prompts:
        tasks = [f"`{name}`" for name in task_names([prompt.part])]
        whose.append(f"{prompt.rows} of {'its own' if prompt.part == owner else (tasks or ['the group'])[0]}")
    return f" ({', '.join(whose)})" if len(prompts) > 1 else ""
