"""What a rival, or Polyhead beside it, is asked: one JSON object a line on standard input, one a line back.

The first line is the job: `model` (folder of the encoder), `work` (folder for what is built from it), `texts` (the file
of a JSON list), `tasks` (each a name, `words` for one answer a word, and how many `outputs`), `batch`, `threads`. Each
further line asks for one run, so that the runs of several processes can take turns. Standard library alone: every rival
runs in an environment of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Answer = Callable[[Sequence[str]], object]


def serve(load: Callable[[Job], Answer], packages: Iterable[str] = ()) -> None:
    """Answers until standard input ends, then ends the process. What libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        for reply in _replies(load, packages):
            print(json.dumps(reply), file=replies, flush=True)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of a library may wait for ever
    os._exit(0)


def _replies(load: Callable[[Job], Answer], packages: Iterable[str]) -> Iterator[dict[str, object]]:
    job = json.loads(sys.stdin.readline())
    texts = json.loads(Path(job["texts"]).read_text(encoding="utf-8"))
    began = time.perf_counter()
    answer = load(job)
    loaded = time.perf_counter() - began
    versions = {name: importlib.metadata.version(name) for name in packages}
    yield {"load_seconds": loaded, "resident": resident(), "versions": versions}
    for line in sys.stdin:
        message = json.loads(line)
        seconds, answers = RUNS[message["how"]](answer, texts[: message["texts"]], job["batch"])
        yield {"seconds": seconds, "checksum": total(answers), "resident": resident()}


def everything(answer: Answer, texts: Sequence[str], batch: int) -> tuple[float, object]:
    """Seconds for all texts in one call."""
    began = time.perf_counter()
    answers = answer(texts)
    return time.perf_counter() - began, answers


def by_length(answer: Answer, texts: Sequence[str], batch: int) -> tuple[float, object]:
    """The same, sorted beforehand, for those that batch texts as they come: padding then costs them little."""
    return everything(answer, sorted(texts, key=len), batch)


def in_batches(answer: Answer, texts: Sequence[str], batch: int) -> tuple[float, object]:
    """Seconds for all texts, a batch of them at a time in the order that they come in."""
    began = time.perf_counter()
    answers = [answer(texts[start : start + batch]) for start in range(0, len(texts), batch)]
    return time.perf_counter() - began, answers


def one_by_one(answer: Answer, texts: Sequence[str], batch: int) -> tuple[float, object]:
    """Median seconds for one text alone."""
    seconds, answers = zip(*(everything(answer, [text], batch) for text in texts), strict=True)
    return statistics.median(seconds), answers


def once_more(answer: Answer, texts: Sequence[str], batch: int) -> tuple[float, object]:
    """Median seconds for the same text again and again, so that its length never changes."""
    seconds, answers = list[float](), list[object]()
    for text in texts:
        answer([text])
        again, given = everything(answer, [text], batch)
        seconds.append(again)
        answers.append(given)
    return statistics.median(seconds), answers


RUNS = {"all": everything, "sorted": by_length, "batches": in_batches, "single": one_by_one, "again": once_more}


def resident() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def total(value: Any) -> float:
    """The sum of all numbers in it: equal answers have equal ones, and no answer can be left out unseen.

    A word that has no token of its own is answered with what is no number; it counts nothing.
    """
    if isinstance(value, dict):
        return total(list(value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(total, value))
    if hasattr(value, "sum"):
        return float(value[value == value].sum())
    return float(value) if isinstance(value, (int, float)) else 0.0
