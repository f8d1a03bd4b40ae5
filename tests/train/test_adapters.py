"""Adapters that PEFT wrote, imported: the bundle answers as `transformers` does with W + alpha / rank * B A."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from support.tiers import first_of

pytest.importorskip("transformers")

import torch
import transformers
from safetensors.torch import load_file, save_file

from polyhead.bundle.read import Bundle
from polyhead.convert import run as importing
from polyhead.convert import task as imported
from polyhead.convert.folders import scan_folders
from polyhead.convert.parity import TOLERANCE
from polyhead.convert.run import import_folders
from polyhead.convert.task import ImportRequest
from polyhead.engine.session import Session
from polyhead.errors import BadName, TrunkError, TrunkNotFound, WrongTrunk
from polyhead.plan import TRUNK, cost, merge
from polyhead.project.pretrained import load_trunk
from polyhead.testing.tiny import DENSE
from support import adapters, checkpoints

TEXTS = [
    ("my order is late",),
    ("ANNA and Ben: where is the kettle?",),
    ("a naïve café — ça va?",),
    ("x",),
    *[(f"please refund order {i} of the lamp, {'it is broken ' * (i % 7)}today",) for i in range(20)],
]
KINDS = ("mood", "topics", "score", "names")
LIMIT = 1e-5  # a product of float32 matrices apart or together, on logits of about 1


def wanted(*folders, **fields):
    return ImportRequest(folders=tuple(map(str, folders)), **fields)


def assert_answers(session, task, model, *, scale=1.0):
    """The task's outputs are the model's logits; of words, on the first token of a text's first word."""
    outputs, moved = session.outputs(task, TEXTS), []
    for out, logits in zip(outputs, adapters.logits_of(model, TEXTS), strict=True):
        mine, theirs = (out[0], logits[1]) if logits.ndim == 2 else (out * scale, logits)
        np.testing.assert_allclose(mine, theirs, atol=LIMIT)
        moved.append(theirs)
    assert np.std(moved, axis=0).min() > 0.01


def nodes(record):
    """(start, stop, rank, scale, maps) of each node with a delta."""
    return [
        (n.start, n.stop, n.delta.size, n.delta.alpha / n.delta.size, n.delta.targets)
        for n in record.path.layers
        if n.delta is not None
    ]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """An adapter of every kind over one base, in one bundle."""
    root = tmp_path_factory.mktemp("four")
    models = {task: adapters.adapter(root / task, task, seed=i) for i, task in enumerate(KINDS)}
    outcome = import_folders(wanted(*(root / t for t in KINDS), range=(0.0, 5.0)), root / "bundle", TEXTS)
    return root, models, outcome


# answers


@pytest.mark.slow
def test_adapters_of_every_kind_answer_in_one_call_as_transformers_does(four):
    root, models, _ = four
    session = Session(root / "bundle")
    for task in ("mood", "topics", "names"):
        assert_answers(session, task, models[task])
    assert_answers(session, "score", models["score"], scale=5.0)
    together, alone = session.predict(TEXTS), {t: session.predict(TEXTS, tasks=[t]) for t in KINDS}
    for i, result in enumerate(together):
        assert set(result.answers) == set(KINDS)
        assert result.receipt.passes == 1
        assert result.receipt.layers == 4 * checkpoints.LAYERS
        for task in ("mood", "topics"):
            for label, score in alone[task][i].answers[task]["scores"].items():
                assert result.answers[task]["scores"][label] == pytest.approx(score, abs=LIMIT)


def test_the_base_is_the_trunk_and_each_task_owns_its_matrices_alone(four):
    root, _, outcome = four
    found = Bundle.open(root / "bundle")
    base = load_trunk(str(checkpoints.base()))
    assert found.trunk().digest == base.digest == outcome.trunk
    for task in KINDS:
        part = found.part(task)
        assert {n.split(".")[0] for n in part} == {"delta", "head"}
        arrays = load_file(root / task / "adapter_model.safetensors")
        key = "base_model.model.bert.encoder.layer.3.attention.self.value.lora_"
        for ours, theirs in (("encoder", "A"), ("decoder", "B")):
            mine = part[f"delta.3.attention.value.{ours}.weight"]
            assert mine.tobytes() == arrays[f"{key}{theirs}.weight"].numpy().tobytes()
        assert [n.weights for n in found.tasks[task].path.layers] == [TRUNK]
        assert nodes(found.tasks[task]) == [(0, 4, 2, 4.0, ("attention.query", "attention.value"))]
    assert [(one.tap, one.layers) for one in outcome.tasks] == [(0, 4)] * 4


@pytest.mark.parametrize("family", first_of(checkpoints.FAMILIES))
def test_every_family_answers_as_in_transformers(family, tmp_path):
    """Both classes of the family, every dense map of a layer; torch and the reference agree too."""
    # `head` of ModernBERT, `dense` of EuroBERT: a base without a task has none here.
    heads = ("classifier", "pre_classifier", "head", "dense")
    saved = (*heads, *(("pooler",) if family in adapters.NO_POOLER else ()))
    models = {
        task: adapters.adapter(tmp_path / task, task, family=family, maps=adapters.ALL, saved=saved)
        for task in ("mood", "names")
    }
    outcome = import_folders(wanted(*(tmp_path / t for t in models)), tmp_path / "b", TEXTS)
    for one in outcome.tasks:  # logits are up to 5
        assert one.parity.max_abs_difference < LIMIT * one.parity.tolerance / TOLERANCE
    assert "all dense maps of layers 1 to 4" in outcome.tasks[0].adapter
    fast, plain = (Session(tmp_path / "b", backend=name) for name in ("torch", "reference"))
    for task, model in models.items():
        assert_answers(fast, task, model)
        for a, b in zip(fast.outputs(task, TEXTS[:6]), plain.outputs(task, TEXTS[:6]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


QUERY = ("attention.query",)
BOTH = ("attention.query", "attention.value")
FORMS = {
    "some layers": ({"layers": (1, 3), "layers_to_transform": [1, 3]}, [(1, 2, 2, 4.0, BOTH), (3, 4, 2, 4.0, BOTH)]),
    "one layer": ({"layers": (2,), "layers_to_transform": 2, "layers_pattern": "layer"}, [(2, 3, 2, 4.0, BOTH)]),
    "an expression": (
        {"maps": ("query",), "layers": (0, 1), "target_modules": r".*\.layer\.[01]\..*query"},
        [(0, 2, 2, 4.0, QUERY)],
    ),
    "rank-stabilized": ({"rank": 4, "use_rslora": True}, [(0, 4, 4, pytest.approx(4.0), BOTH)]),
    "ranks of layers": (
        {"rank": lambda name: 3 if "layer.0." in name else 2, "rank_pattern": {r"layer\.0\..*": 3}},
        [(0, 1, 3, pytest.approx(8 / 3), BOTH), (1, 4, 2, 4.0, BOTH)],
    ),
    "scales of layers": (
        {"alpha": lambda name: 1.0 if "layer.3." in name else 8.0, "alpha_pattern": {"layer.3.*": 1}},
        [(0, 3, 2, 4.0, BOTH), (3, 4, 2, 0.5, BOTH)],
    ),
    "all-linear, the pooler too": ({"maps": adapters.ALL, "target_modules": "all-linear"}, [(0, 4, 2, 4.0, DENSE)]),
}


@pytest.mark.parametrize("form", first_of(FORMS))
def test_layers_ranks_and_scales_are_those_of_the_config(form, tmp_path):
    given, expected = FORMS[form]
    model = adapters.adapter(tmp_path / "mood", **given)
    import_folders(wanted(tmp_path / "mood"), tmp_path / "b", TEXTS)
    assert nodes(Bundle.open(tmp_path / "b").tasks["mood"]) == expected
    assert_answers(Session(tmp_path / "b"), "mood", model)


def test_pairs_are_read_joined(tmp_path):
    model = adapters.adapter(tmp_path / "mood")
    pairs = [(a[0], b[0]) for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    import_folders(wanted(tmp_path / "mood", pair="joined"), tmp_path / "b", pairs)
    outputs = Session(tmp_path / "b").outputs("mood", pairs)
    np.testing.assert_allclose(outputs, adapters.logits_of(model, pairs), atol=LIMIT)


# beside other tasks


@pytest.mark.slow
def test_an_adapter_and_a_checkpoint_with_a_frozen_prefix_share_a_trunk(tmp_path):
    model = adapters.adapter(tmp_path / "mood", layers=(2, 3))
    whole = checkpoints.trained("names", frozen=3)
    names = {str(whole): "names"}
    outcome = import_folders(wanted(whole, tmp_path / "mood", names=names), tmp_path / "b", TEXTS)
    assert [(one.task, one.tap, one.layers) for one in outcome.tasks] == [("names", 3, 1), ("mood", 2, 2)]
    session = Session(tmp_path / "b")
    assert session.predict(TEXTS[:1])[0].receipt.layers == 2 + 1 + 1 + 2
    assert_answers(session, "mood", model)


def test_an_adapter_joins_a_bundle_and_changes_no_bit_of_it(four, tmp_path):
    shutil.copytree(four[0] / "bundle", tmp_path / "b")
    before = Session(tmp_path / "b", deterministic=True)
    bits = {t: [o.tobytes() for o in before.outputs(t, TEXTS[:6])] for t in KINDS}
    model = adapters.adapter(tmp_path / "more", rank=5, seed=9)
    outcome = import_folders(wanted(tmp_path / "more"), tmp_path / "b", TEXTS)
    assert (outcome.is_new, set(outcome.certificate.before)) == (False, set(KINDS))
    after = Session(tmp_path / "b", deterministic=True)
    assert {t: [o.tobytes() for o in after.outputs(t, TEXTS[:6])] for t in KINDS} == bits
    assert_answers(after, "more", model)
    with pytest.raises(BadName):
        import_folders(wanted(four[0] / "mood"), tmp_path / "b", TEXTS)


def test_costs_of_the_bundle_are_those_that_scan_promised(four, tmp_path):
    root = four[0]
    scan = scan_folders([str(root / task) for task in KINDS])
    found = Bundle.open(root / "bundle")
    real = cost.cost_of(merge({n: r.path for n, r in found.tasks.items()}), found.architecture, 32)
    assert (real.layer_evaluations, real.flops, real.bytes) == (
        scan.merged.layers,
        scan.merged.flops,
        scan.merged.bytes,
    )
    # Rank 2 on two maps of 32 x 32 in four layers: A and B are 2 * 32 numbers each. Apart, each has an encoder too.
    matrices = 4 * 4 * 2 * (64 + 64)
    assert scan.apart.bytes - scan.merged.bytes == 3 * 4 * cost_of_base()
    assert real.bytes - 4 * cost_of_base() - heads() == 4 * matrices


def cost_of_base():
    """Numbers of the encoder: embeddings, and four layers of 8,544 (see test_scanning)."""
    return 32 * (110 + 64 + 2) + 64 + 4 * 8_544


def heads():
    """Bytes of the four heads: a pooler for each but the tagger, and outputs."""
    return 4 * (3 * 1056 + sum(33 * len(checkpoints.LABELS[task]) for task in KINDS))


# the base


def test_the_base_is_given_where_the_one_that_is_named_is_not_here(tmp_path):
    model = adapters.adapter(tmp_path / "mood")
    adapters.change(tmp_path / "mood", base_model_name_or_path="someone/some-encoder")
    refused(tmp_path / "b", tmp_path / "mood", error=TrunkNotFound, match="mood.*some-encoder.*--base")
    import_folders(wanted(tmp_path / "mood", base=str(checkpoints.base())), tmp_path / "b", TEXTS)
    assert_answers(Session(tmp_path / "b"), "mood", model)


def test_another_trunk_than_the_base_is_refused_with_both_named(four, tmp_path):
    """Of another seed, so that every array differs; and with one bit of the last layer turned."""
    adapters.adapter(tmp_path / "mood")
    stranger = checkpoints.base(seed=5)
    match = f"mood.*Got: its base {checkpoints.base()}.*embeddings.*Allowed: .*{stranger}"
    refused(tmp_path / "b", tmp_path / "mood", base=str(stranger), error=WrongTrunk, match=match)
    near = tmp_path / "near"
    shutil.copytree(checkpoints.base(), near)
    arrays = load_file(near / "model.safetensors")
    arrays["encoder.layer.3.output.dense.bias"].view(torch.int32)[0] ^= 1
    save_file(arrays, near / "model.safetensors", metadata={"format": "pt"})
    match = f"mood.*Got: its base {checkpoints.base()}.*layer 4.*Allowed: .*{near}"
    refused(tmp_path / "b", tmp_path / "mood", base=str(near), error=WrongTrunk, match=match)
    adapters.adapter(tmp_path / "over-near", base=near)
    refused(tmp_path / "b", tmp_path / "mood", tmp_path / "over-near", error=WrongTrunk, match="over-near")
    with pytest.raises(WrongTrunk, match=f"over-near.*{near}.*Allowed: .*the trunk of"):
        import_folders(wanted(tmp_path / "over-near"), four[0] / "bundle", TEXTS)


def test_a_shorter_trunk_than_the_base_is_refused(tmp_path):
    folders = [checkpoints.trained("mood", frozen=2), checkpoints.trained("names", frozen=3)]
    import_folders(wanted(*folders), tmp_path / "b", TEXTS)
    adapters.adapter(tmp_path / "topics", "topics")
    with pytest.raises(WrongTrunk, match=f"topics.*{checkpoints.base()}.*the depth"):
        import_folders(wanted(tmp_path / "topics"), tmp_path / "b", TEXTS)


# heads and labels


def without_pooler(folder):
    """The base as an encoder that was saved without a pooler."""
    shutil.copytree(checkpoints.base(), folder)
    arrays = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in arrays.items() if not name.startswith("pooler.")}
    assert len(kept) < len(arrays)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_pooler_that_nobody_kept_is_refused_and_one_that_was_saved_is_taken(tmp_path):
    base = without_pooler(tmp_path / "base")
    adapters.adapter(tmp_path / "lost", base=base)
    refused(tmp_path / "b", tmp_path / "lost", match=r"lost.*bert\.pooler\.dense.*modules_to_save = \['pooler'\]")
    model = adapters.adapter(
        tmp_path / "mood", base=base, saved=("classifier", "pooler"), modules_to_save=["pooler", "classifier"]
    )
    import_folders(wanted(tmp_path / "mood"), tmp_path / "b", TEXTS)
    assert_answers(Session(tmp_path / "b"), "mood", model)


def test_labels_that_nobody_kept_are_numbered(tmp_path):
    adapters.adapter(tmp_path / "mood", labels=False)
    import_folders(wanted(tmp_path / "mood"), tmp_path / "b", TEXTS)
    assert Bundle.open(tmp_path / "b").tasks["mood"].task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_an_adapter_over_a_classifier_may_leave_head_and_labels_to_it(tmp_path):
    """Without a task_type PEFT keeps the matrices alone, and the class under auto_mapping."""
    base = checkpoints.trained("mood")
    named = {"base_model_class": "BertForSequenceClassification", "parent_library": "transformers"}
    model = adapters.adapter(tmp_path / "mood", base=base, saved=(), labels=False, task_type=None, auto_mapping=named)
    import_folders(wanted(tmp_path / "mood"), tmp_path / "b", TEXTS)
    assert Bundle.open(tmp_path / "b").tasks["mood"].task.labels == checkpoints.LABELS["mood"]
    assert_answers(Session(tmp_path / "b"), "mood", model)


def test_a_base_with_another_head_lends_no_labels(tmp_path):
    """An adapter brings its own outputs; those of the base are another task's."""
    base = checkpoints.trained("topics")
    model = checkpoints.classifier("mood").eval()
    model.load_state_dict(
        {**model.state_dict(), **{n: v for n, v in topics_state().items() if not n.startswith("classifier")}}
    )
    head = {f"classifier.{leaf}": torch.randn(size) for leaf, size in (("weight", (3, 32)), ("bias", (3,)))}
    model.load_state_dict({**model.state_dict(), **head})
    adapters.write(tmp_path / "mood", head, base=base)
    import_folders(wanted(tmp_path / "mood"), tmp_path / "b", TEXTS)
    assert Bundle.open(tmp_path / "b").tasks["mood"].task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert_answers(Session(tmp_path / "b"), "mood", model)


def topics_state():
    folder = checkpoints.trained("topics")
    return transformers.BertForSequenceClassification.from_pretrained(folder).state_dict()


# what is kept


def test_the_proof_the_matrices_and_the_base_are_kept_with_the_task(four):
    root, models, _ = four
    kept = Bundle.open(root / "bundle").tasks["mood"].trained_with["imported"]
    raw = (root / "mood" / "adapter_model.safetensors").read_bytes()
    assert kept["weights"] == {"adapter_model.safetensors": hashlib.sha256(raw).hexdigest()}
    assert kept["adapter"] == "LoRA, rank 2 on attention.query, attention.value of layers 1 to 4"
    assert kept["base"]["folder"] == str(checkpoints.base())
    raw = (checkpoints.base() / "model.safetensors").read_bytes()
    assert kept["base"]["weights"] == {"model.safetensors": hashlib.sha256(raw).hexdigest()}
    largest = max(np.abs(logits).max() for logits in adapters.logits_of(models["mood"], TEXTS))
    assert kept["parity"]["tolerance"] == pytest.approx(1e-4 * max(1, largest), rel=1e-4)
    assert kept["parity"]["max_abs_difference"] < LIMIT
    card = Bundle.open(root / "bundle").card("mood")
    assert "with an adapter (LoRA, rank 2 on attention.query, attention.value of layers 1 to 4)" in card


# refused


def refused(out, *folders, error=TrunkError, match, **fields):
    with pytest.raises(error, match=f"(?s){match}"):
        import_folders(wanted(*folders, **fields), out, TEXTS)
    assert not out.exists() and not list(out.parent.glob(".importing-*"))


@pytest.mark.parametrize("name", ["delta.1.attention.value.decoder.weight", "head.hidden.weight"])
def test_answers_that_are_not_those_of_transformers_are_refused(name, tmp_path, monkeypatch):
    """Arrays that a faulty reader would give: the proof must fail, and nothing may be written."""

    def faulty(*given):
        arrays = imported.foreign_arrays(*given)
        return arrays | {name: arrays[name] * np.float32(1.05)}

    monkeypatch.setattr(importing, "foreign_arrays", faulty)
    adapters.adapter(tmp_path / "mood")
    refused(tmp_path / "b", tmp_path / "mood", match="would not answer")


def test_the_proof_does_not_rest_on_the_code_that_it_proves(tmp_path, monkeypatch):
    """A layer that computed low-rank maps with another scale."""
    from polyhead.deep.nn import deltas

    right = deltas.KINDS["lora"].dense

    def faulty(self, name, inputs):
        out = right(self, name, inputs)
        return None if out is None else out * 1.05

    monkeypatch.setattr(deltas.KINDS["lora"], "dense", faulty)
    adapters.adapter(tmp_path / "mood")
    refused(tmp_path / "b", tmp_path / "mood", match="would not answer")


def test_another_tokenizer_beside_the_adapter_is_refused(tmp_path):
    adapters.adapter(tmp_path / "mood")
    checkpoints.wordpiece().save_pretrained(tmp_path / "mood")
    import_folders(wanted(tmp_path / "mood"), tmp_path / "fine", TEXTS)
    file = tmp_path / "mood" / "tokenizer.json"
    file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
    refused(tmp_path / "b", tmp_path / "mood", match="mood: its tokenizer is not that of its base")
    file.write_text("{}")
    refused(tmp_path / "b", tmp_path / "mood", match="mood: its tokenizer.json cannot be understood")


def test_labels_of_another_head_are_refused(tmp_path):
    adapters.adapter(tmp_path / "mood")
    config = json.loads((tmp_path / "mood" / "config.json").read_text())
    config["id2label"] = {"0": "a", "1": "b"}
    (tmp_path / "mood" / "config.json").write_text(json.dumps(config))
    refused(tmp_path / "b", tmp_path / "mood", match="mood.*2 labels.*3 outputs")
