"""Training on soft labels: of files, and of an oracle whose scores a backfill left in the store."""

import json

import msgspec
import numpy as np
import pytest
import torch

from polyhead.bundle.read import Bundle
from polyhead.deep.loop.loss import cross_entropy
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, StoreError
from polyhead.plan import Codec
from polyhead.project.pretrained import load_trunk
from polyhead.project.strategies import Branch, Pooled
from polyhead.store.corpus import open_corpus
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.tasks.kinds.base import softmax
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.train.heads.linear import Inputs
from polyhead.train.heads.search import solutions
from polyhead.train.run import train_project
from support import tiny_project
from support.stores import make_store, stored_path

STRATEGY = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8)
LONG = msgspec.structs.replace(tiny_project.TRAINING, epochs=60, patience=60, learning_rate=2e-2)
SPLITS = ("train", "validation", "test")


def rows_of(folder, split):
    return [json.loads(line) for line in (folder / "data" / f"messages-{split}.jsonl").read_text().splitlines()]


def written(folder, name, change):
    """The files of messages, every row changed; the columns that name a task's files."""
    for split in SPLITS:
        tiny_project.write_jsonl(
            folder / "data" / f"{name}-{split}.jsonl", [change(row) for row in rows_of(folder, split)]
        )
    return tiny_project.files(name)


def test_soft_targets_give_the_cross_entropy_of_the_textbook():
    chance = np.random.default_rng(0)
    outputs, weights = chance.normal(size=(5, 3)), np.array([0.5, 1.0, 2.0])
    targets = chance.dirichlet(np.ones(3), size=5)
    logs = np.log(softmax(outputs))
    tensors = [torch.from_numpy(array) for array in (outputs, targets, weights)]
    assert float(cross_entropy(*tensors[:2], None)) == pytest.approx(-(targets * logs).sum(axis=1).mean())
    weighted = targets * weights
    assert float(cross_entropy(*tensors)) == pytest.approx(-(weighted * logs).sum() / weighted.sum())


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 2.0])], ids=["plain", "weighted"])
def test_certain_soft_targets_are_labels(weights):
    outputs, labels = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 2, 0, 1])
    certain = torch.nn.functional.one_hot(labels, 3).float()
    found, expected = (cross_entropy(outputs, targets, weights) for targets in (certain, labels))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
def test_a_linear_head_answers_the_mean_of_what_it_learned(loss):
    """At the minimum the gradient of the bias, which has no penalty, is the difference of both means."""
    chance = np.random.default_rng(2)
    values = chance.normal(size=(80, 4)).astype(np.float32)
    targets = chance.dirichlet(np.ones(3), size=80).astype(np.float32)
    inputs = Inputs(values=values, targets=targets, members=np.arange(80), loss=loss, outputs=3)
    for solution in solutions(inputs, penalties=(0.1, 0.01)):
        outputs = solution.outputs(inputs)
        answered = softmax(outputs) if loss == "cross_entropy" else 1 / (1 + np.exp(-outputs.astype(float)))
        np.testing.assert_allclose(answered.mean(axis=0), targets.mean(axis=0), atol=5e-4)
        assert solution.losses(inputs).shape == (80,)


def test_a_rows_weight_scales_its_term_whoever_is_in_its_batch():
    """With weights of labels as without: where all rows count a hundredth, so does the gradient; nothing is none."""
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), requires_grad=True)
    certain, ones = torch.eye(3)[[0, 1, 1, 2]], torch.ones(3)

    def gradient(targets, weights):
        return torch.autograd.grad(cross_entropy(outputs, targets, weights), outputs)[0]

    for weights in (ones, torch.tensor([0.5, 1.0, 2.0])):
        whole = gradient(certain, weights)
        for counts in (torch.tensor([1.0, 0.5, 0.01, 1.0]), torch.full((4,), 0.01)):
            torch.testing.assert_close(gradient(certain * counts[:, None], weights), whole * counts[:, None])
        assert not gradient(torch.zeros(4, 3), weights).any()
    some = certain * torch.tensor([1.0, 0.0, 0.5, 0.0])[:, None]
    torch.testing.assert_close(cross_entropy(outputs, some, ones), cross_entropy(outputs, some, None))


@pytest.mark.parametrize("of", ["head", "steps", "branch"])
def test_classes_are_balanced_by_what_rows_say_and_count(tmp_path, monkeypatch, of):
    """They were balanced by the most probable label of each row, all of which counted alike: a label that few rows
    have, and many say a little, was nearly the only answer."""
    used, balanced = [], SingleLabel.class_weights

    def recorded(*arguments):
        used.append(balanced(*arguments))
        return used[-1]

    monkeypatch.setattr(SingleLabel, "class_weights", recorded)
    strategy = {"head": Pooled(of=2, positions="auto"), "steps": STRATEGY, "branch": Branch(layers=1, hidden=8)}[of]
    training = msgspec.structs.replace(tiny_project.TRAINING, class_weights=True, effort="quick")
    project = tiny_project.project(tmp_path, "mood", strategy=strategy, training=training)
    said, counts = {"bad": [0.9, 0.1], "good": [0.6, 0.4]}, {"bad": 1.0, "good": 0.5}
    files = written(tmp_path, "said", lambda row: {**row, "p": said[row["mood"]], "w": counts[row["mood"]]})
    entry = msgspec.structs.replace(project.tasks[0], soft="p", weight="w", label="label", **files)
    train_project(msgspec.structs.replace(project, tasks=(entry,)), folder=tmp_path)
    sums = sum(counts[row["mood"]] * np.array(said[row["mood"]]) for row in rows_of(tmp_path, "train"))
    assert used
    for weights in used:
        np.testing.assert_allclose(weights, sums.sum() / 2 / sums, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [STRATEGY, Pooled(of=2, hidden=8)], ids=["steps", "chosen"])
def test_certain_soft_labels_train_what_labels_do(tmp_path, strategy):
    """A column of ones and zeros beside no label at all: the same arrays as from labels, up to rounding."""
    project = tiny_project.project(tmp_path, "mood", "topics", strategy=strategy)

    def certain(row):
        mood = [float(row["mood"] == label) for label in ("bad", "good")]
        return {"text": row["text"], "moods": mood, "all": dict.fromkeys(row["topics"], 1.0)}

    files = written(tmp_path, "certain", certain)
    entries = [
        msgspec.structs.replace(entry, soft=soft, label="label", **files)
        for entry, soft in zip(project.tasks, ("moods", "all"), strict=True)
    ]
    train_project(project, folder=tmp_path)
    train_project(msgspec.structs.replace(project, tasks=tuple(entries), bundle="soft"), folder=tmp_path)
    hard, soft = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "soft")
    for name in ("mood", "topics"):
        assert soft.scores(name)["splits"] == hard.scores(name)["splits"]
        for key, array in hard.part(name).items():
            # With a weak penalty the minimum is flat, so rounding moves where the solver ends a little.
            np.testing.assert_allclose(soft.part(name)[key], array, atol=0.03, err_msg=f"{name} {key}")


@pytest.mark.slow
def test_a_head_learns_the_doubt_of_its_rows(tmp_path):
    """Rows of 0.7 and 0.3: certain labels of the same rows make the answers far more certain."""
    project = tiny_project.project(tmp_path, "mood", strategy=STRATEGY)
    doubt = {"bad": [0.7, 0.3], "good": [0.3, 0.7]}
    files = written(tmp_path, "doubt", lambda row: {"text": row["text"], "mood": row["mood"], "p": doubt[row["mood"]]})
    answers = {}
    for name, soft in (("hard", None), ("soft", "p")):
        entry = msgspec.structs.replace(project.tasks[0], soft=soft, training=LONG, **files)
        entry = msgspec.structs.replace(entry, validation=entry.train)
        train_project(msgspec.structs.replace(project, tasks=(entry,), bundle=name), folder=tmp_path)
        texts = [(row["text"],) for row in rows_of(tmp_path, "train")]
        session = Session(tmp_path / name, backend="reference")
        answers[name] = session.columns(texts, tasks=["mood"])["mood"].scores.max(axis=1).mean()
    assert abs(answers["soft"] - 0.7) < 0.1
    assert answers["hard"] > answers["soft"] + 0.1


def test_other_soft_labels_train_anew(tmp_path):
    project = tiny_project.project(tmp_path, "mood", strategy=STRATEGY)
    for share, kept in ((0.9, False), (0.9, True), (0.8, False)):
        files = written(
            tmp_path,
            "soft",
            lambda row, share=share: {"text": row["text"], "mood": row["mood"], "p": [share, 1 - share]},
        )
        entry = msgspec.structs.replace(project.tasks[0], soft="p", **files)
        outcome = train_project(msgspec.structs.replace(project, tasks=(entry,)), folder=tmp_path)
        assert (outcome.kept == ("mood",)) is kept


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A folder with a store, the oracle's bundle, and files without any label."""
    folder = tmp_path_factory.mktemp("taught")
    oracle = tiny_project.project(folder, "mood", "topics", "urgency", strategy=STRATEGY, training=LONG)
    trunk = load_trunk(str(folder / "trunk"))
    texts = [(row["text"],) for split in SPLITS for row in rows_of(folder, split)]
    make_store(str(folder / "store"), texts, stored_path(trunk, codec=Codec()), trunk=trunk)
    train_project(oracle, folder=folder, features=folder / "store")
    backfill(folder / "store", folder / "bundle", BackfillRequest(tasks=("mood", "topics"), all_scores=True))
    written(folder, "bare", lambda row: {"text": row["text"]})
    return folder, oracle


def student(taught, name, **changes):
    folder, oracle = taught
    (entry,) = [entry for entry in oracle.tasks if entry.name == name]
    entry = msgspec.structs.replace(entry, name="student", label="label", **{**tiny_project.files("bare"), **changes})
    return msgspec.structs.replace(oracle, tasks=(entry,), bundle="students")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "labels"), [("mood", ("good", "bad")), ("topics", ("card", "order", "bill"))])
def test_a_task_learns_from_the_scores_of_a_backfill(taught, name, labels):
    """Without a single label, and with its labels in another order than the oracle's."""
    folder, _ = taught
    store, soft = open_corpus(str(folder / "store")), f"store:{name}"
    if name == "topics":  # by the column's own name, as by the task's
        (column,) = [
            column for column, facts in store.described().items() if facts.task == name and "scores" in facts.arrays
        ]
        soft = f"store:{column}"
    declared = student(taught, name, soft=soft, labels=labels, validation=tiny_project.files("bare")["train"])
    declared = msgspec.structs.replace(declared, bundle=f"students-{name}")
    outcome = train_project(declared, folder=folder, features=folder / "store")
    texts = [(row["text"],) for row in rows_of(folder, "train")]
    oracle = Session(folder / "bundle", backend="reference").columns(texts, tasks=[name])[name]
    own = Session(folder / declared.bundle, backend="reference").columns(texts, tasks=["student"])["student"]
    order = [list(tiny_project.ENTRIES[name].labels).index(label) for label in labels]
    if name == "mood":  # without labels the metric is that against the oracle's own answers
        agreed = (own.scores.argmax(axis=1) == oracle.scores[:, order].argmax(axis=1)).mean()
        assert outcome.trained["student"]["validation"]["accuracy"] == pytest.approx(agreed)
    assert np.corrcoef(own.scores.ravel(), oracle.scores[:, order].ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        ("mood", {"soft": "store:nothing"}, StoreError, ("no column of scores named 'nothing'", "mood_")),
        ("urgency", {"soft": "store:urgency"}, ConfigError, ("'soft' is for tasks of kind",)),
        ("mood", {"soft": "store:urgency"}, StoreError, ("no column of scores named 'urgency'",)),
        ("mood", {"soft": "store:topics"}, ConfigError, ("multi_label", "['bad', 'good']")),
        (
            "mood",
            {"soft": "store:mood", "labels": ("bad", "fine")},
            ConfigError,
            ("['bad', 'good']", "['bad', 'fine']"),
        ),
    ],
    ids=["unknown", "number", "no scores", "kind", "labels"],
)
def test_a_column_that_does_not_fit_is_refused(taught, name, changes, error, words):
    with pytest.raises(error) as caught:
        train_project(student(taught, name, **changes), folder=taught[0], features=taught[0] / "store")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_scores_of_a_store_need_the_store(taught):
    with pytest.raises(ConfigError, match="--features STORE"):
        train_project(student(taught, "mood", soft="store:mood"), folder=taught[0])


def test_documents_that_the_oracle_has_not_answered_are_named(taught, tmp_path):
    folder, _ = taught
    lines = (folder / "data" / "bare-train.jsonl").read_text() + '{"text": "the lamp is new"}\n'
    (tmp_path / "more.jsonl").write_text(lines)
    declared = student(taught, "mood", soft="store:mood", train=str(tmp_path / "more.jsonl"))
    with pytest.raises(StoreError, match="no scores for 1 rows") as caught:
        train_project(declared, folder=folder, features=folder / "store")
    assert caught.value.rows == [len(lines.splitlines())]
