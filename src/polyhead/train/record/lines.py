"""Lines of a run: its plan and cost, then each task's scores with simple baselines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan

import msgspec

from polyhead.bundle.lost_labels import taught
from polyhead.bundle.owners import is_family
from polyhead.codecs import EXACT
from polyhead.encoder.shape import Architecture
from polyhead.plan import Path, Plan, cost, merge, owners_of
from polyhead.progress import counted, duration, short, text_table
from polyhead.project.recipes import Effort
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import texts_of
from polyhead.train.candidates import of_effort
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.task_groups import task_groups
from polyhead.train.data.windows import reads_windows
from polyhead.train.record.draft import Trained, labels_without_rows

log = logging.getLogger(__name__)
LEARNED_SHARE = 0.1  # of a split's rows: a few short texts recur by chance
TOKENS = 32  # tokens of one text, for the table's FLOPs
ANY_DEPTH = 12  # layers of an encoder: heads to try differ by effort whatever it is
PLAIN = 5  # columns of the table that are no work and no cost


def outlook(
    todo: Sequence[Prepared],
    paths: Mapping[str, Sequence[Path]],
    shape: Architecture,
    *,
    kept: Sequence[str],
    in_a_pass: Mapping[str, int] | None = None,
    folds: bool = False,
) -> list[str]:
    """Lines of a table; skipped rows are counted and named. With `folds`, tasks with few rows are trained in folds.

    Where only heads are trained, work and costs are lines of the log.

    `in_a_pass` is the number of batches in one pass over each task's training data. If unknown it is derived from the
    rows, and is a lower bound for a task that is trained on windows.
    """
    lines = []
    if kept:
        lines.append(f"trained already, unchanged: {', '.join(kept)}")
    if not todo:
        return [*lines, "nothing to train"]
    rows: list[Sequence[str]] = [
        ("task", "kind", "train", "validation", "test", "batches/pass", "updates", "parameters", "MFLOP/text")
    ]
    is_plain = in_a_pass is None and all(p.strategy.reads_kept_features for p in todo)
    groups = task_groups({p.task.name: p.strategy for p in todo})
    plans = {name: merge({member: paths[member][-1] for member in group}) for group in groups for name in group}
    for p in todo:
        added = cost.added(plans[p.task.name], p.task.name, shape, tokens=TOKENS, folded=True)
        sizes = [str(len(s.examples.targets)) for s in p.splits] + ([] if p.test else ["-"])
        if folds and p.folded and p.whole is not None:
            sizes[:2] = [str(len(p.whole.targets)), "folds"]
        rows.append(
            (
                p.task.name,
                p.task.kind,
                *sizes,
                _batches(p) if in_a_pass is None else str(in_a_pass[p.task.name]),
                _updates(p, in_a_pass),
                f"{added.parameters:,}",
                f"{added.flops / 1e6:.2f}",
            )
        )
    lines += text_table([row[:PLAIN] for row in rows] if is_plain else rows, left=2)
    for group in groups:
        lines += _shared(plans[group[0]], shape)
    lines += skipped(todo)
    everything = merge({p.task.name: paths[p.task.name][-1] for p in todo})
    whom = "the task" if len(todo) == 1 else f"all {len(todo)} tasks"
    passed = (
        f"one pass of the encoder: {cost.flops(everything, shape, TOKENS, folded=True) / 1e6:,.0f} "
        f"MFLOP for {whom} on a text of {TOKENS} tokens, {cost.layer_evaluations(everything)} layers"
    )
    if not is_plain:
        return [*lines, passed]
    for line in (*text_table([(*row[:1], *row[PLAIN:]) for row in rows]), passed):
        log.info(line)
    return lines


def effort_lines(prepared: Sequence[Prepared], recipe: str) -> list[str]:
    """A line for an effort other than the default one, with the tasks for which it changes nothing."""
    idle, unlimited, tries_heads = dict[str, list[str]](), list[str](), recipe in ("frozen", "leave_out")
    for p in prepared:
        if p.training.minutes is not None and p.training.effort != "best":
            unlimited.append(p.task.name)
        tried, usual = (p.strategy.candidates(p.task, ANY_DEPTH, effort) for effort in (p.training.effort, "default"))
        if p.training.effort != "default" and (tried == usual or not tries_heads):
            idle.setdefault(p.training.effort, []).append(p.task.name)
    why = "the strategy or kind fixes that" if tries_heads else f"recipe '{recipe}' tries one way"
    lines = [f"minutes change nothing for {', '.join(unlimited)}: they limit effort 'best'"] if unlimited else []
    return lines + [
        f"effort '{effort}' changes nothing for {', '.join(names)}: it says which heads are tried, and {why}"
        for effort, names in idle.items()
    ]


def codec_lines(prepared: Sequence[Prepared], recipe: str) -> list[str]:
    """A line for each codec that is named for tasks which learn with their encoder, and so read no kept features."""
    named = dict[str, list[str]]()
    for p in prepared if recipe in ("joint", "fine_tune") else ():
        if p.strategy.names_codec and (codec := p.strategy.feature_codec()[0].name) != EXACT:
            named.setdefault(codec, []).append(p.task.name)
    changes = f"recipe '{recipe}' reads states as {EXACT}"
    return [f"codec '{codec}' changes nothing for {', '.join(names)}: {changes}" for codec, names in named.items()]


def _batches(p: Prepared) -> str:
    batches = -(-len(p.train.examples.targets) // p.training.batch)
    return f"at least {batches}" if reads_windows(p.task) and kind_of(p.task).per_word else str(batches)


def _updates(p: Prepared, in_a_pass: Mapping[str, int] | None) -> str:
    """The largest number of updates of a run."""
    pass_steps = -(-len(p.train.examples.targets) // p.training.batch)
    steps = pass_steps if in_a_pass is None else in_a_pass[p.task.name]
    return f"up to {p.training.schedule(steps, passes=None if in_a_pass is None else 1).most_updates:,}"


def _shared(plan: Plan, shape: Architecture) -> list[str]:
    """A line for each family that several tasks read, and for shared work beyond the trunk's pass."""
    readers = {task: set(owners_of(plan.path(task))) for task in plan.tasks}
    lines = []
    for owner in cost.cost_of(plan, shape, TOKENS, folded=True).owners:
        tasks_reading = [task for task, owners in readers.items() if owner.owner in owners]
        if is_family(owner.owner) and len(tasks_reading) > 1:
            lines.append(f"{owner.owner}, which {', '.join(tasks_reading)} share: {owner.parameters:,} parameters")
    for tasks, flops in cost.shared_flops(plan, shape, TOKENS).items():
        lines.append(f"{', '.join(tasks)} together: {flops / 1e6:,.2f} MFLOP/text, for as long as one of them is there")
    return lines


def skipped(todo: Sequence[Prepared]) -> list[str]:
    """A line for each split with rows that were skipped or changed."""
    reports = [(f"{p.task.name}, {split.name}", split.examples.report) for p in todo for split in p.splits]
    return [
        f"{name}: of {report.rows:,} rows: {', '.join(report.notes())}" for name, report in reports if report.notes()
    ]


FEW = 20  # rows of a split below which a score says little
ADVISED_FROM = 100  # labelled texts: with fewer, a task's own layers were not compared
LITTLE = 0.25  # of the way from the best constant answer to 1
Scores = Mapping[str, Mapping[str, float]]


def task_lines(prepared: Prepared, trained: Trained) -> list[str]:
    """Lines about a trained task: its scores, and comments on them."""
    rows = {split.name: len(split.examples.inputs) for split in prepared.splits}
    if trained.folds and prepared.whole is not None:
        rows["validation"] = len(prepared.whole.targets)
    shown = scores_shown(prepared.task, trained.scores, trained.baselines, rows=rows, folds=trained.folds)
    line = f"{prepared.task.name}: {shown}{_how(prepared, trained)}, {duration(trained.fitted.seconds)}"
    return [
        line,
        *_decided(prepared, trained),
        *warnings_of(prepared.task, trained.scores, trained.baselines, rows),
        *untaught(prepared),
        *seen_lines(prepared),
        *_too_few(prepared, rows.get("validation", FEW)),
        *_advice(prepared),
        *_little(prepared, trained),
    ]


def _decided(prepared: Prepared, trained: Trained) -> list[str]:
    """A line if held-out rows moved the threshold."""
    task = trained.task or prepared.task
    line = f"{task.name}: labels are given from {task.threshold:g} on, which scores best on held-out rows"
    return [] if task.threshold == prepared.task.threshold else [line]


def untaught(prepared: Prepared) -> list[str]:
    """A line if no row has some of the labels; with soft labels, a label of no row may have its part of some."""
    task, examples = prepared.task, prepared.whole or prepared.train.examples
    known = taught(task, labels_without_rows(prepared))
    names = [label for label in taught(task, ()) if label not in known]
    if not names or examples.shares is not None:
        return []
    listed = short(", ".join(map(repr, names)))
    return [f"{task.name}: no row has the label {listed}, so it is not learned: add rows, or remove it from the labels"]


def seen_lines(prepared: Prepared) -> list[str]:
    """A line for each split of which a tenth or more are inputs that the task learned from."""
    held_out = prepared.whole is not None
    known = {texts_of(value) for value in (prepared.whole or prepared.train.examples).inputs}
    lines = []
    for split in prepared.splits[1:]:
        inputs = split.examples.inputs
        count = sum(texts_of(value) in known for value in inputs)
        if (split.name == "validation" and held_out) or count < LEARNED_SHARE * len(inputs):
            continue
        lines.append(
            f"{prepared.task.name}: warning: {count:,} of {len(inputs):,} {split.name} rows have a text that the task "
            f"learned from, so that score may be too high (`polyhead check` shows such rows)"
        )
    return lines


def _too_few(prepared: Prepared, rows: int) -> list[str]:
    """A line if held-out rows are few, or say nothing since none of their labels was learned from another row."""
    task, targets = prepared.task, (prepared.whole or prepared.validation.examples).targets
    if rows >= FEW:
        return []
    labels = [kind_of(task).stratum(target) for target in targets]
    why = "too few to tell how good it is"
    if prepared.whole is not None and len(set(labels)) == len(labels):
        why = "each is the only one of its label, so this score says nothing"
    return [f"{task.name}: {counted(rows, 'row')} held out: {why}; label more"]


def _advice(prepared: Prepared) -> list[str]:
    """A line if a task's own layers may be worth their cost: frozen layers lose most on entities."""
    rows = len((prepared.whole or prepared.train.examples).targets)
    if not kind_of(prepared.task).labels_words or not prepared.strategy.reads_kept_features or rows < ADVISED_FROM:
        return []
    return [
        f"{prepared.task.name}: words are read as the frozen encoder has them. Layers of the task's own usually score "
        'higher, and cost more for each text: try strategy = { kind = "branch" } (docs/guides/branches.md, Entities)'
    ]


def _little(prepared: Prepared, trained: Trained) -> list[str]:
    """A line if frozen layers gain less on spans or choices than LITTLE of what one answer for every row leaves."""
    task, kind = prepared.task, kind_of(prepared.task)
    if not prepared.strategy.reads_kept_features or not (kind.per_option or kind.pair == "joined"):
        return []
    metric, depth = kind.default_metric(task), trained.path.depth
    constant = trained.baselines.get("constant", {}).get("validation", {}).get(metric)
    score = trained.scores.get("validation", {}).get(metric)
    if constant is None or score is None or score - constant >= LITTLE * (1 - constant):
        return []
    above = "little above" if score > constant else "not above"
    return [
        f"{task.name}: warning: {metric} {score:.2f} on validation is {above} the {constant:.2f} of one answer "
        "for every row: the encoder did not learn to read one text for another. Layers of the task's own may learn it, "
        f'and cost more: try strategy = {{ kind = "branch", layers = {depth} }} (docs/guides/branches.md)'
    ]


def scores_shown(
    task: Task,
    scores: Scores,
    baselines: Mapping[str, Scores],
    *,
    rows: Mapping[str, int] | None = None,
    folds: int = 0,
) -> str:
    """`validation accuracy 0.8100 (linear 0.7900, constant 0.2500), test accuracy 0.8000 (...)`."""
    metric = kind_of(task).default_metric(task)
    shown = []
    for split, values in scores.items():
        text = f"{split} {metric} {values.get(metric, nan):.4f}"
        of = [f"{folds} folds"] if folds and split == "validation" else []
        count = (rows or {}).get(split, FEW)
        of += [f"of {count} rows"] if count < FEW else []
        of += [
            f"{name} {baseline[split][metric]:.4f}"
            for name, baseline in reversed(list(baselines.items()))
            if metric in baseline.get(split, {})
        ]
        shown.append(text + (f" ({', '.join(of)})" if of else ""))
    return ", ".join(shown)


def warnings_of(task: Task, scores: Scores, baselines: Mapping[str, Scores], rows: Mapping[str, int]) -> list[str]:
    """Lines if a baseline scores higher, or the best constant answer as high, on at least `FEW` rows."""
    constant, metric = baselines.get("constant", {}), kind_of(task).default_metric(task)
    unmeasured = [
        f"its {name} is no number on {' and '.join(of)}, and is left out of the scores of its version"
        for name in kind_of(task).metrics(task)
        if (of := [split for split, values in scores.items() if not isfinite(values.get(name, 0.0))])
    ]
    splits = [split for split in scores if rows.get(split, 0) >= FEW and split in constant]
    alike = [split for split in splits if len(scores[split]) > 1 and scores[split] == constant[split]]
    lower = [split for split in splits if split not in alike and scores[split][metric] <= constant[split][metric]]
    advice = "label more rows of the rare answers, or name a metric by which they count"
    if kind_of(task).scores != "softmax":
        advice = "check that the labels differ, and label more rows"
    lines = []
    if alike:
        lines.append(f"on {' and '.join(alike)} it answers as if every row were alike: one answer is all that it gives")
    if lower:
        lines.append(f"on {' and '.join(lower)} its {metric} is no higher than that of one answer for every row")
    lines = [f"{line}; {advice}" for line in lines]
    return [
        f"{task.name}: warning: {line}" for line in [*unmeasured, *lines, *_beaten(metric, scores, baselines, rows)]
    ]


MEANT = {"tf-idf": "TF-IDF of words with logistic regression, which needs no encoder,", "linear": "a linear head"}


def _beaten(metric: str, scores: Scores, baselines: Mapping[str, Scores], rows: Mapping[str, int]) -> list[str]:
    """In words, where a baseline that learns scores higher than the task."""
    lines = []
    for name in (name for name in MEANT if name in baselines):
        of = baselines[name]
        splits = [s for s in scores if rows.get(s, 0) >= FEW and of.get(s, {}).get(metric, -inf) > scores[s][metric]]
        shown = " and ".join(f"{of[s][metric]:.4f} on {s}, not {scores[s][metric]:.4f}" for s in splits)
        if splits:
            lines.append(f"{MEANT[name]} has a higher {metric}: {shown}; compare other ways with `polyhead advise`")
    return lines


def untried(prepared: Prepared, trained: Trained) -> str:
    """The further candidates of the next effort, in words; "" if there are none."""
    depth, training = trained.path.depth, prepared.training
    efforts: dict[Effort, tuple[Effort, ...]] = {"quick": ("default", "best"), "default": ("best",)}
    for effort in efforts.get(training.effort, ()) if trained.tried else ():
        more = msgspec.structs.replace(prepared, training=msgspec.structs.replace(training, effort=effort))
        heads = [head.name for head in of_effort(more, depth) if head.name not in trained.tried]
        heads = [counted(len(heads), "more head")] if len(heads) > 1 else heads
        heads += ["branches"] if effort == "best" and depth else []
        if heads:
            return f"effort '{effort}' also tries {' and '.join(heads)}"
    return ""


def _how(prepared: Prepared, trained: Trained) -> str:
    """The chosen head, and the length of its training, in words."""
    fitted, how = trained.fitted, ""
    if trained.chosen:
        log.info("%s: tried %s", prepared.task.name, "; ".join(f"{n} {s:.4f}" for n, s in trained.tried.items()))
        how = f"; head: {trained.chosen}" + (f" (of {len(trained.tried)} tried)" if len(trained.tried) > 1 else "")
    if description := prepared.strategy.describe(trained.path):
        how = f"; {description}"
    if trained.chosen or not fitted.updates:
        return how
    if trained.refitted:
        count = fitted.best_update or fitted.updates
        return f"{how}, {count:,} {'update' if count == 1 else 'updates'} on all rows"
    return f"{how}, best after {fitted.best_update:,} of {fitted.updates:,} updates"
