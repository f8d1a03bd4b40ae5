"""The threshold of a task whose rows may have several labels, against the best one by scikit-learn's F1."""

import msgspec
import numpy as np
import pytest
from sklearn.metrics import f1_score

from polyhead.bundle.read import Bundle
from polyhead.data.read import Examples, ReadReport
from polyhead.engine.session import Session
from polyhead.project.recipes import FineTune, Joint, SearchGrid, Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.task import Task
from polyhead.train.heads.selection_rule import THRESHOLDS, with_threshold
from polyhead.train.run import train_project
from support.tiny_project import SEARCHED, TRAINING, write_jsonl, write_trunk

LABELS = ("a", "b", "c")


def drawn(rows, rare, seed=0):
    """Probabilities of rare labels, and labels drawn by them."""
    chance = np.random.default_rng(seed)
    shares = 1 / (1 + np.exp(rare - 1.5 * chance.normal(size=(rows, 3))))
    return shares, (chance.random((rows, 3)) < shares).astype(np.float32)


def examples_of(targets):
    inputs = [(f"text {i}",) for i in range(len(targets))]
    rows = list(range(len(inputs)))
    return Examples(inputs=inputs, targets=list(targets), words=None, rows=rows, report=ReadReport())


@pytest.mark.parametrize(("metric", "average"), [("micro_f1", "micro"), ("macro_f1", "macro")])
def test_the_best_threshold_for_all_labels_is_found(metric, average):
    task = Task(name="t", kind="multi_label", labels=LABELS, metric=metric)
    shares, targets = drawn(2000, rare=2.0)
    outputs = list(np.log(shares / (1 - shares)).astype(np.float32))
    found = with_threshold(task, examples_of(targets), outputs)
    scores = {each: f1_score(targets, shares >= each, average=average, zero_division=0) for each in THRESHOLDS}
    assert scores[found.threshold] == pytest.approx(max(scores.values()))
    assert found.threshold < 0.4
    assert scores[found.threshold] > scores[0.5] + 0.05
    assert msgspec.structs.replace(found, threshold=0.5) == task


def test_it_stays_where_another_is_no_better_than_chance_allows():
    task = Task(name="t", kind="multi_label", labels=LABELS, metric="accuracy")
    shares, targets = drawn(400, rare=0.0)
    outputs = list(np.log(shares / (1 - shares)).astype(np.float32))
    assert with_threshold(task, examples_of(targets), outputs).threshold == 0.5


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One text in four has label `a`, and no word says which: its probability is about a quarter."""
    folder = tmp_path_factory.mktemp("rare")
    write_trunk(folder / "trunk")
    chance, known = np.random.default_rng(0), ("my", "order", "the", "lamp", "is", "late", "today", "please")
    texts = [" ".join(chance.choice(known, 5)) for _ in range(300)]
    write_jsonl(
        folder / "train.jsonl",
        [{"text": text, "label": ["b", "a"][i % 9 == 0 : 1 + (i % 4 == 0)]} for i, text in enumerate(texts)],
    )
    return folder


FINE = FineTune(search=SearchGrid(learning_rates=(1e-3,), epsilons=(1e-8,), dropouts=(0.0,)))
SHORT = msgspec.structs.replace(TRAINING, epochs=1)
WAYS = {
    "pooled": {"strategy": Pooled(words=False), "training": Training(effort="quick")},
    "branch": {"strategy": Branch(layers=1), "training": SHORT},
    "joint": {"recipe": Joint(micro_batches=1), "training": SHORT},
    "fine_tune": {"recipe": FINE, "training": msgspec.structs.replace(SEARCHED, epochs=1)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", [None, 0.5])
def test_training_keeps_it_unless_the_project_gives_one(home, tmp_path, way, given):
    entry = TaskEntry(
        name="t",
        kind="multi_label",
        labels=("a", "b"),
        train="train.jsonl",
        test="train.jsonl",
        validation=0.5,
        metric="macro_f1",
        threshold=given,
    )
    trunk = TrunkChoice(name=str(home / "trunk"))
    project = Project(tasks=(entry,), trunk=trunk, bundle=str(tmp_path / "b"), **WAYS[way])
    train_project(project, folder=home, cache=tmp_path / "cache")
    root = tmp_path / "b" / "t" if way == "fine_tune" else tmp_path / "b"
    bundle = Bundle.open(root)
    kept = bundle.record("t").task.threshold
    assert kept == 0.5 if given else kept < 0.4
    results = Session(bundle, precision="float32").predict(["the lamp is late", "my order please today", "is the lamp"])
    assert any("a" in result.answers["t"]["labels"] for result in results) is (given is None)
    assert (bundle.scores("t")["splits"]["test"]["macro_f1"] > 0.5) is (given is None)
    card = (root / "tasks" / "t" / bundle.version("t") / "README.md").read_text()
    assert f"A label is given from {kept:g} on." in card
