"""A server of the packaged sample's bundle under `jevcompat`, and under the mini suite of `jevbench`.

    python -m studies similarity run-jevbench

Starts `polyhead serve BUNDLE --unknown similarity` on this machine. `jevcompat` checks the wire format without a key.
`jevbench` sends 1,248 requests and judges whether their answers go together: it has no gold labels, and says nothing of
whether they are right. Writes results/server_jevbench.json.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studies.results import Claim
from studies.settings import RUNS, command, parsed, report, say, study_arguments
from studies.similarity.bundle import sample_bundle

NAME = "server_jevbench"
SUITE = "jevbench-mini"
# What holds by construction: a question's name, and the questions beside it, change nothing.
ISOLATION = ("batch_content", "batch_order", "batch_size_sweep", "batch_solo", "duplicate_question", "key_rename")


def main() -> None:
    parsed(study_arguments(__doc__, f"{NAME}.jsonl"))
    with served(sample_bundle(RUNS / "similarity")) as address:
        rows = [conformance(address), *coherence(address)]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=())


@contextlib.contextmanager
def served(bundle: Path) -> Iterator[str]:
    """The address of the server, which is stopped at the end."""
    words = [sys.executable, "-m", "polyhead", "serve", str(bundle), "--port", "0", "--unknown", "similarity"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        while not (found := re.search(r"http://\S+", line := server.stderr.readline())):
            if not line:
                raise SystemExit("the server did not start")
            say(line.rstrip())
        yield found[0]
    finally:
        server.terminate()
        server.communicate()


def conformance(address: str) -> dict[str, Any]:
    """How many requirements were tested, and how many passed."""
    from jevcompat import __version__, runner

    found = runner.run(address)
    row = {"suite": f"jevcompat {__version__}", "verdict": found.verdict, "requests": len(found.exchanges)}
    for level in ("MUST", "SHOULD"):
        row[level] = {status: found.count(level, status) for status in ("pass", "fail", "skip")}
    return row


def coherence(address: str) -> Iterator[dict[str, Any]]:
    """The scores of the suite: overall, of each dimension, group and relation; 1 means no violation."""
    import jevbench
    from jevbench import taxonomy

    model = jevbench.systemone(f"{address}/v1/systemone", "jev-latest")
    began = time.monotonic()
    found = jevbench.evaluate(model, suite=SUITE, cache=None, progress=True)
    seconds = time.monotonic() - began
    interval = found.interval
    yield {
        "suite": f"jevbench {jevbench.__version__}, {SUITE}",
        "overall": found.overall,
        "interval": list(interval) if interval else None,
        "tests": found.scores["n_checks"],
        "cases": found.scores["n_cases"],
        "errors": len(found.errors),
        "seconds": seconds,
    }
    for pillar in taxonomy.PILLARS:
        yield {"dimension": pillar.id, "title": pillar.title, "score": found.dimensions[pillar.id]}
    for group, score in found.groups.items():
        yield {"group": group, "score": score}
    for relation, score in found.relations.items():
        yield {"relation": relation, "score": score}


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    conformed, overall = rows[0], rows[1]
    isolation = [row["score"] for row in rows if row.get("relation") in ISOLATION]
    failed = sum(conformed[level]["fail"] for level in ("MUST", "SHOULD"))
    passed = sum(conformed[level]["pass"] for level in ("MUST", "SHOULD"))
    return [
        Claim(
            id="server.jevcompat",
            text="requirements of jevcompat that a server without keys fails",
            target=0,
            value=failed,
            unit="requirements",
            holds=failed == 0 and conformed["verdict"] == "conformant",
            note=f"{passed} passed; those about keys are in the tests",
        ),
        Claim(
            id="server.jevbench-isolation",
            text="jevbench: answers that a question's name or the questions beside it change nothing of",
            target=1.0,
            value=min(isolation),
            unit="of the tests, the lowest of its relations",
            holds=len(isolation) > 0 and min(isolation) == 1.0,
            note=f"{len(isolation)} relations; overall score {100 * overall['overall']:.1f} of 100",
        ),
    ]


if __name__ == "__main__":
    main()
