"""The labelled spans of a row, read from its cell and made disjoint."""

from __future__ import annotations

from polyhead.data.columns import Source
from polyhead.tasks.gold import TaggedSpan, longest_disjoint, overlapping_pair
from polyhead.tasks.kinds.base import bad_value, spelled
from polyhead.tasks.task import Example, Task

SHAPE = "a list of {start, end, label}"


def gold_of(value: object, source: Source, task: Task, example: Example) -> tuple[list[TaggedSpan] | None, int]:
    """The spans of a row, and the number dropped because they overlap a longer one; None for a row to be skipped.

    Raises BadValue for anything but a list of spans of the text, and for overlapping spans if `source.overlaps` does
    not say how to handle them.
    """
    if not isinstance(value, list):
        raise bad_value(task, example, f"column '{source.spans}' must hold spans", got=value, allowed=SHAPE)
    # A repeated span counts once.
    spans = list(dict.fromkeys(_span(item, task, example) for item in value))
    pair = overlapping_pair(spans)
    if pair is None:
        return spans, 0
    if source.overlaps == "skip":
        return None, 0
    if source.overlaps == "longest":
        kept = longest_disjoint(spans)
        return kept, len(spans) - len(kept)
    got = " and ".join(f"{span.label} {example.text[span.start : span.end]!r} at {span.start}" for span in pair)
    raise bad_value(
        task,
        example,
        "two labelled spans overlap, and a word has one label",
        got=got,
        allowed="spans apart",
        do="set overlaps = 'longest' to keep the longest of such spans, or 'skip' to leave such rows out (--overlaps "
        "on the command line)",
    )


def _span(item: object, task: Task, example: Example) -> TaggedSpan:
    fields, size = item if isinstance(item, dict) else {}, len(example.text)
    start, end, label = fields.get("start"), fields.get("end"), spelled(fields.get("label"))
    if type(start) is not int or type(end) is not int or label is None:
        raise bad_value(task, example, "a span cannot be read", got=item, allowed=SHAPE)
    if not 0 <= start < end <= size:
        raise bad_value(task, example, "a span lies outside the text", got=item, allowed=f"0 <= start < end <= {size}")
    return TaggedSpan(start=start, end=end, label=label)
