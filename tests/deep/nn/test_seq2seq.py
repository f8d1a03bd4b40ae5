"""Encoder-decoders: read as `transformers` reads them, and writing what it writes."""

import json
import os
import shutil
import sys

import msgspec
import numpy as np
import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from polyhead.bundle.summarizer import MODEL_TYPES
from polyhead.deep.summarizer import Seq2Seq, load_seq2seq
from polyhead.errors import BackendError, ConfigError, MissingExtra, TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.plan.cost.work import summary_flops, summary_layers
from support import summarizers
from support.checkpoints import base

PAIRS = summarizers.documents(7, seed=3)
TEXTS = [text for text, _ in PAIRS]
LENGTH = 16


@pytest.fixture(scope="module", params=MODEL_TYPES)
def pair(request):
    """Our model and theirs with its tokenizer."""
    place = summarizers.taught(request.param)
    return Seq2Seq(load_seq2seq(str(place), summary_tokens=LENGTH)), *summarizers.theirs(place)


@pytest.fixture(scope="module")
def loaded():
    return load_seq2seq(str(summarizers.taught()), summary_tokens=LENGTH)


def changed(tmp_path, edit=None, without=()):
    """A copy of the folder with another config.json, and without some files."""
    place = tmp_path / "model"
    shutil.copytree(summarizers.taught(), place)
    for name in without:
        (place / name).unlink()
    if edit is not None:
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | edit))
    return str(place)


def test_the_class_is_transformers_own(pair):
    ours, theirs, _ = pair
    assert type(ours.model) is type(theirs)


@pytest.mark.parametrize("beams", [1, 3])
def test_scores_that_overflow_write_nothing(loaded, beams):
    """The first token of all was written, again and again."""
    name = "model.decoder.layernorm_embedding.weight"
    arrays = {**loaded.arrays, name: np.full_like(loaded.arrays[name], 3e38)}
    settings = msgspec.structs.replace(loaded.settings, beams=beams)
    model = Seq2Seq(msgspec.structs.replace(loaded, arrays=arrays, settings=settings))
    with pytest.raises(BackendError, match="not finite"):
        model.write(TEXTS[:2])


def test_tied_arrays_are_kept_once(pair):
    ours, theirs, _ = pair
    data = ours.data()
    buffers = dict(theirs.named_buffers())["final_logits_bias"].numel()
    assert data.parameters == sum(p.numel() for p in theirs.parameters()) + buffers
    assert all(array.dtype == np.float32 for array in data.arrays.values())
    assert "lm_head.weight" not in data.arrays and "model.shared.weight" in data.arrays


def test_documents_are_read_as_transformers_reads_them(pair):
    ours, _, library = pair
    texts = [*TEXTS, "red " * 60, "x"]
    wanted = [library(text, truncation=True, max_length=40)["input_ids"] for text in texts]
    found = ours.documents(texts)
    assert [one.ids.tolist() for one in found] == wanted
    assert [one.cut > 0 for one in found] == [False] * len(TEXTS) + [True, False]


def test_logits_are_those_of_transformers(pair):
    ours, theirs, library = pair
    given = summarizers.batch(library, PAIRS)
    with torch.inference_mode():
        found = ours(given["input_ids"], given["attention_mask"].bool(), given["labels"])
        wanted = theirs(**given).logits
    assert torch.allclose(found, wanted, atol=1e-6)


def test_greedy_summaries_are_those_of_transformers(pair):
    """Batched by us, one by one by `transformers`; they differ from text to text, so a mixed-up row would show."""
    ours, theirs, library = pair
    wanted, steps = [], []
    for text in TEXTS:
        given = library(text, return_tensors="pt")
        made = theirs.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            num_beams=1,
            do_sample=False,
            max_new_tokens=LENGTH,
        )
        wanted.append(library.decode(made[0], skip_special_tokens=True).strip())
        steps.append(made.shape[1] - 1)
    found = ours.write(TEXTS)
    assert [one.text for one in found] == wanted
    assert [one.steps for one in found] == steps
    assert len(set(wanted)) > 4 and all(wanted), wanted


def test_beams_and_other_settings_of_the_folder_are_used():
    place = summarizers.taught(no_repeat_ngram_size=2, length_penalty=2.0, min_length=6, num_beams=5)
    theirs, library = summarizers.theirs(place)
    for beams in (1, 3):
        ours = Seq2Seq(load_seq2seq(str(place), summary_tokens=LENGTH, beams=beams))
        given = library(TEXTS[0], return_tensors="pt")
        made = theirs.generate(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"], num_beams=beams, max_new_tokens=LENGTH
        )
        (found,) = ours.write(TEXTS[:1])
        assert found.text == library.decode(made[0], skip_special_tokens=True).strip()
        assert found.steps >= 5


def test_a_document_read_alone_has_the_same_summary(loaded):
    model = Seq2Seq(loaded)
    assert model.write(TEXTS, alone=True) == [model.write([text])[0] for text in TEXTS]
    assert [one.text for one in model.write(TEXTS)] == [one.text for one in model.write(TEXTS, alone=True)]
    assert model.write([]) == []


def test_long_documents_are_cut_and_counted():
    model = Seq2Seq(load_seq2seq(str(summarizers.taught()), max_tokens=10, summary_tokens=LENGTH))
    library = summarizers.theirs(summarizers.taught())[1]
    whole = len(library("red " * 30)["input_ids"])
    short, long, strange = model.write(["red lamp", "red " * 30, "red \ud800 lamp"])
    assert (short.cut, long.cut, long.tokens, strange.repaired) == (0, whole - 10, 10, 1)


def test_data_of_a_model_builds_the_same_model(loaded):
    again = Seq2Seq(loaded).data()
    assert again.digest == loaded.digest
    assert Seq2Seq(again).write(TEXTS) == Seq2Seq(loaded).write(TEXTS)


@pytest.mark.parametrize("field", ["config", "generation", "tokenizer", "arrays", "settings"])
def test_the_digest_holds_everything_that_decides_a_summary(loaded, field):
    other = {
        "config": loaded.config + b" ",
        "generation": loaded.generation + b" ",
        "tokenizer": loaded.tokenizer + b" ",
        "arrays": loaded.arrays | {"model.shared.weight": loaded.arrays["model.shared.weight"] + 1},
        "settings": msgspec.structs.replace(loaded.settings, beams=2),
    }[field]
    assert msgspec.structs.replace(loaded, **{field: other}).digest != loaded.digest
    assert msgspec.structs.replace(loaded, name="another").digest == loaded.digest


def test_dropout_acts_in_training_alone(loaded):
    model = Seq2Seq(loaded, dropout=0.5)
    given = summarizers.batch(summarizers.theirs(summarizers.taught())[1], PAIRS)
    arguments = (given["input_ids"], given["attention_mask"].bool(), given["labels"])
    with torch.inference_mode():
        still = [model(*arguments) for _ in range(2)]
        moving = [model.train()(*arguments) for _ in range(2)]
    assert torch.equal(*still) and not torch.equal(*moving)
    assert model.data().config == loaded.config


def test_flops_are_those_that_torch_counts(loaded):
    """Eager attention, greedy and with kept keys, as the rule says."""
    place = summarizers.taught()
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(place, attn_implementation="eager")
    given = summarizers.theirs(place)[1](TEXTS[0], return_tensors="pt")
    with FlopCounterMode(display=False) as counter:
        made = theirs.eval().generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            num_beams=1,
            min_new_tokens=7,
            max_new_tokens=7,
        )
    tokens, steps = given["input_ids"].shape[1], made.shape[1] - 1
    assert steps == 7
    assert summary_flops(loaded.shape, tokens, steps) == counter.get_total_flops()
    assert summary_layers(loaded.shape, steps) == 1 + 7


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[train\]"):
        load_seq2seq(str(summarizers.taught()))


def test_an_encoder_alone_is_refused():
    with pytest.raises(TrunkError, match="no encoder-decoder") as caught:
        load_seq2seq(str(base("Roberta")))
    assert "roberta" in str(caught.value) and caught.value.allowed == MODEL_TYPES


def test_an_encoder_decoder_of_another_type_is_refused(tmp_path):
    with pytest.raises(TrunkError, match="model_type 't5'"):
        load_seq2seq(changed(tmp_path, {"model_type": "t5"}))


@pytest.mark.parametrize("name", ["no/where", "/no/such/folder", "", "facebook/bart-base"])
def test_a_model_that_cannot_be_had_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TrunkNotFound, match="cannot be opened"):
        load_seq2seq(name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A model in the cache of the hub, offline, as `org/brief`; gives its folder."""
    root = tmp_path / "hub" / "models--org--brief"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    (root / "snapshots").mkdir()
    os.rename(changed(tmp_path), root / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return root / "snapshots" / ("0" * 40)


def test_a_hub_id_is_read_from_the_cache(hub, loaded):
    assert load_seq2seq("org/brief", summary_tokens=LENGTH).digest == loaded.digest


def test_a_tokenizer_of_the_hub_is_tried_before_transformers_opens_it(hub, monkeypatch):
    content = json.loads((hub / "tokenizer.json").read_text())
    content["model"]["dropout"] = 0.5
    (hub / "tokenizer.json").write_text(json.dumps(content))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", None)
    with pytest.raises(WeightsMismatch, match="dropout"):
        load_seq2seq("org/brief", summary_tokens=LENGTH)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(WeightsMismatch, match="missing"):
        load_seq2seq(changed(tmp_path, {"decoder_layers": 2}))


def test_arrays_that_are_not_the_config_s_are_refused(loaded):
    fewer = {n: a for n, a in loaded.arrays.items() if "fc1" not in n}
    with pytest.raises(WeightsMismatch, match="fc1"):
        Seq2Seq(msgspec.structs.replace(loaded, arrays=fewer))


@pytest.mark.parametrize("key", ["encoder_layers", "vocab_size", "max_position_embeddings", "decoder_ffn_dim"])
def test_a_config_of_a_giant_is_refused_before_it_is_built(loaded, key):
    config = json.dumps(json.loads(loaded.config) | {key: 10**12}).encode()
    with pytest.raises(WeightsMismatch, match="another model"):
        Seq2Seq(msgspec.structs.replace(loaded, config=config))


def test_a_tokenizer_is_needed_and_must_fit(tmp_path):
    with pytest.raises((TrunkError, TrunkNotFound), match="tokenizer|cannot be opened"):
        load_seq2seq(changed(tmp_path, without=["tokenizer.json", "tokenizer_config.json"]))
    shutil.rmtree(tmp_path / "model")
    place = changed(tmp_path)
    library = summarizers.theirs(place)[1]
    library.add_tokens(["<one>", "<more>"])
    library.save_pretrained(place)
    with pytest.raises(WeightsMismatch, match="no word vector"):
        load_seq2seq(place)


@pytest.mark.parametrize("limits", [{"max_tokens": 41}, {"summary_tokens": 41}, {"max_tokens": 2}, {"beams": 0}])
def test_limits_that_the_model_does_not_have_are_refused(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        load_seq2seq(str(summarizers.taught()), **{"summary_tokens": LENGTH, **limits})
