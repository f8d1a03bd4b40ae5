"""Answers beyond what is read: they are told of before training, and refused where all of them are."""

import msgspec
import pytest

from polyhead.errors import EmptyData
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.testing import tiny_trunk
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project

TRAINING = Training(seed=1, epochs=1, patience=1, batch=8, learning_rate=1e-3, precision="float32")
WAYS = {
    "frozen": {"strategy": Pooled(hidden=8, codec="float32")},
    "branch": {"strategy": Branch(layers=2, hidden=8, positions="mean", students=(1,))},
    "joint": {"recipe": Joint(micro_batches=1)},
}
FILLED = "the phone is late today and my order is not here " * 2


class Noted(Events):
    def __init__(self):
        super().__init__()
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def row(number, *, far):
    """The answer is the lamp, at the end of a short context or of one that is longer than what is read."""
    before = f"{tiny_project.PEOPLE[number % 2]} {number} " + FILLED * far
    return {
        "question": "what is good?",
        "context": f"{before} the lamp.",
        "answers": [{"text": "lamp", "start": len(before) + 5}],
    }


def train(folder, way, far, **entry):
    tiny_project.write_trunk(folder / "trunk", tiny_trunk())
    tiny_project.write_jsonl(folder / "train.jsonl", [row(i, far=i < far) for i in range(12)])
    tiny_project.write_jsonl(folder / "validation.jsonl", [row(100 + i, far=False) for i in range(4)])
    project = Project(
        tasks=(TaskEntry(name="qa", kind="span", train="train.jsonl", validation="validation.jsonl", **entry),),
        trunk=TrunkChoice(name=str(folder / "trunk"), max_tokens=16),
        training=TRAINING,
    )
    project = msgspec.structs.replace(project, **WAYS[way])
    events = Noted()
    train_project(project, folder=folder, events=events)
    return [line for line in events.lines if "training answers" in line]


@pytest.mark.parametrize("way", WAYS)
def test_answers_that_are_not_read_are_told_of_once(tmp_path, way):
    told = train(tmp_path, way, 5)
    assert told == ["qa: 5 of 12 training answers lie beyond the 16 tokens that are read; they teach nothing"]


def test_nothing_is_said_where_every_answer_is_read(tmp_path):
    assert train(tmp_path, "frozen", 0) == []


def test_one_answer_is_one(tmp_path):
    (told,) = train(tmp_path, "frozen", 1, null_answers=True)
    assert "1 of 12 training answers lies" in told and told.endswith("it teaches nothing")


@pytest.mark.parametrize("way", WAYS)
def test_no_answer_that_is_read_is_refused_before_training(tmp_path, way):
    with pytest.raises(EmptyData, match="'qa': no training answer.*12 answers.*16 tokens.*trunk.max_tokens"):
        train(tmp_path, way, 12)
