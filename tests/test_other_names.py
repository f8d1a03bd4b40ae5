"""Keys, kinds and options by the names that other programs give them: none is accepted, the right one is told."""

import typing

import msgspec
import pytest

from polyhead.errors import ConfigError
from polyhead.project.names import MEANT
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.task import KINDS, Task
from polyhead.values import to_value
from support.cases import cases
from support.commands import run

TABLES = {"": Project, "training": Training, "trunk": TrunkChoice, "tasks": TaskEntry}
WHOLE = {"tasks": [{"name": "mood", "kind": "single_label", "train": "a.csv", "labels": ["x", "y"]}]}


def test_every_name_that_is_told_is_a_key_and_no_name_that_is_refused_is_one():
    assert len(MEANT) >= 20
    for other, meant in MEANT.items():
        table, _, name = meant.rpartition(".")
        assert name in TABLES[table].__struct_fields__, meant
        assert other not in TABLES[table].__struct_fields__, other
        assert other == other.lower() and "-" not in other
    assert {typing.get_type_hints(Project)["trunk"], Training} <= {*TABLES.values()}


@cases(
    "table, key, said",
    [
        ("training", "lr", "write 'learning_rate': learning_rate is meant by lr"),
        ("training", "batch_size", "write 'batch': batch is meant by batch_size"),
        ("training", "epoch", "write 'epochs': epochs is meant by epoch"),
        ("training", "num_train_epochs", "write 'epochs'"),
        ("training", "Random-State", "write 'seed': seed is meant by Random-State"),
        ("training", "max_length", "write 'max_tokens' in the table [trunk]: trunk.max_tokens is meant by max_length"),
        ("trunk", "max_length", "write 'max_tokens': max_tokens is meant by max_length"),
        ("trunk", "model_name", "write 'name': name is meant by model_name"),
        ("", "model_name_or_path", "write 'name' in the table [trunk]"),
        ("", "learning_rate_init", "write 'learning_rate' in the table [training]"),
        ("", "output_dir", "write 'bundle': bundle is meant by output_dir"),
        ("", "label_column", "write 'label' in the table [[tasks]]: tasks.label is meant by label_column"),
        ("trunk", "output_dir", "write 'bundle' at the top level"),
        ("tasks", "model_name", "write 'name' in the table [trunk]"),
        ("tasks", "target", "write 'label': label is meant by target"),
        ("tasks", "dev", "write 'validation': validation is meant by dev"),
        ("tasks", "label_names", "write 'labels'"),
        ("strategy", "dropout_rate", "write 'dropout': dropout is meant by dropout_rate"),
    ],
)
def test_a_key_by_another_name_is_refused_with_the_right_one(table, key, said):
    data = msgspec.to_builtins(WHOLE)
    if table == "tasks":
        data["tasks"][0][key] = "x"
    elif table:
        data[table] = {key: 1} | ({"kind": "branch"} if table == "strategy" else {})
    else:
        data[key] = 1
    with pytest.raises(ConfigError) as error:
        to_value(data, Project, source="polyhead.toml")
    assert f"unknown key '{key}'" in error.value.what and error.value.do is not None
    assert error.value.do.startswith(said), error.value.do


def test_a_mistyped_key_is_still_told_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        to_value({**WHOLE, "training": {"learning_rat": 1}}, Project, source="polyhead.toml")
    with pytest.raises(ConfigError, match="did you mean 'tasks'"):
        to_value({"task": []}, Project, source="polyhead.toml")


@cases(
    "name, kind",
    [
        ("text-classification", "single_label"),
        ("NER", "tagging"),
        ("token classification", "tagging"),
        ("multilabel", "multi_label"),
        ("question-answering", "span"),
    ],
)
def test_a_kind_by_another_name_is_refused_with_the_right_one(name, kind):
    with pytest.raises(ConfigError) as error:
        Task(name="a", kind=name)
    assert f"write '{kind}': {kind} is meant by {name}" in str(error.value) and kind in KINDS
    with pytest.raises(ConfigError, match="did you mean 'regression'"):
        Task(name="a", kind="regresion")


@cases(
    "words, said",
    [
        (["train", "--lr", "0.1"], "It stands in the project file, as 'learning_rate' in [training]."),
        (["train", "--batch-size", "8"], "as 'batch' in [training]"),
        (["train", "--learning-rate", "8"], "as 'learning_rate' in [training]"),
        (["train", "--epochs", "8"], "as 'epochs' in [training]"),
        (["train", "--max-length", "8"], "as 'max_tokens' in [trunk]"),
        (["train", "--random-state", "8"], "--seed is meant by --random-state"),
        (["train", "--output-dir", "8"], "--bundle is meant by --output-dir"),
        (["import", "--max_seq_length", "8"], "--max-tokens is meant by --max_seq_length"),
        (["predict", "--text-column", "8"], "--text is meant by --text-column"),
        (["evaluate", "b", "--label-column", "8"], "--label is meant by --label-column"),
        (["predict", "--tasksss", "8"], "--tasks"),
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["tasks", "lst", "b"], "'list'"),
    ],
)
def test_an_option_by_another_name_is_refused_with_the_right_one(words, said):
    assert said in run(*words).refuses(code=2).err
