"""A folder as `save_pretrained` writes it, a TOML file, and from there to answers, by Python and by the commands."""

import json

import pytest
import torch
import transformers
from click.testing import CliRunner

from polyhead import Session, read_project, train_project
from polyhead.bundle.read import Bundle
from polyhead.testing import PIECES, tiny_tokenizer
from support import tiny_project

PROJECT = """
bundle = "made/bundle"

[trunk]
name = "model"

[strategy]
kind = "pooled"
of = 2
heads = 2
hidden = 8

[training]
seed = 5
epochs = 3
batch = 8
learning_rate = 0.01
precision = "float32"

[[tasks]]
name = "mood"
kind = "single_label"
labels = ["bad", "good"]
label = "mood"
train = "data/messages-train.jsonl"
validation = "data/messages-validation.jsonl"
test = "data/messages-test.jsonl"

[[tasks]]
name = "names"
kind = "tagging"
labels = ["O", "B-product", "B-person"]
tokens = "tokens"
tags = "tags"
train = "data/messages-train.jsonl"
validation = 0.25
test = "data/messages-test.jsonl"

[[tasks]]
name = "alike"
kind = "regression"
range = [0.0, 3.0]
label = "alike"
pair = "separate"
text_b = "text_b"
train = "data/pairs-train.jsonl"
validation = "data/pairs-validation.jsonl"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A project beside its data and a trunk saved by transformers."""
    root = tmp_path_factory.mktemp("e2e")
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(root / "model")
    (root / "model" / "tokenizer.json").write_bytes(tiny_tokenizer())
    tiny_project.write_data(root / "data")
    (root / "polyhead.toml").write_text(PROJECT)
    return root


@pytest.fixture(scope="module")
def outcome(folder):
    return train_project(read_project(folder / "polyhead.toml"), folder=folder)


def command(*arguments, text=None):
    from polyhead.cli.main import commands

    return CliRunner().invoke(commands, list(map(str, arguments)), input=text)


def test_training_from_a_toml_file_makes_a_bundle_of_all_tasks(folder, outcome):
    bundle = Bundle.open(folder / "made" / "bundle")
    bundle.verify()
    assert tuple(bundle.tasks) == ("mood", "names", "alike") == tuple(outcome.trained)
    assert set(outcome.trained["alike"]) == {"validation"}


def test_a_bundle_answers_where_its_trunk_and_data_are_gone(folder, outcome, tmp_path):
    import shutil

    shutil.copytree(folder / "made" / "bundle", tmp_path / "moved")
    for backend in ("torch", "reference"):
        session = Session(tmp_path / "moved", backend=backend)
        text, pair = session.predict(["the lamp is bad", ("good lamp", "bad lamp")])
        assert set(text.answers) == {"mood", "names"} and set(pair.answers) == {"alike"}
        assert text.receipt.passes == 1 and pair.receipt.passes == 2


def test_evaluate_prints_the_scores_that_training_wrote(folder, outcome):
    done = command("evaluate", folder / "polyhead.toml", "--json", folder / "scores.json")
    assert done.exit_code == 0, done.output
    scores = {row["task"]: row for row in rows_of(json.loads((folder / "scores.json").read_text()))}
    for name in ("mood", "names"):
        assert scores[name]["split"] == "test"
        assert scores[name]["scores"] == pytest.approx(outcome.trained[name]["test"], abs=1e-4)
    assert scores["alike"]["split"] == "validation"


def rows_of(value):
    """Every object that names a task, however deep."""
    if isinstance(value, dict) and "task" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from rows_of(item)


def test_predict_streams_one_line_of_json_an_input(folder, outcome):
    lines = [json.dumps({"text": "the lamp is bad"}), json.dumps({"text": "a", "text_b": "b"})]
    done = command("predict", folder / "made" / "bundle", text="\n".join(lines) + "\n")
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    session = Session(folder / "made" / "bundle")
    answer = session.predict(["the lamp is bad"])[0].answers["mood"]
    assert first["answers"]["mood"]["label"] == answer["label"]
    assert set(second["answers"]) == {"alike"} and second["receipt"]["passes"] == 2


def test_training_again_keeps_everything(folder, outcome):
    done = command("train", folder / "polyhead.toml")
    assert done.exit_code == 0, done.output
    assert "nothing to train" in done.output
