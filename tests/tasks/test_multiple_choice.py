"""Questions with options: how they are read, what is read of them, and their answers."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from polyhead.data.read import Examples, ReadReport, Source, read
from polyhead.data.split import hold_out
from polyhead.engine.inputs import input_of
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, MissingColumn
from polyhead.project.tables import TaskEntry
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Example, Task
from polyhead.text.question import Question, read_alone, texts_of

TASK = Task(name="quiz", kind="multiple_choice")
ROW = {"question": "what is red?", "choices": ["grass", "blood", "snow"], "label": 1}


def source(folder, content, name="rows.jsonl", **columns):
    path = folder / name
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(content, encoding="utf-8", errors="surrogatepass")
    return Source(path=str(path), **columns)


def test_a_pair_is_read_for_each_option_with_the_context_first_where_there_is_one():
    question = Question(text="what?", options=("a", "b", "c"))
    assert question.pairs == (("what?", "a"), ("what?", "b"), ("what?", "c"))
    about = Question(text="what?", options=("a", "b"), context="it was b.")
    assert about.pairs == (("it was b.", "what? a"), ("it was b.", "what? b"))
    for blank in (" ", "\u200b", "\ufeff\n"):
        assert Question(text="what?", options=("a", "b"), context=blank).pairs == question.pairs[:2]
    assert texts_of(about) == ("what?", "a", "b", "it was b.")
    assert read_alone([("x",), question, ("y", "z")]) == [("x",), *question.pairs, ("y", "z")]


@pytest.mark.parametrize("options", [(), ("one",)])
def test_a_question_without_a_choice_is_refused(options):
    with pytest.raises(BadValue, match="options to choose from.*two or more"):
        Question(text="what?", options=options)


def test_questions_of_any_number_of_options_are_read(tmp_path):
    rows = [ROW, {"question": "yes?", "choices": ["yes", " no "], "label": "no", "context": "it depends"}]
    found = read(source(tmp_path, rows), TASK)
    assert found.inputs == [
        Question(text="what is red?", options=("grass", "blood", "snow")),
        Question(text="yes?", options=("yes", "no"), context="it depends"),
    ]
    assert [int(target) for target in found.targets] == [1, 1] and found.words is None
    assert (found.report.rows, found.report.used) == (2, 2)


def test_an_index_may_be_written_as_frames_write_it(tmp_path):
    """A column of integers with an empty cell holds floats."""
    rows = [ROW | {"label": 1.0}, ROW | {"label": None}, ROW | {"label": "2.0"}]
    assert [int(target) for target in read(source(tmp_path, rows), TASK).targets] == [1, 2]
    for choices, cell, index in (
        ('["a","b"]', "1.0", 1),
        ('["1.0","b"]', "1.0", 0),
        ('["0","1"]', "1.0", 1),
        ('["1","0"]', "1.0", None),  # the option 1, or the index
        ('["a","b"]', "1.5", None),
        ('["a","b"]', "2.0", None),
    ):
        quoted = choices.replace('"', '""')
        file = source(tmp_path, f'question,choices,label\nwhat?,"{quoted}",{cell}\n', "rows.csv")
        if index is None:
            with pytest.raises(BadValue, match="none of the question's options"):
                read(file, TASK)
        else:
            assert int(read(file, TASK).targets[0]) == index


def test_columns_go_by_other_names(tmp_path):
    rows = [{"ask": "what?", "of": ["a", "b"], "right": 0, "story": "a!"}]
    names = {"text": "ask", "choices": "of", "label": "right", "text_b": "story"}
    found = read(source(tmp_path, rows, **names), TASK)
    assert found.inputs == [Question(text="what?", options=("a", "b"), context="a!")]
    with pytest.raises(MissingColumn, match="no column 'stories'.*did you mean 'story'"):
        read(source(tmp_path, rows, **names | {"text_b": "stories"}), TASK)
    with pytest.raises(MissingColumn, match="no column 'choices'"):
        read(
            source(tmp_path, [{"question": "x", "options": ["a", "b"], "label": 0}, ROW | {"choices": None}][:1]), TASK
        )


def test_rows_without_what_is_needed_are_skipped_and_counted(tmp_path):
    rows = [
        ROW | {"context": None},
        ROW | {"label": None},
        ROW | {"choices": []},
        ROW | {"choices": None},
        ROW | {"choices": ["a", " "]},
        ROW | {"question": " "},
        ROW | {"question": "r\ud800", "choices": ["\udc00", "b"], "context": "c\ud800"},
    ]
    found = read(source(tmp_path, rows), TASK)
    assert found.rows == [1, 7]
    assert found.inputs[1] == Question(text="r\ufffd", options=("\ufffd", "b"), context="c\ufffd")
    report = found.report
    assert (report.used, report.unlabelled, report.empty, report.repaired) == (2, 1, 4, 3)
    with pytest.raises(EmptyData):
        read(source(tmp_path, rows[1:3]), TASK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": 3}, "an index from 0 to 2, a letter from A on, or the text of one option"),
        ({"label": -1}, "none of the question's options"),
        ({"label": True}, "none of the question's options"),
        ({"label": "3"}, "an index from 0 to 2, a letter from A on, or the text of one option"),
        ({"label": "D"}, "none of the question's options.*Got: D"),
        ({"label": "A", "choices": ["B", "A"]}, "none of the question's options.*one option alone"),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}, "label": "0"}, "Got: 0, of the marks 1, 2"),
        ({"choices": {"text": ["x", "y"], "label": ["A", "A"]}, "label": "A"}, "Got: A, of the marks A, A"),
        ({"label": "-1"}, "none of the question's options"),
        ({"label": "1", "choices": ["1", "1", "b"]}, "none of the question's options"),
        ({"label": "red"}, "none of the question's options"),
        ({"label": "v1.0"}, "none of the question's options.*Got: v1.0"),
        ({"label": [1]}, "none of the question's options"),
        ({"label": "a", "choices": ["a", "a", "b"]}, "none of the question's options"),
        ({"choices": ["one"]}, "one choice only"),
        ({"choices": "grass"}, "must hold choices"),
        ({"choices": [1, 2]}, "must hold choices"),
        ({"choices": {"a": 1}}, "must hold choices"),
        ({"question": 3}, "column 'question' must hold a string"),
        ({"context": 3}, "column 'context' must hold a string"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_by_row(tmp_path, change, said):
    with pytest.raises(BadValue, match=rf"task 'quiz', rows\.jsonl row 2: .*{said}") as caught:
        read(source(tmp_path, [ROW, ROW | change]), TASK)
    assert caught.value.row == 2


def test_cells_hold_lists_and_digits_are_indices(tmp_path):
    table = 'question,choices,label\na?,"[""x"", ""y, z""]",1\nb?,"[""x"", ""y""]",x\nc?,,0\nd?,"[""x"",""y""]",\n'
    found = read(source(tmp_path, table, "a.csv"), TASK)
    assert [q.options for q in found.inputs] == [("x", "y, z"), ("x", "y")]
    assert [int(target) for target in found.targets] == [1, 0]
    assert (found.report.empty, found.report.unlabelled) == (1, 1)
    table = "question\tchoices\tlabel\tcontext\na?\tx | y | z\t2\tso\nb?\tx | y\ty\t\n"
    found = read(source(tmp_path, table, "b.tsv", separator="|"), TASK)
    assert [(q.options, q.context) for q in found.inputs] == [(("x", "y", "z"), "so"), (("x", "y"), "")]
    assert [int(target) for target in found.targets] == [2, 1]


def test_cells_whose_digits_are_an_option_too_must_be_clear(tmp_path):
    table = "question,choices,label\n2+2?,3|4|5,4\n1-1?,0|1,0\n"
    found = read(source(tmp_path, table, "a.csv", separator="|"), TASK)
    assert [int(target) for target in found.targets] == [1, 0]
    with pytest.raises(BadValue, match="row 1: the label is an index and an option's text too"):
        read(source(tmp_path, "question,choices,label\n0+1?,1|2,1\n", "b.csv", separator="|"), TASK)
    # JSON tells an index from a text
    rows = [{"question": "0+1?", "choices": ["1", "2"], "label": label} for label in (1, "1")]
    assert [int(target) for target in read(source(tmp_path, rows), TASK).targets] == [1, 0]


def test_digits_in_quotes_are_an_index_where_no_option_spells_them(tmp_path):
    rows = [ROW | {"label": "1"}, ROW | {"label": " 2 "}, ROW | {"label": "2", "choices": ["2", "3", "4"]}]
    assert [int(target) for target in read(source(tmp_path, rows), TASK).targets] == [1, 2, 0]


def test_a_letter_is_the_place_of_an_option(tmp_path):
    """RACE writes its labels so; a letter that is another option's text is refused, see above."""
    rows = [ROW | {"label": label} for label in ("A", " C ", "blood")]
    rows += [ROW | {"label": "B", "choices": ["A", "B", "C"]}, ROW | {"label": "D", "choices": ["D", "E"]}]
    assert [int(target) for target in read(source(tmp_path, rows), TASK).targets] == [0, 2, 1, 1, 0]


def test_a_label_is_the_mark_of_an_option_where_options_have_marks(tmp_path):
    """ARC and CommonsenseQA write their rows so; some questions of ARC count from 1."""
    texts = ROW["choices"]
    rows = [
        ROW | {"choices": {"label": ["A", "B", "C"], "text": texts}, "label": "C"},
        ROW | {"choices": {"label": ["1", "2", "3"], "text": texts}, "label": "1"},
        ROW | {"choices": {"label": ["1", "2", "3"], "text": texts}, "label": 3},
        ROW | {"choices": {"label": ["x", "y", "z"], "text": texts}, "label": "snow"},
        ROW | {"choices": {"label": ["A", "B", "C"], "text": ["B", "C", "A"]}, "label": "A"},
        ROW | {"choices": {"label": ["A", "B", "C"], "text": texts}, "label": " "},
    ]
    found = read(source(tmp_path, rows), TASK)
    assert [int(target) for target in found.targets] == [2, 0, 2, 2, 0] and found.report.unlabelled == 1
    assert found.inputs[0] == Question(text=ROW["question"], options=tuple(texts))
    asked, _ = input_of({"question": "what is red?", "choices": rows[0]["choices"]}, where="row 1")
    assert asked == found.inputs[0]


def test_columns_of_other_kinds_are_refused(tmp_path):
    path = source(tmp_path, [ROW]).path
    for columns in ({"tokens": "a", "tags": "b"}, {"answers": "a"}):
        with pytest.raises(ConfigError, match="task 'quiz'.*for tasks of kind '(tagging|span)'"):
            read(Source(path=path, **columns), TASK)
    with pytest.raises(ConfigError, match="'choices' is for tasks of kind 'multiple_choice'"):
        read(Source(path=path, choices="a"), Task(name="t", kind="regression", range=(0.0, 1.0)))


def test_a_project_declares_the_columns(tmp_path):
    source(tmp_path, [{"ask": "a", "options": ["x", "y"], "label": 0}])
    entry = TaskEntry(name="quiz", kind="multiple_choice", train="rows.jsonl", text="ask", choices="options")
    assert entry.task() == TASK
    assert read(entry.source("rows.jsonl", tmp_path), entry.task()).inputs[0].options == ("x", "y")


def test_answers_name_the_option_and_rank_all_of_them():
    outputs = np.array([0.5, 2.0, -1.0, 2.0], np.float32)
    question = Question(text="which?", options=("a", "b", "c", "d"))
    answer = kind_of(TASK).decode(TASK, outputs, Example(input=question))
    assert (answer["index"], answer["option"], answer["ranked"]) == (1, "b", [1, 3, 0, 2])
    np.testing.assert_allclose(answer["scores"], softmax(outputs.astype(np.float64)), rtol=1e-12)
    for other in (("which?",), Question(text="which?", options=("a", "b"))):
        with pytest.raises(DataError, match="one output an option"):
            kind_of(TASK).decode(TASK, outputs, Example(input=other))


def test_accuracy_is_over_questions_of_any_number_of_options():
    outputs = [np.array(row, np.float32) for row in ([0, 1], [3, 2, 1], [0, 0, 0, 9])]
    targets = [np.asarray(i) for i in (1, 1, 3)]
    examples = Examples(inputs=[], targets=targets, words=None, rows=[], report=ReadReport())
    assert examples.scores(TASK, outputs) == {"accuracy": pytest.approx(2 / 3)}


def test_equal_questions_stay_on_one_side_of_a_split():
    inputs = [Question(text=f"q{i // 2}", options=("a", "b")[:: 1 if i % 2 else -1]) for i in range(40)]
    targets = [np.asarray(i % 2) for i in range(40)]
    examples = Examples(inputs=inputs, targets=targets, words=None, rows=list(range(40)), report=ReadReport())
    kept, held = hold_out(examples, 0.25, 1, TASK)
    assert not {q.text for q in kept.inputs} & {q.text for q in held.inputs} and len(held.inputs) == 10


DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.data
@pytest.mark.parametrize("name", ["commonsenseqa", "arc_challenge", "dream", "copa"])
def test_real_sets_are_read_whole_and_perfect_answers_score_one(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"no data set in {DATA / name}; set POLYHEAD_DATA to where they are")
    meta = json.loads((DATA / name / "meta.json").read_text())
    part = "test" if "test" in meta["sizes"] else "validation"
    found = read(Source(path=str(DATA / name / f"{part}.jsonl.gz")), TASK)
    assert found.report.used == found.report.rows == meta["sizes"][part]
    assert all(bool(given.context) == (name == "dream") for given in found.inputs)
    outputs = [np.eye(len(q.options))[t] for q, t in zip(found.inputs, found.targets, strict=True)]
    assert found.scores(TASK, outputs) == {"accuracy": 1.0}
