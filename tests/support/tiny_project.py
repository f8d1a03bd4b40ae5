"""A tiny trunk on disk, small labelled files and a project over them, made by the tests that need them."""

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import tomli_w
from safetensors.numpy import load_file, save_file

from polyhead.encoder.families import FAMILIES
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.testing import tiny_trunk
from support.hugging_face import to_hugging_face

GOOD, BAD = ("good", "happy"), ("bad", "sad", "broken", "late")
THINGS, PEOPLE = ("lamp", "kettle", "phone", "box"), ("anna", "ben")
TAGS = ("O", "B-product", "B-person")
TOPICS = ("order", "bill", "card")


def to_toml(value):
    """The value as TOML; fields that hold None are left out."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(value)))


def _without_none(data):
    if isinstance(data, dict):
        return {key: _without_none(item) for key, item in data.items() if item is not None}
    return [_without_none(item) for item in data] if isinstance(data, list | tuple) else data


def write_trunk(folder, data=None):
    """The tiny trunk, of any family, as a checkpoint folder."""
    data, folder = data or tiny_trunk(), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(data.architecture)))
    (folder / "tokenizer.json").write_bytes(data.tokenizer)
    arrays = to_hugging_face(data.arrays, data.architecture.family)
    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, folder / "model.safetensors")
    return folder


def change_array(file, name, change):
    """Writes a safetensors file again with one array changed by the function."""
    arrays = load_file(file)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    save_file(arrays, file, metadata={"format": "pt"})


def config_of(shape):
    """The config.json of a tiny trunk's shape."""
    family = FAMILIES[shape.family]
    stated = {key: getattr(shape, field) for field, key in family.keys.items()}
    more = {
        "roberta": lambda: {"pad_token_id": shape.first_position - 1},
        "modernbert": lambda: {
            "global_rope_theta": shape.rotary.base,
            "local_rope_theta": shape.local_rotary.base,
            "local_attention": 2 * shape.window,
            "global_attn_every_n_layers": shape.whole_every,
        },
        "deberta-v2": lambda: {
            "relative_attention": True,
            "position_biased_input": shape.position_table,
            "position_buckets": shape.relative.buckets // 2,
            "max_relative_positions": shape.relative.distance,
            "norm_rel_ebd": "layer_norm" if shape.relative.norm else "none",
            "share_att_key": shape.relative.shared,
            "pos_att_type": "p2c|c2p",
        },
        "bart": lambda: {"max_position_embeddings": shape.positions - shape.first_position},
        **dict.fromkeys(("eurobert", "gte", "nomic_bert"), lambda: {"rope_theta": shape.rotary.base}),
    }
    return {"model_type": family.model_types[0], **stated, **more.get(shape.family, dict)()}


def message(chance):
    """A short message with all its labels."""
    mood = chance.choice(("good", "bad"))
    topics = [topic for topic in TOPICS if chance.random() < 0.4]
    words, tags = [], []
    for word in ["the", chance.choice(THINGS), "is", chance.choice(GOOD if mood == "good" else BAD), *topics]:
        words.append(word)
        tags.append("B-product" if word in THINGS else "O")
    for _ in range(chance.randint(0, 6)):
        words.insert(0, chance.choice(("please", "my", "today", "monday", *PEOPLE)))
        tags.insert(0, "B-person" if words[0] in PEOPLE else "O")
    return {
        "text": " ".join(words),
        "mood": mood,
        "topics": topics,
        "urgency": round(0.2 * len(topics) + (0.3 if mood == "bad" else 0.0), 2),
        "tokens": words,
        "tags": tags,
    }


def messages(count, seed=0):
    """Distinct messages."""
    chance, found = random.Random(seed), {}
    while len(found) < count:
        row = message(chance)
        found[row["text"]] = row
    return list(found.values())


def pairs(count, seed=0):
    """Pairs of messages: alike where their moods are equal."""
    one, other = messages(count, seed), messages(count, seed + 100)
    return [
        {
            "text": a["text"],
            "text_b": b["text"],
            "same": "yes" if a["mood"] == b["mood"] else "no",
            "alike": float(a["mood"] == b["mood"]) + 2.0 * (a["topics"] == b["topics"]),
        }
        for a, b in zip(one, other, strict=True)
    ]


def write_jsonl(path, rows):
    """One row a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_data(folder, *, train=32, other=12):
    """messages-{train,validation,test}.jsonl and pairs-… of the same splits."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, both = messages(train + 2 * other), pairs(train + 2 * other)
    cuts = {"train": slice(0, train), "validation": slice(train, train + other), "test": slice(train + other, None)}
    for split, cut in cuts.items():
        write_jsonl(folder / f"messages-{split}.jsonl", whole[cut])
        write_jsonl(folder / f"pairs-{split}.jsonl", both[cut])
    return folder


def files(kind):
    return {split: f"data/{kind}-{split}.jsonl" for split in ("train", "validation", "test")}


ENTRIES = {
    "mood": TaskEntry(name="mood", kind="single_label", labels=("bad", "good"), label="mood", **files("messages")),
    "topics": TaskEntry(name="topics", kind="multi_label", labels=TOPICS, label="topics", **files("messages")),
    "urgency": TaskEntry(name="urgency", kind="regression", range=(0.0, 1.0), label="urgency", **files("messages")),
    "names": TaskEntry(name="names", kind="tagging", labels=TAGS, tokens="tokens", tags="tags", **files("messages")),
    "same": TaskEntry(
        name="same",
        kind="single_label",
        labels=("no", "yes"),
        label="same",
        pair="joined",
        text_b="text_b",
        **files("pairs"),
    ),
    "alike": TaskEntry(
        name="alike",
        kind="regression",
        range=(0.0, 3.0),
        label="alike",
        pair="separate",
        text_b="text_b",
        **files("pairs"),
    ),
}
TRAINING = Training(seed=1, epochs=4, patience=4, batch=8, learning_rate=5e-3, precision="float32")
SEARCHED = msgspec.structs.replace(TRAINING, learning_rate=Training().learning_rate)  # which a search replaces
STRATEGY = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8, codec="float32")


def project(folder, *names, training=TRAINING, strategy=STRATEGY, max_tokens=None, **changes):
    """A project over these tasks; `folder` gets the trunk and the data where it has none."""
    if not (folder / "trunk").exists():
        write_trunk(folder / "trunk")
    if not (folder / "data").exists():
        write_data(folder / "data")
    entries = [msgspec.structs.replace(ENTRIES[name], **changes) for name in names or ENTRIES]
    return Project(
        tasks=tuple(entries),
        trunk=TrunkChoice(name=str(folder / "trunk"), max_tokens=max_tokens),
        training=training,
        strategy=strategy,
    )


def part_bytes(bundle, task):
    """The live part of a task, as it lies on disk."""
    root = Path(bundle)
    live = json.loads((root / "bundle.json").read_text())["tasks"][task]["version"]
    return (root / "tasks" / task / live / "part.safetensors").read_bytes()


def fail_heads(monkeypatch, *tasks):
    """The heads of these tasks fail in the reference backend; ValueError says that nobody meant it."""
    from polyhead.engine.backends.reference import ReferenceBackend

    inner = ReferenceBackend._headed

    def headed(self, name, features):
        if name in tasks:
            raise ValueError("no such head")
        return inner(self, name, features)

    monkeypatch.setattr(ReferenceBackend, "_headed", headed)
