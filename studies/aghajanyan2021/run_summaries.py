"""A small BART that learns summaries of dialogues, alone and in a mixture with classifications, three seeds each.

No checkpoint can be fetched here, so the model starts at random, with a tokenizer trained on the rows that it learns
from: what is compared is the mixture, not the level. Both ways read the summaries equally often, and losses are divided
by ln n. It goes on where it stopped (`runs/summaries.jsonl`); `--jobs tiny` is a trial of a minute.
"""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import msgspec

from polyhead.project.generation import DecoderChoice, decoder_for
from polyhead.project.recipes import Joint, Sampling, Training
from polyhead.project.strategies import Pooled
from polyhead.project.strategies.generating import Generating
from polyhead.values import Value
from studies.results import Study
from studies.settings import DATA, checked_names, parsed, report, rows_of, say, study_arguments
from studies.shared.data import Set, prepared_of
from studies.shared.runs import Facts, short_digest
from studies.shared.steps import learn

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.train.data.prepared import Prepared
    from polyhead.train.runs import ProcessRank

NAME = "summaries_quality"
SEEDS = (1, 2, 3)
SUMMARIES = Set(folder="dialogsum")
OTHERS = (
    Set(folder="trec6", metric="accuracy"),
    Set(folder="subj", metric="accuracy"),
    Set(folder="ag_news", metric="accuracy"),
    Set(folder="glue_sst2", metric="accuracy"),
    Set(folder="tweeteval_emotion", metric="macro_f1"),
)
WAYS: dict[str, tuple[Set, ...]] = {"alone": (SUMMARIES,), "mixed": (SUMMARIES, *OTHERS)}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
START, PAD, END = 0, 1, 2


class Scale(Value):
    """The size of the model and of the study."""

    width: int = 256
    layers: int = 3  # of the encoder, and of the decoder
    vocabulary: int = 8000
    document: int = 320  # tokens
    summary: int = 64
    documents: int = 6000
    others: int = 2000  # rows of each other set
    validation: int = 200
    test: int | None = None  # None: the whole split
    epochs: int = 15
    learning_rate: float = 5e-4


SCALES = {
    "full": Scale(),
    "tiny": Scale(width=32, layers=1, vocabulary=600, documents=48, others=32, validation=12, test=12, epochs=1),
}


def main() -> None:
    arguments = study_arguments(__doc__, "summaries.jsonl", jobs=("full",), seeds=SEEDS, device=True)
    options = parsed(arguments)
    if options.report:
        write_report(rows_of(options.rows))
        return
    file = options.rows[0]
    study, folder = Study(file), file.with_suffix("")
    for name in checked_names(options.jobs, SCALES, "job"):
        for seed in [int(seed) for seed in options.seeds.split(",")]:
            for way in WAYS:
                key: Facts = {"stage": name, "way": way, "digest": short_digest(SCALES[name]), "seed": seed}
                run = partial(trained, SCALES[name], way, seed, folder / f"{name}-{way}-{seed}", options.device)
                row = study.row(run, **key)
                say(f"{name} {way:6s} seed {seed}  {row['seconds']} s  {row['own']}")


def trained(scale: Scale, way: str, seed: int, folder: FilePath, device: str) -> Facts:
    """One course of the model; the row has every task's scores on validation and test."""
    from polyhead.train.runs import ProcessRank

    folder.parent.mkdir(parents=True, exist_ok=True)
    training = Training(
        seed=seed, epochs=scale.epochs, patience=scale.epochs, batch=16, learning_rate=scale.learning_rate, warmup=0.06
    )
    data = start(scale, folder.with_name(f"{folder.name}-start"), seed)
    prepared = [prepared_set(scale, dataset, data, training) for dataset in WAYS[way]]
    recipe = Joint(sampling=Sampling(kind="shuffled"), micro_batches=1)
    place: ProcessRank = ProcessRank(device=device)
    facts = learn(
        prepared,
        data,
        recipe,
        held=[],
        folder=folder,
        label=f"{way}, seed {seed}",
        precision="float32",
        say=say,
        own_heads=True,
        place=place,
    )
    shutil.rmtree(folder, ignore_errors=True)
    return facts


def prepared_set(scale: Scale, dataset: Set, data: TrunkData, training: Training) -> Prepared:
    """The rows of a set, with the decoder and the rules of summaries."""
    rows = scale.documents if dataset is SUMMARIES else scale.others
    limits: dict[str, Any] = {"train": rows, "validation": scale.validation, "test": scale.test}
    prepared = prepared_of(DATA, dataset, **limits, strategy=Pooled(), training=training)
    if dataset is not SUMMARIES:
        return prepared
    choice = DecoderChoice(tokens=scale.summary)
    decoder, rules, begun = decoder_for(choice, data, task=dataset.task)
    strategy = Generating(under=Pooled(), choice=choice, decoder=decoder, start=begun)
    task = msgspec.structs.replace(prepared.task, generation=rules)
    return msgspec.structs.replace(prepared, task=task, strategy=strategy)


def start(scale: Scale, folder: FilePath, seed: int) -> TrunkData:
    """A random model with its tokenizer, as `transformers` saves them, read as any checkpoint."""
    import torch
    import transformers

    from polyhead.project.pretrained import load_trunk

    config = transformers.BartConfig(
        vocab_size=scale.vocabulary,
        d_model=scale.width,
        encoder_layers=scale.layers,
        decoder_layers=scale.layers,
        encoder_attention_heads=scale.width // 32,
        decoder_attention_heads=scale.width // 32,
        encoder_ffn_dim=4 * scale.width,
        decoder_ffn_dim=4 * scale.width,
        max_position_embeddings=512,
        no_repeat_ngram_size=3,
    )
    torch.manual_seed(seed)
    shutil.rmtree(folder, ignore_errors=True)
    transformers.BartForConditionalGeneration(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer(scale))
    return load_trunk(str(folder), max_tokens=scale.document)


def tokenizer(scale: Scale) -> bytes:
    """Byte pairs of the texts that are learned from, the same for both ways."""
    import tokenizers

    texts = []
    for dataset in WAYS["mixed"]:
        rows = scale.documents if dataset is SUMMARIES else scale.others
        limits: dict[str, Any] = {"train": rows, "validation": scale.validation, "test": scale.test}
        examples = prepared_of(DATA, dataset, **limits, strategy=Pooled(), training=Training()).train.examples
        texts += [str(text) for value in examples.inputs for text in value]  # type: ignore[union-attr]
        if dataset is SUMMARIES:
            texts += [str(target[0]) for target in examples.targets]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=SPECIAL[3]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=scale.vocabulary,
        show_progress=False,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(texts, trainer)
    ends = (SPECIAL[END], END), (SPECIAL[START], START)
    made.post_processor = tokenizers.processors.RobertaProcessing(*ends, trim_offsets=False)
    return made.to_str().encode()


def write_report(raw: list[dict[str, object]]) -> None:
    """Rows as they come; no claim rests on them, as the issue names no target."""
    for stage in SCALES:
        for way in WAYS:
            rows = [row for row in raw if row["stage"] == stage and row["way"] == way]
            scores = [100 * row["own"][SUMMARIES.task]["test"] for row in rows]  # type: ignore[index]
            if scores:
                spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
                print(f"{stage} {way}: rouge_l {statistics.mean(scores):.2f}{spread} over {len(scores)} seeds")
    command = "python -m studies aghajanyan2021 run-summaries; then --report"
    report(NAME, command=command, rows=raw, claims=[], lacking=[])


if __name__ == "__main__":
    main()
