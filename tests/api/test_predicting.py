"""What a model is asked: one text or many, texts that are missing, pairs, and the forms of the answers."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from polyhead import Passage, Question, Task, errors
from polyhead.api.predicting import cells_by_task
from polyhead.api.showing import ShownResults
from support.mood_texts import Quick, texts_of
from support.tiny_project import write_trunk

pytest.importorskip("torch")

MOODS = ["good", "bad"] * 15
TEXTS = texts_of(MOODS)


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    return str(write_trunk(tmp_path_factory.mktemp("asked") / "trunk"))


@pytest.fixture(scope="module")
def model(trunk):
    """Two tasks over one text, of different kinds."""
    made = Quick(trunk, backend="reference", verbose=False).fit("mood", TEXTS, MOODS)
    return made.fit("size", TEXTS, [len(text) / 7 for text in TEXTS])


@pytest.fixture(scope="module")
def paired(trunk):
    """One task over a text, one over a pair."""
    made = Quick(trunk, backend="reference", verbose=False).fit("mood", TEXTS, MOODS)
    pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
    return made.fit("same", pairs, ["yes", "no"] * 15)


def missing_values():
    pandas = pytest.importorskip("pandas")
    return [None, float("nan"), np.nan, np.float32("nan"), pandas.NA, pandas.NaT, np.datetime64("NaT")]


def test_a_text_that_is_missing_has_no_answer_and_the_others_have_theirs(model):
    """One null in a list or frame raised, where `polyhead predict` gives null and the reason."""
    whole = model.predict(TEXTS[:2])
    for nothing in missing_values():
        answers = model.predict([TEXTS[0], nothing, TEXTS[1]])
        assert answers == {name: [cells[0], None, cells[1]] for name, cells in whole.items()}
    kept, lost = model.results([TEXTS[0], None])
    assert lost.answers == {} and lost.skipped == {"mood": "the text is empty", "size": "the text is empty"}
    assert kept.answers["mood"]["label"] == whole["mood"][0]
    shares = model.predict_proba([None, TEXTS[0]], "mood")
    assert np.isnan(shares[0]).all() and np.array_equal(shares[1:], model.predict_proba(TEXTS[:1], "mood"))


def test_columns_of_pyarrow_are_texts_and_labels(model, trunk):
    """Their cells are objects of its own, which were no texts."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": [*TEXTS[:2], None], "mood": [*MOODS[:2], None]})
    assert model.predict(table["text"]) == model.predict([*TEXTS[:2], None])
    labels = pyarrow.array(MOODS)
    assert model.evaluate("mood", pyarrow.array(TEXTS), labels) == model.evaluate("mood", TEXTS, MOODS)


def test_an_array_without_a_dimension_is_no_list_of_letters(model):
    with pytest.raises(errors.BadValue, match="texts are given one a row"):
        model.predict(np.array(TEXTS[0]))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_frame_with_nulls_is_answered_by_one_with_nulls(model, library):
    frames = pytest.importorskip(library)
    make = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}[library]
    frame = getattr(frames, make)({"text": [TEXTS[0], None, TEXTS[1]]})
    answers = model.predict(frame)
    cells = answers["mood"].to_pylist() if library == "pyarrow" else list(answers["mood"])
    assert [cells[0], cells[2]] == model.predict(TEXTS[:2])["mood"]
    assert cells[1] is None or cells[1] != cells[1]


def test_pandas_own_text_type_is_read_with_its_missing_value(model):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": pandas.array([TEXTS[0], pandas.NA], dtype="string")}, index=[4, 9])
    answers = model.predict(frame)
    assert answers["mood"].iloc[0] == model.predict(TEXTS[0])["mood"] and answers["mood"].isna().tolist() == [
        False,
        True,
    ]
    assert list(answers.index) == [4, 9]


def test_an_empty_text_and_no_text_at_all_keep_the_shape(model):
    """`predict("")` gave {}, `predict([])` an error."""
    assert model.predict("") == {"mood": None, "size": None}
    assert model.predict(["", "  "]) == {"mood": [None, None], "size": [None, None]}
    assert model.predict([]) == {"mood": [], "size": []} and model.results([]) == []
    assert model.predict_proba([], "mood").shape == (0, 2)
    pandas = pytest.importorskip("pandas")
    assert list(model.predict(pandas.DataFrame({"text": []})).columns) == ["mood", "size"]


def test_a_tuple_of_two_texts_is_one_pair(paired):
    """It was read as two texts, and a task over pairs gave [None, None]."""
    pair = (TEXTS[0], TEXTS[1])
    assert paired.predict(pair) == {"same": paired.predict([pair])["same"][0]}
    assert paired.predict(pair, tasks="same") == paired.predict(pair)
    assert len(paired.results(pair)) == 1 and paired.predict_proba(pair, "same").shape == (1, 2)
    assert paired.predict((TEXTS[0], None))["same"] is None


def test_a_tuple_of_two_texts_is_refused_where_no_task_reads_pairs(model, paired):
    for asked in (
        lambda: model.predict((TEXTS[0], TEXTS[1])),
        lambda: paired.predict((TEXTS[0], TEXTS[1]), tasks="mood"),
    ):
        with pytest.raises(errors.BadValue, match="no task here reads pairs.*into a list"):
            asked()
    assert len(model.predict(tuple(TEXTS[:3]))["mood"]) == 3, "of three it can only be several"


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_pair_is_read_from_both_of_its_columns_or_refused(paired, library):
    """A frame without the second column got no word about the argument that names it."""
    frame = getattr(pytest.importorskip(library), "table" if library == "pyarrow" else "DataFrame")
    columns = {"text": TEXTS, "text_b": TEXTS[::-1]}
    pairs = paired.predict(list(zip(TEXTS, TEXTS[::-1], strict=True)), tasks="same")["same"]
    for names in (["text", "text_b"], ["text_b", "more", "text"]):
        whole = frame({name: columns.get(name, TEXTS) for name in names})
        answered = paired.predict(whole, text_b="text_b", tasks="same")["same"]
        assert answered.to_pylist() == pairs if library == "pyarrow" else list(answered) == pairs
        with pytest.raises(errors.BadValue, match="Got: one text. Allowed: a pair of texts.*text_b=..."):
            paired.predict(whole, tasks="same")
    with pytest.raises(errors.MissingColumn, match="no column 'text_b'"):
        paired.predict(frame({"text": TEXTS}), text_b="text_b", tasks="same")


def test_a_named_task_that_reads_none_of_the_inputs_says_so(paired):
    with pytest.raises(
        errors.BadValue, match="task 'same' reads no input of this form. Got: one text. Allowed: a pair"
    ):
        paired.predict(TEXTS, tasks="same")
    with pytest.raises(errors.BadValue, match="task 'same' reads no input"):
        paired.predict(TEXTS[0], tasks=["mood", "same"])
    assert paired.predict([TEXTS[0], (TEXTS[0], TEXTS[1])], tasks="same")["same"][0] is None
    assert list(paired.predict(TEXTS)) == ["mood"], "of all tasks those that read the texts answer"
    paired.remove("mood")
    with pytest.raises(errors.BadValue, match="reads no input"):
        paired.predict(TEXTS)


def test_one_text_gives_one_result(model):
    (result,) = model.results(TEXTS[0])
    assert result.to_dict()["answers"] == model.results(TEXTS[:1])[0].to_dict()["answers"]
    assert json.dumps(result.to_dict())


def test_scores_stand_beside_the_answers(model):
    answers = model.predict(TEXTS[:3], tasks="mood", scores=True)
    assert list(answers) == ["mood", "mood.scores"]
    for label, shares, numbers in zip(*answers.values(), model.predict_proba(TEXTS[:3], "mood"), strict=True):
        assert max(shares, key=shares.get) == label and list(shares) == ["bad", "good"]
        assert np.allclose(list(shares.values()), numbers, atol=1e-6)
    assert list(model.predict(TEXTS[0], scores=True)) == ["mood", "mood.scores", "size"], "a number has none"
    assert model.predict([None, TEXTS[0]], scores=True)["mood.scores"][0] is None


def test_probabilities_of_a_frame_are_named_by_label(model):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": [*TEXTS[:3], None]}, index=[7, 8, 9, 10])
    shares = model.predict_proba(frame, "mood")
    assert list(shares.columns) == ["bad", "good"] and list(shares.index) == [7, 8, 9, 10]
    assert np.array_equal(shares.to_numpy(np.float32)[:3], model.predict_proba(TEXTS[:3], "mood"))
    assert shares.iloc[3].isna().all()
    assert list(model.predict(frame, scores=True).columns) == ["mood", "mood.scores", "size"]


def test_the_task_may_be_left_out_where_there_is_one(model, trunk):
    alone = Quick(trunk, backend="reference", verbose=False).fit("mood", TEXTS, MOODS)
    assert np.array_equal(alone.predict_proba(TEXTS), alone.predict_proba(TEXTS, "mood"))
    with pytest.raises(errors.UnknownTask, match="no task is named.*mood, size"):
        model.predict_proba(TEXTS)


def test_bytes_and_numbers_are_no_texts(model):
    for wrong in (b"the lamp is good", 3.5, {"text": "a"}):
        with pytest.raises(errors.BadValue, match="row 1 is no text"):
            model.predict([TEXTS[0], wrong])


def test_a_task_that_fails_is_told_of():
    """Its answers were None without a word."""
    task = Task(name="mood", kind="single_label", labels=("bad", "good"))
    answers = [{"label": "good", "scores": {"bad": 0.1, "good": 0.9}}]
    column = SimpleNamespace(task=task, failed={1: "no number"}, rows=np.array([0]), answers=answers)
    with pytest.warns(UserWarning, match=r"task 'mood' failed on 1 input\. Row 1: no number"):
        cells = cells_by_task(SimpleNamespace(tasks={"mood": column}), ["a", "b"], are_named=False, has_scores=False)
    assert cells == {"mood": ["good", None]}


def test_a_notebook_shows_a_model_its_answers_and_a_report(model, tmp_path):
    shown = model.results([TEXTS[0], "<b>bold</b>"])
    assert len(shown) == 2 and shown[0].answers["mood"]["label"] == model.predict(TEXTS[0])["mood"]
    html = shown._repr_html_()
    assert TEXTS[0] in html and "&lt;b&gt;bold&lt;/b&gt;" in html and "<b>bold</b>" not in html
    best = max(shown[0].answers["mood"]["scores"].values())
    assert f"width: {100 * best:.1f}%" in html
    assert "mood" in model._repr_html_() and "size" in model._repr_html_()
    page = model.report("mood").save(tmp_path / "report.html").read_text()
    held = model.session.bundle.scores("mood")["splits"]["validation"]["accuracy"]
    assert f"{held:.4f}" in page and 'id="size"' not in page
    assert 'id="size"' in model.report().html
    own = model.report("mood", TEXTS[:9], MOODS[:9]).html
    assert f"{model.evaluate('mood', TEXTS[:9], MOODS[:9])['accuracy']:.4f}" in own and "9 rows" in own


def test_a_notebook_shows_questions():
    """A question about a context ended in an error, and a question's options stood there twice."""
    passage = Passage(question="Who sat?", context="The cat sat.")
    question = Question(text="Why?", options=("so", "no"))
    marked = {"text": "cat", "start": 4, "end": 7, "score": 0.5}
    chosen = {"index": 1, "option": "no", "scores": [0.25, 0.75], "ranked": [1, 0]}
    fields = {"skipped": {}, "failed": {}, "late": ()}
    results = [SimpleNamespace(answers={"task": answer}, **fields) for answer in (marked, chosen)]
    html = ShownResults(results, [passage, question])._repr_html_()
    assert "Who sat?" in html and ">cat</mark>" in html and html.count(">so<") == 1


@pytest.mark.parametrize(
    "given", [{"labels": MOODS}, {"text": "message"}, {"text_b": "other"}, {"separator": "/"}, {"empty": "none"}]
)
def test_a_report_of_held_out_rows_refuses_what_describes_others(model, given):
    """It left them unread: a caller who forgot the texts got scores of other rows."""
    with pytest.raises(errors.BadValue, match=f"'{next(iter(given))}' would change nothing.* give texts"):
        model.report("mood", **given)


def test_a_report_without_kept_rows_says_what_to_do(model, tmp_path):
    model.save(tmp_path / "saved")
    with pytest.raises(errors.BundleError, match="held out are kept here.*cache="):
        Quick.load(tmp_path / "saved", backend="reference").report()
    assert "no task yet" in Quick("minilm", verbose=False)._repr_html_()


def test_scores_that_are_named_like_another_task_are_refused(trunk, monkeypatch):
    """The second column took the place of the first, in silence."""
    made = Quick(trunk, backend="reference", verbose=False).fit("mood", TEXTS, MOODS).fit("mood.scores", TEXTS, MOODS)
    assert set(made.predict(TEXTS[:2])) == {"mood", "mood.scores"}
    assert set(made.predict(TEXTS[:2], tasks="mood", scores=True)) == {"mood", "mood.scores"}
    monkeypatch.setattr(made.session, "columns", None)  # no work is done
    for tasks in (None, ["mood.scores", "mood"]):
        with pytest.raises(errors.BadValue, match="two columns of answers would have one name") as raised:
            made.predict(TEXTS[:2], tasks=tasks, scores=True)
        assert raised.value.got == ["mood.scores"] and "tasks=" in raised.value.do
