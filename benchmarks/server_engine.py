"""The engine's own rate, for `server_load`: a list of texts on standard input, all in one call, the median of three.

    python -m benchmarks.server_engine BUNDLE PRECISION < texts.json

With --batches also how long batches of these sizes take, for `server_queue`: right after another one, and after a rest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.engine.session import Session

REST = 0.03  # seconds before a cold batch: a processor has other things in its caches by then
COLD = 40  # texts of which most cold batches are: others do not follow an idle engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("precision")
    parser.add_argument("--batches", nargs="*", type=int, default=(), help="numbers of texts")
    parser.add_argument("--draws", type=int, default=40, help="batches of each size")
    options = parser.parse_args()
    texts = json.load(sys.stdin)
    session = Session(options.bundle, backend="openvino", precision=options.precision)
    names = [name for name, task in session.tasks.items() if task.pair == "none"]
    session.predict(texts[:256], tasks=names)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        results = session.predict(texts, tasks=names)
        seconds.append(time.perf_counter() - began)
        assert len(results) == len(texts)
    row: dict[str, Any] = {
        "texts": len(texts),
        "a_second": len(texts) / statistics.median(seconds),
        "tasks": len(names),
    }
    if options.batches:
        row["lengths"] = session.tokenizer.encodings([(text,) for text in texts]).lengths.tolist()
        row["batches"] = list(timed(session, names, texts, options.batches, draws=options.draws))
    print(json.dumps(row))


def timed(
    session: Session, names: Sequence[str], texts: Sequence[str], sizes: Sequence[int], *, draws: int
) -> Iterator[dict[str, Any]]:
    """A row a batch, sizes in turn: what a server would have answered, its results made."""
    drawn = random.Random(0)
    for draw in range(draws + 2):  # the first two are for shapes that were not seen yet
        for size, cold in [(size, cold) for size in sizes for cold in (False, True)]:
            if cold and size > COLD and draw > 4:
                continue
            chosen = drawn.sample(texts, size)
            if cold:
                time.sleep(REST)
            else:
                session.predict(drawn.sample(texts, size), tasks=names)
            began = time.perf_counter()
            results = session.predict(chosen, tasks=names)
            seconds = time.perf_counter() - began
            if draw >= 2:
                tokens = sum(result.receipt.tokens for result in results)
                yield {"texts": size, "tokens": tokens, "cold": cold, "seconds": seconds}


if __name__ == "__main__":
    main()
