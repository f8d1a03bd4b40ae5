"""What hashed words and windows add to 21 tasks: time of a pass, bytes of a part, seconds of a certificate.

    python -m benchmarks.words_cost       an idle machine, about an hour with training; writes results/heads_cost.json

The tasks of `one_pass_tasks.py`, three times: `without` words and windows, as held-out rows have `chosen`, and `every`
head with words, those that were not chosen drawn at random. Each stays loaded in a process of its own beside the bare
trunk's, all are asked in turn, and a ratio is of runs that follow each other. A certificate's seconds are those of
`polyhead tasks remove`, which answers every task's probes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import one_pass_tasks
from benchmarks.one_pass import BATCH, VARIANTS, in_turn
from benchmarks.one_pass_tasks import FOLDER, PAIRED, TASKS
from benchmarks.peers.rivals import Worker
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.engine.scale_files import CACHE
from polyhead.plan import Path as PlanPath
from polyhead.plan.cost import WORD_WEIGHTS
from polyhead.progress import duration
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TrunkChoice
from polyhead.train.candidates import word_columns
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.results import Claim
from studies.settings import ROOT, command, report, say

NAME = "heads_cost"
KINDS = WITHOUT, CHOSEN, EVERY = "without", "chosen", "every"
REMOVED = "irony"
MORE, MOST_MIB = 1.1, 8.0  # times as long as without; of a part's arrays
BARE = 0.92  # of the bare encoder's rate, as for tasks whose heads read no words
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", default=VARIANTS, help="backend:precision")
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--single", type=int, default=100, help="texts answered one by one")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    bundles = made()
    say(f"three bundles in {duration(time.perf_counter() - began)}")
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows = [row for kind, bundle in bundles.items() for row in sizes(kind, bundle)]
    for variant in options.variants:
        rows += passes(options, variant, bundles)
    rows += certificates(bundles, options.repeats)
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def made() -> dict[str, Path]:
    """The three bundles, made where they are not there."""
    chosen = one_pass_tasks.train()
    without, every = FOLDER / "words-without", FOLDER / "words-every"
    tasks = tuple(
        msgspec.structs.replace(task.entry(), strategy=Pooled(words=False, window=0)) for task in (*TASKS, PAIRED)
    )
    project = Project(tasks=tasks, bundle=str(without), trunk=TrunkChoice(max_tokens=128))
    train_project(project, folder=FOLDER, cache=FOLDER / "cache", events=Events(say=say))
    shutil.rmtree(every, ignore_errors=True)
    source = Bundle.open(chosen)
    write_bundle(every, source.trunk())
    add_tasks(every, [with_words(source, name) for name in source.tasks])
    for other in (without, every):
        if not (other / CACHE).exists():
            shutil.copytree(chosen / CACHE, other / CACHE)
    return {WITHOUT: without, CHOSEN: chosen, EVERY: every}


def with_words(source: Bundle, name: str) -> Draft:
    """A task of the bundle; with as many columns of words as its rows would have, at random, where it reads none."""
    record, arrays = source.tasks[name], source.part(name)
    head = record.path.head
    if not head.words:
        head = msgspec.structs.replace(head, words=word_columns(one_pass_tasks.ROWS["train"], head.width))
        path = PlanPath(nodes=(*record.path.nodes[:-1], head))
        drawn = np.random.default_rng(0).standard_normal((head.words, head.width))
        arrays = {**arrays, WORD_WEIGHTS: (0.01 * drawn).astype(np.float32)}
        record = msgspec.structs.replace(record, path=path, arrays="")
    return Draft(
        record=record, arrays=arrays, scores=source.scores(name), probes=source.probes(name), card=source.card(name)
    )


def sizes(kind: str, root: Path) -> list[Row]:
    """Bytes of each part's arrays, with the columns of words and the neighbours that its head reads."""
    bundle = Bundle.open(root)
    return [
        {
            "what": "part",
            "kind": kind,
            "task": name,
            "bytes": sum(array.nbytes for array in bundle.part(name).values()),
            "words": record.path.head.words,
            "window": record.path.head.window,
        }
        for name, record in bundle.tasks.items()
    ]


def passes(options: argparse.Namespace, variant: str, bundles: dict[str, Path]) -> list[Row]:
    """Seconds of the bare trunk and of the three bundles, in turn: all texts at once, and text by text."""
    backend, precision = variant.split(":")
    job = {"texts": str(FOLDER / "tweets.json"), "batch": BATCH, "threads": options.threads}
    job |= {"backend": backend, "precision": precision}
    program = [sys.executable, str(ROOT / "benchmarks" / "one_pass_ours.py")]
    with contextlib.ExitStack() as stack:
        workers = {}
        for kind, root in {"bare": bundles[CHOSEN], **bundles}.items():
            log = FOLDER / "logs" / f"words-{kind}-{backend}-{precision}.txt"
            own = job | {"bundle": str(root), "trunk_alone": kind == "bare"}
            workers[kind, 0 if kind == "bare" else 21] = stack.enter_context(Worker(program, own, log=log))
        counts = {"all": options.texts, "single": options.single}
        runs = [(key, how, texts) for how, texts in counts.items() for key in workers]
        rows = in_turn(variant, workers, runs, options.repeats)
        return [{**row, "kind": row["who"], "variant": variant} for row in rows]


def certificates(bundles: dict[str, Path], repeats: int) -> list[Row]:
    """Seconds of a change with its certificate, in turn, on copies; the first of each, which has none yet, is left."""
    rows: list[Row] = []
    roots = {kind: FOLDER / f"words-{kind}-copy" for kind in KINDS}
    for kind, root in roots.items():
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(bundles[kind], root)
    for repeat in range(repeats + 1):
        for kind, root in roots.items():
            began = time.perf_counter()
            changed("remove", str(root), REMOVED)
            seconds = time.perf_counter() - began
            changed("add", str(root), str(bundles[kind]), REMOVED)
            if repeat:
                rows.append({"what": "certificate", "kind": kind, "repeat": repeat, "seconds": seconds})
        say(f"certificates: {repeat} of {repeats}")
    return rows


def changed(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "polyhead", "tasks", *words], check=True, capture_output=True)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Times over those without words in the same repeat, and the largest part."""
    claimed = []
    for variant in dict.fromkeys(str(row["variant"]) for row in rows if row["what"] == "time"):
        for how, words in (("all", "all texts at once"), ("single", "text by text")):
            mine = [row for row in rows if row.get("variant") == variant and row.get("how") == how]
            text = f"{variant}, {words}: time of 21 tasks with words and windows as chosen over that without"
            claimed += ratio(f"heads.cost_{how}_{variant.split(':')[1]}", text, mine)
            if how == "all":
                text = f"{variant}, {words}: rate of 21 tasks with words and windows as chosen over the bare encoder's"
                claimed += bare(f"heads.cost_bare_{how}_{variant.split(':')[1]}", text, mine)
    mine = [row for row in rows if row["what"] == "certificate"]
    text = "seconds of a change of 21 tasks with its certificate, as chosen, over those without words and windows"
    claimed += ratio("heads.cost_certificate", text, mine)
    parts = {kind: [row for row in rows if row["what"] == "part" and row["kind"] == kind] for kind in KINDS}
    if parts[CHOSEN]:
        mib = {kind: [int(str(row["bytes"])) / 2**20 for row in several] for kind, several in parts.items()}
        reading = sum(bool(row["words"]) for row in parts[CHOSEN]), sum(bool(row["window"]) for row in parts[CHOSEN])
        claimed.append(
            Claim(
                id="heads.cost_bytes",
                text="arrays of the largest of 21 parts with words and windows as chosen",
                target=MOST_MIB,
                value=round(max(mib[CHOSEN]), 2),
                unit="MiB",
                holds=max(mib[CHOSEN]) <= MOST_MIB,
                note="all parts: "
                + ", ".join(f"{kind} {sum(several):.1f}" for kind, several in mib.items())
                + f" MiB; {reading[0]} read words, {reading[1]} windows",
            )
        )
    return claimed


def bare(id: str, text: str, rows: Sequence[Row]) -> list[Claim]:
    """The claim that the median rate over the bare encoder's in the same repeat is at least BARE; none without rows."""
    seconds = {(row["kind"], row["repeat"]): float(str(row["seconds"])) for row in rows}
    ratios = [seconds["bare", repeat] / taken for (kind, repeat), taken in seconds.items() if kind == CHOSEN]
    if not ratios:
        return []
    value = round(statistics.median(ratios), 3)
    note = f"{min(ratios):.3f} to {max(ratios):.3f} of {len(ratios)} repeats"
    return [Claim(id=id, text=text, target=BARE, value=value, unit="ratio", holds=value >= BARE, note=note)]


def ratio(id: str, text: str, rows: Sequence[Row]) -> list[Claim]:
    """The claim that the median ratio to `without` in the same repeat is at most MORE; none without rows."""
    seconds = {(row["kind"], row["repeat"]): float(str(row["seconds"])) for row in rows}
    repeats = sorted({repeat for _, repeat in seconds}, key=str)
    if not repeats:
        return []
    ratios = {
        kind: [seconds[kind, repeat] / seconds[WITHOUT, repeat] for repeat in repeats]
        for kind in ("bare", CHOSEN, EVERY)
        if all((kind, repeat) in seconds for repeat in repeats)
    }
    value = statistics.median(ratios[CHOSEN])
    note = ", ".join(
        f"{kind} {statistics.median(several):.3f} ({min(several):.3f} to {max(several):.3f})"
        for kind, several in ratios.items()
    )
    return [
        Claim(
            id=id,
            text=text,
            target=MORE,
            value=round(value, 3),
            unit="ratio",
            holds=value <= MORE,
            note=f"medians of {len(repeats)} over {WITHOUT}: {note}",
        )
    ]


if __name__ == "__main__":
    main()
