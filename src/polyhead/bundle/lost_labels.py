"""Labels that a task would lose with a new version: the live one learned them from rows, the new one has no row."""

from __future__ import annotations

from collections.abc import Collection

from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.errors import BundleError, PolyheadError
from polyhead.tasks.kinds.tagged import is_bio
from polyhead.tasks.task import Task, kind_of

NO_ROWS = "no_rows"  # key of `trained_with`: the labels of the task that no row taught


def without_rows(record: TaskRecord) -> list[str]:
    """The labels of a version that no row taught, as its record says."""
    labels = record.trained_with.get(NO_ROWS, [])
    return [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []


def check_labels_stay(
    live: TaskRecord, new: Task, without: Collection[str], *, version: str, do: str, where: str = "the new data"
) -> None:
    """Raises BundleError for labels that `live` learned and that `new` would have without a row, or not at all.

    `without` are the labels of `new` that no row taught, `version` is the live one. Labels of spans count
    without B- and I-. A kind without labels asks another question, and loses none.
    """
    if not new.labels:
        return
    before, after = taught(live.task, without_rows(live)), taught(new, without)
    lost = tuple(label for label in before if label not in after)
    if lost:
        count = f"{len(lost):,} of the {len(before):,} labels of its live version {version}"
        raise BundleError(
            f"task '{live.task.name}': {count} {'has' if len(lost) == 1 else 'have'} no row in {where}, so the new "
            "version would not answer them",
            got=lost,
            do=do,
            task=live.task.name,
            lost=lost,
        )


def check_replacement(bundle: Bundle, name: str, new: TaskRecord, *, do: str, where: str) -> None:
    """The same for a version that was trained elsewhere and takes the place of a task's live one.

    A live version that cannot be read is replaced whatever it knew.
    """
    try:
        live = bundle.record(name)
    except PolyheadError:
        return
    check_labels_stay(live, new.task, without_rows(new), version=bundle.version(name), do=do, where=where)


def taught(task: Task, without: Collection[str]) -> dict[str, None]:
    """The labels that rows taught, in order; of spans without the marks of where they begin."""
    unseen = set(without)
    labels = [label for label in task.labels if label not in unseen]
    if kind_of(task).labels_words and is_bio(task):
        labels = [label[2:] for label in labels if label != "O"]
    return dict.fromkeys(labels)
