"""Folders of `transformers`, read: heads, labels, kinds, and everything that is refused, by name."""

import json
import shutil

import numpy as np
import pytest
import torch

from support.tiers import first_of

pytest.importorskip("transformers")

from polyhead.convert.hugging_face import classifiers, read_base, read_encoder, read_head, weights_digests
from polyhead.deep.nn.heads import OutputHead
from polyhead.errors import TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.project.pretrained import load_trunk
from support import checkpoints

SEQUENCE = {
    "Bert": ("tanh", 32),
    "Roberta": ("tanh", 32),
    "XLMRoberta": ("tanh", 32),
    "Camembert": ("tanh", 32),
    "Electra": ("gelu", 32),
    "DistilBert": ("relu", 32),
    "MPNet": ("tanh", 32),
    "DebertaV2": ("gelu", 32),
    "Gte": ("tanh", 32),
    "NomicBert": ("tanh", 32),
    "ModernBert": ("gelu", 32),
    "EuroBert": ("gelu", 32),
}
TOKENS = {"ModernBert": 32}  # hidden outputs of token classifiers; 0 elsewhere


def head_of(found):
    """Our head with these arrays."""
    norm = None if found.form.norm is None else found.form.epsilon
    head = OutputHead(32, found.outputs, hidden=found.hidden, activation=found.form.activation, norm=norm)
    head.load_state_dict({n.removeprefix("head."): torch.from_numpy(a) for n, a in found.arrays.items()})
    return head


def opened(folder):
    """The checkpoint as `transformers` opens it."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()


@pytest.fixture
def copied(tmp_path):
    """A copy of a checkpoint to damage; `config` changes its config.json, None removes a key."""

    def copy(task="mood", *, family="Bert", **config):
        folder = tmp_path / "model"
        shutil.copytree(checkpoints.trained(task, family=family), folder)
        found = json.loads((folder / "config.json").read_text()) | config
        found = {key: value for key, value in found.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(found))
        return folder

    return copy


@pytest.fixture
def change(copied):
    """A copy whose arrays went through a function, in torch's own format or another writer's."""

    def make(edit, *, write=None, **asked):
        folder = copied(**asked)
        arrays = edit(opened(folder).state_dict())
        (folder / "model.safetensors").unlink()
        (write or (lambda arrays, folder: torch.save(arrays, folder / "pytorch_model.bin")))(arrays, folder)
        return folder

    return make


@pytest.mark.parametrize("family", first_of(SEQUENCE))
def test_sequence_head_gives_the_logits_of_transformers(family):
    """Our head on the encoder output that `transformers` computes, for every family."""
    folder = checkpoints.trained("mood", family=family)
    found, model = read_head(folder), opened(folder)
    assert (found.kind, found.labels) == ("single_label", checkpoints.LABELS["mood"])
    assert (found.form.activation, found.hidden, found.outputs) == (*SEQUENCE[family], 3)
    assert (found.form.norm is not None) == (family == "ModernBert")
    tokenizer = checkpoints.FAMILIES[family][0]()
    given = checkpoints.inputs_of(model, tokenizer(checkpoints.TEXTS, padding=True, return_tensors="pt"))
    with torch.inference_mode():
        states = model.base_model(**given).last_hidden_state
        logits = model(**given).logits
        mask = given["attention_mask"][..., None]
        pooled = (states * mask).sum(1) / mask.sum(1) if found.form.positions == "mean" else states[:, 0]
        torch.testing.assert_close(head_of(found)(pooled), logits, atol=1e-5, rtol=0)
    assert logits.std() > 0.1


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_token_head_gives_the_logits_of_transformers(family):
    folder = checkpoints.trained("names", family=family, frozen=3)
    found, model = read_head(folder), opened(folder)
    assert (found.kind, found.labels, found.hidden) == ("tagging", checkpoints.LABELS["names"], TOKENS.get(family, 0))
    given = checkpoints.inputs_of(
        model, checkpoints.FAMILIES[family][0]()(checkpoints.TEXTS, padding=True, return_tensors="pt")
    )
    with torch.inference_mode():
        ours = head_of(found)(model.base_model(**given).last_hidden_state)
        torch.testing.assert_close(ours, model(**given).logits, atol=1e-5, rtol=0)


def test_every_class_that_is_read_was_tried():
    tried = {f"{f}ForSequenceClassification" for f in SEQUENCE}
    tried |= {f"{f}ForTokenClassification" for f in checkpoints.FAMILIES}
    asked = {f"{f}For{form}" for f in checkpoints.ASKED for form in ("QuestionAnswering", "MultipleChoice")}
    assert set(classifiers()) == tried | asked  # the last: tests/train/test_importing_questions.py


def test_ends_of_the_path_read_the_first_position_or_each_word():
    pool, head = read_head(checkpoints.trained("mood", family="Electra")).ends("task:x")
    assert (pool.positions, pool.codec.name, head.activation, head.part) == ("first", "float32", "gelu", "task:x")
    pool, head = read_head(checkpoints.trained("names", frozen=3)).ends("task:x")
    assert (pool.positions, head.hidden, head.kind, head.width) == ("tokens", 0, "tagging", 4)


@pytest.mark.parametrize(
    ("task", "kind", "labels"), [("topics", "multi_label", checkpoints.LABELS["topics"]), ("score", "regression", ())]
)
def test_problem_type_decides_the_kind(task, kind, labels):
    found = read_head(checkpoints.trained(task))
    assert (found.kind, found.labels) == (kind, labels)


def test_one_output_is_a_regression_where_nothing_is_said(copied):
    assert read_head(copied("score", problem_type=None)).kind == "regression"


def test_several_outputs_are_one_label_where_nothing_is_said(copied):
    assert read_head(copied("topics", problem_type=None)).kind == "single_label"


def test_labels_stand_in_the_order_of_their_numbers(copied):
    """Ten labels and more sort wrongly as text; here their order in the file is turned too."""
    folder = copied(id2label={"2": "c", "0": "a", "1": "b"})
    assert read_head(folder).labels == ("a", "b", "c")


def test_labels_that_are_numbers_become_text(copied):
    assert read_head(copied(id2label={"0": 10, "1": 20, "2": 30})).labels == ("10", "20", "30")


def test_labels_that_are_not_named_are_those_of_transformers(copied):
    assert read_head(copied(id2label=None, num_labels=3)).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_the_encoder_is_the_one_that_load_trunk_reads_under_the_given_name(monkeypatch):
    folder = checkpoints.trained("mood")
    monkeypatch.chdir(folder.parent)
    found = read_encoder(folder.name)
    assert found.name == folder.name
    assert found.digest == load_trunk(str(folder)).digest


def test_a_folder_called_minilm_is_read_as_the_folder(tmp_path, monkeypatch):
    shutil.copytree(checkpoints.trained("mood"), tmp_path / "minilm")
    monkeypatch.chdir(tmp_path)
    assert read_encoder("minilm").architecture.width == 32


def sharded(arrays, folder):
    from safetensors.torch import save_file

    names = sorted(arrays)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, inside in parts.items():
        save_file({name: arrays[name].contiguous() for name in inside}, folder / file)
    index = {name: file for file, inside in parts.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


@pytest.mark.parametrize("write", [None, sharded], ids=["pytorch_model.bin", "shards"])
def test_other_files_hold_the_same_head_and_encoder(change, write):
    folder = change(lambda arrays: arrays, write=write)
    whole = checkpoints.trained("mood")
    found, expected = read_head(folder).arrays, read_head(whole).arrays
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert read_encoder(folder).digest == read_encoder(whole).digest
    assert set(weights_digests(folder)) == (
        {"model-1.safetensors", "model-2.safetensors"} if write else {"pytorch_model.bin"}
    )


def test_digest_of_the_weights_is_that_of_the_file():
    import hashlib

    folder = checkpoints.trained("mood")
    raw = (folder / "model.safetensors").read_bytes()
    assert weights_digests(folder) == {"model.safetensors": hashlib.sha256(raw).hexdigest()}


REFUSED = {
    "another class": ({"architectures": ["BertForMaskedLM"]}, TrunkError, "BertForMaskedLM"),
    "no class": ({"architectures": None}, TrunkError, "architectures"),
    "an encoder alone": ({"architectures": ["BertModel"]}, TrunkError, "BertForSequenceClassification"),
    "a class of another type": ({"architectures": ["RobertaForSequenceClassification"]}, TrunkError, "roberta"),
    "another problem": ({"problem_type": "ranking"}, TrunkError, "ranking"),
    "several numbers": ({"problem_type": "regression"}, TrunkError, "number of outputs.*several models"),
    "one label": ({"id2label": {"0": "a"}, "problem_type": "single_label_classification"}, TrunkError, "'regression'"),
    "a gap in the labels": ({"id2label": {"0": "a", "1": "b", "3": "c"}}, TrunkError, "numbered from 0"),
    "too few labels": ({"id2label": {"0": "a", "1": "b"}}, WeightsMismatch, "2 labels.*3 outputs"),
    "no labels, so two": ({"id2label": None}, WeightsMismatch, "2 labels.*3 outputs"),
    "many labels": ({"id2label": None, "num_labels": 10**12}, WeightsMismatch, "3 outputs"),
    "labels that are lists": ({"id2label": {"0": ["a"]}}, TrunkError, "id2label"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_folder_named(copied, case):
    config, error, words = REFUSED[case]
    folder = copied(**config)
    with pytest.raises(error, match=words) as raised:
        read_head(folder)
    assert str(folder) in str(raised.value)
    assert raised.value.do or raised.value.allowed


def test_a_classifier_of_another_width_is_refused(change):
    folder = change(lambda a: a | {"classifier.weight": torch.zeros(3, 31)})
    with pytest.raises(WeightsMismatch, match=f"{folder}.*another shape"):
        read_head(folder)


@pytest.mark.parametrize("name", ["classifier.weight", "bert.pooler.dense.bias"])
def test_a_missing_array_of_the_head_is_named(change, name):
    folder = change(lambda a: {k: v for k, v in a.items() if k != name})
    with pytest.raises(WeightsMismatch, match=f"{folder}.*{name}"):
        read_head(folder)


def test_numbers_that_are_not_finite_are_refused(change):
    folder = change(lambda a: a | {"classifier.bias": torch.tensor([0.0, float("nan"), 1.0])})
    with pytest.raises(WeightsMismatch, match=r"classifier\.bias"):
        read_head(folder)


def test_folders_that_are_none_are_named(tmp_path):
    for read in (read_encoder, read_head):
        with pytest.raises(TrunkNotFound, match="absent"):
            read(tmp_path / "absent")
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(TrunkNotFound, match=r"empty.*config\.json|config\.json.*empty"):
            read(tmp_path / "empty")


def test_a_config_that_is_no_json_is_named(copied):
    folder = copied()
    (folder / "config.json").write_bytes(b"\xff{")
    for read in (read_encoder, read_head, lambda folder: read_base(str(folder))):
        with pytest.raises(TrunkError, match=str(folder)):
            read(folder)


class Harmful:
    def __reduce__(self):
        return (print, ("run",))


def test_a_pickle_with_code_is_refused_and_not_run(copied, capsys):
    folder = copied()
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.bias": Harmful()}, folder / "pytorch_model.bin")
    for read in (read_encoder, read_head):
        with pytest.raises(WeightsMismatch, match=str(folder)):
            read(folder)
    assert "run" not in capsys.readouterr().out
