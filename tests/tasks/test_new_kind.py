"""A kind of one's own is one file outside the package: declared, trained, bundled, served and scored."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import polyhead
from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, UnknownLabel
from polyhead.project.tables import read_project
from polyhead.tasks.kinds import KINDS, register_kind
from polyhead.tasks.task import Example, Task
from polyhead.train.run import train_project
from support import tiny_project
from support.commands import run

with KINDS.temporary():
    from one_file.kind import Ordinal

FOLDER = Path(__file__).parents[1] / "one_file"
LEVELS = ("none", "one", "more")
PROJECT = f"""
bundle = "bundle"

[trunk]
name = "trunk"

[strategy]
kind = "pooled"
of = 2
hidden = 8
codec = "float32"

[training]
seed = 1
epochs = 6
batch = 8
learning_rate = 5e-3
precision = "float32"

[[tasks]]
name = "topics"
kind = "ordinal"
labels = {json.dumps(LEVELS)}
train = "train.jsonl"
validation = 0.25
test = "test.jsonl"
label = "level"

[[tasks]]
name = "mood"
kind = "single_label"
labels = ["bad", "good"]
train = "train.jsonl"
validation = 0.25
label = "mood"
"""


@pytest.fixture(scope="module")
def kind():
    """The kind of the one file, known as long as these tests run."""
    with KINDS.temporary():
        register_kind(Ordinal())
        yield KINDS["ordinal"]


@pytest.fixture(scope="module")
def home(kind, tmp_path_factory):
    """A folder with a project of this kind and another, and its bundle."""
    folder = tmp_path_factory.mktemp("home")
    tiny_project.write_trunk(folder / "trunk")
    rows = [row | {"level": LEVELS[min(len(row["topics"]), 2)]} for row in tiny_project.messages(64)]
    tiny_project.write_jsonl(folder / "train.jsonl", rows[:48])
    tiny_project.write_jsonl(folder / "test.jsonl", rows[48:])
    (folder / "polyhead.toml").write_text(PROJECT)
    outcome = train_project(read_project(folder / "polyhead.toml"), folder=folder)
    return folder, outcome, rows[48:]


def test_one_file_was_written_and_the_package_knows_nothing_of_it():
    assert (FOLDER / "kind.py").is_file()
    sources = list(Path(polyhead.__file__).parent.rglob("*.py"))
    assert len(sources) > 100
    assert not [path for path in sources if re.search(r"\bordinal\b", path.read_text(), re.IGNORECASE)]


@pytest.mark.slow
def test_it_is_trained_and_bundled_beside_other_kinds(home):
    folder, outcome, _ = home
    scores = outcome.trained["topics"]
    assert list(scores["test"]) == ["closeness", "exact"]
    assert 0.5 < scores["test"]["closeness"] <= 1
    bundle = Bundle.open(folder / "bundle")
    assert bundle.tasks["topics"].task == Task(name="topics", kind="ordinal", labels=LEVELS)
    assert set(bundle.tasks) == {"topics", "mood"} and set(outcome.trained["mood"]["validation"]) >= {"accuracy"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "onnxruntime", "openvino"])
def test_it_is_served(home, backend):
    """Answers are those of the file's own words: the label nearest to the mean place, by the softmax of outputs."""
    folder, _, rows = home
    if backend != "reference":
        pytest.importorskip(backend)
    session, texts = Session(folder / "bundle", backend=backend), [(row["text"],) for row in rows]
    outputs = np.stack(session.outputs("topics", texts)).astype(np.float64)
    shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    wanted = [LEVELS[round(float(place))] for place in shares @ np.arange(3)]
    answers = [result.answers["topics"] for result in session.predict([row["text"] for row in rows])]
    assert [answer["level"] for answer in answers] == wanted and len(set(wanted)) > 1
    for answer, row in zip(answers, shares, strict=True):
        assert list(answer["scores"]) == list(LEVELS)
        np.testing.assert_allclose(list(answer["scores"].values()), row, atol=1e-6)
    np.testing.assert_allclose(outputs, _reference(folder, texts), atol=2e-2 * np.abs(outputs).max())


def _reference(folder, texts):
    return np.stack(Session(folder / "bundle", backend="reference").outputs("topics", texts))


def test_it_is_scored_into_a_file(home, tmp_path):
    folder, _, rows = home
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text",), *((row["text"],) for row in rows)])
    options = ("--backend", "reference", "--scores")
    done = run("score", folder / "bundle", tmp_path / "in.csv", tmp_path / "out.csv", *options)
    assert done.code == 0, done.err
    with (tmp_path / "out.csv").open(newline="") as file:
        scored = list(csv.DictReader(file))
    session = Session(folder / "bundle", backend="reference")
    answers = [result.answers["topics"] for result in session.predict([row["text"] for row in rows])]
    assert [row["topics"] for row in scored] == [answer["level"] for answer in answers]
    for row, answer in zip(scored, answers, strict=True):
        found = json.loads(row["topics.scores"])
        assert found == pytest.approx(answer["scores"], abs=1e-6)


def test_it_is_checked_as_other_kinds_are(kind):
    with pytest.raises(ConfigError, match="has no use for 'threshold'"):
        Task(name="t", kind="ordinal", labels=LEVELS, threshold=0.4)
    with pytest.raises(ConfigError, match="no metric 'accuracy' for kind 'ordinal'"):
        Task(name="t", kind="ordinal", labels=LEVELS, metric="accuracy")
    with pytest.raises(ConfigError, match="needs an ordered list of labels"):
        Task(name="t", kind="ordinal")
    with pytest.raises(UnknownLabel, match="'many'"):
        kind.encode(Task(name="t", kind="ordinal", labels=LEVELS), "many", Example())


def test_its_metrics_by_hand(kind):
    task = Task(name="t", kind="ordinal", labels=LEVELS)
    sure = np.float32(30 * np.eye(3))
    found = kind.evaluate(task, [sure[0], sure[2], sure[1]], [np.array(0), np.array(0), np.array(1)], [Example()] * 3)
    assert found == pytest.approx({"closeness": 2 / 3, "exact": 2 / 3})


def test_a_second_kind_of_its_name_is_refused(kind):
    class Other(type(kind)):
        pass

    with pytest.raises(ConfigError, match="there is a kind 'ordinal' already"):
        register_kind(Other())
    assert KINDS["ordinal"] is kind
