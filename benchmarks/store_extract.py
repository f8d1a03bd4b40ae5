"""How fast features are extracted, over the bare encoder's rate in the same backend.

    python -m benchmarks.store_extract                     writes results/store_extract.json
    python -m benchmarks.store_extract --rows-scale 0.01   a trial, which writes no results

The extraction is a whole call: it reads the file, tokenizes, encodes, writes one bit a dimension and appends to a new
store. The bare encoder gets the same batches ready made: token ids in, nothing but its last layer's first positions
out. Both use one compiled backend and take turns; a ratio is of runs that follow each other. The store's codec is fixed
beforehand, from the store of all texts.
"""

from __future__ import annotations

import shutil
import statistics
import time
from functools import cache, partial
from pathlib import Path

from benchmarks.store_made import (
    COLUMN,
    Place,
    Row,
    backend,
    column_with,
    made,
    options_of,
    read_texts,
    texts_file,
    trunk,
    write_texts,
)
from polyhead.codecs import ONE_BIT
from polyhead.engine.backends.base import TokenBatch
from polyhead.plan import Embed, Layers, Pool
from polyhead.plan import Path as TaskPath
from polyhead.store.jobs.documents import PIECE_ROWS
from polyhead.store.jobs.extract import TOKEN_BUDGET, ExtractRequest, extract
from polyhead.store.taps import entry_batches
from polyhead.text.tokenize import Tokenizer
from studies.results import Claim
from studies.settings import answer_help, say

NAME = "store_extract"
TEXTS, REPEATS = 20_000, 5
TARGET = 0.9
FIRST = 2_000  # texts that both run before the clock is read


def main() -> None:
    options, place = options_of(__doc__)
    study = place.study(NAME)
    for repeat in range(0 if options.report else REPEATS):
        if not any(row.get("repeat") == repeat for row in study.rows):
            warm(place)
        say(str(study.row(partial(timed, place), repeat=repeat)))
    place.report(NAME, study.rows, [claim(study.rows)], [] if len(study.rows) >= REPEATS else ["repeats"])


@cache
def warm(place: Place) -> None:
    """Runs both once, over few texts."""
    timed(place, FIRST)


@cache
def prepared(place: Place, texts: int | None) -> tuple[Path, list[TokenBatch], int, int]:
    """A file of texts, and their batches, tokenized in the same pieces as an extraction takes."""
    file = place.folder / f"extract-{texts or 'all'}.jsonl"
    write_texts(file, read_texts(texts_file(place))[: texts or place.rows(TEXTS)])
    tokenizer = Tokenizer(trunk().tokenizer, trunk().settings)
    several, inputs, tokens = [], [(text,) for text in read_texts(file)], 0
    for start in range(0, len(inputs), PIECE_ROWS):
        encodings = tokenizer.encodings(inputs[start : start + PIECE_ROWS])
        tokens += len(encodings.ids)
        width = trunk().architecture.width if backend().packs else None
        several += list(entry_batches(encodings, pad_id=tokenizer.pad_id, budget=TOKEN_BUDGET, width=width))
    return file, [batch for _, batch in several], len(inputs), tokens


def timed(place: Place, texts: int | None = None) -> Row:
    """Seconds of the bare encoder, and of an extraction at one bit right after it."""
    file, ready, count, tokens = prepared(place, texts)
    return {"texts": count, "tokens": tokens, "bare": bare(ready), "extraction": extracted(place, file, ONE_BIT)}


def bare(ready: list[TokenBatch]) -> float:
    """Seconds of the encoder alone."""
    shape = trunk().architecture
    last = TaskPath(nodes=(Embed(trunk=trunk().digest), Layers(start=0, stop=shape.layers), Pool(positions="first")))
    began = time.perf_counter()
    for batch in ready:
        backend().features([last], batch)
    return time.perf_counter() - began


def extracted(place: Place, file: Path, codec: str) -> float:
    """Seconds of an extraction into a new store."""
    location = place.folder / "extracted"
    shutil.rmtree(location, ignore_errors=True)
    path = column_with(made(place), codec).path
    assert path is not None
    began = time.perf_counter()
    extract(location, file, [path], ExtractRequest(columns=COLUMN), trunk=trunk(), backend=backend())
    seconds = time.perf_counter() - began
    shutil.rmtree(location)
    return seconds


def claim(rows: list[Row]) -> Claim | None:
    if not rows:
        return None
    ratios = [row["bare"] / row["extraction"] for row in rows]
    value, rate = statistics.median(ratios), statistics.median(row["texts"] / row["extraction"] for row in rows)
    return Claim(
        id="store.extract-rate",
        text="texts a second of an extraction at 1 bit, tokenizing and writing included, over the bare encoder's on "
        f"batches ready made, openvino {precision()}",
        target=TARGET,
        value=round(value, 4),
        unit="ratio",
        holds=value >= TARGET,
        note=f"median of {len(rows)}, {min(ratios):.3f} to {max(ratios):.3f}; {rows[0]['texts']:,} texts, {rate:,.0f} "
        "a second",
    )


def precision() -> str:
    return str(backend().precision)


if __name__ == "__main__":
    answer_help(__doc__)
    main()
