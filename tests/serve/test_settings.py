"""A server's settings; the mapping file of decisions, checked against a bundle and refused with the four facts."""

import pytest

from polyhead.errors import ConfigError
from polyhead.serve.settings import Renamed, ServeSettings, check_served_labels, read_labels
from support.decision_server import TASKS, write_asked

ALL = {task.name: task for task in TASKS}


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "labels.toml").write_text(text)
        return read_labels(tmp_path / "labels.toml")

    return write


def test_file_gives_questions_to_tasks_and_options_to_labels(written):
    read = written('[tone]\ntask = "mood"\n[tone.labels]\nPleased = "good"\n["is it late?"]\ntask = "urgency"\n')
    assert read == {"tone": Renamed(task="mood", labels={"Pleased": "good"}), "is it late?": Renamed(task="urgency")}
    check_served_labels(read, ALL)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tone\n", "not TOML"),
        ("tone = 3\n", "'tone' is no table"),
        ("[tone]\n", "key 'task' is missing"),
        ('[tone]\ntask = "mood"\noptions = {}\n', "unknown key 'options'"),
        ('[tone]\ntask = "mood"\nlabels = { Pleased = 1 }\n', "wrong type"),
    ],
    ids=["toml", "no-table", "no-task", "unknown-key", "no-label"],
)
def test_file_of_another_form_is_refused_by_its_name(written, text, says):
    with pytest.raises(ConfigError, match=says) as error:
        written(text)
    assert "labels.toml" in str(error.value) and error.value.do


def test_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_labels(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("entry", "got", "do"),
    [
        (Renamed(task="moods"), "moods", "did you mean 'mood'"),
        (Renamed(task="names"), "a task of kind 'tagging'", "name one of these"),
        (Renamed(task="same"), "it reads a pair", "name one of these"),
        (Renamed(task="mood", labels={"x": "goood"}), "goood", "did you mean 'good'"),
        (Renamed(task="urgency", labels={"x": "high"}), "high", "name one of its labels"),
    ],
    ids=["task", "kind", "pair", "label", "number"],
)
def test_names_that_the_bundle_does_not_have_are_refused(entry, got, do):
    with pytest.raises(ConfigError) as error:
        check_served_labels({"tone": entry}, ALL)
    assert str(error.value.got).startswith(got) and do in error.value.do and error.value.allowed


def test_server_does_not_start_with_labels_that_the_bundle_does_not_have(tmp_path, capsys):
    from polyhead.cli.main import main

    root = write_asked(tmp_path / "bundle")
    (tmp_path / "labels.toml").write_text('[tone]\ntask = "moods"\n')
    words = ["serve", str(root), "--port", "0", "--backend", "reference", "--labels", str(tmp_path / "labels.toml")]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 1 and "did you mean 'mood'?" in capsys.readouterr().err


def test_changes_over_http_need_workers_that_look_for_them():
    """One of the workers makes a change; the others find it in the folder."""
    with pytest.raises(ConfigError, match="would not see") as error:
        ServeSettings(admin=True, workers=2, watch_seconds=0.0)
    assert "watch-seconds" in error.value.do
    ServeSettings(admin=True, workers=2)
    ServeSettings(admin=True, watch_seconds=0.0)
    ServeSettings(workers=2, watch_seconds=0.0)
