"""Comparison of a new version of a task with its live one, on the same validation or test rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.journal import Attempt
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, FamilyDraft, check_read
from polyhead.data.read import Examples
from polyhead.engine.backends import encoding_backend
from polyhead.engine.session import Session
from polyhead.errors import BundleError, PolyheadError
from polyhead.evaluate.held_out import HeldOutAnswers
from polyhead.plan import TRUNK, Path, owners_of
from polyhead.progress import counted
from polyhead.tasks.agreement import same_answer
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.regression import CLOSE
from polyhead.tasks.task import Task, owner_of
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.prepare import wanted_of
from polyhead.train.data.prepared import Prepared, Split, split_rows
from polyhead.train.data.source import FeatureSource
from polyhead.train.data.stored import StoredFeatures
from polyhead.train.events import Events
from polyhead.train.heads.inputs import head_outputs
from polyhead.train.heads.selection_rule import LEAST_ROWS

MOST = 2000  # rows compared, evenly spaced: each passes through the trunk for either version
PIECE = 256  # inputs answered at a time: bounds memory, and allows progress
ASKED = ("kind", "labels", "range", "null_answers")  # fields that versions of one question share

Outputs = list[np.ndarray]
VersionOutputs = tuple[Callable[[Examples], Outputs], Callable[[Examples], Outputs]]
"""The outputs of the live version and of the new one for examples; the first function is called first."""
BothHeldOut = tuple[HeldOutAnswers | None, HeldOutAnswers | None]
"""Stored outputs of the live version and the new one for held-out rows, from before they learned from these rows."""
RunVersions = Callable[[Bundle, Prepared, Draft, Mapping[str, Mapping[str, np.ndarray]], Events], VersionOutputs]


class VersionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Scores and answers of the live version and a new one on the same rows."""

    metric: str
    live: float
    new: float
    rows: int  # 0: too few are known that neither version learned from
    of: int  # total rows of the split
    changed: int  # number of rows with another answer
    held_out: bool  # whether neither version is known to be trained on its scored rows
    split: str = "validation"
    close: float | None = None  # regression: numbers that differ by more count as other answers

    @property
    def is_better(self) -> bool:
        """Whether the new version wins; a score that is not a number loses to any number."""
        return self.new > self.live or (math.isnan(self.live) and not math.isnan(self.new))

    def line(self) -> str:
        """`accuracy 0.9083 -> 0.9167 on 120 validation rows, 7 answers changed`."""
        if not self.rows:
            return (
                f"no fair comparison: of the {self.of:,} {self.split} rows, too few are known that neither version "
                "learned from; give such rows as a test or validation file (in Python `test` or `validation`)"
            )
        rows = f"{self.rows:,}" if self.rows == self.of else f"{self.rows:,} of {self.of:,}"
        more = "" if self.close is None else f" by more than {self.close:g}"
        answers = counted(self.changed, "answer")
        score = f"{self.metric} {self.live:.4f} -> {self.new:.4f}"
        line = f"{score} on {rows} {self.split} rows, {answers} changed{more}"
        if self.held_out:
            return line
        other = "was scored on other test rows" if self.split == "test" else "held out other rows"
        return f"{line}; the old version {other}, so it may have been trained on some of these"

    def kept_line(self, version: str) -> str:
        """The reason why the live version stays."""
        return f"{self.line()}{': not better' if self.rows else ''}, so {version} stays live"

    def attempt(self, fingerprint: str, record: str) -> Attempt:
        """The record of a losing version."""
        return Attempt(fingerprint=fingerprint, record=record, metric=self.metric, live=self.live, tried=self.new)


def no_comparison(live: Task, new: Task) -> str | None:
    """The reason why no score can decide between two versions; None if scores can."""
    differing = [field for field in ASKED if getattr(live, field) != getattr(new, field)]
    if (live.pair == "none") != (new.pair == "none"):
        differing.append("pair")
    return f"its live version answers something else (another {', '.join(differing)})" if differing else None


def rivals(
    bundle: Bundle,
    prepared: Sequence[Prepared],
    drafts: Sequence[Draft],
    families: Sequence[FamilyDraft],
    events: Events,
    *,
    strict: bool,
    runner: RunVersions,
    held: Mapping[str, BothHeldOut],
) -> dict[str, VersionComparison]:
    """The tasks with a live version, each compared with its new one; reports those that cannot be compared.

    `strict`: an error of the new version is raised; else a version is written even if it could not be compared. `held`
    has the stored outputs of both versions of each task for held-out rows.
    """
    owned = {family.family: family.arrays for family in families}
    owned |= {owner_of(draft.record.task): draft.arrays for draft in drafts}
    comparisons = {}
    for p, draft in zip(prepared, drafts, strict=True):
        name, record = p.task.name, draft.record
        if name not in bundle.lines:
            continue
        reason = no_comparison(bundle.tasks[name].task, p.task)
        if reason is None:
            others = {
                owner: check_read(owned[owner], record, owner, bundle.architecture)
                for owner in owners_of(record.path)
                if owner not in (TRUNK, owner_of(p.task))
            }
            try:
                comparisons[name] = compare_with_live(bundle, p, draft, others, events, runner, held[name])
            except PolyheadError as error:
                if strict and not isinstance(error, BundleError):
                    raise
                reason = f"they could not both be asked ({error.what})"
        if reason is not None:
            events.line(f"{name}: not compared with {bundle.version(name)}: {reason}")
    return comparisons


def compare_with_live(
    bundle: Bundle,
    prepared: Prepared,
    draft: Draft,
    others: Mapping[str, Mapping[str, np.ndarray]],
    events: Events,
    runner: RunVersions,
    held: BothHeldOut = (None, None),
) -> VersionComparison:
    """The live version of a task in the bundle compared with a new one that is not written yet.

    `others` are other owners' arrays that the new one reads. Raises PolyheadError if a version cannot answer.
    """
    name = prepared.task.name
    live, (first, second) = bundle.tasks[name], runner(bundle, prepared, draft, others, events)
    prepared = msgspec.structs.replace(prepared, task=draft.record.task)  # with what was learned of it
    return outputs_of_both(
        prepared, live.task, live.trained_with, first, second, notes=(bundle.scores(name), draft.scores), held=held
    )


def version_runner(source: FeatureSource) -> RunVersions:
    """Runs versions on a store's features where these are the source, else on texts."""
    return _outputs_from_store(source) if isinstance(source, StoredFeatures) else _outputs_from_texts


def _outputs_from_texts(
    bundle: Bundle, prepared: Prepared, draft: Draft, others: Mapping[str, Mapping[str, np.ndarray]], events: Events
) -> VersionOutputs:
    """With a pass of the trunk over the texts."""
    name = prepared.task.name
    session = Session(bundle.view({name: bundle.lines[name]}), backend=encoding_backend())

    def of_new(examples: Examples) -> Outputs:
        session.attach(draft.record, draft.arrays, others=others)
        return _outputs(session, name, examples, events)

    return lambda examples: _outputs(session, name, examples, events), of_new


def _outputs_from_store(source: StoredFeatures) -> RunVersions:
    """Without encoding; StoreError for a version that reads other features than the store keeps."""

    def outputs(prepared: Prepared, examples: Examples, path: Path, arrays: Mapping[str, np.ndarray]) -> Outputs:
        split = Split(name="validation", examples=examples)
        source.check_kept(prepared.task.name, path)
        source.fill(wanted_of(prepared, split, path, source))
        kept = examples_of(prepared, split, path, source)
        return head_outputs(path, arrays, kept, source.facts.architecture.width)

    def run(
        bundle: Bundle, prepared: Prepared, draft: Draft, _: Mapping[str, Mapping[str, np.ndarray]], __: Events
    ) -> VersionOutputs:
        name = prepared.task.name
        return (
            lambda examples: outputs(prepared, examples, bundle.tasks[name].path, bundle.part(name)),
            lambda examples: outputs(prepared, examples, draft.record.path, draft.arrays),
        )

    return run


def outputs_of_both(
    prepared: Prepared,
    live: Task,
    trained_with: Mapping[str, object],
    first: Callable[[Examples], Outputs],
    second: Callable[[Examples], Outputs],
    *,
    notes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    held: BothHeldOut = (None, None),
) -> VersionComparison:
    """Two versions compared by their outputs for some rows of a split, the live one first.

    These are the validation rows. If a version was trained on its validation rows after they had chosen it, `notes`
    (written with each version) say so: then the test rows count. Without test rows, each counts by what it answered the
    rows before it was trained on them. Where the old version was trained on other rows, those that one of them learned
    from are left out, unless `held` has its answers from before. Where that is not known, a share of the training file
    decides only for the new version, which may have been behind on rows that the old one learned from.
    """
    refitted = any(note.get("refitted") for note in notes)
    task, split = prepared.task, _split_of(prepared, notes)
    same = [prepared.train, prepared.validation] if refitted and split is not prepared.test else [split]
    known, rows = trained_with.get("data"), split_rows(same)
    is_same = isinstance(known, dict) and {name: known.get(name) for name in rows} == rows
    is_same &= split is prepared.test or notes[0].get("folds") == notes[1].get("folds")
    unlearned = None if is_same else _unlearned(held, task, split.examples)
    kind, metric, of = kind_of(task), kind_of(task).default_metric(task), len(split.examples.targets)
    examples = _evenly_spaced(split.examples if unlearned is None else split.examples.take(unlearned))
    is_known = is_same or unlearned is not None
    if len(examples.targets) < min(LEAST_ROWS, of):
        return _undecided(metric, of, split.name)
    # Each decides as it does when serving; the new declaration defines the metric.
    asked_task = msgspec.structs.replace(
        task, threshold=live.threshold, decoder=live.decoder, transitions=live.transitions
    )
    old, new = first(examples), second(examples)
    each = examples.each()
    before, after = kind.decode_all(asked_task, old, each), kind.decode_all(task, new, each)
    if unlearned is not None:
        old = _answered_before(held[0], examples, old)
    if unlearned is not None or not (is_same or _is_given(prepared, split)):
        new = _answered_before(held[1], examples, new)
    scores = [kind.evaluate(asked_task, old, examples.targets, each)[metric], examples.scores(task, new)[metric]]
    if is_same and split is not prepared.test:
        scores = [
            _held_out_score(note, metric, score) if note.get("refitted") else score
            for note, score in zip(notes, scores, strict=True)
        ]
    comparison = VersionComparison(
        metric=metric,
        live=scores[0],
        new=scores[1],
        rows=len(examples.targets),
        of=of,
        split=split.name,
        changed=sum(not same_answer(task, *pair) for pair in zip(before, after, strict=True)),
        held_out=is_known,
        close=CLOSE * (task.range[1] - task.range[0]) if task.range is not None else None,
    )
    decides = is_known or _is_given(prepared, split) or comparison.is_better
    return comparison if decides else _undecided(metric, of, split.name)


def _undecided(metric: str, of: int, split: str) -> VersionComparison:
    return VersionComparison(
        metric=metric, live=math.nan, new=math.nan, rows=0, of=of, changed=0, held_out=False, split=split
    )


def _split_of(prepared: Prepared, notes: tuple[Mapping[str, Any], Mapping[str, Any]]) -> Split:
    """The rows that decide: those of validation, or of test if a version was trained on its validation rows too.

    With folds these are all labelled rows.
    """
    if any(note.get("refitted") for note in notes) and prepared.test is not None:
        return prepared.test
    if notes[1].get("folds") and prepared.whole is not None:
        return Split(name=prepared.validation.name, examples=prepared.whole)
    return prepared.validation


def _is_given(prepared: Prepared, split: Split) -> bool:
    """True if the rows are a file of their own, and no share of the training file."""
    return split is prepared.test or prepared.whole is None


def _unlearned(held: BothHeldOut, task: Task, examples: Examples) -> list[int] | None:
    """The examples that both versions answered, or can answer, without having learned from them.

    None where that is not known of the live one; of a new one of which it is not known all count.
    """
    live, new = (None if answers is None else answers.unlearned(task, examples) for answers in held)
    return live if live is None or new is None else sorted({*live} & {*new})


def _answered_before(held: HeldOutAnswers | None, examples: Examples, outputs: Outputs) -> Outputs:
    """The outputs, with those from before the version learned from a row in place of later ones."""
    if held is None:
        return outputs
    places, earlier = held.places(examples), held.outputs
    return [earlier[places[row]] if row in places else output for row, output in enumerate(outputs)]


def _held_out_score(note: Mapping[str, Any], metric: str, otherwise: float) -> float:
    """The training score of a part on rows that it had not been trained on yet."""
    return float(note.get("splits", {}).get("validation", {}).get(metric, otherwise))


def group_is_better(rivals: Sequence[VersionComparison]) -> bool:
    """True if a group's new versions have the better mean score, as for its best epoch; a single task its own score.

    As there, a score that is no finite number counts as 0.
    """
    if len(rivals) == 1:
        return rivals[0].is_better
    scores = np.array([(rival.live, rival.new) for rival in rivals])  # (tasks, versions)
    live, new = np.where(np.isfinite(scores), scores, 0.0).mean(axis=0)
    return bool(new > live)


def _evenly_spaced(examples: Examples) -> Examples:
    count = len(examples.targets)
    return examples if count <= MOST else examples.take([i * count // MOST for i in range(MOST)])


def _outputs(session: Session, name: str, examples: Examples, events: Events) -> Outputs:
    progress, outputs = events.progress(f"{name}: old and new answers", unit="texts"), Outputs()
    for start in range(0, len(examples.inputs), PIECE):
        words = examples.words[start : start + PIECE] if examples.words is not None else None
        outputs += session.outputs(name, examples.inputs[start : start + PIECE], words=words)
        progress.update(len(outputs), len(examples.inputs))
    progress.finish()
    return outputs
