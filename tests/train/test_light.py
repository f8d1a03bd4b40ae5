"""Training where torch is missing, and with each library that encodes; linear heads are those of torch's module."""

import importlib

import huggingface_hub
import msgspec
import numpy as np
import pytest

from polyhead.engine.backends import BACKENDS, OpenVINO, encoding_backend, is_installed
from polyhead.errors import MissingExtra
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool
from polyhead.project import weights
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.store.corpus.ids import document_id
from polyhead.store.features import FeatureStore
from polyhead.testing import tiny_trunk
from polyhead.text.hashing import HashedText
from polyhead.train.data import encoder, extract
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import KeptExamples
from polyhead.train.data.source import FeatureRequest
from polyhead.train.heads.inputs import BIAS, WEIGHT, WORDS, head_outputs, scaled, shifted
from polyhead.train.run import train_project
from support import tiny_project
from support.cases import cases
from support.commands import shell
from support.stores import make_store, stored_path

NO_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None"
COLUMNS, WIDTH, LABELS = 64, 8, 3
HEADS = {
    "first": (Pool(), {}),
    "mean": (Pool(layers="mean", of=2, positions="mean"), {}),
    "beside": (Pool(layers="beside", of=2, positions="mean", codec=Codec(name="float32", before_mean=True)), {}),
    "pair": (Pool(positions="mean"), {"separate": True}),
    "text and words": (Pool(positions="mean"), {"words": COLUMNS}),
    "tokens": (Pool(positions="tokens"), {}),
    "window": (Pool(positions="tokens"), {"window": 1}),
    "window and words": (Pool(positions="tokens"), {"window": 1, "words": COLUMNS}),
}


def kept_features(folder, rng, lengths, layers):
    store = FeatureStore.open(folder, digest="a" * 64, layers=layers, width=WIDTH, codec=Codec(name="float32"))
    keys = [document_id((str(i),)) for i in range(len(lengths))]
    store.append(keys, [rng.normal(size=(n, layers, WIDTH)).astype(np.float32) for n in lengths])
    return store.features(keys)


def hashed(rng, count):
    rows = [np.unique(rng.integers(0, COLUMNS, size)).astype(np.int32) for size in rng.integers(0, 6, count)]
    return [HashedText(row, rng.normal(size=len(row)).astype(np.float32)) for row in rows]


def head_of(name, folder, rng):
    """A path, arrays of its part, and examples over kept features."""
    pool, facts = HEADS[name]
    per_word = pool.positions == "tokens"
    head = Head(kind="tagging" if per_word else "single_label", width=LABELS, part="task:t", **facts)
    path = Path(nodes=(Embed(trunk="t"), Layers(start=0, stop=2), pool, head))
    lengths = [3, 1, 5, 2] if per_word else [1] * 5
    layers = 2 if pool.layers == "beside" else 1
    inputs = WIDTH * (4 if facts.get("separate") else layers * (2 * facts.get("window", 0) + 1))
    arrays = {WEIGHT: rng.normal(size=(LABELS, inputs)), BIAS: rng.normal(size=LABELS)}
    if facts.get("words"):
        arrays[WORDS] = rng.normal(size=(COLUMNS, LABELS))
    targets = [np.zeros(n if per_word else (), np.int64) for n in lengths]
    examples = KeptExamples(
        kept_features(folder / "first", rng, lengths, layers),
        targets,
        second=kept_features(folder / "second", rng, lengths, layers) if facts.get("separate") else None,
        hashed=[hashed(rng, n) for n in lengths] if facts.get("words") else None,
    )
    return path, {key: value.astype(np.float32) for key, value in arrays.items()}, examples


@pytest.mark.parametrize("name", HEADS)
def test_outputs_of_a_linear_head_are_those_of_torchs_module(name, tmp_path):
    torch = pytest.importorskip("torch")
    from polyhead.deep.heads.stepped import part_outputs

    path, arrays, examples = head_of(name, tmp_path, np.random.default_rng(3))
    found = head_outputs(path, arrays, examples, WIDTH)
    expected = part_outputs(path, arrays, examples, WIDTH)
    assert len(found) == len(expected) > 3 and torch is not None
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["text and words", "window"])
def test_a_scale_and_an_offset_are_those_of_the_outputs(name, tmp_path):
    rng = np.random.default_rng(4)
    path, arrays, examples = head_of(name, tmp_path, rng)
    offset = rng.normal(size=LABELS)
    plain = head_outputs(path, arrays, examples, WIDTH)
    changed = head_outputs(path, scaled(shifted(arrays, offset), 1.7), examples, WIDTH)
    for one, other in zip(changed, plain, strict=True):
        np.testing.assert_allclose(one, 1.7 * (other + offset), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "torch"])
def test_every_library_that_encodes_keeps_the_references_features(name, tmp_path, monkeypatch):
    if not is_installed(BACKENDS[name].package):
        pytest.skip(f"{name} is not installed")
    data, texts = tiny_trunk(), [(row["text"],) for row in tiny_project.messages(20, seed=3)]
    nodes = (Embed(trunk=data.digest), Layers(start=0, stop=2))
    pools = (Pool(layers="mean", of=2, positions="mean"), Pool(positions="all"), Pool(layers="all", positions="mean"))
    kept = {}
    for each in (name, "reference"):
        monkeypatch.setattr(extract, "encoding_backend", lambda precision, each=each: each)
        source = Extractor(data, folder=tmp_path / each, precision="float32")
        wanted = [FeatureRequest(path=Path(nodes=(*nodes, pool)), inputs=texts) for pool in pools]
        assert source.fill(wanted).passes == len(texts)
        rows = np.arange(len(texts))
        kept[each] = [source.store(one.path).features(one.keys()).take(rows).values for one in wanted]
    for one, other in zip(kept[name], kept["reference"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@cases(
    ("default", "has", "precision", "expected"),
    [
        ("openvino", True, None, "openvino"),
        ("openvino", True, "bfloat16", "openvino"),
        ("openvino", False, "bfloat16", "torch"),
        ("openvino", False, "float32", "openvino"),
        ("onnxruntime", True, "bfloat16", "torch"),
        ("onnxruntime", True, None, "onnxruntime"),
    ],
)
def test_texts_are_encoded_by_the_backend_that_answers_unless_it_lacks_the_precision(
    default, has, precision, expected, monkeypatch
):
    monkeypatch.setattr("polyhead.engine.backends.default_backend", lambda: default)
    monkeypatch.setattr("polyhead.engine.backends.is_installed", lambda package: True)
    monkeypatch.setattr(OpenVINO, "has_bfloat16", has)
    assert encoding_backend(precision) == expected


def test_the_label_of_numerics_names_what_encoded(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(encoder, "encoding_backend", lambda precision=None: "onnxruntime")
    assert encoder.encoding_precision(Training()) == "float32"
    assert encoder.encoding_numerics("float32")["backend"] == "onnxruntime"


@cases(("first", "later"), [("float32", True), ("bfloat16", False)])
def test_a_later_task_is_trained_in_the_precision_of_the_bundle(first, later, tmp_path, monkeypatch):
    """Else a package installed between them would leave a bundle whose tasks no one pass answers."""
    pytest.importorskip("torch")  # which computes bfloat16 on every processor
    kind = type(BACKENDS[encoding_backend()])
    training = msgspec.structs.replace(tiny_project.TRAINING, precision=first, effort="quick")
    monkeypatch.setattr(kind, "has_bfloat16", first == "bfloat16")
    monkeypatch.setattr(extract, "encoding_backend", lambda precision=None: "torch")
    train_project(tiny_project.project(tmp_path, "mood", strategy=Pooled(), training=training), folder=tmp_path)
    monkeypatch.setattr(kind, "has_bfloat16", later)
    monkeypatch.setattr(type(BACKENDS["torch"]), "has_bfloat16", True)
    assert encoder.encoding_precision(Training()) == ("bfloat16" if later else "float32")
    assert encoder.encoding_precision(Training(), tmp_path / "bundle") == first
    assert encoder.encoding_precision(Training(precision="float32"), tmp_path / "bundle") == "float32"


def test_tasks_are_trained_and_answered_where_torch_is_missing(tmp_path):
    project = tiny_project.project(tmp_path, "mood", "topics", "urgency", "names", "same", strategy=Pooled())
    (tmp_path / "polyhead.toml").write_text(tiny_project.to_toml(project))
    done = shell(["train", tmp_path / "polyhead.toml"], before=NO_TORCH)
    assert done.code == 0, done.err
    assert "is not tried without torch: pip install 'polyhead[train]'" in done.err + done.out
    answered = shell(["predict", tmp_path / "bundle"], stdin="the lamp is broken", before=NO_TORCH)
    assert answered.code == 0, answered.err
    assert set(answered.rows[0]["answers"]) == {"mood", "topics", "urgency", "names"}


def test_what_needs_torch_says_so_before_anything_is_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr("polyhead.train.candidates.is_installed", lambda package: False)
    monkeypatch.setattr(Extractor, "fill", lambda *given, **named: pytest.fail("texts were encoded"))
    strategy = msgspec.structs.replace(tiny_project.STRATEGY, positions="attention")
    project = tiny_project.project(tmp_path, "mood", strategy=strategy)
    with pytest.raises(MissingExtra, match=r"polyhead\[train\]"):
        train_project(project, folder=tmp_path)


def test_heads_of_one_corpus_are_alike_whichever_library_encodes(tmp_path, monkeypatch):
    """Scores of a whole training, by the default backend and by torch."""
    pytest.importorskip("torch")
    scores = {}
    for name in (encoding_backend(), "torch"):
        for module in (encoder, extract):
            monkeypatch.setattr(module, "encoding_backend", lambda precision=None, name=name: name)
        training = msgspec.structs.replace(tiny_project.TRAINING, precision="float32", effort="quick")
        project = tiny_project.project(tmp_path / name, "mood", strategy=Pooled(), training=training)
        scores[name] = train_project(project, folder=tmp_path / name).trained["mood"]
    first, second = scores.values()
    assert first["validation"]["accuracy"] == pytest.approx(second["validation"]["accuracy"], abs=0.05)


def test_the_loader_of_encoders_needs_no_torch(tmp_path):
    folder = tiny_project.write_trunk(tmp_path / "trunk")
    expected = load_trunk(str(folder)).digest
    code = f"{NO_TORCH}; from polyhead import load_trunk; assert load_trunk({str(folder)!r}).digest == {expected!r}"
    done = shell(["--version"], before=code)
    assert done.code == 0, done.err


def test_a_strategy_or_recipe_that_needs_torch_names_itself(tmp_path):
    branch = tiny_project.project(tmp_path, "mood", strategy=Branch(layers=1))
    joint = msgspec.structs.replace(tiny_project.project(tmp_path, "mood", strategy=Pooled()), recipe=Joint())
    for project, named in ((branch, "the strategy of task 'mood'"), (joint, "recipe 'joint'")):
        (tmp_path / "polyhead.toml").write_text(tiny_project.to_toml(project))
        done = shell(["train", tmp_path / "polyhead.toml"], before=NO_TORCH)
        done.refuses(f"{named} needs the package 'torch'", "pip install 'polyhead[train]'")


def test_a_trained_branch_needs_no_torch_to_stay(tmp_path):
    """Training stopped for want of torch, though nothing was to be learned with it."""
    pytest.importorskip("torch")
    branch = tiny_project.project(tmp_path, "mood", strategy=Branch(layers=1))
    train_project(branch, folder=tmp_path)
    training = msgspec.structs.replace(tiny_project.TRAINING, effort="quick")
    (urgency,) = tiny_project.project(tmp_path, "urgency", strategy=Pooled(), training=training).tasks
    more = msgspec.structs.replace(branch, tasks=(*branch.tasks, msgspec.structs.replace(urgency, strategy=Pooled())))
    for project, summary in ((branch, "0 trained, 1 kept"), (more, "1 trained, 1 kept")):
        (tmp_path / "polyhead.toml").write_text(tiny_project.to_toml(project))
        done = shell(["train", tmp_path / "polyhead.toml"], before=NO_TORCH)
        assert done.code == 0 and summary in done.out + done.err, done.err


def test_a_precision_that_torch_alone_has_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(extract, "encoding_backend", lambda precision: "onnxruntime")
    training = msgspec.structs.replace(tiny_project.TRAINING, precision="bfloat16", effort="quick")
    project = tiny_project.project(tmp_path, "mood", strategy=Pooled(), training=training)
    with pytest.raises(MissingExtra, match=r"in bfloat16 on this machine needs the package 'torch'.*'auto'"):
        train_project(project, folder=tmp_path)


def test_a_store_that_a_head_with_torch_alone_reads_says_so(tmp_path, monkeypatch):
    """Every layer of every token: no linear head of a text reads it."""
    project = tiny_project.project(tmp_path, "mood", strategy=Pooled(layers="learned"))
    trunk = load_trunk(str(tmp_path / "trunk"))
    make_store(str(tmp_path / "store"), [("a text",)], stored_path(trunk, layers="all", of=1), trunk=trunk)
    monkeypatch.setattr("polyhead.train.candidates.is_installed", lambda package: False)
    with pytest.raises(MissingExtra, match=r"'attention', which alone reads what the store keeps.*--tasks"):
        train_project(project, folder=tmp_path, features=tmp_path / "store")


def test_weights_that_torch_pickled_are_not_downloaded_without_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, allow_patterns: asked.append(allow_patterns) or str(tmp_path)
    )
    monkeypatch.setattr(weights, "resolve_name", lambda name: importlib.import_module("no_such_package"))
    with pytest.raises(MissingExtra, match=r"has no model.safetensors.*polyhead\[train\]"):
        load_trunk("someone/encoder")
    assert len(asked) == 1 and "pytorch_model.bin" not in asked[0]
