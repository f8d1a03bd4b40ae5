"""NHC on disk: headlines read from the files that people have, tasks written as JSON lines with a card."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath

import msgspec

from polyhead.errors import BadValue, ConfigError, DataError, MissingColumn
from polyhead.values import Value, to_json
from studies.huang2022.nhc import HELD_OUT, STYLE, STYLE_LABELS, Headline, Nhc, Source, in_form, jsonl, letters

OWN_FORM = "huffpost41"  # its headlines stay as they are, and its test split is what is reported
OTHER_FORM = "huffpost_news"
SPLITS = ("train", "validation", "test")


class TaskCard(Value):
    """Files of one task: rows and SHA-256, by split."""

    name: str
    labels: tuple[str, ...]
    rows: dict[str, int]
    sha256: dict[str, str]


class Card(Value):
    """What was built from what."""

    size: int  # rows of each label in every task
    held_out: str
    seed: int
    headlines: int  # distinct ones that could be chosen
    left_out: int  # rows with a text of the test split
    unclear: int  # texts under two categories
    sources: dict[str, str]  # SHA-256
    tasks: tuple[TaskCard, ...]


def source_in(data: FilePath | None, full: FilePath | None = None) -> Source:
    """What is in a folder that holds the sets huffpost41, huffpost_news and subj, and in the full file of headlines.

    With `full`, headlines come from there alone, and the folder gives the test split and `subj` only. Raises
    DataError for files that are missing or are something else.
    """
    files: dict[str, str] = {}
    test = _set(data, OWN_FORM, "test", files) if data else []
    if full is not None:
        candidates = [(headline, True) for headline in _read(full, full.name, files)]
    else:
        assert data is not None
        own = [headline for split in SPLITS[:2] for headline in _set(data, OWN_FORM, split, files)]
        other = [headline for split in SPLITS for headline in _set(data, OTHER_FORM, split, files)]
        candidates = [*((headline, False) for headline in own), *((headline, True) for headline in other)]
    tested, texts = {letters(headline.text) for headline in test}, list[Headline]()
    left_out = 0
    for headline, is_foreign in candidates:
        if letters(headline.text) in tested:
            left_out += 1
        else:
            texts.append(Headline(text=in_form(headline.text) if is_foreign else headline.text, label=headline.label))
    headlines, unclear = _distinct(texts)
    style, style_test = _style(data, files) if data else ({}, [])
    return Source(
        headlines=headlines,
        test=tuple(test),
        style=style,
        style_test=tuple(style_test),
        left_out=left_out,
        unclear=unclear,
        files=files,
    )


def digest_of(nhc: Nhc) -> str:
    """SHA-256 of every row of every split: of what is trained on and evaluated, whatever it was made from."""
    total = hashlib.sha256()
    for task in nhc.tasks:
        for name, rows in task.splits.items():
            total.update(to_json([task.name, task.labels, name, len(rows)]) + jsonl(rows))
    return total.hexdigest()


def write(nhc: Nhc, folder: FilePath) -> Card:
    """`<task>/{train,validation,test}.jsonl`, `card.json` and `README.md`; the card last, so that it is whole.

    Raises ConfigError where the folder holds something already, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"there is something at {folder} already", do="name a new or an empty folder")
        tasks = []
        for task in nhc.tasks:
            (folder / task.name).mkdir(parents=True)
            raw = {name: jsonl(rows) for name, rows in task.splits.items()}
            for name, content in raw.items():
                (folder / task.name / f"{name}.jsonl").write_bytes(content)
            rows = {name: len(several) for name, several in task.splits.items()}
            hashes = {name: _sha256(content) for name, content in raw.items()}
            tasks.append(TaskCard(name=task.name, labels=task.labels, rows=rows, sha256=hashes))
        card = _card(nhc, tuple(tasks))
        (folder / "README.md").write_text("\n".join(_lines_of(card)) + "\n", encoding="utf-8")
        (folder / "card.json").write_bytes(to_json(card))
    except OSError as error:
        raise ConfigError(
            f"cannot write {folder}", got=error.strerror, do="name a folder that you can write to"
        ) from None
    return card


def _card(nhc: Nhc, tasks: tuple[TaskCard, ...]) -> Card:
    return Card(
        size=nhc.size,
        held_out=f"one in {HELD_OUT}, the same for every task",
        seed=nhc.seed,
        headlines=len(nhc.source.headlines),
        left_out=nhc.source.left_out,
        unclear=nhc.source.unclear,
        sources=dict(nhc.source.files),
        tasks=tasks,
    )


def _lines_of(card: Card) -> list[str]:
    """The card for people."""
    card_lines = [
        "# NHC: is this headline one of this category?",
        "",
        f"Binary tasks after Huang et al. 2022, section 5: {card.size:,} headlines of a category and as many "
        f"random others, seed {card.seed}. A fifth is held out for validation, the same headlines for every task. "
        "Texts are in small letters, words and signs apart.",
        "",
        f"{card.headlines:,} distinct headlines could be chosen; {card.left_out:,} rows with a text of the test split "
        f"and {card.unclear:,} texts under two categories were not. Others of a category may be of a category near it "
        "(parenting and parents, wellness and healthy living), as in the paper.",
        "",
        "The headlines are those of the News Category Dataset (Misra 2022; CC BY 4.0 by its page). The paper's eighth "
        f"task, Opinion, is not public; `{STYLE}` (Pang and Lee 2004) stands in its place where it is here.",
        "",
        "| task | labels | train | validation | test |",
        "|---|---|---|---|---|",
    ]
    for task in card.tasks:
        counts = " | ".join(f"{task.rows[split]:,}" if split in task.rows else "-" for split in SPLITS)
        card_lines.append(f"| {task.name} | {', '.join(task.labels)} | {counts} |")
    card_lines += ["", "SHA-256 of every file is in `card.json`. Made from:", ""]
    return [*card_lines, *(f"- {name} `{digest}`" for name, digest in card.sources.items())]


def _set(data: FilePath, folder: str, split: str, files: dict[str, str]) -> list[Headline]:
    return _read(data / folder / f"{split}.jsonl.gz", f"{folder}/{split}.jsonl.gz", files)


def _style(data: FilePath, files: dict[str, str]) -> tuple[Mapping[str, Headline], list[Headline]]:
    test = _set(data, STYLE, "test", files)
    train = _set(data, STYLE, "train", files)
    unknown = sorted({headline.label for headline in (*train, *test)} - set(STYLE_LABELS))
    if unknown:
        raise DataError(f"{STYLE} has other labels than expected", got=unknown[:5], allowed=STYLE_LABELS)
    tested = {letters(headline.text) for headline in test}
    distinct, _ = _distinct([headline for headline in train if letters(headline.text) not in tested])
    return distinct, test


def _distinct(rows: list[Headline]) -> tuple[dict[str, Headline], int]:
    """The first row of each text that has letters, and how many texts had two labels and are not there."""
    by_letters: dict[str, Headline] = {}
    unclear: set[str] = set()
    for headline in rows:
        key = letters(headline.text)
        if key and by_letters.setdefault(key, headline).label != headline.label:
            unclear.add(key)
    return {key: headline for key, headline in by_letters.items() if key not in unclear}, len(unclear)


class _Line(msgspec.Struct):
    headline: str | None = None
    text: str | None = None
    category: str | None = None
    label: str | None = None


def _read(path: FilePath, name: str, files: dict[str, str]) -> list[Headline]:
    """Every row that has a text and a label; notes the file's digest under `name`."""
    headlines: list[Headline] = []
    digest, number = hashlib.sha256(), 0
    for number, line in _lines_in(path):
        digest.update(line)
        headline = _decoded(line, path, number)
        text, label = headline.headline or headline.text, headline.category or headline.label
        if text and label:
            headlines.append(Headline(text=text, label=label.casefold()))
    if not headlines:
        raise MissingColumn(
            f"{path} holds no headlines",
            got=f"{number:,} rows" if number else "an empty file",
            allowed='JSON lines with "headline" (or "text") and "category" (or "label")',
            do="give the file of the News Category Dataset, or the folder of the sets",
        )
    files[name] = digest.hexdigest()
    return headlines


def _lines_in(path: FilePath) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except (OSError, EOFError, zlib.error) as error:
        allowed = f"a folder with the sets {OWN_FORM}, {OTHER_FORM} and {STYLE}, or the full file"
        got = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path}", got=got, allowed=allowed) from None


def _decoded(line: bytes, path: FilePath, number: int) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise BadValue(
            f"{path.name} row {number}: the line is no headline",
            got=error,
            do='write one JSON object a line, {"headline", "category"}',
            source=str(path),
            row=number,
        ) from None


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
