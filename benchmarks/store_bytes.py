"""Bytes a token on disk: the same features at one bit and in float16, in the plain store and in Lance.

    python -m benchmarks.store_bytes                     200,000 distinct real texts; writes results/store_bytes.json
    python -m benchmarks.store_bytes --rows-scale 0.01   a trial, which writes no results

Counted are all files of a store with one feature column: features, lengths, ids of documents, versions. The index by
which documents are found is reported beside.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from benchmarks.store_made import KINDS, Place, Row, disk_bytes, made, options_of, single
from polyhead.codecs import HALF, ONE_BIT
from polyhead.store.corpus import open_corpus
from studies.results import Claim
from studies.settings import answer_help, say

NAME = "store_bytes"
WIDTH = 384
MOST, LEAST_RATIO = 1.05 * WIDTH / 8, 15.0  # bytes a token at one bit; times less than float16


def main() -> None:
    options, place = options_of(__doc__)
    study = place.study(NAME)
    for kind in () if options.report else KINDS:
        for codec in (ONE_BIT, HALF):
            say(str(study.row(partial(measured, place, kind, codec), kind=kind, codec=codec)))
    lacking = [f"{kind}, {codec}" for kind in KINDS for codec in (ONE_BIT, HALF) if not of(study.rows, kind, codec)]
    place.report(NAME, study.rows, claims(study.rows), lacking)


def measured(place: Place, kind: str, codec: str) -> Row:
    """Bytes of a store of these features; the one in float16 is removed again."""
    made(place)
    location = single(place, kind, codec)
    store = open_corpus(location)
    (column,) = store.schema.features
    tokens = sum(int(store.rows(fragment.name, column.digest).offsets[-1]) for fragment in store.fragments)
    documents = sum(fragment.rows for fragment in store.fragments)
    sizes = disk_bytes(location)
    counted = sum(sizes.values()) - sizes["index"]
    if codec == HALF:
        shutil.rmtree(Path(location))
    return {
        "documents": documents,
        "tokens": tokens,
        "mean_tokens": tokens / documents,
        "fragments": len(store.fragments),
        "bytes": dict(sizes),
        "bytes_a_token": counted / tokens,
        "index_bytes_a_token": sizes["index"] / tokens,
    }


def of(rows: list[Row], kind: str, codec: str) -> Row:
    return next((row for row in rows if (row.get("kind"), row.get("codec")) == (kind, codec)), {})


def claims(rows: list[Row]) -> list[Claim | None]:
    """The claim about bytes and that about their ratio, of whichever store is worse."""
    listed: list[Claim | None] = []
    bits = {kind: of(rows, kind, ONE_BIT) for kind in KINDS}
    halves = {kind: of(rows, kind, HALF) for kind in KINDS}
    if all(bits.values()):
        each = {kind: row["bytes_a_token"] for kind, row in bits.items()}
        row, value = bits["plain"], max(each.values())
        known = ", ".join(f"{kind} {size:.2f}" for kind, size in each.items())
        index = f"the plain store's index is {row['index_bytes_a_token']:.2f} more; Lance's is made when it is read"
        listed.append(
            Claim(
                id="store.bytes",
                text=f"bytes a token on disk at 1 bit ({ONE_BIT}) after the mean of layers, width {WIDTH}, "
                f"{row['documents']:,} documents of {row['mean_tokens']:.1f} tokens, ids and lengths included",
                target=MOST,
                value=round(value, 3),
                unit="bytes",
                holds=value <= MOST,
                note=f"{known}; {index}",
            )
        )
    if all(bits.values()) and all(halves.values()):
        ratios = {kind: halves[kind]["bytes_a_token"] / bits[kind]["bytes_a_token"] for kind in KINDS}
        value = min(ratios.values())
        listed.append(
            Claim(
                id="store.bytes-ratio",
                text="bytes of the same features in float16 in the same kind of store, over those at 1 bit",
                target=LEAST_RATIO,
                value=round(value, 3),
                unit="ratio",
                holds=value >= LEAST_RATIO,
                note=", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()),
            )
        )
    return listed


if __name__ == "__main__":
    answer_help(__doc__)
    main()
