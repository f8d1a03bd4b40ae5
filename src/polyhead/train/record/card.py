"""The card of a task: what it answers, how it was trained, how well it did, and its limits."""

from __future__ import annotations

from collections.abc import Mapping

from polyhead import cost
from polyhead.bundle.owners import task_names
from polyhead.plan import Path, Plan
from polyhead.strategies.branch import private_layers
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared
from polyhead.train.heads.trained import Trained
from polyhead.trunk.data import TrunkData


def card_of(prepared: Prepared, trained: Trained, trunk: TrunkData, plan: Plan, *, learned: bool = False) -> str:
    """Markdown for the task's README.md; `plan` has all tasks that are written with it."""
    task, path = prepared.task, trained.path
    added = cost.added(plan, task.name, trunk.architecture, tokens=32, folded=True)
    metric = kind_of(task).default_metric(task)
    return "\n".join(
        [
            f"# {task.name}",
            "",
            f"A `{task.kind}` task" + (f" on pairs read {task.pair}" if task.pair != "none" else "") + ".",
            *said_of(task),
            f"Team: {prepared.team or 'not stated'}.",
            "",
            "## Trained on",
            "",
            f"{_examples(prepared, trained)}; seed {prepared.training.seed}{_kept(trained, metric)}. The trunk "
            f"`{trunk.name}` {'learned with it' if learned else 'was frozen'}.",
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
            f"{trunk.settings.max_tokens} tokens are {'read in windows' if task.long_texts == 'windows' else 'cut'}.",
            "",
        ]
    )


def said_of(task: Task) -> list[str]:
    """What the task's outputs stand for, where it says so."""
    labels = [f"Labels, in order: {', '.join(task.labels)}."] if task.labels else []
    return labels + ([f"Range: {task.range[0]:g} to {task.range[1]:g}."] if task.range else [])


def _examples(prepared: Prepared, trained: Trained) -> str:
    """How many rows it learned from, and which chose."""
    sizes = [f"{len(s.examples.targets):,} {s.name}" for s in prepared.splits]
    if trained.folds and prepared.whole is not None:
        sizes[:2] = [f"{len(prepared.whole.targets):,} train (each held out once, in {trained.folds} folds)"]
    return ", ".join(sizes) + " examples"


def _kept(trained: Trained, metric: str) -> str:
    """What was chosen by rows held out."""
    chosen = f"; head: {trained.chosen}" if trained.chosen else ""
    best = trained.fitted.best_epoch
    return chosen + (f"; best epoch {best} by validation {metric}" if best else "")


def score_table(
    scores: Mapping[str, Mapping[str, float]], baselines: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None
) -> list[str]:
    """A section with every metric (columns) of every split (rows), and baselines on the same rows below each."""
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


def _described(path: Path) -> str:
    own, pool = private_layers(path), path.pool
    read = f"positions `{pool.positions}`, codec `{pool.codec.name}`."
    deltas = [node for node in path.layers if node.delta is not None]
    if path.embed.prompts:
        rows = sum(prompt.rows for prompt in path.embed.prompts)
        seen = "which the text does not see" if path.embed.isolated else "which the text sees"
        several = f"{rows} prompt row" if rows == 1 else f"{rows} prompt rows"
        return f"{several}, {seen}{_group(path)}, {read}"
    if deltas:
        spans = ", ".join(
            f"`{n.delta.kind}` in layers {n.start} to {n.stop - 1}" for n in deltas if n.delta is not None
        )
        return f"Adapters: {spans}, {read}"
    if own:
        return f"{len(own)} private layers above layer {own.start} of the trunk, {read}"
    return f"Layers `{pool.layers}` (of {pool.of}), {read}"


def _group(path: Path) -> str:
    """Whose the prompt rows are, where they are not all the task's own."""
    own, prompts = path.head.part, path.embed.prompts
    whose = []
    for prompt in prompts:
        tasks = [f"`{name}`" for name in task_names([prompt.part])]
        whose.append(f"{prompt.rows} of {'its own' if prompt.part == own else (tasks or ['the group'])[0]}")
    return f" ({', '.join(whose)})" if len(prompts) > 1 else ""
