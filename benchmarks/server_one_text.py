"""One text with 21 tasks beside the bare encoder, and memory of 50 tasks beside one: an engine's share of a server.

python -m benchmarks.one_pass_tasks            once: the tasks
python -m benchmarks.server_one_text           an idle machine; a short part of one_pass.py, without rivals
"""

from __future__ import annotations

import json

import msgspec

from benchmarks import one_pass_claims, one_pass_tasks
from benchmarks.one_pass import Row, arguments, ours, show
from benchmarks.one_pass_tasks import FOLDER
from benchmarks.server_load import FLOATS, SUFFIX
from studies.settings import command, report

VARIANT, SIZES = f"openvino:{FLOATS}", (1, 21, 50)
CLAIMS = {"engine.one-text": "server.one-text", "engine.memory": "server.memory-50-tasks"}


def main() -> None:
    options = arguments()
    options.sizes, options.texts = SIZES, min(options.texts, 1024)
    one_pass_tasks.train()
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = ours(options, VARIANT)
    show(rows)
    measured, _ = one_pass_claims.claims(rows, floats=VARIANT)
    own = SUFFIX.replace("_", "-")
    claims = [msgspec.structs.replace(each, id=CLAIMS[each.id] + own) for each in measured if each.id in CLAIMS]
    if VARIANT != one_pass_claims.BF16:  # where the time goes was looked at in bfloat16 alone
        claims = [
            msgspec.structs.replace(each, text=f"{each.text}, {FLOATS}", note=each.note.partition("; missed")[0])
            for each in claims
        ]
    report(f"server_one_text{SUFFIX}", command=command(), rows=rows, claims=claims, lacking=[])


if __name__ == "__main__":
    main()
