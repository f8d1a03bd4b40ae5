"""Linear heads of words that see more than the word's own vector, where nothing else tells the label."""

import json
import random

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.data.read import Examples, ReadReport
from polyhead.engine.session import Session
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.kinds.tagged import chosen
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Split
from polyhead.train.heads import inputs as head_inputs
from polyhead.train.heads.run import choose_weight, with_transitions
from polyhead.train.run import train_project
from support.tiny_project import write_trunk

LABELS = ("O", "B-x", "I-x")


def by_ending(chance):
    """Words of random letters; those that end in 'q' begin a span, and those in 'z' go on with it."""
    words = ["".join(chance.choices("abcdefgh", k=4)) + chance.choice("aeiqiu") for _ in range(8)]
    tags = ["B-x" if word.endswith("q") else "O" for word in words]
    for place in range(1, 8):
        if tags[place - 1] == "B-x" and tags[place] == "O":
            words[place], tags[place] = words[place][:-1] + "z", "I-x"
    return words, tags


def by_neighbour(chance):
    """A word is a span where the word after it is 'is'."""
    words = [chance.choice(("the", "my", "lamp", "phone", "late", "is")) for _ in range(10)]
    return words, ["B-x" if after == "is" else "O" for after in [*words[1:], ""]]


def trained(folder, made, strategy, rows=80, max_tokens=None, labels=LABELS):
    chance = random.Random(1)
    lines = [dict(zip(("tokens", "tags"), made(chance), strict=True)) for _ in range(rows)]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_trunk(folder / "trunk")
    words = {"tokens": "tokens", "tags": "tags", "long_texts": "cut" if max_tokens is None else "windows"}
    entry = TaskEntry(name="t", kind="tagging", train="train.jsonl", labels=labels, **words)
    trunk = TrunkChoice(name="trunk", max_tokens=max_tokens)
    training = Training(seed=1, epochs=2, patience=1, batch=16)
    train_project(
        Project(trunk=trunk, tasks=(entry,), strategy=strategy, training=training, bundle="b"),
        folder=folder,
        cache=folder / "cache",
    )
    return lines, Bundle.open(folder / "b")


@pytest.mark.parametrize(
    ("made", "reads_words", "max_tokens"),
    [(by_ending, True, None), (by_neighbour, False, None), (by_ending, True, 16)],
    ids=["ending", "neighbour", "ending, in windows"],
)
def test_a_tagger_learns_from_what_stands_beside_the_word_and_in_it(
    made, reads_words, max_tokens, tmp_path, monkeypatch
):
    if reads_words:  # else a head of neighbours alone may be as good: the trunk reads letters
        tried = Pooled.candidates
        monkeypatch.setattr(Pooled, "candidates", lambda *given: [each for each in tried(*given) if each.words])
    lines, bundle = trained(tmp_path, made, Pooled(), max_tokens=max_tokens)
    head = bundle.tasks["t"].path.head
    assert head.window == 1 and (not reads_words or head.words == 8192)
    session = Session(bundle, backend="reference")
    texts = [" ".join(line["tokens"]) for line in lines]
    answers = [result.answers["t"] for result in session.predict(texts)]
    counts = zip(answers, lines, strict=True)
    right = sum(len(answer["spans"]) == line["tags"].count("B-x") for answer, line in counts)
    assert right >= 0.9 * len(lines)
    (alone,) = session.predict(texts[:1])
    assert [span["start"] for span in alone.answers["t"]["spans"]] == [span["start"] for span in answers[0]["spans"]]


def by_word(chance):
    """Every word has a label: there are no spans."""
    words = [chance.choice(("the", "my", "lamp", "phone", "late", "is")) for _ in range(10)]
    return words, ["x" if word == "lamp" else "y" for word in words]


def test_heads_that_read_more_of_each_word_and_so_fewer_words_are_compared_on_the_same_words(tmp_path, monkeypatch):
    """With neighbours a word has three times as many inputs, so a third of the examples fit."""
    monkeypatch.setattr(head_inputs, "MOST_NUMBERS", 10_000)
    lines, bundle = trained(tmp_path, by_word, Pooled(words=False), labels=("y", "x"))
    assert len(bundle.scores("t")["tried"]) > 1
    (answer, *_) = Session(bundle, backend="reference").predict([" ".join(lines[0]["tokens"])])
    assert [word["label"] for word in answer.answers["t"]["words"]] == lines[0]["tags"]


def test_without_words_and_neighbours_neither_is_tried(tmp_path):
    _, bundle = trained(tmp_path, by_ending, Pooled(words=False, window=0), rows=20)
    assert bundle.tasks["t"].path.head.window == bundle.tasks["t"].path.head.words == 0
    assert not any("words" in name for name in bundle.part("t"))
    assert np.isfinite(bundle.part("t")["head.output.weight"]).all()


def test_transitions_count_where_outputs_alone_cannot_tell():
    """`x` and `y` alternate, and outputs hardly know them apart but at the beginning; alone, half of them are wrong."""
    chance = np.random.default_rng(2)
    task = Task(name="t", kind="tagging", labels=("O", "B-x", "B-y"), decoder="constrained")
    targets = [1 + (np.arange(8) + chance.integers(2)) % 2 for _ in range(60)]
    sure = np.where(np.arange(8) < 1, 4.0, 0.5)[:, None]
    outputs = [np.eye(3)[target] * sure + chance.normal(scale=0.5, size=(8, 3)) for target in targets]

    def split(rows):
        words = [np.arange(8)[:, None] * 2 + np.array([0, 1])] * len(rows)
        inputs = [("a b c d e f g h",)] * len(rows)
        report = ReadReport()
        return Split(
            name="t", examples=Examples(inputs=inputs, targets=rows, words=words, rows=[*range(30)], report=report)
        )

    sides = [(split(targets[:30]), split(targets[30:])), (split(targets[30:]), split(targets[:30]))]
    weight = choose_weight(task, sides, outputs[30:] + outputs[:30])
    greedy = choose_weight(msgspec.structs.replace(task, decoder="greedy"), sides, outputs[30:] + outputs[:30])
    assert weight > 0 == greedy
    scores = [
        split(targets).examples.scores(with_transitions(task, targets, each), outputs)["span_f1"]
        for each in (0.0, weight)
    ]
    assert scores[1] > scores[0] + 0.05
    assert with_transitions(task, targets, 0.0) == task
    right = [
        (chosen(with_transitions(task, targets, 1.0), row) == target).all()
        for row, target in zip(outputs, targets, strict=True)
    ]
    assert np.mean(right) > 0.9
