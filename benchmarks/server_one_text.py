"""One text with 21 tasks beside the bare encoder, what bytes allow, a change of length, and memory of 50 tasks.

python -m benchmarks.one_pass_tasks            once: the tasks
python -m benchmarks.server_one_text           an idle machine; a short part of one_pass.py, without rivals

One text reads all weights once, so bytes are the limit: those of layers and heads over those of layers. The bare
encoder gets the same filled-up lengths.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence

import msgspec

from benchmarks import one_pass_claims, one_pass_tasks
from benchmarks.one_pass import Row, arguments, in_turn, ours, show, worker_of
from benchmarks.one_pass_claims import MANY, Ratio, Run
from benchmarks.one_pass_tasks import FOLDER
from benchmarks.server_load import FLOATS, SUFFIX
from polyhead.bundle.read import Bundle
from polyhead.engine.compile.heads import folded
from polyhead.engine.loaded import loaded
from polyhead.values import Value
from studies.results import Claim
from studies.settings import command, report

VARIANT, SIZES, INT8 = f"openvino:{FLOATS}", (1, 21, 50), "openvino:int8"
FLOAT32 = (
    "missed: by hand on 2026-11-30, of 21 ms layers took 11, poolers and heads 4, words 2; the rest is mostly "
    "Python (docs/project/log.md)"
)
CLAIMS = {"engine.one-text": "server.one-text", "engine.memory": "server.memory-50-tasks"}


class Bytes(Value):
    """Numbers that one text reads of each, whatever each takes."""

    layers: int
    heads: int

    @property
    def ratio(self) -> float:
        """The least ratio of 21 tasks to the bare encoder, if time were spent on reading weights alone."""
        return (self.layers + self.heads) / self.layers


def main() -> None:
    options = arguments()
    options.sizes, options.texts = SIZES, min(options.texts, 1024)
    one_pass_tasks.train()
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = ours(options, VARIANT)
    for variant in (VARIANT, INT8):
        rows += alone(options, variant)
    show(rows)
    report(f"server_one_text{SUFFIX}", command=command(), rows=rows, claims=claims(rows, numbers()), lacking=[])


def alone(options: argparse.Namespace, variant: str) -> list[Row]:
    """One text at a time, by 21 tasks and by the bare encoder; then each text again right after itself."""
    with worker_of(options, variant, 0) as bare, worker_of(options, variant, MANY) as tasks:
        workers = {(variant, 0): bare, (variant, MANY): tasks}
        runs = [(key, how, options.texts) for key in workers for how in ("single", "again")]
        return list(in_turn(f"{variant}, alone", workers, runs, options.repeats))


def numbers() -> Bytes:
    """Counts the numbers that one text reads: weights of layers, and each task's folded pooler and head."""
    bundle = Bundle.open(one_pass_tasks.bundle_of(MANY))
    trunk = bundle.trunk()
    layers = sum(array.size for name, array in trunk.arrays.items() if name.startswith("layers."))
    heads = 0
    for name in bundle.tasks:
        task = loaded(bundle, name)
        path, owners = task.path, {task.path.head.part: task.arrays, **task.others}
        parts = (path.head.part, path.head.hidden_part or path.head.part, path.pool.part or path.head.part)
        slot = folded(path, *(owners[part] for part in parts), width=trunk.architecture.width)
        heads += sum(array.size for array in msgspec.structs.astuple(slot) if array is not None)
    return Bytes(layers=layers, heads=heads)


def claims(rows: Sequence[Row], read: Bytes) -> list[Claim]:
    """The engine's claims on one text and on memory, under the server's names; then those on few texts."""
    measured, _ = one_pass_claims.claims(rows, floats=VARIANT)
    own = SUFFIX.replace("_", "-")
    made = [msgspec.structs.replace(each, id=CLAIMS[each.id] + own) for each in measured if each.id in CLAIMS]
    if VARIANT != one_pass_claims.BF16:
        made = [
            msgspec.structs.replace(
                each, text=f"{each.text}, {FLOATS}", note=each.note.replace(one_pass_claims.ONE_TEXT, FLOAT32)
            )
            for each in made
        ]
    for variant, name in ((VARIANT, ""), (INT8, "_int8")):
        made += few_texts(rows, read, variant, name + SUFFIX)
    return made


def few_texts(rows: Sequence[Row], read: Bytes, variant: str, name: str) -> list[Claim]:
    """One text over the bare encoder, over what bytes allow, and what another length costs."""
    group, precision = f"{variant}, alone", variant.partition(":")[2]

    def ratios(above: Run, below: Run) -> list[float]:
        return Ratio(id="", text="", above=above, below=below, target=0, group=group).ratios(rows, below)

    single = [Run(who=variant, tasks=size, how="single") for size in (MANY, 0)]
    again = [Run(who=variant, tasks=size, how="again") for size in (MANY, 0)]
    over_bare, changed = ratios(*single), [ratio - 1 for ratio in ratios(single[0], again[0])]
    if not over_bare or not changed:
        return []
    over_bytes = [ratio / read.ratio for ratio in over_bare]
    megabytes = f"{read.layers / 1e6:.1f} million numbers of layers, {read.heads / 1e6:.1f} of heads"
    bare = statistics.median(ratios(single[1], again[1])) - 1
    return [
        _claim(
            f"fast.one_text{name}", f"one text with {MANY} tasks over the bare encoder, {precision}", 1.3, over_bare
        ),
        _claim(
            f"fast.one_text_bytes{name}",
            f"the same over what bytes allow, {read.ratio:.2f}, {precision}",
            1.1,
            over_bytes,
            note=megabytes,
        ),
        _claim(
            f"fast.length_change{name}",
            f"what another length than the last text's adds to the time of one text, {MANY} tasks, {precision}",
            0.15,
            changed,
            note=f"{bare:.2f} of the bare encoder's",
        ),
    ]


def _claim(id: str, text: str, target: float, values: Sequence[float], *, note: str = "") -> Claim:
    value = statistics.median(values)
    spread = f"median of {len(values)}, {min(values):.3f} to {max(values):.3f}"
    return Claim(
        id=id,
        text=text,
        target=target,
        value=round(value, 4),
        unit="ratio",
        holds=value <= target,
        note=f"{spread}; {note}" if note else spread,
    )


if __name__ == "__main__":
    main()
