"""int8 beside float32 on this processor, and on it capped to AVX2: scores of the eight tasks of tweets, and speed.

    python -m benchmarks.any_processor                      three seeds; trains bundles that are not there
    python -m benchmarks.any_processor --try BUNDLE         a few rows of one bundle, printed and kept nowhere

Each kind of processor is a process of its own, which finds the scales itself, as a user of such a machine would, and
answers the same rows in both precisions. Speeds are ratios within rounds, and rounds of the two processes take turns.
Goes on where it stopped: a row a seed, kind and task, and a row a round, in runs/any_processor.jsonl.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.first_light_eight_tasks import PROJECT, SEEDS
from benchmarks.precision_change import BACKEND, FEW, TEXTS, bundle_of, calibration, claim, scored
from polyhead.bundle.read import Bundle
from polyhead.engine.backends import open_runtime
from polyhead.engine.session import Session
from polyhead.evaluate.int8 import calibrated_scales
from polyhead.machine import CAPS, processor
from polyhead.project.tables import DataFile, Project, read_project
from studies.results import Claim, Study
from studies.settings import ROOT, parsed, report, say, study_arguments

Ask = Callable[[str], dict[str, Any]]  # one line, and its answer
NAME, FILE = "right_processor", "any_processor"
KINDS = {"avx2": {CAPS[0]: "AVX2"}, "full": {}}
PRECISIONS = ("float32", "int8")
ROUNDS, BEFORE = 5, 1  # of all texts in each precision; and those before the clock is read
TIMED = 640  # texts of a round and pairs, which are left out


def main() -> None:
    parser = study_arguments(__doc__, f"{FILE}.jsonl")
    parser.add_argument("--try", dest="trial", type=Path, metavar="BUNDLE", help="a few rows of this bundle")
    parser.add_argument("--child", type=Path, metavar="BUNDLE", help="answer what standard input asks")
    parser.add_argument("--few", action="store_true", help="of the child: rows and texts of a trial")
    options = parsed(parser)
    if options.child:
        child(options.child, few=options.few)
        return
    if options.trial:
        trial(options.trial)
        return
    study, names = Study(options.rows[0]), [entry.name for entry in read_project(ROOT / PROJECT).tasks]
    if not options.report:
        measure(study, names)
    report(
        NAME,
        command=f"python -m benchmarks.{FILE}",
        rows=study.rows,
        claims=claims(study.rows),
        lacking=list(missing(study.rows, names)),
    )


def measure(study: Study, names: list[str]) -> None:
    for seed in SEEDS:
        for kind in KINDS:
            there = {row.get("task") for row in study.rows if (row.get("seed"), row.get("kind")) == (seed, kind)}
            wanted = [name for name in names if name not in there]
            if not wanted:
                continue
            with opened(kind, bundle_of(seed)) as ask:
                for name in wanted:
                    say(str(study.row(partial(ask, f"score {name}"), seed=seed, kind=kind, task=name)))
    done = {row.get("round") for row in study.rows}
    if not {*range(ROUNDS)} <= done:
        with ExitStack() as stack:
            asks = {kind: stack.enter_context(opened(kind, bundle_of(SEEDS[0]))) for kind in KINDS}
            for _ in range(BEFORE):
                both(asks)
            for number in range(ROUNDS):
                say(str(study.row(partial(both, asks), round=number)))


def both(asks: dict[str, Ask]) -> dict[str, object]:
    """A round of each kind: seconds of each precision."""
    row: dict[str, object] = {}
    for kind, ask in asks.items():
        seconds = ask("round")
        row |= {f"{kind}_{precision}": seconds[precision] for precision in PRECISIONS}
    return row


@contextmanager
def opened(kind: str, bundle: Path, *more: str) -> Iterator[Ask]:
    """A process on a processor of this kind: gives what asks it one line and reads its answer."""
    environment = {name: value for name, value in os.environ.items() if name not in CAPS} | KINDS[kind]
    command = [sys.executable, "-m", "benchmarks.any_processor", "--child", str(bundle), *more]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        sent, answers = process.stdin, process.stdout

        def ask(line: str) -> dict[str, Any]:
            sent.write(line + "\n")
            sent.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        bits = ask("kind")["weight_bits"]
        if kind == "avx2" and bits != 7:
            raise SystemExit(f"the cap does not bite: weights of {bits} bits")
        yield ask
        sent.close()


def child(root: Path, *, few: bool) -> None:
    """Answers lines: `kind`, `score TASK`, `round`."""
    project, bundle, runtimes = (read_project(ROOT / PROJECT), Bundle.open(root), partial(open_runtime, BACKEND))
    if few:
        project = shortened(project, bundle)
    scales = calibrated_scales(bundle, calibration(FEW if few else TEXTS), runtimes, show=lambda text: None)
    sessions = {
        "float32": Session(bundle, backend=runtimes(precision="float32")),
        "int8": Session(bundle, backend=runtimes(precision="int8", scales=scales)),
    }
    texts = [row.input for row in calibration(TIMED // 8 if few else TIMED) if len(row.input) == 1]
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "kind":
            measured = {"weight_bits": processor().weight_bits, "processor": processor().label}
        elif word == "score":
            each = {precision: scored(session, project, rest) for precision, session in sessions.items()}
            scores = {precision: result["score"] for precision, result in each.items()}
            measured = {**each["int8"], **scores, "weight_bits": processor().weight_bits}
            del measured["score"]
        else:
            measured = {precision: seconds(session, texts) for precision, session in sessions.items()}
        print(json.dumps(measured), flush=True)


def seconds(session: Session, texts: list) -> float:
    began = time.perf_counter()
    session.columns(texts)
    return time.perf_counter() - began


def shortened(project: Project, bundle: Bundle) -> Project:
    """The tasks of the project that the bundle has, with a few test rows."""
    there = [entry for entry in project.tasks if entry.name in bundle.tasks]
    few = [msgspec.structs.replace(declared, test=DataFile(path=str(declared.test), limit=FEW)) for declared in there]
    return msgspec.structs.replace(project, tasks=tuple(few))


def trial(root: Path) -> None:
    """Proves that it runs, on the tasks of the example that this bundle has."""
    names = [entry.name for entry in shortened(read_project(ROOT / PROJECT), Bundle.open(root)).tasks]
    with ExitStack() as stack:
        asks = {kind: stack.enter_context(opened(kind, root, "--few")) for kind in KINDS}
        rows = [
            {"seed": 0, "kind": kind, "task": name, **ask(f"score {name}")}
            for kind, ask in asks.items()
            for name in names
        ]
        rounds = [{"round": number, **both(asks)} for number in range(3)]
    for row in (*rows, *rounds, *changed(rows), *fast(rounds)):
        say(str(row))


def claims(rows: list[dict]) -> list[Claim]:
    """Scores of both kinds, and speed."""
    return [*changed(rows), *fast(rows)]


def changed(rows: list[dict]) -> Iterator[Claim]:
    """Of each kind, the claim about scores."""
    titles = {"avx2": "capped to AVX2, where weights have 7 bits", "full": "not capped"}
    for kind, title in titles.items():
        mine = [row for row in rows if row.get("kind") == kind]
        flat = [
            {"seed": row["seed"], "task": row["task"], "precision": precision, "score": row[precision]}
            for row in mine
            for precision in PRECISIONS
        ]
        changed_share = claim(flat, "int8", 0.5)
        if changed_share is not None:
            text = f"{title} ({mine[0]['weight_bits']} bits here): {changed_share.text}"
            yield msgspec.structs.replace(changed_share, id=f"right.int8_{kind}", text=text)


def fast(rows: list[dict]) -> Iterator[Claim]:
    """The claim about speed where it is capped; beside it that of the whole processor."""
    rounds = [row for row in rows if "round" in row]
    if not rounds:
        return
    ratios = {kind: [row[f"{kind}_float32"] / row[f"{kind}_int8"] for row in rounds] for kind in KINDS}
    value, full = statistics.median(ratios["avx2"]), statistics.median(ratios["full"])
    across = statistics.median(row["full_int8"] / row["avx2_int8"] for row in rounds)
    yield Claim(
        id="right.int8_avx2_speed",
        text=f"speed of int8 over float32 capped to AVX2, all tasks of the tweets example over single texts of it, "
        f"{BACKEND}, median of {len(rounds)} rounds",
        target=1.0,
        value=value,
        unit="ratio",
        holds=value >= 1.0,
        note=f"Rounds {min(ratios['avx2']):.2f} to {max(ratios['avx2']):.2f}. Not capped int8 is {full:.2f} times "
        f"as fast as float32; capped int8 has {across:.2f} of the speed of int8 not capped. The cap leaves those "
        "products of float32 that are MLAS's what they are (docs/project/log.md).",
    )


def missing(rows: list[dict], names: Iterable[str]) -> Iterator[str]:
    there = {(row.get("seed"), row.get("kind"), row.get("task")) for row in rows}
    for seed in SEEDS:
        for kind in KINDS:
            yield from (f"seed {seed}, {kind}, {name}" for name in names if (seed, kind, name) not in there)
    rounds = sum("round" in row for row in rows)
    if rounds < ROUNDS:
        yield f"{ROUNDS - rounds} rounds of speed"


if __name__ == "__main__":
    main()
