"""Encoders of other families beside `transformers`: ModernBERT's and DeBERTa-v3's base shapes, random weights.

    python -m benchmarks.encoders       an idle machine, about 15 minutes; writes results/encoders_speed.json

Both read the same ids with the same weights on the same threads, in turn; a ratio is of runs that follow each other.
Every precision of either that this machine has is a row, and a claim compares the faster one of each. Ragged texts of
about 30 tokens are read in packed rows and, for comparison, with packing switched off.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tokenizers

from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import BACKENDS, open_backend
from polyhead.engine.backends.base import Backend, TokenBatch
from polyhead.engine.compile import layout
from polyhead.plan import Embed, Head, Layers, Pool
from polyhead.plan import Path as PlanPath
from polyhead.project.pretrained import load_trunk
from studies.results import Claim
from studies.settings import command, report, say

NAME = "encoders_speed"
SHAPES = {"modernbert": "ModernBert", "deberta": "DebertaV2"}
SETTINGS = {
    "modernbert": {},
    "deberta": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 128100,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "max_position_embeddings": 512,
    },
}
CASES = {  # of each shape: texts of so many tokens, and whether windows are switched off
    "modernbert": (
        ("8 texts of 512", (512,) * 8, False),
        ("4,096 tokens", (4096,), False),
        ("no windows", (4096,), True),
    ),
    "deberta": (("8 texts of 512", (512,) * 8, False), ("64 texts of 64", (64,) * 64, False)),
}
RAGGED = 64  # texts of about 30 tokens
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rows = [row for shape in options.shapes for row in measured(shape, options.repeats, options.threads)]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def measured(shape: str, repeats: int, threads: int) -> Iterator[Row]:
    """Seconds of every case by every precision of either library, in turn."""
    import torch

    torch.set_num_threads(threads)
    cases = [*CASES[shape], *((("ragged", ragged(), False),) if shape == "modernbert" else ())]
    for whole in sorted({case[2] for case in cases}):
        with tempfile.TemporaryDirectory() as folder:
            model, trunk = made(shape, Path(folder), whole=whole)
            ways = {**theirs(model), **ours(trunk)}
            del trunk
            for case, lengths, own_whole in cases:
                if own_whole != whole:
                    continue
                batch = batch_of(lengths, model.config.vocab_size)
                called = {way: call for way, call in ways.items() if case == "ragged" or "padded" not in way}
                for call in called.values():  # once before, to compile
                    call(batch)
                for repeat in range(repeats):
                    for way, call in called.items():
                        began = time.perf_counter()
                        call(batch)
                        row = {"shape": shape, "case": case, "way": way, "repeat": repeat}
                        row |= {"tokens": int(sum(lengths)), "seconds": round(time.perf_counter() - began, 4)}
                        say(str(row))
                        yield row


def made(shape: str, folder: Path, *, whole: bool) -> tuple[Any, TrunkData]:
    """A model of `transformers` with random weights, and the trunk of the folder that it saved."""
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {**SETTINGS[shape], **({"global_attn_every_n_layers": 1} if whole else {})}
    name = SHAPES[shape]
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)).eval()
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(model.config.vocab_size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return model, load_trunk(str(folder), max_tokens=model.config.max_position_embeddings)


def batch_of(lengths: Sequence[int], vocabulary: int) -> TokenBatch:
    rng = np.random.default_rng(0)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.where(mask, rng.integers(5, vocabulary, mask.shape), 0)
    return TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.full((len(lengths), 1), -1))


def ragged() -> tuple[int, ...]:
    """Lengths of texts, in tokens: log-normal, with a median of 27, a mean of about 30, and few above 80."""
    return tuple(np.random.default_rng(0).lognormal(3.3, 0.5, RAGGED).astype(int).clip(3, 128).tolist())


def theirs(model: Any) -> dict[str, Callable[[TokenBatch], object]]:
    """transformers, in float32 and, where the processor multiplies it, in bfloat16."""
    import copy

    import torch

    def call(own: Any, batch: TokenBatch) -> object:
        with torch.inference_mode():
            return own(input_ids=torch.from_numpy(batch.ids), attention_mask=torch.from_numpy(batch.mask.astype(int)))

    ways = {"transformers float32": lambda batch: call(model, batch)}
    if "bfloat16" in precisions():
        halved = copy.deepcopy(model).to(torch.bfloat16)
        ways["transformers bfloat16"] = lambda batch: call(halved, batch)
    return ways


def precisions() -> list[str]:
    """The precisions that the engine has on this machine, without int8."""
    return ["float32", *(["bfloat16"] if BACKENDS.named("openvino").has_bfloat16 else [])]


def ours(trunk: TrunkData) -> dict[str, Callable[[TokenBatch], object]]:
    """The engine's states of the last layer, at each text's first token."""
    layers = Layers(start=0, stop=trunk.architecture.layers)
    head = Head(kind="single_label", part="task:x", width=2)
    path = PlanPath(nodes=(Embed(trunk=trunk.digest), layers, Pool(layers="last", positions="first"), head))
    ways: dict[str, Callable[[TokenBatch], object]] = {}
    for precision in precisions():
        backend = open_backend("openvino", trunk, {}, precision=precision)

        def call(batch: TokenBatch, own: Backend = backend) -> object:
            return own.features([path], batch)

        def padded(batch: TokenBatch, own: Backend = backend) -> object:
            with without_packing():
                return own.features([path], batch)

        ways[f"polyhead {precision}"], ways[f"polyhead {precision}, padded"] = call, padded
    return ways


@contextmanager
def without_packing() -> Iterator[None]:
    """Rows are as many as texts."""
    with mock.patch.object(layout, "work", lambda *size, width: 0):
        yield


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The fastest way of each library, in the same repeat."""
    claimed = []
    for shape, case in dict.fromkeys((str(row["shape"]), str(row["case"])) for row in rows):
        mine = [row for row in rows if (row["shape"], row["case"]) == (shape, case)]
        ours_, theirs_ = fastest(mine, "polyhead"), fastest(mine, "transformers")
        slug = case.replace(" ", "_").replace(",", "")
        batched = " with all texts in one padded batch" if case == "ragged" else ""
        text = f"{shape}-base's shape, {case}: seconds of transformers ({theirs_}{batched}) over ours ({ours_})"
        claimed.append(claim(f"encoders.speed_{shape}_{slug}", text, 1.0, mine, theirs_, ours_))
        if case == "ragged":
            text = f"{shape}-base's shape, texts of about 30 tokens: padded over packed ({ours_})"
            claimed.append(claim("encoders.packed", text, 1.5, mine, f"{ours_}, padded", ours_))
    return claimed


def fastest(rows: Sequence[Row], library: str) -> str:
    ways = {str(row["way"]) for row in rows if str(row["way"]).startswith(library) and "padded" not in str(row["way"])}
    return min(sorted(ways), key=lambda way: statistics.median(seconds(rows, way).values()))


def claim(id: str, text: str, target: float, rows: Sequence[Row], slow: str, fast: str) -> Claim:
    above, below = seconds(rows, slow), seconds(rows, fast)
    ratios = [above[repeat] / below[repeat] for repeat in sorted(above)]
    value = round(statistics.median(ratios), 3)
    note = f"{min(ratios):.2f} to {max(ratios):.2f} of {len(ratios)} repeats"
    note += f"; ours {statistics.median(below.values()):.2f} s"
    return Claim(id=id, text=text, target=target, value=value, unit="ratio", holds=value >= target, note=note)


def seconds(rows: Sequence[Row], way: str) -> dict[int, float]:
    return {row["repeat"]: float(str(row["seconds"])) for row in rows if row["way"] == way}


if __name__ == "__main__":
    main()
