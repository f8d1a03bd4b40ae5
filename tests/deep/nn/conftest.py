"""A tiny trunk with ramp-filled weights, and folders as `save_pretrained` writes them."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import save_file

from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import Architecture, trunk_arrays
from support.hugging_face import to_hugging_face

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "big", "red"]]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ramp(shape, phase):
    size = int(np.prod(shape))
    return (0.3 * np.sin(0.7 * np.arange(size) + phase)).astype(np.float32).reshape(shape)


def tokenizer_json(words=WORDS):
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made.to_str().encode()


@pytest.fixture
def shape():
    return Architecture(layers=3, width=16, heads=2, feed_forward=32, vocabulary=len(WORDS), positions=24)


@pytest.fixture
def make_data():
    def make(shape):
        arrays = {name: ramp(size, i) for i, (name, size) in enumerate(trunk_arrays(shape))}
        for name in arrays:
            if name.endswith("norm.weight"):
                arrays[name] = arrays[name] + 1
        settings = TextSettings(max_tokens=shape.max_tokens)
        return TrunkData(name="tiny", architecture=shape, arrays=arrays, tokenizer=tokenizer_json(), settings=settings)

    return make


@pytest.fixture
def data(make_data, shape):
    return make_data(shape)


@pytest.fixture
def config(shape):
    """A BERT config.json of the tiny shape."""
    return {
        "model_type": "bert",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feed_forward,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": shape.segments,
        "layer_norm_eps": shape.norm_epsilon,
        "hidden_act": "gelu",
    }


@pytest.fixture
def make_folder(tmp_path, data, config):
    """Writes the tiny trunk as a checkpoint folder; `settings` change its config, `weights` its arrays."""

    def make(name="model", *, settings=None, weights=None, tokenizer=None):
        folder: Path = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config | (settings or {})))
        (folder / "tokenizer.json").write_bytes(tokenizer or data.tokenizer)
        arrays = to_hugging_face(data.arrays, "bert") if weights is None else weights
        save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def batch():
    """Token ids and mask of a ragged batch, (4, 7), with segments."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, len(WORDS), (4, 7), generator=generator)
    mask = torch.arange(7) < torch.tensor([[7], [3], [1], [5]])
    segments = torch.randint(0, 2, (4, 7), generator=generator)
    return ids, mask, segments
