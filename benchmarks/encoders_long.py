"""One long text by its length: seconds and memory of ModernBERT-base's shape, with its windows and without.

    python -m benchmarks.encoders_long       an idle machine, about 20 minutes; writes results/encoders_long.json

Every length and way is a process of its own. Its memory is the most that the read text took beside the model, which
has read a short text before. Weights are random. "training" is one forward and backward pass in torch, whose layers
are computed again on the way back, as `checkpointing` does.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.encoders import batch_of, precisions
from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import Architecture, Rotary, trunk_arrays
from polyhead.engine.backends import open_backend
from polyhead.plan import Embed, Head, Layers, Pool
from polyhead.plan import Path as PlanPath
from polyhead.testing import tiny_trunk
from studies.results import Claim
from studies.settings import command, report, say

NAME = "encoders_long"
LENGTHS = (512, 1024, 2048, 4096, 8192)
WAYS = ("openvino", "onnxruntime", "torch", "training")
LONGEST = {"onnxruntime": 4096}  # whose layers without a window hold all scores at once
SHORT = 64  # tokens of the text before, by which a graph is compiled
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return
    rows = list(rows_of(options))
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def rows_of(options: argparse.Namespace) -> Iterator[Row]:
    for repeat in range(options.repeats):
        for way in options.ways:
            for tokens in options.lengths:
                for whole in (False, True):
                    if tokens > LONGEST.get(way, tokens):
                        continue
                    one = json.dumps([way, tokens, whole, options.layers, options.threads])
                    asked = [sys.executable, "-m", "benchmarks.encoders_long", "--one", one]
                    done = subprocess.run(asked, capture_output=True, text=True, check=True)
                    row = {"way": way, "tokens": tokens, "windows": not whole, "repeat": repeat}
                    row |= json.loads(done.stdout.splitlines()[-1])
                    say(str(row))
                    yield row


def measured(way: str, tokens: int, whole: bool, layers: int, threads: int) -> Row:
    """Seconds, and bytes beside the model, of one text in this process."""
    call = {"openvino": engine, "onnxruntime": engine, "torch": in_torch, "training": in_torch}[way]
    read = call(trunk_of(layers, whole=whole), way, threads)
    read(SHORT)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    began, busy = time.perf_counter(), time.process_time()
    read(tokens)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return {"seconds": round(seconds, 4), "processor": round(busy, 4), "bytes": memory("VmHWM") - before}


def memory(name: str) -> int:
    """Bytes that the system says of this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def modernbert_shape(layers: int, *, vocabulary: int) -> Architecture:
    """ModernBERT-base's: every third layer sees all tokens, the others 64 on each side."""
    return Architecture(
        family="modernbert",
        layers=layers,
        width=768,
        heads=12,
        feed_forward=1152,
        vocabulary=vocabulary,
        positions=8192,
        segments=0,
        norm_epsilon=1e-5,
        position_table=False,
        norm_bias=False,
        norm_first=True,
        first_norm=False,
        attention_bias=False,
        output_bias=False,
        inner_bias=False,
        outer_bias=False,
        gated=True,
        rotary=Rotary(base=160_000.0),
        local_rotary=Rotary(base=10_000.0),
        window=64,
        whole_every=3,
    )


def trunk_of(layers: int, *, whole: bool) -> TrunkData:
    """ModernBERT-base's shape, with a small table of words."""
    shape = msgspec.structs.replace(modernbert_shape(layers, vocabulary=1000), positions=max(LENGTHS))
    if whole:
        shape = msgspec.structs.replace(shape, local_rotary=None, window=None, whole_every=1)
    rng = np.random.default_rng(0)
    arrays = {
        name: np.asarray(name.endswith("norm.weight") + 0.02 * rng.standard_normal(size), np.float32)
        for name, size in trunk_arrays(shape)
    }
    settings = TextSettings(max_tokens=max(LENGTHS))
    return TrunkData(
        name="random", architecture=shape, arrays=arrays, tokenizer=tiny_trunk().tokenizer, settings=settings
    )


def engine(trunk: TrunkData, way: str, threads: int) -> Callable[[int], object]:
    """The engine's state of the last layer at the first token, in the best precision of this machine."""
    precision = precisions()[-1] if way == "openvino" else "float32"
    backend = open_backend(way, trunk, {}, precision=precision)
    layers = Layers(start=0, stop=trunk.architecture.layers)
    head = Head(kind="single_label", part="task:x", width=2)
    path = PlanPath(nodes=(Embed(trunk=trunk.digest), layers, Pool(layers="last", positions="first"), head))
    return lambda tokens: backend.features([path], batch_of([tokens], trunk.architecture.vocabulary))


def in_torch(trunk: TrunkData, way: str, threads: int) -> Callable[[int], object]:
    """All states of the last layer, or the gradients of their sum."""
    import torch

    from polyhead.deep.nn.trunk import Trunk

    torch.set_num_threads(threads)
    model = Trunk.from_data(trunk).train(way == "training").requires_grad_(way == "training")
    model.checkpointing = True

    def read(tokens: int) -> None:
        batch = batch_of([tokens], trunk.architecture.vocabulary)
        ids, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)
        with torch.set_grad_enabled(way == "training"):
            last = model(ids, mask).last
            if way == "training":
                last.sum().backward()

    return read


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What windows save at the longest length of each way, and how memory grows when a text is twice as long."""
    claimed = []
    for way in dict.fromkeys(str(row["way"]) for row in rows):
        lengths = sorted({int(str(row["tokens"])) for row in rows if row["way"] == way})
        longest, half = lengths[-1], lengths[-1] // 2
        saved = middle(rows, way, longest, "seconds", windows=False) / middle(rows, way, longest, "seconds")
        text = f"{way}, {longest:,} tokens: seconds without windows over those with them"
        claimed.append(_claim(f"encoders.long_seconds_{way}", text, saved, target=1.5, is_least=True))
        if half in lengths:
            grown = middle(rows, way, longest, "bytes") / middle(rows, way, half, "bytes")
            text = f"{way}: memory of {longest:,} tokens over that of {half:,}"
            claimed.append(_claim(f"encoders.long_memory_{way}", text, grown, target=2.5, is_least=False))
    return claimed


def middle(rows: Sequence[Row], way: str, tokens: int, what: str, *, windows: bool = True) -> float:
    """The median of all repeats."""
    wanted = (way, tokens, windows)
    return statistics.median(
        float(str(row[what])) for row in rows if (row["way"], row["tokens"], row["windows"]) == wanted
    )


def _claim(id: str, text: str, value: float, *, target: float, is_least: bool) -> Claim:
    holds = value >= target if is_least else value <= target
    return Claim(id=id, text=text, target=target, value=round(value, 3), unit="ratio", holds=holds)


if __name__ == "__main__":
    main()
