"""Many tasks in one pass: time against the bare trunk and against rivals, latency, memory, loading; a table and a plot.

    python -m benchmarks.one_pass_tasks                        once: the 21 tasks
    python benchmarks/peers/environments.py                    once: the rivals' environments
    python -m benchmarks.one_pass                              all of it; an idle machine, nothing else running

Texts are real tweets of mixed length, in random order; tokenization is part of every time. Everything that is compared
stays loaded in a process of its own and is asked in turn, so that a ratio is of runs that follow each other; medians
over the repeats are reported. "Bare" is the trunk without any task, over padded batches of texts of like length. Rivals
get their texts sorted by length. A claim whose runs are not there is named as lacking.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import one_pass_claims, one_pass_tasks
from benchmarks.one_pass_tasks import FOLDER, PAIRED, SIZES, TASKS
from benchmarks.peers.rivals import RIVALS, Rival, Worker, python_of
from polyhead.bundle.read import Bundle
from polyhead.cli.output import text_table
from polyhead.project.pretrained import find_encoder
from polyhead.tasks.kinds import kind_of
from studies.settings import RESULTS, ROOT, command, report, say

NAME = "one_pass"
VARIANTS = ("openvino:bfloat16", "openvino:int8")
BATCH, RIVAL_SIZES, LOADS = 32, (1, 5, 21), 3
Row = dict[str, object]
Key = tuple[str, int]  # who, and of how many tasks


def main() -> None:
    options = arguments()
    texts = FOLDER / "tweets.json"
    one_pass_tasks.train()
    texts.write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = []
    for variant in options.variants:
        rows += ours(options, variant)
    for rival in RIVALS:
        if any(word in rival.name for word in options.rivals):
            rows += against(options, rival)
    show(rows)
    claims, lacking = one_pass_claims.claims(rows)
    one_pass_claims.plot(rows, claims, RESULTS)
    report(NAME, command=command(), rows=rows, claims=claims, lacking=lacking)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", default=VARIANTS, help="backend:precision")
    parser.add_argument("--rivals", nargs="*", default=[""], help="words of the names of those to run")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="numbers of tasks")
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--rival-texts", type=int, default=256, help="that rivals answer in one run")
    parser.add_argument("--single", type=int, default=100, help="texts answered one by one, for latency")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rival-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where `transformers` pipelines run: cpu, cuda")
    return parser.parse_args()


def ours(options: argparse.Namespace, variant: str) -> list[Row]:
    """One variant with every number of tasks and without any, in turn; then how long loading takes."""
    with contextlib.ExitStack() as stack:
        workers: dict[Key, Worker] = {}
        for size in (0, *options.sizes):
            with lacking(f"{variant} with {size} tasks"):
                workers[variant, size] = stack.enter_context(worker_of(options, variant, size))
        runs = [(key, "all", options.texts) for key in workers]
        for size in (0, 21):
            if (variant, size) in workers:
                runs += [((variant, size), "batches", options.texts), ((variant, size), "single", options.single)]
        rows = list(in_turn(variant, workers, runs, options.repeats))
    for repeat in range(1, LOADS + 1):
        for size in options.sizes:
            with lacking(f"loading {variant}"), worker_of(options, variant, size) as worker:
                first = worker.run("all", 1)["seconds"]
                known = {"what": "load", "who": variant, "tasks": size, "repeat": repeat}
                rows.append({**known, **worker.loaded, "first_seconds": first})
    return rows


def against(options: argparse.Namespace, rival: Rival) -> list[Row]:
    """A rival with several numbers of tasks, and Polyhead with 21, over the same texts in turn."""
    if not python_of(rival.environment).exists():
        say(f"lacking: {rival.name}: python benchmarks/peers/environments.py {rival.environment}")
        return []
    with contextlib.ExitStack() as stack:
        workers: dict[Key, Worker] = {}
        for variant in options.variants:
            with lacking(f"{variant} beside {rival.name}"):
                workers[variant, 21] = stack.enter_context(worker_of(options, variant, 21))
        for size in RIVAL_SIZES:
            with lacking(f"{rival.name} with {size} tasks"):
                workers[rival.name, size] = stack.enter_context(rival_of(options, rival, size))
        runs = [(key, "sorted" if key[0] == rival.name else "all", options.rival_texts) for key in workers]
        runs += [(key, "single", max(1, options.single // 10)) for key in workers if key[1] == 21]
        return list(in_turn(rival.name, workers, runs, options.rival_repeats))


@contextlib.contextmanager
def lacking(what: str) -> Iterator[None]:
    """Says that something could not be run, and goes on without it."""
    try:
        yield
    except RuntimeError as error:
        say(f"lacking: {what}: {error}")


def worker_of(options: argparse.Namespace, variant: str, size: int) -> Worker:
    """Polyhead with so many tasks; 0 is the trunk alone."""
    backend, precision = variant.split(":")
    job = {
        "texts": str(FOLDER / "tweets.json"),
        "batch": BATCH,
        "threads": options.threads,
        "bundle": str(one_pass_tasks.bundle_of(size or 1)),
        "backend": backend,
        "precision": precision,
        "trunk_alone": not size,
    }
    command = [sys.executable, str(ROOT / "benchmarks" / "one_pass_ours.py")]
    return Worker(command, job, log=FOLDER / "logs" / f"{backend}-{precision}-{size}.txt")


def rival_of(options: argparse.Namespace, rival: Rival, size: int) -> Worker:
    """A rival with the first so many of the 21 tasks.

    That over pairs is one more head of one output over each text alone, which is in the rival's favour: it has no pair
    to put together, and nothing to compare.
    """
    trained = Bundle.open(FOLDER / "trained")
    tasks = [trained.tasks[task.name].task for task in (*TASKS, PAIRED)[:size]]
    job = {
        "texts": str(FOLDER / "tweets.json"),
        "batch": BATCH,
        "threads": options.threads,
        "model": str(find_encoder("minilm")),
        "work": str(FOLDER / "rivals"),
        "device": options.device,
        "tasks": [
            {"name": task.name, "words": task.kind == "tagging", "outputs": kind_of(task).width(task)} for task in tasks
        ],
    }
    log = FOLDER / "logs" / f"{Path(rival.script).stem}-{size}.txt"
    return Worker(rival.command, job, log=log)


def in_turn(
    group: str, workers: Mapping[Key, Worker], runs: Sequence[tuple[Key, str, int]], repeats: int
) -> Iterator[Row]:
    """Every run once, unrecorded, then so many times, each time all of them one after another."""
    failed: set[Key] = set()
    for repeat in range(repeats + 1):
        for key, how, texts in runs:
            if key in failed:
                continue
            try:
                reply = workers[key].run(how, texts)
            except RuntimeError as error:
                say(f"lacking: {key}: {error}")
                failed.add(key)
                continue
            if repeat:
                who, tasks = key
                row = {"what": "time", "group": group, "who": who, "tasks": tasks, "how": how}
                yield {**row, "texts": texts, "repeat": repeat, **reply}
        say(f"{group}: {repeat} of {repeats}")


def show(rows: Sequence[Row]) -> None:
    """Median milliseconds a text of everybody, and memory."""
    lines: list[list[str]] = [["run", "who", "tasks", "ms a text", "MiB"]]
    for group, who, tasks, how in dict.fromkeys(
        (row["group"], row["who"], row["tasks"], row["how"]) for row in rows if row["what"] == "time"
    ):
        mine = one_pass_claims.chosen(rows, group=group, who=who, tasks=tasks, how=how)
        per_text = statistics.median(map(one_pass_claims.per_text, mine))
        memory = max(int(str(row["resident"])) for row in mine) / 2**20
        beside = "" if group == who else f" (beside {group})"
        lines.append([str(how), f"{who}{beside}", str(tasks), f"{1000 * per_text:.3f}", f"{memory:.0f}"])
    for line in text_table(lines, left=2):
        say(line)


if __name__ == "__main__":
    main()
