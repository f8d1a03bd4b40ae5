"""Kind `summarization`: text for text, scored by ROUGE."""

import json
import sys

import numpy as np
import pytest

from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.data.split import hold_out
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, MissingExtra
from polyhead.project.generation import DecoderChoice
from polyhead.project.recipes import Joint
from polyhead.project.tables import Project, TaskEntry
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.summarization import rouge
from polyhead.tasks.task import Example, Task
from support.cases import cases

TASK = Task(name="brief", kind="summarization")
KIND = kind_of(TASK)
REFERENCES = [["the lamp was broken today"], ["a refund, please", "she asked for refunds"], ["nothing new"]]
WRITTEN = ["the lamps are broken", "she asks for a refund", ""]


def outputs(texts):
    return [np.array(text, np.str_) for text in texts]


def test_rouge_is_that_of_the_package_and_of_several_references_the_best():
    RougeScorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    wanted = {"rouge1": [], "rouge2": [], "rougeL": []}
    for several, written in zip(REFERENCES, WRITTEN, strict=True):
        for name, values in wanted.items():
            values.append(max(scorer.score(one, written)[name].fmeasure for one in several))
    targets = [KIND.encode(TASK, several, Example()) for several in REFERENCES]
    found = KIND.evaluate(TASK, outputs(WRITTEN), targets, [])
    assert list(found) == list(KIND.metrics(TASK)) == ["rouge_l", "rouge_1", "rouge_2"]
    for name, key in (("rouge_l", "rougeL"), ("rouge_1", "rouge1"), ("rouge_2", "rouge2")):
        assert found[name] == pytest.approx(np.mean(wanted[key]), abs=1e-12)
        assert 0 < found[name] < 1


def test_rouge_by_hand():
    """Three words of four in order, two pairs of three: F1 3/4 and 2/3."""
    pytest.importorskip("rouge_score")
    found = rouge([["red lamp came late"]], ["red lamp came never"])
    assert found == pytest.approx({"rouge_1": 0.75, "rouge_2": 2 / 3, "rouge_l": 0.75})
    turned = rouge([["red lamp came late"]], ["late came lamp red"])
    assert turned == pytest.approx({"rouge_1": 1.0, "rouge_2": 0.0, "rouge_l": 0.25})


def test_rouge_needs_rows_and_its_package(monkeypatch):
    with pytest.raises(EmptyData):
        rouge([], [])
    with pytest.raises(DataError):
        rouge([["a"]], [])
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[summarization\]"):
        rouge([["a"]], ["a"])


@pytest.mark.parametrize("label", ["a summary", ["one", "another"], ["a \ud800"]])
def test_summaries_become_targets_and_answers(label):
    target = KIND.encode(TASK, label, Example())
    several = label if isinstance(label, list) else [label]
    assert target.tolist() == [one.replace("\ud800", "\ufffd") for one in several]
    answer = KIND.decode(TASK, np.array(str(target[0]), np.str_), Example())
    assert json.loads(json.dumps(answer)) == {"summary": str(target[0])}


@cases("label", [None, 3, True, "", "  ", [], ["a", ""], ["a", 3], [["a"]], {"a": 1}])
def test_what_is_no_summary_is_refused(label):
    with pytest.raises(BadValue, match=r"task 'brief', train\.jsonl row 4"):
        KIND.encode(TASK, label, Example(row=4, source="data/train.jsonl"))


def test_a_cell_holds_one_summary_or_several():
    assert KIND.parse("one; two", None) == "one; two"
    assert KIND.parse("one; two", ";") == ["one", "two"]
    assert KIND.parse('["one", "two"]', None) == ["one", "two"]
    assert KIND.parse("[sic] as it stands", None) == "[sic] as it stands"


@pytest.mark.parametrize(
    "field",
    [{"labels": ("a", "b")}, {"pair": "joined"}, {"threshold": 0.4}, {"long_texts": "windows"}, {"metric": "f1"}],
)
def test_fields_of_other_kinds_are_refused(field):
    with pytest.raises(ConfigError, match="brief"):
        Task(name="brief", kind="summarization", **field)


def test_rows_are_read_from_the_columns_that_are_named(tmp_path):
    file = tmp_path / "news.jsonl"
    rows = [
        {"article": "a long text", "gist": "short", "id": 1},
        {"article": "another", "gist": ["one", "two"]},
        {"article": " ", "gist": "nothing"},
        {"article": "third", "gist": None},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(Source(path=str(file), text="article", label="gist"), TASK)
    assert found.inputs == [("a long text",), ("another",)]
    assert [target.tolist() for target in found.targets] == [["short"], ["one", "two"]]
    assert (found.report.empty, found.report.unlabelled) == (1, 1)
    kept, held = hold_out(found, 0.5, 1, TASK)
    assert len(kept.inputs) == len(held.inputs) == 1


def entry(**changes):
    return TaskEntry(name="brief", kind="summarization", train="a.jsonl", **changes)


def test_a_summarization_task_and_no_other_says_how_it_writes():
    assert entry().generation is None
    assert entry(generation=DecoderChoice(beams=4)).generation.smoothing == 0.1
    with pytest.raises(ConfigError, match="writes nothing"):
        TaskEntry(name="t", kind="regression", train="a.jsonl", range=(0.0, 1.0), generation=DecoderChoice())
    assert Project(tasks=(entry(),), recipe=Joint()).tasks[0].kind == "summarization"


@pytest.mark.parametrize(
    "wrong",
    [{"smoothing": 1.0}, {"tokens": 2}, {"beams": 0}, {"beams": 65}, {"layers": 3}, {"repetition_penalty": 0.0}],
)
def test_settings_of_writing_are_checked(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DecoderChoice(**wrong)
