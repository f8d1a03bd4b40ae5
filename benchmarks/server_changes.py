"""Tasks are added, updated, rolled back and removed over HTTP while callers ask at 60 % of what the server can answer.

    python -m benchmarks.one_pass_tasks                          once: the tasks
    python -m benchmarks.server_changes [--changes 200]          an idle machine; under load a change takes seconds

The bundle has 22 tasks. Of these one is updated and rolled back, and a further one comes and goes, in random order. The
99th percentile is measured before the first change and during all of them. Beside the load a slow caller looks whether
each answer names a version that was live, with its digest. Every change is certified: all other tasks answer their
pinned probes with the same bits as before, else it is undone.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.one_pass_tasks import FOLDER, TASKS, bundle_of, copied, train, tweets
from benchmarks.server_load import CALLERS, Row, load, resident, server
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import upload_bytes
from polyhead.bundle.write import Draft, add_tasks
from studies.results import Claim
from studies.settings import command, report, say

NAME, PRECISION, SHARE = "server_changes", "bfloat16", 0.6
UPDATED, COMING = "review", "coming"  # the task that has several versions, and the one that comes and goes
LEVELS = (0.001, 0.002, 0.003)  # how far the numbers of uploads are from those of the trained task
CHANGES, PATIENCE = 200, 900  # how many, and seconds in which one must be answered
SECONDS = 30  # of a run of the load generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--minutes", type=float, default=600, help="after which no further change is begun")
    parser.add_argument("--precision", default=PRECISION, help="that is served; bfloat16 needs a processor that has it")
    options = parser.parse_args()
    train()
    root, uploads = bundle(), {name: [upload(name, level) for level in LEVELS] for name in (UPDATED, COMING)}
    bodies, rows = FOLDER / "bodies.jsonl", list[Row]()
    bodies.write_text("".join(json.dumps({"inputs": [text]}) + "\n" for text in tweets(4096)))
    with server(root, "--backend", "openvino", "--precision", options.precision, "--admin", "--no-keys") as (
        port,
        process,
    ):
        load(port, bodies, callers=16, seconds=5)
        rate = SHARE * load(port, bodies, callers=CALLERS, seconds=15)["a_second"]
        rows += [{"what": "before", **load(port, bodies, rate=rate, seconds=SECONDS)} for _ in range(2)]
        changing = partial(during, port, bodies, rate, root, uploads, memory=partial(resident, process.pid))
        rows += changing(options.changes, options.minutes)
        rows.append({"what": "afterwards", **load(port, bodies, rate=rate, seconds=SECONDS)})
    count = sum(next(row for row in rows if row["what"] == "changes")["made"].values())
    lacking = [] if count >= CHANGES else [f"{count} of {CHANGES} changes were made"]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def bundle() -> Path:
    """A bundle of its own, made anew."""
    root, source = FOLDER / "changing", bundle_of(len(TASKS) + 2)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(source, root)
    return root


def upload(name: str, level: float) -> bytes:
    """A task with slightly other numbers as a server takes it."""
    trained, folder = Bundle.open(FOLDER / "trained"), FOLDER / "upload"
    shutil.rmtree(folder, ignore_errors=True)
    draft = copied(trained, UPDATED, name) if name != UPDATED else copied(trained, UPDATED, UPDATED)
    drawn = np.random.default_rng(round(1e6 * level))
    arrays = {
        leaf: (array * (1 + level * drawn.standard_normal(array.shape))).astype(np.float32)
        for leaf, array in draft.arrays.items()
    }
    record = msgspec.structs.replace(draft.record, arrays="", files={})
    write_bundle(folder, trained.trunk())
    made = Draft(record=record, arrays=arrays, scores=draft.scores, probes=draft.probes, card=draft.card)
    add_tasks(folder, [made])
    return b"".join(upload_bytes(Bundle.open(folder), name))


def during(
    port: int,
    bodies: Path,
    rate: float,
    root: Path,
    uploads: dict[str, list[bytes]],
    count: int,
    minutes: float,
    *,
    memory: Callable[[], int],
) -> list[Row]:
    """The load, again and again, until so many changes are made; what they took, and what answers said."""
    ended, rows, changes = threading.Event(), list[Row](), list[Row]()
    looked, wrong = Counter[str](), list[str]()
    live = {name: {(Bundle.open(root).version(name), Bundle.open(root).record(name).arrays)} for name in (UPDATED,)}

    def change() -> None:
        drawn, until = random.Random(3), time.monotonic() + 60 * minutes
        while len(changes) < count and time.monotonic() < until:
            changes.append(changed(port, root, uploads, drawn, live))
        ended.set()

    def look() -> None:
        body = json.dumps({"inputs": ["a text that is looked at"]}).encode()
        while not ended.wait(0.2):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/predict", data=body, timeout=30) as answer:
                    versions = json.load(answer)["versions"]
            except OSError as error:
                wrong.append(f"no answer: {error}")
                continue
            looked["answers"] += 1
            told.append(
                {name: (versions[name]["version"], versions[name]["digest"]) for name in uploads if name in versions}
            )

    told = list[dict[str, tuple[str, str]]]()
    threads = [threading.Thread(target=work) for work in (change, look)]
    for thread in threads:
        thread.start()
    while not ended.is_set():
        outcome = load(port, bodies, rate=rate, seconds=SECONDS)
        rows.append({"what": "during", "changes": len(changes), "resident": memory(), **outcome})
        say(json.dumps(rows[-1]))
    for thread in threads:
        thread.join()
    for versions in told:
        wrong += [f"{name}: {version}" for name, version in versions.items() if version not in live.get(name, ())]
    made = Counter(str(row["operation"]) for row in changes)
    seconds = [float(row["seconds"]) for row in changes]
    rows.append(
        {
            "what": "changes",
            "made": dict(made),
            "refused": [row["error"] for row in changes if row["error"]],
            "seconds": {"median": float(np.median(seconds)), "most": max(seconds)},
            "looked": looked["answers"],
            "wrong": wrong,
        }
    )
    return rows


def changed(
    port: int,
    root: Path,
    uploads: dict[str, list[bytes]],
    drawn: random.Random,
    live: dict[str, set[tuple[str, str]]],
    *,
    names: Sequence[str] = (UPDATED, COMING),
) -> Row:
    """One change of one of these tasks, drawn among those that the bundle allows now."""
    there = Bundle.open(root, verify=False)
    name = drawn.choice(names)
    operation = (
        "add" if name not in there.tasks else drawn.choice(["update", "rollback", *(["remove"] * (name == COMING))])
    )
    if operation == "rollback" and there.versions(name).index(there.version(name)) == 0:
        operation = "update"  # there is no version before the live one
    address, error, is_changed = f"http://127.0.0.1:{port}/v1/tasks/{name}", "", False
    began = time.perf_counter()
    requests = {"rollback": ("POST", f"{address}/rollback", b"{}"), "remove": ("DELETE", address, None)}
    method, url, content = requests.get(operation) or ("PUT", address, drawn.choice(uploads[name]))
    request = urllib.request.Request(url, data=content, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            is_changed = json.load(answer)["is_changed"]
    except urllib.error.HTTPError as failure:
        error = f"{operation} {failure.code}: {failure.read(300).decode(errors='replace')}"
    except OSError as failure:  # else the load would go on for ever
        error = f"{operation}: {failure}"
    after = Bundle.open(root, verify=False)
    if name in after.tasks:
        live.setdefault(name, set()).add((after.version(name), after.record(name).arrays))
    return {"operation": operation, "seconds": time.perf_counter() - began, "error": error, "is_changed": is_changed}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Requests that failed, answers of a version that was not live, and the 99th percentile beside that of before."""
    during_all = [row for row in rows if row["what"] == "during"]
    made = next(row for row in rows if row["what"] == "changes")
    before = float(np.median([row["milliseconds"]["p99"] for row in rows if row["what"] == "before"]))
    while_changing = float(np.median([row["milliseconds"]["p99"] for row in during_all]))
    failed = sum(row["sent"] - row["answered"] for row in during_all)
    count = sum(made["made"].values())
    return [
        Claim(
            id="server.changes",
            text=f"requests that failed, and answers of versions that were not live, while {count} changes were made",
            target=0,
            value=failed + len(made["wrong"]) + len(made["refused"]),
            unit="answers",
            holds=count >= CHANGES and not (failed or made["wrong"] or made["refused"]),
            note=f"{count} of {CHANGES} changes; "
            f"{sum(row['sent'] for row in during_all):,} requests at 60 % of saturation, {made['looked']} of them "
            f"looked into; {made['made']}; a change takes {made['seconds']['median']:.1f} s, at most "
            f"{made['seconds']['most']:.1f}",
        ),
        Claim(
            id="server.changes-latency",
            text="99th percentile while tasks change over that without changes, at 60 % of saturation",
            target=2,
            value=round(while_changing / before, 2),
            unit="ratio",
            holds=count >= CHANGES and while_changing <= 2 * before,
            note=f"{count} of {CHANGES} changes; "
            f"{before:.0f} and {while_changing:.0f} ms, medians of runs of {SECONDS} s",
        ),
    ]


if __name__ == "__main__":
    main()
