"""Exports of annotation tools and columns of tagged words, as rows: CoNLL, doccano, Label Studio."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

from polyhead.config import Value
from polyhead.errors import BadValue, DataError
from polyhead.files import open_plain
from polyhead.tasks.limits import lines_of

CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio")
LOOKED_AT = 50  # objects that tell the format
LABELS = ("label", "labels", "entities", "cats")  # where doccano's versions keep labels
BILOU = {"S": "B", "U": "B", "E": "I", "L": "I"}


class Converted(Value, eq=False):
    """The rows, what the file was, and what was decided about rows."""

    rows: list[dict[str, Any]]
    form: str
    notes: tuple[str, ...] = ()


def is_conll(path: str) -> bool:
    """Whether the file's name is that of columns of tagged words."""
    return path.lower().removesuffix(".gz").endswith(CONLL)


def of_conll(path: str) -> Converted:
    """A sentence a row, `tokens` from the first column and `tags` from the last; of CoNLL-U the forms and UPOS tags.

    Tags of the schemes BILOU and BIOES are written as BIO. Raises BadValue for a line with one column, DataError for a
    file without sentences.
    """
    universal = path.lower().removesuffix(".gz").endswith(".conllu")
    rows: list[dict[str, Any]] = []
    for sentence in _sentences(path, universal=universal):
        rows.append({"tokens": [token for token, _ in sentence], "tags": [tag for _, tag in sentence]})
    if not rows:
        raise DataError(f"{path} holds no sentence", do="give a file of a word and its tag on each line")
    notes = () if universal else _in_bio(rows)
    return Converted(rows=rows, form="CoNLL-U" if universal else "CoNLL", notes=notes)


def of_objects(objects: Sequence[dict[str, Any]]) -> Converted | None:
    """The rows of an export of doccano or Label Studio; None if the objects are none."""
    head = objects[:LOOKED_AT]
    if head and all(isinstance(o.get("data"), dict) and isinstance(o.get("annotations"), list) for o in head):
        return _of_label_studio(objects)
    if (key := _doccano_key(head)) is not None:
        return _of_doccano(objects, key)
    if keys := _min_keys(head):
        rows = [{name: _spans(v) if name in keys else v for name, v in o.items()} for o in objects]
        return Converted(rows=rows, form="Label Studio (JSON-MIN)")
    if key := next((key for key in ("label", "labels") if _are_single(objects, key)), None):
        rows = [{**item, key: item[key][0]} for item in objects]
        return Converted(rows=rows, form="doccano", notes=(f"each '{key}' is a list of one label: read as the label",))
    return None


def _are_single(objects: Sequence[dict[str, Any]], key: str) -> bool:
    values = [item.get(key) for item in objects]
    return bool(values) and all(isinstance(v, list) and len(v) == 1 and isinstance(v[0], str) for v in values)


def _sentences(path: str, *, universal: bool) -> Iterator[list[tuple[str, str]]]:
    sentence: list[tuple[str, str]] = []
    for number, line in enumerate(_text_lines(path), start=1):
        cells = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
        if not line.strip() or cells[0] == "-DOCSTART-":
            if sentence:
                yield sentence
            sentence = []
        elif universal and (line.startswith("#") or not cells[0].isdigit()):
            continue
        elif len(cells) < (4 if universal else 2):
            if line.startswith("#"):
                continue
            what = f"{Path(path).name} line {number}: a word without a tag"
            raise BadValue(what, got=line.strip(), do="write the word, and its tag last", source=path, row=number)
        else:
            sentence.append((cells[1].strip(), cells[3]) if universal else (cells[0].strip(), cells[-1].strip()))
    if sentence:
        yield sentence


def _text_lines(path: str) -> Iterator[str]:
    try:
        packed = path.lower().endswith(".gz")
        with open_plain(path) as file, gzip.open(file) if packed else nullcontext(file) as plain:
            for number, line in enumerate(lines_of(cast(BinaryIO, plain)), start=1):
                if line is None:
                    raise DataError(f"{path} line {number}: the line is too long", do="give a word on each line")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except FileNotFoundError:
        raise DataError(f"no file at {path}", do="give the path of a file that exists") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}", got=error, do="restore the file, as UTF-8") from None


def _in_bio(rows: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Writes the tags of other schemes as BIO, in place."""
    tags = {tag for row in rows for tag in row["tags"]}
    prefixes = {tag.partition("-")[0] for tag in tags if "-" in tag}
    is_other = prefixes & {"S", "E", "U", "L"} and prefixes <= {"B", "I", "S", "E", "U", "L"}
    if not is_other or any("-" not in tag and tag != "O" for tag in tags):
        return ()
    for row in rows:
        row["tags"] = [BILOU[tag[0]] + tag[1:] if tag[0] in BILOU else tag for tag in row["tags"]]
    return ("tags of one-word spans and of last words are written as B- and I-",)


def _doccano_key(objects: Sequence[dict[str, Any]]) -> str | None:
    for key in LABELS:
        values = [o[key] for o in objects if o.get(key)]
        texts = [o for o in objects if isinstance(o.get("text") or o.get("data"), str)]
        if values and len(texts) == len(objects) and all(_is_doccano(value) for value in values):
            return key
    return None


def _is_doccano(value: object) -> bool:
    if not isinstance(value, list):
        return False
    triples = all(isinstance(i, list) and len(i) == 3 and type(i[0]) is int and type(i[1]) is int for i in value)
    return triples or all(isinstance(i, dict) and {"start_offset", "end_offset", "label"} <= set(i) for i in value)


def _of_doccano(objects: Sequence[dict[str, Any]], key: str) -> Converted:
    rows = []
    for item in objects:
        spans = []
        for span in item.get(key) or ():
            start, end, label = (
                span if isinstance(span, list) else (span["start_offset"], span["end_offset"], span["label"])
            )
            spans.append({"start": start, "end": end, "label": label})
        rows.append({"text": item.get("text") or item.get("data"), "spans": spans})
    return Converted(rows=rows, form="doccano")


def _min_keys(objects: Sequence[dict[str, Any]]) -> set[str]:
    """The columns of spans in the short form of Label Studio."""
    keys: set[str] = set()
    for name in {name for o in objects for name in o}:
        values = [o[name] for o in objects if o.get(name)]
        items = [item for value in values if isinstance(value, list) for item in value]
        if items and all(isinstance(i, dict) and {"start", "end", "labels"} <= set(i) for i in items):
            keys.add(name)
    return keys


def _spans(value: object) -> list[dict[str, Any]]:
    """Spans, each with the first of its labels; those without one are left out."""
    items = value if isinstance(value, list) else []
    return [{"start": i["start"], "end": i["end"], "label": i["labels"][0]} for i in items if i.get("labels")]


def _of_label_studio(objects: Sequence[dict[str, Any]]) -> Converted:
    rows: list[dict[str, Any]] = []
    several = unlabelled = 0
    kinds: dict[str, str] = {}  # by name of the control
    for item in objects:
        done = [a for a in item["annotations"] if isinstance(a, dict) and not a.get("was_cancelled")]
        several += len(done) > 1
        unlabelled += not done
        row = {name: value for name, value in item["data"].items() if isinstance(value, (str, int, float, bool, list))}
        for result in done[0].get("result", ()) if done else ():
            _add(row, result, kinds)
        row["__done__"] = bool(done)
        rows.append(row)
    _settle(rows, kinds)
    notes = [f"tasks with several annotations, of which the first is taken: {several:,}"] if several else []
    notes += [f"tasks without an annotation, left out: {unlabelled:,}"] if unlabelled else []
    kept = [{k: v for k, v in row.items() if k != "__done__"} for row in rows if row["__done__"]]
    return Converted(rows=kept, form="Label Studio", notes=tuple(notes))


def _add(row: dict[str, Any], result: dict[str, Any], kinds: dict[str, str]) -> None:
    name, kind, value = result.get("from_name"), result.get("type"), result.get("value") or {}
    if not isinstance(name, str) or not isinstance(value, dict):
        return
    if kind == "labels" and "start" in value and value.get("labels"):
        kinds[name] = "spans"
        row.setdefault(name, []).extend(_spans([value]))
    elif kind in ("choices", "taxonomy") and isinstance(value.get(kind), list):
        kinds[name] = "choices"
        chosen = [c[-1] if isinstance(c, list) else c for c in value[kind]]
        row.setdefault(name, []).extend(chosen)
    elif kind in ("rating", "number") and isinstance(value.get(kind), (int, float)):
        row[name] = value[kind]


def _settle(rows: list[dict[str, Any]], kinds: dict[str, str]) -> None:
    """Rows without spans have none; choices that are one in every row are labels, not lists."""
    for name, kind in kinds.items():
        if kind == "spans":
            for row in rows:
                row.setdefault(name, [])
        elif all(len(row.get(name, ())) <= 1 for row in rows):
            for row in rows:
                if name in row:
                    row[name] = row[name][0]


def jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    """The rows as JSON Lines."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n" for row in rows)
