"""`polyhead features`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from polyhead.bundle.read import Bundle
from polyhead.cli.command import VerbGroup, option, verb
from polyhead.cli.migrate import command as migrate
from polyhead.cli.options import BackendOptions, Column, File, Folder, Store, Tasks, TextColumns, TokenColumns, is_typed
from polyhead.cli.output import Printer, counted, in_bytes, indented, note
from polyhead.data.rows import open_rows
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import base, open_backend
from polyhead.engine.loaded import trained_precision
from polyhead.engine.scale_files import scales_for
from polyhead.errors import ConfigError, NoStore
from polyhead.plan import Path as TaskPath
from polyhead.plan import digest
from polyhead.progress import duration, pace, stopped_with
from polyhead.store.corpus import open_corpus
from polyhead.store.jobs.backfill import answerable
from polyhead.store.jobs.extract import ExtractRequest, ExtractSummary, extract
from polyhead.store.jobs.nearest import (
    NearDocuments,
    NearRequest,
    extracted_file,
    nearest_documents,
    neighbours_with_texts,
)
from polyhead.store.jobs.store_summary import StoreInfo, store_info
from polyhead.store.taps import Tap, tapped_paths
from polyhead.values import Value

WEEK = 7.0  # days for which files that no version needs are kept
MOST_NAMED = 5  # tasks in one line
FRAGMENT_ROWS = 2**18  # documents of a fragment after joining


class Compacted(Value):
    """What `features compact` did."""

    store: str
    joined: int  # fragments that went into others
    fragments: int  # that are left
    freed_bytes: int


@click.group("features", cls=VerbGroup)
def command() -> None:
    """Keep the features of a corpus in a store: encode every text once, and answer every later task from it.

    STORE is a folder of plain files, or a Lance dataset if its name ends in .lance or is a URL of an object store, such
    as s3://bucket/corpus.

    Another encoder needs a second store and a second bundle, and the old store answers until the new one does all that
    it does: extract the same texts, train the tasks with `polyhead train --features NEW`, answer them with `polyhead
    backfill`, `compare`, and `switch`.
    """


@verb("extract", group=command, again="the same command goes on from there")
def extract_command(
    encoder: str = option(metavar="BUNDLE"),
    source: str = option(metavar="IN"),
    store: Store = option(),
    *,
    taps: tuple[str, ...] = option(
        "What to keep of every token: the 'last' layer, 'mean4' (of the last 4), or 'all', and how it is written. May "
        "be repeated: one pass gives all. [default: mean4:token1]",
        "--tap",
        metavar="LAYERS[:CODEC]",
    ),
    tasks: Tasks = option("Keep what these tasks of BUNDLE read."),
    columns: TokenColumns,
    words: bool = option(
        "Keep hashes of each text's words too, for tasks whose heads read words [default: where a task of BUNDLE does]."
    ),
    separate: bool = option("Make the two texts of a pair two documents; else they are read as one."),
    long_texts: Literal["cut", "windows"] = option(
        "Read the beginning of a text that is too long, or make a document of each part that can be read.", "cut"
    ),
    per: Literal["tensor", "dimension"] = option("What one constant of codec uint8 is for.", "tensor"),
    max_tokens: int | None = option(
        "Tokens of a text that an encoder without a bundle reads, as `max_tokens` of a project file.", ge=3
    ),
    processes: int | None = option("Processes that tokenize; 0: a thread.", ge=0),
    how: BackendOptions,
    printer: Printer,
) -> Any:
    """Add the features of every text of IN to STORE, which is made if there is none.

    BUNDLE gives the encoder; in its place stands also the name of an encoder as in a project file, such as minilm. IN
    ends in .jsonl, .json, .csv, .tsv (each also .gz), .xlsx or .parquet, or is datasets:ID[/config][:split].

    A text that STORE has already is not encoded again. So if the command is interrupted, run it again: it goes on.
    Texts may be added later, and by several commands at once. STORE refuses features of another encoder, tokenizer,
    precision or codec.
    """
    wish = ExtractRequest(
        columns=columns.roles, words=words, separate=separate, long_texts=long_texts, per=per, processes=processes
    )
    printer.show(f"opening {encoder}")
    kept = [Tap.parsed(tap) for tap in taps] or ([] if tasks else [Tap()])
    with stopped_with(lambda: 0, "documents"):  # before there is a job that counts them
        trunk, runs, paths = _opened(encoder, kept, tasks, how, max_tokens=max_tokens)
        if is_typed("per") and not any(path.pool.codec.format.has_constants for path in paths):
            raise click.UsageError("--per is for codec uint8: add it, as in --tap mean4:uint8, or leave --per out.")
        if Path(encoder, "bundle.json").exists():
            wish = _with_words(wish, encoder, store, paths, tasks)
        done = extract(store, source, paths, wish, trunk=trunk, backend=runs, show=printer.show)
    printer.lines(_extracted(done))
    _notes(done)
    return done


@verb("info", group=command)
def info_command(store: Store, *, printer: Printer) -> Any:
    """Show what STORE keeps, of which encoder, and which tasks were answered for how many documents."""
    info = store_info(store, open_corpus(store))
    printer.lines(_info_lines(info))
    return info


@verb("verify", group=command)
def verify_command(store: Store, *, printer: Printer) -> Any:
    """Read every byte of STORE, and fail at a file that was changed since it was written."""
    opened = open_corpus(store)
    printer.show(f"reading {store}")
    opened.verify()
    info = store_info(store, opened)
    printer.line(f"{store}: {counted(info.documents, 'document')}, nothing was changed")
    return info


@verb("compact", group=command)
def compact_command(
    store: Store,
    *,
    rows: int = option("Documents of a joined fragment, at most so many, and 1 GB.", FRAGMENT_ROWS, ge=1),
    days: float = option(
        "Remove files that no version needs and that are older than this. Others may still read younger ones.",
        WEEK,
        ge=0,
    ),
    printer: Printer,
) -> Any:
    """Join small fragments of STORE, and remove files that no version needs any more.

    Others may read, extract and backfill meanwhile.
    """
    opened = open_corpus(store)
    printer.show(f"joining fragments of {store}")
    joined = opened.compact(rows=rows)
    freed = opened.sweep(age=days * 86400)
    opened.refresh()
    done = Compacted(store=store, joined=joined, fragments=len(opened.fragments), freed_bytes=freed)
    printer.line(f"{store}: {counted(done.fragments, 'fragment')} left, {joined:,} joined, {in_bytes(freed)} freed")
    return done


@verb("near", group=command)
def near_command(
    store: Store,
    text: str,
    text_b: str | None = option(metavar="[TEXT_B]", default=None),
    *,
    bundle: Folder = option("Bundle over the encoder of STORE.", required=True),
    top: int = option("How many documents are shown.", 10, ge=1),
    texts: File = option("The file of the texts to show [default: the one that STORE was made from, if it is there]."),
    column: Column = option("Column of the text in --texts [default: the one that was read].", "--text"),
    column_b: Column = option("Column of the second text of a pair [default: text_b].", "--text-b"),
    digest: str | None = option(
        "Which features are compared, where STORE keeps several: the beginning of their digest [default: the first].",
        metavar="DIGEST",
    ),
    how: BackendOptions,
    printer: Printer,
) -> Any:
    """Show the documents of STORE that are nearest to TEXT, or to the pair of TEXT and TEXT_B.

    TEXT is encoded as documents were, and compared with each of them: by the cosine of the means over tokens of what
    STORE keeps. There is no index: documents that were added a moment ago are found too.
    """
    roles = TextColumns(text=column, text_b=column_b).roles
    if texts is not None:
        open_rows(texts)  # fails before the work where there is none
    else:
        texts, read = extracted_file(open_corpus(store).schema)
        roles = read | roles
    wish = NearRequest(top=top, features=digest, backend=how.backend, precision=how.precision)
    nearest = nearest_documents(store, bundle, (text,) if text_b is None else (text, text_b), wish, show=printer.show)
    if texts is not None:
        nearest = neighbours_with_texts(nearest, texts, roles, show=printer.show)
    printer.lines(_near_lines(nearest))
    if nearest.cut:
        note(f"TEXT is longer than the encoder reads: {counted(nearest.cut, 'token')} were left out")
    absent = sum(each.text is None for each in nearest.found)
    if texts is not None and absent:
        note(f"{texts} has no text for {counted(absent, 'document')} of these")
    return nearest


for name, moving in migrate.commands.items():
    command.add_command(moving, name)


def _opened(
    encoder: str, taps: Sequence[Tap], tasks: tuple[str, ...], how: BackendOptions, *, max_tokens: int | None
) -> tuple[TrunkData, base.Backend, list[TaskPath]]:
    """The encoder, what runs it, and what is to be kept of it."""
    from functools import partial

    if Path(encoder, "bundle.json").exists() or tasks:
        if max_tokens is not None:
            raise ConfigError("a bundle says how many tokens its encoder reads", got=max_tokens, do="leave it out")
        bundle = Bundle.open(encoder)
        trunk, scales = bundle.trunk(), partial(scales_for, bundle)
        trained = None if how.precision else trained_precision(bundle.tasks)
        paths = tapped_paths(bundle.tasks, tasks)
        runs = open_backend(how.backend, trunk, {}, precision=how.precision, trained=trained, scales=scales)
    else:
        from polyhead.project.pretrained import load_trunk

        if how.precision == "int8":
            raise ConfigError("an encoder without a bundle has no int8", do="give a bundle, quantized before")
        trunk, paths = load_trunk(encoder, max_tokens=max_tokens), []
        runs = open_backend(how.backend, trunk, {}, precision=how.precision)
    return trunk, runs, list(dict.fromkeys([*(tap.path(trunk) for tap in taps), *paths]))


def _with_words(
    wish: ExtractRequest, encoder: str, store: str, paths: Sequence[TaskPath], tasks: tuple[str, ...]
) -> ExtractRequest:
    """With words where the tasks that a store is for read some; says which of all tasks it will not answer."""
    bundle, kept, is_open = Bundle.open(encoder, verify=False), {digest(path) for path in paths}, True
    with suppress(NoStore):
        schema = open_corpus(store).schema
        kept, is_open = {column.digest for column in schema.features}, schema.words
    readers = [name for name in answerable(bundle, kept, words=True) if bundle.tasks[name].path.head.words]
    if set(readers) & set(tasks) or (readers and is_open and wish.long_texts == "cut" and not tasks):
        wish = msgspec.structs.replace(wish, words=True)
    _tell_answerable(bundle, encoder, store, answerable(bundle, kept, words=wish.words), tasks)
    return wish


def _tell_answerable(bundle: Bundle, encoder: str, store: str, answered: Sequence[str], tasks: tuple[str, ...]) -> None:
    """Says, before a corpus is encoded, which of these tasks of a bundle, or of all, its store will not answer."""
    by_any = answerable(bundle, {digest(record.path.stored()) for record in bundle.tasks.values()}, words=True)
    by_another = [name for name in by_any if name not in answered]
    by_none = [name for name in tasks or bundle.tasks if name not in by_any]
    if by_another and not tasks:
        which = f"not {counted(len(by_another), 'task')}" if answered else "no task"
        note(
            f"{store} can answer {which} of {encoder}, since it does not keep what they read: to answer "
            f"{_named(by_another)}, give --tasks and another STORE; to train tasks on what it keeps, use `polyhead "
            f"train --features {store}`"
        )
    if by_none:
        note(
            f"no store can answer {_named(by_none)} of {encoder}, since they read more than a text's features: answer "
            "from the texts with `polyhead predict`"
        )


def _named(tasks: Sequence[str]) -> str:
    return ", ".join(tasks[:MOST_NAMED]) + (" ..." if len(tasks) > MOST_NAMED else "")


def _extracted(done: ExtractSummary) -> list[str]:
    details = [f"{done.before:,} were there before"] if done.before else []
    details += [f"{done.repeated:,} repeat others"] if done.repeated else []
    return [
        f"{done.store}: {counted(done.total, 'document')}, {done.documents:,} added now"
        + (f" ({', '.join(details)})" if details else ""),
        f"in {duration(done.seconds)}, {pace(done.documents_a_second, 'documents')}, {counted(done.tokens, 'token')}, "
        f"{done.precision}",
    ]


def _notes(done: ExtractSummary) -> None:
    if done.cut:
        note(
            f"{counted(done.cut, 'text')} had more than {done.max_tokens} tokens, and {done.cut_tokens:,} tokens were "
            "not read: --long-texts windows keeps them, in a store of its own"
        )
    if done.unread:
        note(f"{counted(done.unread, 'row')} could not be read; the first: {done.first_unread}")


def _info_lines(info: StoreInfo) -> list[str]:
    on_disk = "" if info.disk_bytes is None else f", {in_bytes(info.disk_bytes)} on disk"
    lines = [
        f"{info.store}: {counted(info.documents, 'document')} in {counted(info.fragments, 'fragment')}, version "
        f"{info.version}{on_disk}"
    ]
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in info.source.items() if name != "columns"]
    for kept in info.features:
        mean = f", {kept.tokens / info.documents:.1f} a document" if info.documents else ""
        lines.append(f"features {kept.digest[:12]}: {kept.keeps}")
        lines.append(f"  {kept.token_bytes:,} bytes a token, {kept.tokens:,} tokens{mean}, {in_bytes(kept.bytes)}")
    if info.words_bytes is not None:
        mean = f", {in_bytes(info.words_bytes // info.documents)} a document" if info.documents else ""
        lines.append(f"hashes of words: {in_bytes(info.words_bytes)}{mean}")
    for column in info.results:
        of = "" if column.task is None else f": task '{column.task}' {column.version}"
        lines.append(f"results {column.name}{of}, {column.documents:,} of {info.documents:,} documents")
    return lines


def _near_lines(nearest: NearDocuments) -> list[str]:
    lines = [f"{nearest.store}: {counted(nearest.documents, 'document')} compared, by features {nearest.features[:12]}"]
    for each in nearest.found:
        lines.append(f"{each.cosine:.4f}  {each.id}")
        lines += indented(each.text or ())
    return lines
