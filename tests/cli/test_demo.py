"""`polyhead demo`: what it says is counted, and how it says an answer."""

import json

import msgspec
import pytest

from polyhead.bundle.read import Bundle
from polyhead.cli import demo
from polyhead.cli.answer_lines import short_answer
from polyhead.project.recipes import Training
from support import tiny_project
from support.cases import cases
from support.commands import run


def test_sample_is_counted_not_remembered():
    with demo.sample_project("x") as (project, folder):
        said = demo._counts(project, folder)
        rows = len((folder / "messages.jsonl").read_text().splitlines())
        pairs = len((folder / "pairs.jsonl").read_text().splitlines())
    assert said == [f"{rows} customer-support messages", f"{pairs} pairs of them"]
    assert len(project.tasks) == 8


@pytest.mark.slow
def test_demo_runs_all_four_steps(work, monkeypatch):
    """With the tiny trunk in place of the pre-trained one, and few epochs."""
    tiny_project.project(work)
    reading = demo.read_project

    def smaller(path):
        project = reading(path)
        trunk = msgspec.structs.replace(project.trunk, name=str(work / "trunk"), max_tokens=None)
        training = Training(epochs=1, precision="float32")
        return msgspec.structs.replace(project, trunk=trunk, training=training)

    monkeypatch.setattr(demo, "read_project", smaller)
    done = run("demo", "--folder", work / "demo", "--json", work / "told.json")
    assert done.code == 0, done.err
    told = json.loads((work / "told.json").read_text())
    assert len(told["scores"]) == 8
    assert len(told["answers"]) == len(demo.MESSAGES) + 1
    assert "1. Train 8 tasks on 680 customer-support messages and 266 pairs of them" in done.out
    assert "1 encoder pass, 2 layers" in done.out
    assert "1 task answered" in done.out
    assert "ms with 1 task" in done.out and f"removed '{demo.REMOVED}' from a copy: the 7 other tasks" in done.out
    assert demo.REMOVED in Bundle.open(work / "demo").tasks and not list(work.glob(".demo-*"))
    assert run("tasks", "verify", work / "demo").code == 0
    again = run("demo", "--folder", work / "demo")
    assert "trained already, unchanged" in again.out


@cases(
    ("answer", "said"),
    [
        ({"label": "yes", "scores": {"yes": 0.9, "no": 0.1}}, "yes (0.90)"),
        ({"label": "yes", "scores": {"yes": 0.9991, "no": 0.0009}}, "yes (>0.99)"),
        ({"labels": ["a", "b"], "scores": {"a": 0.6, "b": 0.7, "c": 0.1}}, "a (0.60), b (0.70)"),
        ({"labels": [], "scores": {"a": 0.1}}, "none"),
        ({"value": 0.314}, "0.31"),
        ({"spans": [{"start": 1, "end": 4, "label": "x", "text": "abc", "score": 1.0}]}, "x 'abc' [1:4]"),
        ({"spans": []}, "none"),
        ({"words": [{"start": 0, "end": 2, "label": "N", "score": 1.0}]}, "N [0:2]"),
    ],
)
def test_answers_of_every_kind_can_be_said(answer, said):
    assert short_answer(answer) == said
