"""Two ratios, each taken in one run: extraction against the bare forward, a head's training against fine-tuning.

Texts are the TweetEval offensive train split, as they come. Both sides of a ratio alternate, and medians are compared.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path as FilePath

import torch

from polyhead.deep.examples import FeatureExamples, TextExamples
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.nn.runtime import precision_of
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.deep.sharing.part import PooledPart
from polyhead.encoder.data import TrunkData
from polyhead.plan import Codec, Embed, Layers, Path, Pool
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Pooled
from polyhead.project.strategies.base import with_codec
from polyhead.store.taps import entry_batches
from polyhead.text.question import read_alone
from polyhead.train.candidates import candidate_paths
from polyhead.train.data.batches import LengthSorted
from polyhead.train.data.extract import TOKEN_BUDGET, Extractor
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.source import FeatureRequest
from polyhead.train.events import Events
from studies.du2020.run_poolers import entry, prepared
from studies.results import Claim, results, write_results
from studies.settings import RESULTS, answer_help

TEXTS, REPEATS = 6000, 5
HEAD_TEXTS, HEAD_EPOCHS = 12000, 3
TUNED_TEXTS = 1024
STRATEGY = Pooled(layers="mean", of=4, positions="attention")


def main() -> None:
    torch.set_num_threads(2)
    precision = precision_of(Training())
    data = load_trunk("minilm", max_tokens=128)
    folder = FilePath(tempfile.mkdtemp())
    try:
        rows = [*extraction(data, folder, precision), *training(data, folder, precision)]
    finally:
        shutil.rmtree(folder)
    by_name = {row["measure"]: row for row in rows}
    share = by_name["extraction over bare forward"]["ratio"]
    times = by_name["head training over fine-tuning"]["ratio"]
    claims = [
        Claim(
            id="first-light.extraction",
            text="feature extraction (tokenizing, layer mean, codec and writing included) against a bare "
            f"{precision} forward on the same length-sorted batches, texts a second",
            target=0.9,
            value=share,
            unit="ratio",
            holds=share >= 0.9,
        ),
        Claim(
            id="first-light.head-training",
            text="examples a second, training one head over 12,000 cached texts, against fine-tuning the whole "
            "trunk (batch 32 both)",
            target=20.0,
            value=times,
            unit="ratio",
            holds=times >= 20,
        ),
    ]
    print(
        write_results(
            RESULTS,
            results("first_light_speed", command="python -m benchmarks.first_light_speed", rows=rows, claims=claims),
        )
    )


def extraction(data: TrunkData, folder: FilePath, precision: str) -> list[dict]:
    ready = prepared(entry("offensive"), STRATEGY, 1)
    inputs = read_alone(ready.train.examples.inputs[:TEXTS])
    layers = Layers(start=0, stop=data.architecture.layers)
    last = Path(nodes=(Embed(trunk=data.digest), layers, Pool(positions="first")))
    rows, bare, whole = [], [], []
    for repeat in range(REPEATS + 1):
        extractor = Extractor(data, folder=folder / f"extract{repeat}", precision=precision)
        path = candidate_paths(ready, extractor, Codec(name="float16"))[0]
        encodings, pad_id = extractor.tokenizer.encodings(inputs), extractor.tokenizer.pad_id
        width = data.architecture.width if extractor.backend.packs else None
        pieces = [batch for _, batch in entry_batches(encodings, pad_id=pad_id, budget=TOKEN_BUDGET, width=width)]
        began = time.perf_counter()
        for piece in pieces:
            extractor.features([last], piece)
        seconds = time.perf_counter() - began
        filled = extractor.fill([FeatureRequest(path=path, inputs=inputs)])
        shutil.rmtree(folder / f"extract{repeat}")
        if repeat == 0:  # warm-up
            continue
        bare.append(len(inputs) / seconds)
        whole.append(filled.passes / filled.seconds)
        rows.append(
            {
                "measure": "extraction",
                "repeat": repeat,
                "bare_texts_per_s": bare[-1],
                "extraction_texts_per_s": whole[-1],
                "tokens": filled.tokens,
            }
        )
        print(rows[-1], flush=True)
    ratio = statistics.median(w / b for w, b in zip(whole, bare, strict=True))
    return [
        *rows,
        {"measure": "extraction over bare forward", "ratio": ratio, "precision": precision, "texts": len(inputs)},
    ]


def training(data: TrunkData, folder: FilePath, precision: str) -> list[dict]:
    ready = prepared(entry("offensive"), STRATEGY, 1)
    examples = ready.train.examples
    count = min(HEAD_TEXTS, len(examples.inputs))
    index = (list(range(count)) * (HEAD_TEXTS // count + 1))[:HEAD_TEXTS]
    extractor = Extractor(data, folder=folder / "train", precision=precision)
    path = candidate_paths(ready, extractor, Codec(name="float16"))[0]
    extractor.fill([FeatureRequest(path=path, inputs=read_alone(examples.inputs))])
    repeated = type(ready.train)(name="train", examples=examples.take(index))
    cached = FeatureExamples(examples_of(ready, repeated, path, extractor))
    tuned = examples.take(list(range(TUNED_TEXTS)))
    texts = TextExamples(extractor.tokenizer, tuned.inputs, tuned.targets)
    live = {ready.task.name: with_codec(path, Codec(name="float32"))}
    rows, heads, whole = [], [], []
    for repeat in range(REPEATS):
        part = PooledPart(
            path, data.architecture.width, dropouts=(0.1, 0.1), generator=torch.Generator().manual_seed(repeat)
        )
        heads.append(speed(part, cached, Training(epochs=HEAD_EPOCHS, patience=HEAD_EPOCHS, seed=repeat)))
        tuning = Training(epochs=1, patience=1, learning_rate=2e-5, dropout=0.1, seed=repeat)
        recipe = Joint(layer_dropout=0.0)
        model = JointModel(data, live, training=tuning, recipe=recipe, bfloat16=precision == "bfloat16")
        whole.append(speed(model, texts, tuning, run=model.bound(ready.task.name)))
        rows.append(
            {
                "measure": "training",
                "repeat": repeat,
                "head_examples_per_s": heads[-1],
                "fine_tuning_examples_per_s": whole[-1],
            }
        )
        print(rows[-1], flush=True)
    ratio = statistics.median(h / w for h, w in zip(heads, whole, strict=True))
    return [
        *rows,
        {
            "measure": "head training over fine-tuning",
            "ratio": ratio,
            "head_texts": HEAD_TEXTS,
            "fine_tuned_texts": TUNED_TEXTS,
        },
    ]


def speed(
    module: torch.nn.Module,
    examples: LengthSorted[TrainingBatch],
    training: Training,
    run: Callable[..., torch.Tensor] | None = None,
) -> float:
    """Examples a second of the training loop alone; validation is not counted on either side."""
    module.train()
    done = TaskLoop(
        module, examples, loss=LOSSES["cross_entropy"], score=lambda: 0.0, training=training, run=run, events=Events()
    ).train()
    return done.examples_seen / done.seconds


if __name__ == "__main__":
    answer_help(__doc__)
    main()
