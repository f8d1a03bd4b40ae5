"""Many tasks on an encoder of base size: MPNet with 21, and mmBERT-base's shape with six beside six encoders.

    python -m benchmarks.encoders_tasks [mpnet] [six]     an idle machine; writes results/encoders_tasks.json

`mpnet`: 21 tasks in one session beside the bare trunk over padded batches of texts of like length, tokenization in both
times, in turn, each in a process of its own; about 10 minutes. Weights are random in MPNet-base's shape.

`six`: tasks of the public demand (domain, jailbreak, personal data, fact check, feedback, modality) by their outputs,
on one trunk of mmBERT-base's shape with random weights, beside six encoders of that shape with one task each in ONNX
Runtime, which are our own exported files, float32. A request is one text of 500 tokens that all six answer. Each side
is a process of its own, in turn: requests a second, and bytes in memory after them. About 20 minutes; the files need
10 GB of disk and the rivals 12 GB of memory. `--layers` and `--vocabulary` make it smaller for a trial.

Goes on where it stopped: rows are in runs/encoders_tasks.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.encoders_long import memory, modernbert_shape
from benchmarks.one_pass_tasks import tweets
from benchmarks.peers.rivals import Worker
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft, add_tasks
from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import Architecture, Relative, trunk_arrays
from polyhead.engine.export.write import export_bundle
from polyhead.plan import cost
from polyhead.project.encoders import MINILM
from polyhead.project.pretrained import load_trunk
from polyhead.project.strategies import Pooled
from polyhead.tasks.task import Task, owner_of
from studies.results import Claim, Study
from studies.settings import ROOT, RUNS, command, report, say

NAME, FOLDER = "encoders_tasks", RUNS / "encoders_tasks"
PARTS = ("mpnet", "six")
BARE, FASTER, SMALLER = 0.95, 5.0, 0.2  # targets
TOKENS, BATCH = 500, 32
SIX = {  # outputs by task; personal data is answered word by word
    "domain": 14,
    "jailbreak": 2,
    "personal": 35,
    "fact_check": 2,
    "feedback": 4,
    "modality": 3,
}
TWENTY_ONE = {f"t{number}": labels for number, labels in enumerate((2, 3, 4, 6, 20, 77, 150) * 3)}
TAGGED = ("personal", "t4", "t11")
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=512, help="tweets that MPNet reads in one run")
    parser.add_argument("--requests", type=int, default=20, help="of 500 tokens")
    parser.add_argument(
        "--layers", type=int, help="how many layers the encoders have; by default as many as the models themselves"
    )
    parser.add_argument("--vocabulary", type=int, default=256_000, help="of mmBERT's shape")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(requests_of(*json.loads(options.one))))
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    study = Study(FOLDER.with_suffix(".jsonl"))
    for part in PARTS:
        for row in RUN[part](options, study) if part in options.parts else ():
            say(str(row))
    rows = [row for row in study.rows if settings_of(str(row["part"]), options).items() <= row.items()]
    report(
        NAME,
        command=command(),
        rows=rows,
        claims=claims(rows),
        lacking=[part for part in PARTS if not any(row["part"] == part for row in rows)],
    )


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The claims of the parts that were run."""
    return [claim for claim in (bare_claim(rows), *six_claims(rows)) if claim is not None]


def settings_of(part: str, options: argparse.Namespace) -> Row:
    """The settings that a part's rows depend on; rows of other settings are not reported."""
    settings: Row = {"layers": options.layers, "threads": options.threads}
    more: Row = {"texts": options.texts}
    if part == "six":
        more = {"vocabulary": options.vocabulary, "requests": options.requests}
    return settings | more


# -- 21 tasks on MPNet ------------------------------------------------------------------------------------------------


def mpnet(options: argparse.Namespace, study: Study) -> Iterator[Row]:
    """Seconds of all tasks and of the bare trunk over the same texts, in turn."""
    root, texts = FOLDER / "mpnet", FOLDER / "tweets.json"
    bundle_at(root, mpnet_shape(options.layers or 12), TWENTY_ONE)
    texts.write_text(json.dumps(tweets(options.texts)), encoding="utf-8")
    precision = fastest_precision()
    job = {"texts": str(texts), "batch": BATCH, "threads": options.threads, "bundle": str(root), "backend": "openvino"}
    workers = {
        way: Worker(
            [sys.executable, str(ROOT / "benchmarks" / "one_pass_ours.py")],
            {**job, "precision": precision, "trunk_alone": way == "bare"},
            log=FOLDER / f"{way}.txt",
        )
        for way in ("bare", "21 tasks")
    }
    for repeat in range(options.repeats + 1):
        for way, worker in workers.items():

            def measured(worker: Worker = worker) -> Row:
                return {"precision": precision, "seconds": worker.run("all", options.texts)["seconds"]}

            if repeat:
                yield study.row(measured, part="mpnet", way=way, repeat=repeat, **settings_of("mpnet", options))
            else:
                measured()  # compiles
    for worker in workers.values():
        worker.close()


def mpnet_shape(layers: int) -> Architecture:
    return Architecture(
        family="mpnet",
        layers=layers,
        width=768,
        heads=12,
        feed_forward=3072,
        vocabulary=30_527,
        positions=514,
        segments=0,
        first_position=2,
        norm_epsilon=1e-5,
        relative=Relative(kind="bias", buckets=32, distance=128),
    )


def bare_claim(rows: Sequence[Row]) -> Claim | None:
    """The rate with tasks over the bare rate, of runs that follow each other."""
    bare, tasks = (by_repeat(rows, "mpnet", way, "seconds") for way in ("bare", "21 tasks"))
    if not tasks:
        return None
    return ratio(
        "encoders.mpnet_tasks",
        "21 tasks on MPNet-base's shape, in packed rows: their rate over the bare trunk's over padded batches",
        BARE,
        bare,
        tasks,
    )


# -- six tasks beside six encoders ------------------------------------------------------------------------------------


def six(options: argparse.Namespace, study: Study) -> Iterator[Row]:
    """Requests a second and memory of either side, each time a process of its own."""
    # mmBERT-base is ModernBERT-base with one base of rotation for all layers.
    shape = modernbert_shape(options.layers or 22, vocabulary=options.vocabulary)
    shape = msgspec.structs.replace(shape, local_rotary=None)
    root = FOLDER / "six"
    bundle_at(root, shape, SIX)
    for name in SIX:  # one encoder each: a folder of its own, as somebody who exports each model has
        alone = FOLDER / f"six-{name}"
        shutil.rmtree(alone, ignore_errors=True)
        export_bundle(root, alone, tasks=[name], backend="onnxruntime")
    for repeat in range(options.repeats):
        for way in ("polyhead", "six encoders"):

            def measured(way: str = way) -> Row:
                settings = json.dumps([way, options.requests, options.threads])
                command = [sys.executable, "-m", "benchmarks.encoders_tasks", "--one", settings]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                precision = fastest_precision() if way == "polyhead" else "float32"
                return {"precision": precision, **json.loads(done.stdout.splitlines()[-1])}

            yield study.row(measured, part="six", way=way, repeat=repeat, **settings_of("six", options))


def requests_of(way: str, requests: int, threads: int) -> Row:
    """Requests a second, and bytes in memory after them, of this process."""
    ids = np.random.default_rng(0).integers(5, 250, (requests + 1, TOKENS - 2))
    texts = [" ".join(f"w{number}" for number in row) for row in ids.tolist()]
    answer = one_trunk(threads) if way == "polyhead" else six_encoders(threads)
    answer(texts[0])
    began = time.perf_counter()
    for text in texts[1:]:
        answer(text)
    return {"rate": requests / (time.perf_counter() - began), "resident": memory("VmRSS")}


def one_trunk(threads: int) -> Callable[[str], object]:
    from polyhead.engine.backends.openvino import OpenVINORuntime
    from polyhead.engine.session import Session

    runtime = OpenVINORuntime(precision=fastest_precision(), threads=threads)
    session = Session(FOLDER / "six", backend=runtime)
    return lambda text: session.predict([text])


def six_encoders(threads: int) -> Callable[[str], object]:
    import onnxruntime as ort
    import tokenizers

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "six-domain" / "tokenizer.json"))
    sessions = {
        name: [
            ort.InferenceSession(FOLDER / f"six-{name}" / file, settings, providers=["CPUExecutionProvider"])
            for file in ("trunk.onnx", f"tasks/{name}.onnx")
        ]
        for name in SIX
    }

    def answer(text: str) -> None:
        encoded = tokenizer.encode(text)
        ids = np.array([encoded.ids], np.int64)
        values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "words": np.arange(1, ids.shape[1] - 1)[None]}
        for several in sessions.values():
            known = dict(values)
            for session in several:
                read = {port.name: known[port.name] for port in session.get_inputs()}
                names = [port.name for port in session.get_outputs()]
                known |= dict(zip(names, session.run(names, read), strict=True))

    return answer


def six_claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """Requests a second over the rivals', and memory over theirs."""
    ours, theirs = (by_repeat(rows, "six", way, "rate") for way in ("polyhead", "six encoders"))
    if not ours:
        return
    row = next(row for row in rows if row["way"] == "polyhead")
    read = f"of {int(str(row['vocabulary'])):,} words 250 read"
    shape = f"mmBERT-base's shape ({row['precision']}, random weights)"
    text = f"six tasks on one trunk of {shape}, one text of 500 tokens a request"
    over = "divided by those of six encoders in ONNX Runtime (float32)"
    yield ratio("encoders.six", f"{text}: requests a second {over}", FASTER, ours, theirs)
    ours, theirs = (by_repeat(rows, "six", way, "resident") for way in ("polyhead", "six encoders"))
    yield ratio("encoders.six_memory", f"{text}: resident bytes, {read}, {over}", SMALLER, ours, theirs, most=True)


# -- both -------------------------------------------------------------------------------------------------------------


def bundle_at(root: Path, shape: Architecture, outputs: Mapping[str, int]) -> None:
    """A bundle with random weights: mean pools and attention in turns, words where a task answers these."""
    shutil.rmtree(root, ignore_errors=True)
    data = trunk_of(shape)
    drafts = []
    for number, (name, labels) in enumerate(outputs.items()):
        names = tuple(f"l{label}" for label in range(labels))
        kind = "tagging" if name in TAGGED else "single_label"
        task = Task(name=name, kind=kind, labels=names)
        attends = number % 2 and kind == "single_label"
        strategy = (
            Pooled(positions="attention", heads=4, hidden=256) if attends else Pooled(layers="mean", of=2, hidden=0)
        )
        path = strategy.path(task, trunk=data.digest, shape=shape)
        rng, owner = np.random.default_rng(number), owner_of(task)
        sizes = cost.part_arrays(path, shape, owner)
        arrays = {key: (0.05 * rng.standard_normal(size)).astype(np.float32) for key, size in sizes.items()}
        record = TaskRecord(task=task, path=path, trunk=data.digest)
        drafts.append(Draft(record=record, arrays=arrays, scores={}, probes=[], card=""))
    write_bundle(root, data)
    add_tasks(root, drafts)


def trunk_of(shape: Architecture) -> TrunkData:
    """Random weights; minilm's tokenizer for MPNet's shape, one of 250 words for the other."""
    rng = np.random.default_rng(0)
    arrays = {
        name: np.ones(size, np.float32)
        if name.endswith("norm.weight")
        else np.float32(0.02) * rng.standard_normal(size, np.float32)
        for name, size in trunk_arrays(shape)
    }
    is_mpnet = shape.family == "mpnet"
    tokenizer = load_trunk(MINILM).tokenizer if is_mpnet else words_tokenizer()
    settings = TextSettings(max_tokens=128 if is_mpnet else 512)
    return TrunkData(name="random", architecture=shape, arrays=arrays, tokenizer=tokenizer, settings=settings)


def words_tokenizer() -> bytes:
    """Words w0 to w249 as one token each, between two special ones."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    vocabulary = {f"w{number}": number for number in range(250)} | {"[CLS]": 250, "[SEP]": 251, "[PAD]": 252}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 250), ("[SEP]", 251)]
    )
    return made.to_str().encode()


def fastest_precision() -> str:
    """bfloat16 where the processor multiplies it, else float32."""
    from polyhead.engine.probes import has_bfloat16

    return "bfloat16" if has_bfloat16("openvino") else "float32"


def by_repeat(rows: Sequence[Row], part: str, way: str, key: str) -> dict[object, float]:
    return {row["repeat"]: float(str(row[key])) for row in rows if (row["part"], row["way"]) == (part, way)}


def ratio(
    id: str,
    text: str,
    target: float,
    above: Mapping[object, float],
    below: Mapping[object, float],
    *,
    most: bool = False,
) -> Claim:
    """The median over repeats of one number over another."""
    ratios = [above[repeat] / below[repeat] for repeat in sorted(above, key=str)]
    value = round(statistics.median(ratios), 3)
    note = f"{min(ratios):.3g} to {max(ratios):.3g} of {len(ratios)} repeats"
    holds = value <= target if most else value >= target
    return Claim(id=id, text=text, target=target, value=value, unit="ratio", holds=holds, note=note)


RUN = {"mpnet": mpnet, "six": six}

if __name__ == "__main__":
    main()
