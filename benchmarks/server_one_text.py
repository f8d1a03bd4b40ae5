"""One text with 21 tasks beside the bare encoder, and memory of 50 tasks beside one: an engine's share of a server.

python -m benchmarks.one_pass_tasks            once: the tasks
python -m benchmarks.server_one_text           an idle machine; a short part of one_pass.py, without rivals
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from benchmarks import one_pass_claims, one_pass_tasks
from benchmarks.one_pass import Row, arguments, ours, show
from benchmarks.one_pass_tasks import FOLDER
from benchmarks.server_load import FLOATS, SUFFIX
from studies.results import Claim
from studies.settings import command, report

VARIANT, SIZES = f"openvino:{FLOATS}", (1, 21, 50)
FLOAT32 = (
    "missed: by hand, of 14.4 ms layers took 8.7, poolers and heads of all forms in one graph 2.7; the rest is mostly "
    "Python (docs/project/log.md)"
)
CLAIMS = {"engine.one-text": "server.one-text", "engine.memory": "server.memory-50-tasks"}


def main() -> None:
    options = arguments()
    options.sizes, options.texts = SIZES, min(options.texts, 1024)
    one_pass_tasks.train()
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = ours(options, VARIANT)
    show(rows)
    report(f"server_one_text{SUFFIX}", command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The engine's claims on one text and on memory, under the server's names."""
    measured, _ = one_pass_claims.claims(rows, floats=VARIANT)
    own = SUFFIX.replace("_", "-")
    made = [msgspec.structs.replace(each, id=CLAIMS[each.id] + own) for each in measured if each.id in CLAIMS]
    if VARIANT == one_pass_claims.BF16:
        return made
    return [
        msgspec.structs.replace(
            each, text=f"{each.text}, {FLOATS}", note=each.note.replace(one_pass_claims.ONE_TEXT, FLOAT32)
        )
        for each in made
    ]


if __name__ == "__main__":
    main()
