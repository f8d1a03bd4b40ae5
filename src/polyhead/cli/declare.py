"""A task's declaration from a look at its data file: what is found is written down, never assumed later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from polyhead.errors import MissingColumn
from polyhead.tasks.rows import Rows

MOST_LABELS = 1000


def declared(
    data: Path,
    folder: Path,
    *,
    name: str | None,
    kind: str,
    text: str,
    text_b: str | None,
    label: str | None,
    tokens: str | None,
    spans: str | None,
    test: str | None,
) -> dict[str, object]:
    """The keys of a `[[tasks]]` table; paths are relative to `folder` where they can be."""
    tags = (label or "tags") if tokens else None
    column = spans or tags or label or "label"
    values = list(_column(data, column))
    entry: dict[str, object] = {
        "name": name or re.sub(r"[^A-Za-z0-9._-]+", "-", data.name.split(".")[0]),
        "kind": kind,
    }
    if kind == "regression":
        numbers = [float(str(value)) for value in values]
        entry["range"] = [min(numbers), max(numbers)]
    else:
        entry["labels"] = _labels(kind, values, spans is not None)
    entry["train"] = _relative(data, folder)
    if test:
        entry["test"] = _relative(Path(test), folder)
    if tokens:
        entry |= {"tokens": tokens, "tags": tags}
    elif spans:
        entry |= {"text": text, "spans": spans}
    else:
        entry |= {"text": text, "label": column}
    if text_b:
        entry |= {"text_b": text_b, "pair": "joined"}
    return entry


def project_text(entry: dict[str, object], *, is_first: bool) -> str:
    """TOML for the entry, after a commented head where it is the first of its file."""
    import tomli_w

    head = (
        "# A Polyhead project: `polyhead train` reads this file. Every key: docs/tasks-and-data.md\n"
        'bundle = "bundle"\n\n[trunk]\nname = "minilm"\n\n[training]\nseed = 1\n\n'
    )
    body: str = tomli_w.dumps({"tasks": [entry]})
    return head + body if is_first else body


def _column(data: Path, column: str) -> Iterable[object]:
    rows, found = Rows(str(data), (column,)), False
    for row in rows:
        value = row.values.get(column)
        if value is not None and value != "":
            found = True
            yield value
    if not found:
        raise MissingColumn(
            f"{data}: no row has a value in column '{column}'",
            allowed=sorted(rows.columns),
            do="name the column of the label with --label, --tokens or --spans",
        )


def _labels(kind: str, values: list[object], is_spans: bool) -> list[str]:
    if is_spans:
        names = sorted({str(span["label"]) for spans in values if isinstance(spans, list) for span in spans})
        return ["O", *(f"{prefix}-{name}" for name in names for prefix in ("B", "I"))]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    names = sorted({str(item).lower() if isinstance(item, bool) else str(item) for item in flat})
    if kind == "tagging":
        bare = sorted({name[2:] for name in names if name[:2] in ("B-", "I-")})
        if bare and all(name == "O" or name[:2] in ("B-", "I-") for name in names):
            return ["O", *(f"{prefix}-{name}" for name in bare for prefix in ("B", "I"))]
    if len(names) > MOST_LABELS:
        from polyhead.errors import ConfigError

        raise ConfigError(
            f"{len(names)} different labels are too many to be labels",
            allowed=f"at most {MOST_LABELS}",
            do="name another column, or use --kind regression",
        )
    return names


def _relative(path: Path, folder: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(folder)) if resolved.is_relative_to(folder) else str(resolved)
