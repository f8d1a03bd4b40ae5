"""Classifiers with a norm between their maps, or over the mean of states: what config.json says of them is honoured."""

import json

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from polyhead.convert.hugging_face import read_head
from polyhead.convert.run import import_folders
from polyhead.convert.task import ImportRequest
from polyhead.engine.export.write import export_bundle
from polyhead.engine.session import Session
from polyhead.errors import TrunkError
from support import checkpoints
from support.tiers import first_of

TEXTS = [(f"{text} {other}",) for text in checkpoints.TEXTS for other in ("", "and so on", "ça va ?")]
MODERN = {
    "first-position": {},
    "mean-and-biases": {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
    "relu": {"classifier_activation": "relu", "norm_eps": 1e-3},
}


def saved(family, folder, form="SequenceClassification", **settings):
    """A random classifier with its tokenizer; biases and norms are drawn too."""
    torch.manual_seed(3)
    make_tokenizer, sizes = checkpoints.FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**sizes | {"num_labels": 3} | settings)
    model = getattr(transformers, f"{family}For{form}")(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn(value.shape))
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model, make_tokenizer()


def imported(folder, out):
    return import_folders(ImportRequest(folders=(str(folder),), names={str(folder): "task"}), out, TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings"),
    first_of([*(("ModernBert", each) for each in MODERN.values()), ("EuroBert", {"classifier_pooling": "bos"})]),
)
def test_every_backend_and_the_export_answer_as_transformers(family, settings, tmp_path):
    model, tokenizer = saved(family, tmp_path / "model", **settings)
    (one,) = imported(tmp_path / "model", tmp_path / "b").tasks
    given = tokenizer([text for (text,) in TEXTS], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**given).logits.numpy()
    scale = max(1.0, np.abs(logits).max())
    assert one.parity.max_abs_difference < 1e-5 * scale
    for name in ("reference", "torch", "openvino", "onnxruntime"):
        session = Session(tmp_path / "b", backend=name, precision="float32")
        np.testing.assert_allclose(session.outputs("task", TEXTS), logits, atol=1e-5 * scale)
    export = export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    assert export.tasks["task"].largest_difference < 1e-5 * scale


def test_words_are_answered_behind_the_norm(tmp_path):
    saved("ModernBert", tmp_path / "model", "TokenClassification")
    (one,) = imported(tmp_path / "model", tmp_path / "b").tasks
    assert (one.kind, one.parity.answers > 50) == ("tagging", True)
    assert one.parity.max_abs_difference < 1e-5


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("ModernBert", "classifier_activation", "gelu_new"),
        ("ModernBert", "classifier_pooling", "last"),
        ("EuroBert", "classifier_pooling", "late"),  # the mean of all tokens' outputs, and its default
    ],
)
def test_what_no_head_here_computes_is_refused_by_name(family, key, value, tmp_path):
    saved(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrunkError, match=f"{key}.*Got: {value}"):
        read_head(tmp_path)


def test_models_of_different_depth_do_not_share_layers_where_the_last_has_a_norm(tmp_path):
    """The lower layers of both are equal, but a norm stands behind the shallow one's last."""
    for layers in (2, 4):
        saved("ModernBert", tmp_path / str(layers), num_hidden_layers=layers)
    deep = transformers.ModernBertForSequenceClassification.from_pretrained(tmp_path / "4")
    shallow = transformers.ModernBertForSequenceClassification.from_pretrained(tmp_path / "2")
    deep.model.load_state_dict(shallow.model.state_dict(), strict=False)
    deep.save_pretrained(tmp_path / "4")
    with pytest.raises(TrunkError, match="layers 2 and 4, of which the last has a norm"):
        import_folders(ImportRequest(folders=(str(tmp_path / "2"), str(tmp_path / "4"))), tmp_path / "b", TEXTS)
