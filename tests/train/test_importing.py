"""Checkpoints that plain `transformers` trained, imported: the bundle answers as they do."""

import json
import shutil

import msgspec
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from support.tiers import first_of

pytest.importorskip("transformers")

import torch
import transformers

from polyhead import files
from polyhead.bundle.atomic import BUILDING
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import sweep_bundle
from polyhead.certify import checked
from polyhead.convert import run as importing
from polyhead.convert import task as imported
from polyhead.convert.run import import_folders
from polyhead.convert.task import ImportRequest, name_of
from polyhead.engine.session import Session
from polyhead.errors import BadName, BundleError, ConfigError, PolyheadError, TrunkError, WrongTrunk
from polyhead.folders import claim
from polyhead.plan import TRUNK, cost
from polyhead.testing import tiny_trunk
from polyhead.text.words import words_of
from support import checkpoints
from support.disk_failures import run_forking

TEXTS = [
    ("my order is late",),
    ("ANNA and Ben: where is the kettle?",),
    ("a naïve café — ça va?",),
    ("x",),
    *[(f"please refund order {i} of the lamp, {'it is broken ' * (i % 7)}today",) for i in range(80)],
]
PAIRS = [(a[0], b[0]) for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
FROZEN = {"mood": 2, "topics": 1, "score": 4, "names": 3}


def wanted(*folders, **fields):
    return ImportRequest(folders=tuple(map(str, folders)), **fields)


def logits_of(folder, inputs):
    """What `transformers` itself answers, one input at a time: a plain script's view of the folder."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for text in inputs:
        limit = 64 if config.vocab_size == 110 else 256
        given = tokenizer(*text, truncation=True, max_length=limit, return_tensors="pt")
        with torch.inference_mode():
            found.append((model(**checkpoints.inputs_of(model, given)).logits[0].numpy(), given))
    return found


def softmax(values):
    shifted = np.exp(values - values.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """All four kinds over the base, each frozen to another depth."""
    out = tmp_path_factory.mktemp("imported") / "bundle"
    folders = [checkpoints.trained(task, frozen=frozen) for task, frozen in FROZEN.items()]
    names = {str(folder): task for folder, task in zip(folders, FROZEN, strict=True)}
    outcome = import_folders(wanted(*folders, names=names, base=str(checkpoints.base()), range=(0.0, 5.0)), out, TEXTS)
    return out, outcome


@pytest.fixture
def session(bundle):
    return Session(bundle[0])


def answers(session, task, inputs=TEXTS):
    return [result.answers[task] for result in session.predict(list(inputs), tasks=[task])]


# answers


@pytest.mark.slow
def test_single_label_answers_are_the_softmax_of_transformers_in_its_order(session):
    theirs = logits_of(checkpoints.trained("mood", frozen=2), TEXTS)
    for answer, (logits, _) in zip(answers(session, "mood"), theirs, strict=True):
        assert tuple(answer["scores"]) == checkpoints.LABELS["mood"]
        np.testing.assert_allclose(list(answer["scores"].values()), softmax(logits), atol=1e-5)
        assert answer["label"] == checkpoints.LABELS["mood"][logits.argmax()]
    assert np.std([logits for logits, _ in theirs], axis=0).min() > 0.01


def test_multi_label_answers_are_the_sigmoid_of_transformers(session):
    theirs = logits_of(checkpoints.trained("topics", frozen=1), TEXTS)
    for answer, (logits, _) in zip(answers(session, "topics"), theirs, strict=True):
        scores = 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose(list(answer["scores"].values()), scores, atol=1e-5)
        assert answer["labels"] == [n for n, s in zip(checkpoints.LABELS["topics"], scores, strict=True) if s >= 0.5]


def test_regression_answers_are_the_values_of_transformers_clipped_to_the_range(session):
    theirs = [logits[0] for logits, _ in logits_of(checkpoints.trained("score", frozen=4), TEXTS)]
    ours = [answer["value"] for answer in answers(session, "score")]
    np.testing.assert_allclose(ours, np.clip(theirs, 0, 5), atol=1e-5)
    raw = np.concatenate(session.outputs("score", TEXTS)) * 5
    np.testing.assert_allclose(raw, theirs, atol=1e-5)
    assert np.std(theirs) > 0.01


def test_tagging_answers_are_those_of_each_words_first_token(session):
    """The token is found here by transformers' own offsets."""
    theirs = logits_of(checkpoints.trained("names", frozen=3), TEXTS)
    outputs, looked_at = session.outputs("names", TEXTS), 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints.trained("names", frozen=3))
    for text, out, (logits, _) in zip(TEXTS, outputs, theirs, strict=True):
        offsets = tokenizer(text[0], return_offsets_mapping=True)["offset_mapping"]
        for (start, end), mine in zip(words_of(text[0]), out, strict=True):
            first = next((i for i, (a, b) in enumerate(offsets) if a < end and b > start and b > a), None)
            if first is not None and first < len(logits) - 1:
                np.testing.assert_allclose(mine, logits[first], atol=1e-5)
                looked_at += 1
    assert looked_at > 300


@pytest.mark.slow
@pytest.mark.parametrize("family", first_of(checkpoints.FAMILIES))
def test_every_family_answers_as_in_transformers(family, tmp_path):
    """Both heads of the family, pairs of checkpoints without a base; torch and the reference agree too."""
    folders = [checkpoints.trained("mood", family=family), checkpoints.trained("names", family=family, frozen=3)]
    outcome = import_folders(wanted(*folders), tmp_path / "b", TEXTS)
    assert [one.tap for one in outcome.tasks] == [2, 2]
    assert outcome.trunk_layers == 2
    assert all(one.parity.max_abs_difference < 1e-5 for one in outcome.tasks)
    fast, plain = (Session(tmp_path / "b", backend=name) for name in ("torch", "reference"))
    for one, (logits, _) in zip(
        answers(fast, "-".join([family, "mood", "2", "1"])), logits_of(folders[0], TEXTS), strict=True
    ):
        np.testing.assert_allclose(list(one["scores"].values()), softmax(logits), atol=1e-5)
    for task in fast.records:
        for a, b in zip(fast.outputs(task, TEXTS[:6]), plain.outputs(task, TEXTS[:6]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("family", first_of(["Bert", "DistilBert", "Roberta"]))
def test_pairs_are_read_with_the_segments_of_transformers(family, tmp_path):
    folder = checkpoints.trained("mood", family=family)
    import_folders(wanted(folder, pair="joined", names={str(folder): "same"}), tmp_path / "b", PAIRS)
    theirs = logits_of(folder, PAIRS[:20])
    for answer, (logits, _) in zip(answers(Session(tmp_path / "b"), "same", PAIRS[:20]), theirs, strict=True):
        np.testing.assert_allclose(list(answer["scores"].values()), softmax(logits), atol=1e-5)


def test_texts_beyond_the_limit_are_cut_as_transformers_cuts_them(tmp_path):
    folder = checkpoints.trained("mood")
    long = [(f"{i} " + "lamp box kettle " * 40,) for i in range(16)]
    outcome = import_folders(wanted(folder, max_tokens=20), tmp_path / "b", long)
    assert outcome.tasks[0].parity.max_abs_difference < 1e-5
    assert Bundle.open(tmp_path / "b").trunk().settings.max_tokens == 20


# paths


def test_each_task_leaves_the_trunk_where_its_own_layers_begin(bundle):
    found = Bundle.open(bundle[0])
    for task, frozen in FROZEN.items():
        layers = found.tasks[task].path.layers
        shared = [(n.start, n.stop) for n in layers if n.weights == TRUNK]
        own = [(n.start, n.stop) for n in layers if n.weights == f"task:{task}"]
        assert shared == [(0, frozen)]
        assert own == ([(frozen, 4)] if frozen < 4 else [])
        names = {name.split(".")[1] for name in found.part(task) if name.startswith("layers.")}
        assert names == {str(i) for i in range(frozen, 4)}
    assert [one.tap for one in bundle[1].tasks] == [2, 1, 4, 3]


def test_private_arrays_are_the_checkpoints_own_bits(bundle):
    part = Bundle.open(bundle[0]).part("topics")
    theirs = load_file(checkpoints.trained("topics", frozen=1) / "model.safetensors")
    for ours, name in [
        ("layers.1.attention.query.weight", "bert.encoder.layer.1.attention.self.query.weight"),
        ("layers.3.feed_forward.outer.bias", "bert.encoder.layer.3.output.dense.bias"),
        ("head.hidden.weight", "bert.pooler.dense.weight"),
        ("head.output.bias", "classifier.bias"),
    ]:
        assert part[ours].tobytes() == theirs[name].numpy().tobytes()


def test_a_checkpoint_whose_layers_all_were_trained_taps_the_embeddings(tmp_path):
    folder = checkpoints.trained("mood", frozen=0)
    outcome = import_folders(wanted(folder, base=str(checkpoints.base())), tmp_path / "b", TEXTS)
    assert (outcome.tasks[0].tap, outcome.tasks[0].layers, outcome.trunk_layers) == (0, 4, 4)
    (record,) = Bundle.open(tmp_path / "b").tasks.values()
    assert [(n.start, n.stop, n.weights) for n in record.path.layers] == [(0, 4, record.owner)]


def test_one_folder_alone_is_its_own_trunk(tmp_path):
    outcome = import_folders(wanted(checkpoints.trained("mood")), tmp_path / "b", TEXTS)
    assert (outcome.tasks[0].tap, outcome.tasks[0].layers, outcome.trunk_layers) == (4, 0, 4)


@pytest.mark.slow
def test_without_a_base_the_trunk_is_the_deepest_prefix_that_two_share(tmp_path):
    folders = [checkpoints.trained("mood", frozen=k, seed=k) for k in (1, 3, 2)]
    outcome = import_folders(wanted(*folders), tmp_path / "b", TEXTS)
    assert outcome.trunk_layers == 2
    assert [one.tap for one in outcome.tasks] == [1, 2, 2]
    assert Bundle.open(tmp_path / "b").architecture.layers == 2


def test_costs_of_the_bundle_are_those_that_scan_promised(bundle):
    from polyhead.convert.folders import scan_folders
    from polyhead.plan import merge

    folders = [str(checkpoints.trained(task, frozen=frozen)) for task, frozen in FROZEN.items()]
    promised = scan_folders(folders, base=str(checkpoints.base())).merged
    found = Bundle.open(bundle[0])
    paths = {name: record.path for name, record in found.tasks.items()}
    real = cost.cost_of(merge(paths), found.architecture, 32)
    assert (real.layer_evaluations, real.flops, real.bytes) == (promised.layers, promised.flops, promised.bytes)


# what is kept


def test_the_proof_is_kept_with_the_task(bundle):
    from polyhead.convert.parity import texts_digest

    record = Bundle.open(bundle[0]).tasks["mood"]
    kept = record.trained_with["imported"]
    folder = checkpoints.trained("mood", frozen=2)
    assert (kept["folder"], kept["class"]) == (str(folder), "BertForSequenceClassification")
    assert set(kept["weights"]) == {"model.safetensors"}
    assert kept["parity"]["texts"] == len(TEXTS)
    assert kept["parity"]["texts_sha256"] == texts_digest(TEXTS)
    assert kept["parity"]["activation"] == "softmax"
    assert kept["parity"]["agreement"] == 1.0
    assert kept["parity"]["transformers"] == transformers.__version__
    largest = max(np.abs(logits).max() for logits, _ in logits_of(folder, TEXTS))
    assert kept["parity"]["tolerance"] == pytest.approx(1e-4 * max(1, largest), rel=1e-5)
    assert 0 <= kept["parity"]["max_abs_difference"] <= kept["parity"]["tolerance"]
    assert record.trained_with["numerics"]["precision"] == "float32"
    others = {t: Bundle.open(bundle[0]).tasks[t].trained_with["imported"]["parity"]["activation"] for t in FROZEN}
    assert others == {"mood": "softmax", "topics": "sigmoid", "score": "identity", "names": "softmax"}


def test_probes_hold_the_longest_text_and_one_beyond_ascii(bundle):
    for task in FROZEN:
        probes = Bundle.open(bundle[0]).probes(task)
        texts = [tuple(probe["text"]) for probe in probes]
        assert len(texts) == len(set(texts)) == 64
        assert max(TEXTS, key=lambda t: len(t[0])) in texts
        assert any(not text[0].isascii() for text in texts)
        assert all(("words" in probe) == (task == "names") for probe in probes)


def test_fewer_texts_are_all_probes(tmp_path):
    import_folders(wanted(checkpoints.trained("mood")), tmp_path / "b", TEXTS[:20])
    (name,) = Bundle.open(tmp_path / "b").tasks
    assert [tuple(p["text"]) for p in Bundle.open(tmp_path / "b").probes(name)] == TEXTS[:20]


def test_the_card_says_where_the_task_came_from(bundle):
    card = Bundle.open(bundle[0]).card("score")
    assert "BertForSequenceClassification" in card
    assert f"transformers {transformers.__version__}" in card
    assert "Range: 0 to 5." in card


def test_the_certificate_names_what_was_added(bundle):
    certificate = bundle[1].certificate
    assert certificate.operation == "import"
    assert {name: after for name, (_, after) in certificate.changed.items()} == dict.fromkeys(FROZEN, "v0001")
    assert certificate.unchanged
    Bundle.open(bundle[0]).verify()


# an existing bundle


@pytest.fixture
def grown(bundle, tmp_path):
    shutil.copytree(bundle[0], tmp_path / "bundle")
    return tmp_path / "bundle"


def test_a_task_joins_a_bundle_whose_trunk_it_shares(grown):
    before = Session(grown, deterministic=True)
    bits = {t: [o.tobytes() for o in before.outputs(t, TEXTS[:8])] for t in FROZEN}
    folder = checkpoints.trained("mood", frozen=3, seed=9)
    outcome = import_folders(wanted(folder, names={str(folder): "more"}), grown, TEXTS)
    assert (outcome.is_new, outcome.tasks[0].tap) == (False, 3)
    assert set(outcome.certificate.before) == set(FROZEN)
    after = Session(grown, deterministic=True)
    assert {t: [o.tobytes() for o in after.outputs(t, TEXTS[:8])] for t in FROZEN} == bits
    theirs = logits_of(folder, TEXTS[:8])
    for answer, (logits, _) in zip(answers(after, "more", TEXTS[:8]), theirs, strict=True):
        np.testing.assert_allclose(list(answer["scores"].values()), softmax(logits), atol=1e-5)


def test_a_name_that_is_taken_is_refused(grown):
    folder = checkpoints.trained("mood", frozen=3, seed=9)
    with pytest.raises(BadName, match="--name"):
        import_folders(wanted(folder, names={str(folder): "Mood"}), grown, TEXTS)


def test_another_base_or_length_than_the_bundles_is_refused(grown):
    folder = checkpoints.trained("mood", frozen=3, seed=9)
    for fields, error in (({"base": str(checkpoints.base(seed=5))}, WrongTrunk), ({"max_tokens": 20}, ConfigError)):
        with pytest.raises(error):
            import_folders(wanted(folder, **fields), grown, TEXTS)
    outcome = import_folders(wanted(folder, base=str(checkpoints.base())), grown, TEXTS)
    assert outcome.tasks[0].tap == 3


# refused


def nothing_written(out):
    return not out.exists() and not list(out.parent.glob(".importing-*"))


def refused(out, *folders, texts=TEXTS, error=PolyheadError, match, **fields):
    with pytest.raises(error, match=match):
        import_folders(wanted(*folders, **fields), out, texts)
    assert nothing_written(out)


def edited(folder, to, edit):
    shutil.copytree(folder, to)
    arrays = load_file(to / "model.safetensors")
    edit(arrays)
    save_file(arrays, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_a_folder_whose_embeddings_were_trained_is_refused_with_both_named(tmp_path):
    stranger = checkpoints.trained("mood", frozen=2, embeddings=True, name="own-embeddings")
    for fields in ({}, {"base": str(checkpoints.base())}):
        refused(
            tmp_path / "b",
            checkpoints.trained("mood"),
            stranger,
            error=TrunkError,
            match="(Bert-mood|Bert-base).*own-embeddings share nothing",
            **fields,
        )


def test_another_tokenizer_is_refused(tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(checkpoints.trained("mood", frozen=3), folder)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
    refused(tmp_path / "b", checkpoints.trained("mood"), folder, match="tokenizer")


def test_a_regression_without_a_range_is_told_to_give_one(tmp_path):
    refused(tmp_path / "b", checkpoints.trained("score", frozen=4), error=ConfigError, match="--range 0 5")


def test_labels_that_are_no_bio_scheme_say_what_to_do(tmp_path):
    folder = tmp_path / "names"
    shutil.copytree(checkpoints.trained("names", frozen=3), folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "O", "1": "I-PER", "2": "I-LOC", "3": "B-ORG"}
    (folder / "config.json").write_text(json.dumps(config))
    refused(tmp_path / "b", folder, error=ConfigError, match="names.*id2label.*B-x for every I-x")


def test_plain_labels_of_words_are_imported(tmp_path):
    folder = tmp_path / "speech"
    shutil.copytree(checkpoints.trained("names", frozen=3), folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "noun", "1": "verb", "2": "other", "3": "name"}
    (folder / "config.json").write_text(json.dumps(config))
    import_folders(wanted(folder), tmp_path / "b", TEXTS)
    assert answers(Session(tmp_path / "b"), "speech")[0]["words"][0]["label"] in config["id2label"].values()


def test_two_labels_of_one_name_are_refused(tmp_path):
    folder = tmp_path / "mood"
    shutil.copytree(checkpoints.trained("mood"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"]["2"] = config["id2label"]["0"]
    (folder / "config.json").write_text(json.dumps(config))
    refused(tmp_path / "b", folder, error=ConfigError, match=f"{folder}.*twice.*id2label")


def test_a_token_classifier_of_pairs_is_refused(tmp_path):
    refused(tmp_path / "b", checkpoints.trained("names", frozen=3), texts=PAIRS, pair="joined", match="one text")


@pytest.mark.parametrize(
    ("texts", "pair", "words"),
    [
        (TEXTS[:15], "none", "too few.*15.*16 or more"),
        ([], "none", "too few"),
        (PAIRS, "none", "Got: a pair"),
        (TEXTS, "joined", "Got: one text"),
        ([*TEXTS, ("",)], "none", "blank"),
    ],
)
def test_texts_that_prove_nothing_are_refused(tmp_path, texts, pair, words):
    folder = checkpoints.trained("mood")
    refused(tmp_path / "b", folder, texts=texts, pair=pair, error=ConfigError, match=words)


def test_two_folders_of_one_name_are_refused_until_one_is_named(tmp_path):
    first, second = tmp_path / "a" / "model", tmp_path / "b" / "model"
    shutil.copytree(checkpoints.trained("mood"), first)
    shutil.copytree(checkpoints.trained("names", frozen=3), second)
    refused(tmp_path / "out", first, second, error=BadName, match=f"--name {second}=")
    import_folders(wanted(first, second, names={str(second): "names"}), tmp_path / "out", TEXTS)
    assert set(Bundle.open(tmp_path / "out").tasks) == {"model", "names"}


def test_a_name_for_a_folder_that_is_not_imported_is_refused(tmp_path):
    refused(tmp_path / "b", checkpoints.trained("mood"), names={"else": "x"}, match="else")


def test_a_place_that_holds_something_else_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "kept").write_text("x")
    with pytest.raises(BundleError, match="is not empty"):
        import_folders(wanted("absent"), tmp_path, TEXTS)
    assert (tmp_path / "kept").read_text() == "x"


@pytest.mark.parametrize(
    ("task", "edit"),
    [
        ("mood", lambda arrays: arrays["head.output.bias"].__iadd__(np.float32(1e-3))),
        ("mood", lambda arrays: arrays["layers.3.feed_forward.outer.bias"][:5].__iadd__(np.float32(0.01))),
        ("names", lambda arrays: arrays["head.output.weight"].__imul__(np.float32(1.01))),
        ("score", lambda arrays: arrays["head.output.bias"].__iadd__(np.float32(2e-4))),
    ],
    ids=["bias", "layer", "tagging", "range"],
)
def test_answers_that_are_not_those_of_transformers_are_refused(tmp_path, monkeypatch, task, edit):
    """Arrays that a faulty reader would give: the proof must fail, and nothing may be written."""

    def faulty(*given):
        arrays = {name: array.copy() for name, array in imported.foreign_arrays(*given).items()}
        edit(arrays)
        return arrays

    monkeypatch.setattr(importing, "foreign_arrays", faulty)
    folders = [checkpoints.trained(task, frozen=2, seed=3), checkpoints.trained("mood", frozen=2, seed=4)]
    refused(
        tmp_path / "b",
        *folders,
        base=str(checkpoints.base()),
        range=(0.0, 5.0) if task == "score" else None,
        error=TrunkError,
        match="would not answer",
    )


def shifted(shift, monkeypatch):
    """A reader that makes a regression's values larger by this."""

    def faulty(model, path):
        arrays = dict(imported.foreign_arrays(model, path))
        low, high = model.task.range
        arrays["head.output.bias"] = arrays["head.output.bias"] + np.float32(shift / (high - low))
        return arrays

    monkeypatch.setattr(importing, "foreign_arrays", faulty)


@pytest.mark.slow
@pytest.mark.parametrize("high", [5.0, 10000.0])
def test_a_wide_range_allows_no_larger_difference(tmp_path, monkeypatch, high):
    """The allowed one follows what the checkpoint answers, not what somebody says that it could."""
    folder = checkpoints.trained("score", frozen=4)
    largest = max(np.abs(logits).max() for logits, _ in logits_of(folder, TEXTS))
    allowed = 1e-4 * max(1, largest)
    assert allowed < 1e-3
    shifted(2 * allowed, monkeypatch)
    refused(tmp_path / "b", folder, range=(0.0, high), error=TrunkError, match="(?s)would not.*--range of the")
    shifted(0.5 * allowed, monkeypatch)
    (one,) = import_folders(wanted(folder, range=(0.0, high)), tmp_path / "b", TEXTS).tasks
    assert one.parity.tolerance == pytest.approx(allowed, rel=1e-5)
    assert one.parity.max_abs_difference == pytest.approx(0.5 * allowed, rel=0.2)


def test_larger_values_may_differ_in_proportion(tmp_path, monkeypatch):
    def enlarge(arrays):
        arrays["classifier.bias"] += 1000

    folder = edited(checkpoints.trained("score", frozen=4), tmp_path / "large", enlarge)
    shifted(0.05, monkeypatch)
    (one,) = import_folders(wanted(folder, range=(0.0, 2000.0)), tmp_path / "b", TEXTS).tasks
    assert 0.04 < one.parity.max_abs_difference < one.parity.tolerance == pytest.approx(0.1, rel=0.01)


def test_outputs_that_overflow_prove_nothing(tmp_path, monkeypatch):
    """The largest that the checkpoint gives is then infinite, and no difference is larger."""

    def spoil(arrays):
        arrays["classifier.weight"][:, 0] = 3e38
        arrays["classifier.bias"][:2] = torch.tensor([3e38, -3e38])

    def faulty(*given):
        arrays = imported.foreign_arrays(*given)
        return arrays | {"head.output.weight": np.zeros_like(arrays["head.output.weight"])}

    monkeypatch.setattr(importing, "foreign_arrays", faulty)
    folder = edited(checkpoints.trained("mood"), tmp_path / "spoilt", spoil)
    refused(tmp_path / "b", folder, error=TrunkError, match="would not answer.*Allowed: inf")


def test_a_failed_import_leaves_an_existing_bundle_as_it_was(grown, monkeypatch):
    before = {p: p.read_bytes() for p in grown.rglob("*") if p.is_file()}
    monkeypatch.setattr(importing, "import_card", lambda *given: "\ud800")  # fails when the second file is written
    with pytest.raises(BundleError):
        import_folders(wanted(checkpoints.trained("mood", frozen=3, seed=9)), grown, TEXTS)
    assert {p: p.read_bytes() for p in grown.rglob("*") if p.is_file()} == before


# Proves once; then forks, for every n, a process that writes the bundle and dies right before its n-th step.
KILLED = """
import os, sys
from pathlib import Path
import torch
import transformers
from support.disk_failures import Kill, exit_code
from polyhead.bundle.read import Bundle
from polyhead.certify.certificate import Ledger
from polyhead.convert import run as importing
from polyhead.convert.task import ImportRequest

torch.set_num_threads(1)
os.fsync = lambda handle: None

# Found now, which imports much: not by both forks.
transformers.AutoModelForSequenceClassification, transformers.BertForSequenceClassification
outs, folders = list(map(Path, sys.argv[1:3])), tuple(sys.argv[3:])
states, commit = [], importing._commit

def state():
    if not (out / "bundle.json").exists():
        return "nothing" if not out.exists() else "a part"
    bundle = Bundle.open(out)
    bundle.verify()
    return f"{len(bundle.tasks)}/{len(Ledger(out).files)}"

def killed(*given, **options):
    before = state()
    for deadly in range(1, 300, 1 + outs.index(out)):
        if os.fork() == 0:
            Kill(deadly, each=1)
            commit(*given, **options)
            os._exit(0)
        code = exit_code()
        states.append(state())
        assert code == 9, code
        if states[-1] != before:
            print(" ".join(states), flush=True)
            os._exit(0)

importing._commit = killed
texts = [(f"order {i} is late",) for i in range(16)]
for out in outs:
    if os.fork() == 0:
        importing.import_folders(ImportRequest(folders=folders), out, texts)
    assert exit_code() == 0
"""


@pytest.mark.slow
def test_an_import_killed_at_any_step_leaves_no_task_or_all_of_them(grown, tmp_path):
    """Into a new bundle, and into one that there is: there at every second step."""
    new = tmp_path / "new" / "out"
    new.parent.mkdir()
    folders = [checkpoints.trained("mood", frozen=2, seed=s) for s in (11, 12, 13)]
    printed = run_forking(KILLED, new, grown, *folders)
    for out, line, states in zip((new, grown), printed.splitlines(), (("nothing", "3/1"), ("4/1", "7/1")), strict=True):
        *before, after = line.split()
        # A new bundle has its certificate from the start; `tasks verify` writes the one that the other has not.
        assert ({*before}, after) == ({states[0]}, states[1])
        assert len(before) >= (20 if out == new else 10)
        found = checked(out)
        assert found.findings == () and found.uncertified != (out == new)
        left = [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
        assert set(left) == {f".importing-{out.name}", *([f".new-{out.name}"] if out == new else [])}
        sweep_bundle(out)  # as every operation with a certificate does
        assert not [path for path in out.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_what_a_killed_proof_left_is_removed_by_the_next_import(tmp_path):
    """It may be hundreds of megabytes: all arrays of all tasks. Another one at work is waited for, and named."""
    folder, left = checkpoints.trained("mood"), tmp_path / ".importing-b"
    claim(left, BUILDING)
    (left / "bundle" / "trunk").mkdir(parents=True)
    (left / "bundle" / "trunk" / "weights.safetensors").write_bytes(bytes(1000))
    with (
        files.held(left / ".lock", patience=0.0, busy=BundleError("x")),
        pytest.raises(BundleError, match="another process has been writing"),
    ):
        import_folders(wanted(folder), tmp_path / "b", TEXTS)
    assert (left / "bundle" / "trunk" / "weights.safetensors").exists()
    import_folders(wanted(folder), tmp_path / "b", TEXTS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_a_bundle_of_another_trunk_is_refused_with_both_named(tmp_path):
    from polyhead.bundle.create import write_bundle

    write_bundle(tmp_path / "b", tiny_trunk())
    with pytest.raises(TrunkError, match=r"the trunk of .*/b and .*Bert-mood.* share nothing"):
        import_folders(wanted(checkpoints.trained("mood")), tmp_path / "b", TEXTS)


def test_lone_surrogates_in_the_texts_are_repaired(tmp_path):
    texts = [*TEXTS[:16], ("half \ud83d a pair",)]
    import_folders(wanted(checkpoints.trained("mood")), tmp_path / "b", texts)
    (name,) = Bundle.open(tmp_path / "b").tasks
    assert Bundle.open(tmp_path / "b").probes(name)[-1]["text"] == ["half \ufffd a pair"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [("runs/cola", "cola"), ("my model (v2)/", "my-model-v2"), ("..a..b", "a.b"), ("/", "task"), ("é", "task")],
)
def test_tasks_are_named_after_their_folder(folder, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert name_of(folder) == name
    assert msgspec.structs.replace(ImportRequest(folders=(folder,))).folders == (folder,)
