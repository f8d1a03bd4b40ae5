"""Tiny checkpoints, files and projects of every strategy, made without polyhead: two source trees read the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

LAYERS, WIDTH, POSITIONS = 3, 32, 48
THINGS, PEOPLE = ("lamp", "kettle", "phone", "box"), ("anna", "ben")
GOOD, BAD = ("good", "happy"), ("bad", "sad", "broken", "late")
WORDS = (
    "the",
    "my",
    "order",
    "bill",
    "card",
    "is",
    "was",
    "where",
    "when",
    "please",
    "refund",
    "today",
    "monday",
    "not",
)
PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "?", ".", ","),
    *(a for letter in "abcdefghijklmnopqrstuvwxyz0123456789" for a in (letter, f"##{letter}")),
    *dict.fromkeys((*WORDS, *THINGS, *PEOPLE, *GOOD, *BAD)),
)
TOPICS = ("order", "bill", "card")
SPLITS = {"train": (0, 32), "validation": (32, 44), "test": (44, 56)}
TRAINING = "[training]\nseed = 1\nepochs = 3\npatience = 3\nbatch = 8\nlearning_rate = 0.005\nprecision = 'float32'\n"
TASKS: dict[str, dict[str, Any]] = {
    "mood": {"kind": "single_label", "labels": ["bad", "good"], "label": "mood", "file": "messages"},
    "topics": {"kind": "multi_label", "labels": [*TOPICS], "label": "topics", "file": "messages"},
    "urgency": {"kind": "regression", "range": [0.0, 1.0], "label": "urgency", "file": "messages"},
    "names": {
        "kind": "tagging",
        "labels": ["O", "B-product", "B-person"],
        "tokens": "tokens",
        "tags": "tags",
        "file": "messages",
    },
    "same": {
        "kind": "single_label",
        "labels": ["no", "yes"],
        "label": "same",
        "pair": "joined",
        "text_b": "text_b",
        "file": "pairs",
    },
    "alike": {
        "kind": "regression",
        "range": [0.0, 3.0],
        "label": "alike",
        "pair": "separate",
        "text_b": "text_b",
        "file": "pairs",
    },
    "reply": {"kind": "multiple_choice", "file": "choices"},
    "where": {"kind": "span", "file": "spans"},
}
EVERY = tuple(TASKS)
LIVE = tuple(name for name in TASKS if name != "alike")  # conditioned strategies read pairs jointly
# Strategy by strategy: its tables, and the tasks that it trains.
PROJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "pooled": ("[strategy]\nkind = 'pooled'\n", EVERY),
    "pooled-attention": (
        "[strategy]\nkind = 'pooled'\npositions = 'attention'\nheads = 2\nhidden = 8\nlayers = 'learned'\n"
        f"codec = 'uint8'\n{TRAINING}",
        EVERY,
    ),
    "branch": (
        f"[strategy]\nkind = 'branch'\nmost = 2\nhidden = 8\nstudents = [1]\n{TRAINING}",
        ("mood", "names", "same"),
    ),
    "prompted": (f"[strategy]\nkind = 'prompted'\nshared = 1\n{TRAINING}", ("mood", "topics", "urgency")),
    "prompted-isolated": (f"[strategy]\nkind = 'prompted'\nisolated = true\n{TRAINING}", ("mood", "urgency")),
    "in_layer": (
        "[strategy]\nkind = 'in_layer'\n"
        "adapters = [{delta = 'projected_attention', size = 6, stop = 2}, {delta = 'lora', size = 2, start = 2}]\n"
        f"{TRAINING}",
        LIVE,
    ),
    "on_top": (
        f"[strategy]\nkind = 'on_top'\nlayers = 2\nwidth = 12\n{TRAINING}",
        ("mood", "topics", "names", "reply"),
    ),
    "joint": (f"[recipe]\nkind = 'joint'\nmicro_batches = 2\n{TRAINING}", ("mood", "urgency", "reply")),
}


def write_all(folder: Path) -> None:
    """trunk/, data/ and `<strategy>.toml` of every strategy; each project's bundle is `<strategy>-bundle`."""
    write_trunk(folder / "trunk")
    write_data(folder / "data")
    for name, (tables, tasks) in PROJECTS.items():
        text = f"bundle = '{name}-bundle'\n[trunk]\nname = 'trunk'\n{tables}"
        (folder / f"{name}.toml").write_text(text + "".join(map(_entry, tasks)))


def write_trunk(folder: Path) -> None:
    """A BERT of three layers in the layout of the Hugging Face hub, its weights drawn from one seed."""
    folder.mkdir(parents=True)
    settings = {
        "model_type": "bert",
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "vocab_size": len(PIECES),
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(_tokenizer())
    random_numbers = np.random.default_rng(7)
    arrays = {}
    for name, shape in _shapes():
        centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        arrays[name] = np.asarray(centre + 0.2 * random_numbers.standard_normal(shape), np.float32)
    save_file(arrays, folder / "model.safetensors")


def write_data(folder: Path) -> None:
    """`<file>-<split>.jsonl` of messages, pairs, choices and spans."""
    folder.mkdir(parents=True)
    for name, rows in _rows().items():
        for split, (start, stop) in SPLITS.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows[start:stop])
            (folder / f"{name}-{split}.jsonl").write_text(lines)


def _shapes() -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("embeddings.word_embeddings.weight", (len(PIECES), WIDTH)),
        ("embeddings.position_embeddings.weight", (POSITIONS, WIDTH)),
        ("embeddings.token_type_embeddings.weight", (2, WIDTH)),
        ("embeddings.LayerNorm.weight", (WIDTH,)),
        ("embeddings.LayerNorm.bias", (WIDTH,)),
    ]
    maps = {
        "attention.self.query": (WIDTH, WIDTH),
        "attention.self.key": (WIDTH, WIDTH),
        "attention.self.value": (WIDTH, WIDTH),
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (2 * WIDTH, WIDTH),
        "output.dense": (WIDTH, 2 * WIDTH),
    }
    for layer in range(LAYERS):
        for name, shape in maps.items():
            shapes += [
                (f"encoder.layer.{layer}.{name}.weight", shape),
                (f"encoder.layer.{layer}.{name}.bias", shape[:1]),
            ]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes += [(f"encoder.layer.{layer}.{name}.{end}", (WIDTH,)) for end in ("weight", "bias")]
    return shapes


def _tokenizer() -> str:
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return str(tokenizer.to_str())


def _rows() -> dict[str, list[dict[str, Any]]]:
    last = SPLITS["test"][1]
    one, other = _messages(last, 1), _messages(last, 2)
    pairs = [
        {
            "text": a["text"],
            "text_b": b["text"],
            "same": "yes" if a["mood"] == b["mood"] else "no",
            "alike": float(a["mood"] == b["mood"]) + 2.0 * (a["topics"] == b["topics"]),
        }
        for a, b in zip(one, other, strict=True)
    ]
    choices = [
        {"question": row["text"], "choices": ["good", "bad"], "label": 0 if row["mood"] == "good" else 1}
        for row in other
    ]
    spans = [
        {
            "question": "where is it?",
            "context": row["text"],
            "answers": [{"text": thing, "start": row["text"].index(thing)}],
        }
        for row in one
        for thing in [next(word for word in row["tokens"] if word in THINGS)]
    ]
    return {"messages": one, "pairs": pairs, "choices": choices, "spans": spans}


def _messages(count: int, seed: int) -> list[dict[str, Any]]:
    chance, found = random.Random(seed), dict[str, dict[str, Any]]()
    while len(found) < count:
        row = _message(chance)
        found[row["text"]] = row
    return list(found.values())


def _message(chance: random.Random) -> dict[str, Any]:
    mood = chance.choice(("good", "bad"))
    topics = [topic for topic in TOPICS if chance.random() < 0.4]
    words = ["the", chance.choice(THINGS), "is", chance.choice(GOOD if mood == "good" else BAD), *topics]
    words = [chance.choice(("please", "my", "today", *PEOPLE)) for _ in range(chance.randint(0, 6))] + words
    tags = ["B-product" if word in THINGS else "B-person" if word in PEOPLE else "O" for word in words]
    urgency = round(0.2 * len(topics) + (0.3 if mood == "bad" else 0.0), 2)
    return {"text": " ".join(words), "mood": mood, "topics": topics, "urgency": urgency, "tokens": words, "tags": tags}


def _entry(name: str) -> str:
    fields = {"name": name} | TASKS[name]
    file = fields.pop("file")
    fields |= {split: f"data/{file}-{split}.jsonl" for split in SPLITS}
    return "\n[[tasks]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
