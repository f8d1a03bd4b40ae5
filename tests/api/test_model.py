"""`Model`: tasks learned, asked, replaced and kept from Python, with lists, arrays and frames."""

import json
import pickle
import random
import re
import shutil
import threading
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from polyhead import Model as Whole
from polyhead import Passage, Project, Question, Session, TaskEntry, errors, train_project
from polyhead.api.fitting import settings_of
from polyhead.bundle.read import Bundle
from polyhead.certify.proof import locked
from polyhead.data.rows import Rows
from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.tables import TrunkChoice
from support.tiny_project import write_trunk

pytest.importorskip("torch")
from polyhead.train.events import Events

GOOD, BAD, THINGS = ("good", "happy"), ("bad", "sad", "broken", "late"), ("lamp", "kettle", "phone", "box")


class Model(Whole):
    """Trained for a few epochs, which is enough for linear heads on words that say it."""

    def fit(self, *arguments, **options):
        return super().fit(*arguments, **{"training": Training(epochs=2), **options})


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    return str(write_trunk(tmp_path_factory.mktemp("model") / "trunk"))


def rows(count=60, seed=1):
    """Texts, and the mood and the thing of each."""
    drawn = random.Random(seed)
    moods = [drawn.choice(("good", "bad")) for _ in range(count)]
    things = [drawn.choice(THINGS) for _ in range(count)]
    words = {"good": GOOD, "bad": BAD}
    texts = [f"the {thing} is {drawn.choice(words[mood])}" for mood, thing in zip(moods, things, strict=True)]
    return texts, moods, things


@pytest.fixture(scope="module")
def model(trunk):
    texts, moods, things = rows()
    made = Model(trunk, backend="reference", verbose=False)
    return made.fit("mood", texts, moods).fit("things", texts, [[thing] for thing in things])


def test_a_task_is_learned_and_asked_in_a_line_each(model):
    texts, moods, _ = rows(count=40, seed=2)
    answers = model.predict(texts)
    assert list(answers) == ["mood", "things"] and len(answers["mood"]) == 40
    right = np.mean([answer == mood for answer, mood in zip(answers["mood"], moods, strict=True)])
    assert right > 0.8, "words tell the moods apart"
    assert model.predict(texts[0]) == {name: column[0] for name, column in answers.items()}
    assert model.evaluate("mood", texts, moods)["accuracy"] == pytest.approx(right)


@pytest.mark.slow
def test_kinds_are_guessed_from_labels_and_said(trunk, capsys):
    texts, moods, things = rows()
    made = Model(trunk, backend="reference")
    made.fit("mood", texts, moods)
    said = capsys.readouterr().err
    assert "mood: kind single_label" in said and "kind=" in said
    made.fit("things", texts, [[thing, "any"] for thing in things]).fit("size", texts, [len(t) / 7 for t in texts])
    assert {name: task.kind for name, task in made.tasks.items()} == {
        "mood": "single_label",
        "things": "multi_label",
        "size": "regression",
    }


@pytest.mark.slow
@pytest.mark.parametrize("library", ["list", "pandas", "polars"])
def test_several_labels_in_a_string_are_several_labels(trunk, library):
    """They were recognised, and then refused with an option of the command line."""
    texts, moods, things = rows()
    cells = [
        f"{mood}; {thing}" if number % 3 else thing
        for number, (mood, thing) in enumerate(zip(moods, things, strict=True))
    ]
    lists = [cell.split("; ") for cell in cells]
    made = Model(trunk, backend="reference", verbose=False)
    if library == "list":
        made.fit("asks", texts, cells, validation=(texts[::3], cells[::3]), test=(texts, cells))
    else:
        frames = pytest.importorskip(library)
        frame = frames.DataFrame({"question": texts, "asks about": cells})
        made.fit("asks", frame, "asks about", text="question", validation=0.5)
    other = Model(trunk, backend="reference", verbose=False)
    other.fit(
        "asks", texts, lists, **({"validation": (texts[::3], lists[::3])} if library == "list" else {"validation": 0.5})
    )
    assert made.tasks["asks"].kind == "multi_label"
    assert made.tasks["asks"].labels == other.tasks["asks"].labels == tuple(sorted({"good", "bad", *THINGS}))
    assert made.predict(texts) == other.predict(texts), "one text, one separator or a list, is one thing to learn from"
    assert made.evaluate("asks", texts, cells) == made.evaluate("asks", texts, lists)
    assert made.evaluate("asks", texts[:1], [things[0]]) == made.evaluate("asks", texts[:1], [[things[0]]])
    if library == "list":
        made.fit("slashes", texts, ["/".join(own) for own in lists], separator="/", validation=(texts[::3], lists[::3]))
        assert made.tasks["slashes"].labels == other.tasks["asks"].labels


@pytest.mark.slow
def test_labels_that_a_frame_made_floats_are_labels(trunk):
    """Python trained a regression where the command line asked."""
    pandas = pytest.importorskip("pandas")
    texts, moods, _ = rows()
    marks = [None if number % 7 == 0 else int(mood == "good") for number, mood in enumerate(moods)]
    plain = [None if mark is None else str(mark) for mark in marks]
    made = Model(trunk, backend="reference", verbose=False).fit("plain", texts, plain)
    columns = {
        "floats": pandas.Series(marks, dtype="float64"),
        "numbers": pandas.Series(marks, dtype="Int64"),
        "marks": pandas.Series([pandas.NA if mark is None else mark for mark in marks], dtype=object),
        "array": np.array([np.nan if mark is None else mark for mark in marks]),
    }
    for name, column in columns.items():
        made.fit(name, texts, column)
        assert (made.tasks[name].kind, made.tasks[name].labels) == ("single_label", ("0", "1"))
    made.fit("frame", pandas.DataFrame({"text": texts, "spam": columns["numbers"]}), "spam")
    answers = made.predict(texts)
    assert all(answers[name] == answers["plain"] for name in (*columns, "frame"))
    assert made.evaluate("plain", texts, columns["floats"]) == made.evaluate("plain", texts, plain)
    flags = pandas.Series([None if mark is None else bool(mark) for mark in marks], dtype="boolean")
    assert made.fit("flags", texts, flags).tasks["flags"].labels == ("false", "true")
    names = pandas.Series([None if mark is None else ("no", "yes")[mark] for mark in marks])
    for dtype in ("string", "category"):
        assert made.fit(dtype, texts, names.astype(dtype)).tasks[dtype].labels == ("no", "yes")


def test_codes_in_python_are_labels(trunk):
    texts, moods, _ = rows()
    codes = ["007.1" if mood == "good" else "038.11" for mood in moods]
    made = Model(trunk, backend="reference", verbose=False).fit("icd", texts, codes)
    assert (made.tasks["icd"].kind, made.tasks["icd"].labels) == ("single_label", ("007.1", "038.11"))
    with pytest.raises(errors.ConfigError, match="kind='single_label' or kind='regression'"):
        made.fit("read", texts, [float(code) for code in codes])


def test_answers_are_those_of_a_session_over_the_saved_bundle(model, tmp_path):
    texts, _, _ = rows(count=10, seed=3)
    saved = model.save(tmp_path / "saved")
    theirs = Session(saved, backend="reference").predict(texts)
    assert [result.answers["mood"]["label"] for result in theirs] == model.predict(texts)["mood"]
    assert Model.load(saved, backend="reference").predict(texts) == model.predict(texts)
    with pytest.raises(errors.BundleError, match="not empty"):
        model.save(saved)


def test_probabilities_stand_in_the_order_of_the_labels(model):
    texts, _, _ = rows(count=8, seed=4)
    shares = model.predict_proba(texts, "mood")
    assert shares.shape == (8, 2) and np.allclose(shares.sum(axis=1), 1, atol=1e-6)
    labels = model.tasks["mood"].labels
    assert [labels[index] for index in shares.argmax(axis=1)] == model.predict(texts)["mood"]


def test_probabilities_have_the_labels_of_the_version_that_answered(trunk, monkeypatch):
    """The labels were looked up after the answers, when a fit in another thread may have ended."""
    pandas = pytest.importorskip("pandas")
    texts, moods, _ = rows()
    made = Model(trunk, backend="reference", verbose=False).fit("mood", texts, moods, classes=["good", "bad"])
    frame, columns = pandas.DataFrame({"text": texts}), Whole._columns
    before = made.predict_proba(frame, "mood")

    def replaced_meanwhile(model, *arguments, **options):
        answers = columns(model, *arguments, **options)
        made.remove("mood")
        made.fit("mood", texts, moods, classes=["bad", "good"])
        return answers

    monkeypatch.setattr(Whole, "_columns", replaced_meanwhile)
    assert made.predict_proba(frame, "mood").equals(before)


def test_results_say_versions_and_are_plain_values(model):
    result = model.results(["the lamp is good"], tasks="mood")[0]
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert result.to_dict()["versions"] == {"mood": "v0001"}
    assert result.receipt.to_dict()["passes"] == 1


def test_a_new_version_moves_no_other_task_and_goes_back(trunk):
    texts, moods, things = rows()
    made = Model(trunk, backend="reference", deterministic=True, verbose=False)
    made.fit("mood", texts, moods).fit("thing", texts, things)
    before = made.session.columns(texts, tasks=["thing"])["thing"].outputs
    swapped = [{"good": "bad", "bad": "good"}[mood] for mood in moods]
    made.fit("mood", texts, swapped)
    assert made.versions == {"mood": "v0002", "thing": "v0001"}
    assert made.predict("the lamp is happy")["mood"] == "bad"
    after = made.session.columns(texts, tasks=["thing"])["thing"].outputs
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert made.rollback("mood") == "v0001" and made.predict("the lamp is happy")["mood"] == "good"
    made.remove("mood")
    assert list(made.tasks) == ["thing"]


def test_an_update_goes_live_where_it_is_better_alone(trunk):
    texts, moods, _ = rows()
    made = Model(trunk, backend="reference", verbose=False)
    made.fit("mood", texts, moods, test=rows(seed=7)[:2])
    noise = random.Random(0)
    assert not made.update("mood", texts, noise.sample(moods, len(moods)), test=rows(seed=7)[:2])
    assert made.versions["mood"] == "v0001"


def test_an_update_in_a_later_program_takes_a_version_that_is_better(trunk, tmp_path):
    """Nobody knows any more what the live version learned from, and its rows may be no help to the new one."""
    texts, moods, _ = rows()
    noise = random.Random(0)
    settings = {"backend": "reference", "verbose": False}
    Model(trunk, folder=tmp_path / "b", **settings).fit("mood", texts, noise.sample(moods, len(moods)))
    later = Model.load(tmp_path / "b", **settings)
    texts, moods, _ = rows(seed=3)
    assert later.update("mood", texts, moods) and later.versions["mood"] == "v0002"


def test_labels_of_the_live_version_keep_their_places(trunk):
    texts, moods, _ = rows()
    made = Model(trunk, backend="reference", verbose=False).fit("mood", texts, moods)
    more = [*texts, *["the box is late"] * 20]
    made.fit("mood", more, [*moods, *["angry"] * 20])
    assert made.tasks["mood"].labels == ("bad", "good", "angry")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_give_frames_of_their_library(model, trunk, library):
    frames = pytest.importorskip(library)
    texts, moods, _ = rows(count=50, seed=5)
    make = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}[library]
    frame = getattr(frames, make)({"body": texts, "mood": moods})
    made = Model(trunk, backend="reference", verbose=False).fit("mood", frame, "mood", text="body")
    answers = made.predict(frame, text="body")
    assert type(answers) is type(frame)
    assert list(answers["mood"].to_pylist() if library == "pyarrow" else answers["mood"]) == made.predict(texts)["mood"]
    with pytest.raises(errors.MissingColumn, match="bodies"):
        made.predict(frame, text="bodies")


class Dataset:
    """As much of a `datasets.Dataset` as is read; the real one gave the same (version 5.2)."""

    column_names, features = ["text"], None

    def __init__(self, texts):
        self._texts = texts

    def __getitem__(self, name):
        assert name == "text"
        return iter(self._texts)


def test_a_dataset_is_read_by_its_column(model, monkeypatch):
    monkeypatch.setattr(Dataset, "__module__", "datasets.arrow_dataset")
    texts = ["the lamp is good", "the box is bad"]
    assert model.predict(Dataset(texts)) == model.predict(texts)


def test_a_frame_keeps_its_index(model):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["the lamp is good", "the box is late"]}, index=[7, 3])
    answers = model.predict(frame)
    assert list(answers.index) == [7, 3] and list(answers.columns) == ["mood", "things"]


def test_arrays_and_series_are_lists(model):
    texts = np.array(["the lamp is good", "the box is late"])
    assert model.predict(texts) == model.predict(list(texts))
    three = [*texts, "the box is sad"]
    assert model.predict(np.array(three)) == model.predict(three) == model.predict(tuple(three))


@pytest.mark.slow
def test_pairs_words_questions_and_spans(trunk):
    drawn, made = random.Random(3), Model(trunk, backend="reference", verbose=False)
    texts, moods, things = rows()
    pairs = [(one, other) for one, other in zip(texts, drawn.sample(texts, len(texts)), strict=True)]
    same = ["same" if one.split()[-1] == other.split()[-1] else "other" for one, other in pairs]
    made.fit("same", pairs, same)
    words = [text.split() for text in texts]
    made.fit("words", words, [["O", "B-thing", "O", "O"] for _ in words])
    spans = [
        [{"start": text.index(thing), "end": text.index(thing) + len(thing), "label": "thing"}]
        for text, thing in zip(texts, things, strict=True)
    ]
    made.fit("places", texts, spans)
    asked = [Question(text="what is it ?", options=("lamp", "box"), context=text) for text in texts]
    made.fit("which", asked, [int("box" in text) for text in texts], kind="multiple_choice")
    kinds = {name: task.kind for name, task in made.tasks.items()}
    assert kinds == {"same": "single_label", "words": "tagging", "places": "tagging", "which": "multiple_choice"}
    assert set(made.predict(pairs[:3])["same"]) <= {"same", "other"}
    marked = made.predict(texts, tasks="places")["places"]
    found = [{(span["start"], span["end"], span["label"]) for span in places} for places in marked]
    wanted = [{(span["start"], span["end"], span["label"]) for span in places} for places in spans]
    assert np.mean([mine == theirs for mine, theirs in zip(found, wanted, strict=True)]) > 0.8
    assert list(made.predict([texts[0], pairs[0]])) == ["same", "words", "places"]
    assert made.predict([texts[0], pairs[0]])["same"][0] is None


@pytest.mark.slow
def test_passages_are_read_as_pairs_of_question_and_context(trunk):
    """By `fit`, which takes their kind for granted, `evaluate` and `predict`; by no task over other pairs."""
    texts, moods, things = rows()
    answers = [[{"text": thing, "start": text.index(thing)}] for text, thing in zip(texts, things, strict=True)]
    passages = [Passage(question="what is it ?", context=text) for text in texts]
    pairs = [(passage.question, passage.context) for passage in passages]
    made = Model(trunk, backend="reference", verbose=False).fit("what", passages, answers)
    assert made.tasks["what"].kind == "span"
    assert made.predict(passages) == made.predict(pairs)
    assert made.predict(passages[0])["what"] == made.predict(passages[:1])["what"][0]
    assert made.evaluate("what", passages, answers) == made.evaluate("what", pairs, answers)
    same = Model(trunk, backend="reference", verbose=False).fit("what", pairs, answers)
    assert same.predict(passages) == made.predict(passages)
    same.fit("mood", pairs, moods)
    with pytest.raises(errors.BadValue, match="task .mood. reads no input of this form. Got: a question"):
        same.predict(passages[:1], tasks="mood")
    with pytest.raises(errors.BadValue, match="a question about a context. Allowed: a pair of texts"):
        same.evaluate("mood", passages, moods)


@pytest.mark.slow
def test_questions_are_of_the_kind_that_chooses(trunk):
    """Their labels, numbers or texts, would be names of classes."""
    texts, _, things = rows()
    asked = [Question(text="what is it ?", options=THINGS, context=text) for text in texts]
    for labels in (things, [THINGS.index(thing) for thing in things]):
        made = Model(trunk, backend="reference", verbose=False).fit("which", asked, labels)
        assert made.tasks["which"].kind == "multiple_choice"
    assert made.predict(asked[0])["which"] == made.predict(asked[:1])["which"][0]
    assert 0 <= made.evaluate("which", asked, things)["accuracy"] <= 1


@pytest.mark.slow
def test_tables_of_settings_may_be_dicts(trunk):
    """A strategy and its training were to be given as values that no public name makes."""
    training, strategy = {"epochs": 2, "seed": 3}, {"kind": "pooled", "layers": "last"}
    as_values = {"training": Training(epochs=2, seed=3), "strategy": Pooled(layers="last"), "team": "shop"}
    assert settings_of("mood", {"training": training, "strategy": strategy, "team": "shop"}) == as_values
    assert settings_of("mood", as_values) == as_values
    assert settings_of("mood", {"strategy": "branch"}) == {"strategy": Branch()}
    texts, moods, _ = rows()
    made = Model(trunk, backend="reference", verbose=False)
    several = []
    for own in (training, as_values["training"]):
        made = Model(trunk, backend="reference", verbose=False).fit("mood", texts, moods, training=own)
        several.append(np.stack(made.session.columns(texts)["mood"].outputs))
    assert np.array_equal(*several)


def test_validation_is_given_as_the_test_is(trunk):
    texts, moods, _ = rows()
    held, held_moods, _ = rows(count=20, seed=8)
    made = Model(trunk, backend="reference", verbose=False).fit("mood", texts, moods, validation=(held, held_moods))
    assert made.session.bundle.record("mood").trained_with["data"]["validation"]["rows"] == 20
    made.fit("mood", texts, moods, validation=0.25)
    assert made.session.bundle.record("mood").trained_with["data"]["validation"]["rows"] == 15


def test_a_lazy_frame_is_not_asked_for_its_columns(model):
    """Which made it resolve its plan, with a warning."""
    polars = pytest.importorskip("polars")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(errors.BadValue, match="collect a lazy frame"):
            model.predict(polars.LazyFrame({"text": ["a"]}))


def test_two_columns_of_one_name_are_refused(model):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(errors.BadValue, match="two columns of the table have one name") as caught:
        model.predict(pandas.DataFrame([["a", "b"]], columns=["text", "text"]))
    assert "rename or drop one" in str(caught.value)


def test_a_text_in_a_tuple_of_its_own_is_a_text(model):
    assert model.predict([("the lamp is good",)]) == model.predict(["the lamp is good"])


def test_a_model_is_pickled_with_its_tasks(model):
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(["the lamp is good"]) == model.predict(["the lamp is good"])
    assert again.folder != model.folder
    empty = pickle.loads(pickle.dumps(Model(model.trunk)))
    assert empty.tasks == {}


WRONG = {
    "no task yet": (lambda made, t, m: made.predict(t), errors.ConfigError, "no task yet"),
    "labels too few": (lambda made, t, m: made.fit("a", t, m[:-1]), errors.BadValue, "60 texts, 59 labels"),
    "no label": (lambda made, t, m: made.fit("a", t, None), errors.BadValue, "no labels"),
    "a text alone": (lambda made, t, m: made.fit("a", "a text", m), errors.BadValue, "a list"),
    "an empty list": (lambda made, t, m: made.fit("a", [], []), errors.EmptyData, "no text"),
    "a number": (lambda made, t, m: made.fit("a", [*t[:-1], 3.5], m), errors.BadValue, "row 59"),
    "a text among pairs": (
        lambda made, t, m: made.fit("a", [*zip(t[1:], t[1:], strict=True), t[0]], m),
        errors.BadValue,
        "row 59 .* one text. Allowed: a pair of texts",
    ),
    "three texts": (lambda made, t, m: made.fit("a", [(x, x, x) for x in t], m), errors.BadValue, "row 0 is no text"),
    "a passage for a label": (
        lambda made, t, m: made.fit("a", [Passage(question="what ?", context=x) for x in t], m, kind="single_label"),
        errors.BadValue,
        "a question about a context. Allowed: one text",
    ),
    "one label": (lambda made, t, m: made.fit("a", t, ["good"] * 60), errors.BadValue, "too few different labels"),
    "a rate by its short name": (
        lambda made, t, m: made.fit("a", t, m, lr=0.1),
        errors.ConfigError,
        re.escape("training={'learning_rate': ...}: learning_rate is meant by lr"),
    ),
    "a key of training": (lambda made, t, m: made.fit("a", t, m, epochs=3), errors.ConfigError, "training={'epochs'"),
    "labels by another name": (
        lambda made, t, m: made.fit("a", t, m, label_names=["good", "bad"]),
        errors.ConfigError,
        "give classes=",
    ),
    "a key of a table": (
        lambda made, t, m: made.fit("a", t, m, training={"batch_size": 8}),
        errors.ConfigError,
        "task 'a'.*batch is meant by batch_size",
    ),
    "a strategy": (lambda made, t, m: made.fit("a", t, m, strategy="brunch"), errors.ConfigError, "branch"),
    "a setting": (lambda made, t, m: made.fit("a", t, m, metrics="f1"), errors.ConfigError, "did you mean 'metric'"),
    "a kind": (lambda made, t, m: made.fit("a", t, m, kind="labels"), errors.ConfigError, "labels"),
    "a path": (lambda made, t, m: made.fit("../../a", t, m), errors.BadName, "a"),
    "a name": (lambda made, t, m: made.fit("a/b", t, m), errors.BadName, "a/b"),
    "update of nothing": (lambda made, t, m: made.update("a", t, m), errors.UnknownTask, "no task 'a'"),
    "ratings": (
        lambda made, t, m: made.fit("a", t, [len(x) % 5 + 1 for x in t]),
        errors.ConfigError,
        "task 'a' can be read in 2 ways.*kind='single_label' or kind='regression'",
    ),
    "a separator that may be part of a name": (
        lambda made, t, m: made.fit("a", t, ["x;y", "z"] * 30),
        errors.ConfigError,
        "kind='multi_label' or kind='single_label'",
    ),
    "a label that is no number": (
        lambda made, t, m: made.fit("a", t, [*range(59), "x"], kind="regression"),
        errors.BadValue,
        "row 59: 'label' is no number.*another kind=",
    ),
    "tags of a text": (
        lambda made, t, m: made.fit("a", t, [["O", "B-x"]] * 60),
        errors.BadValue,
        re.escape('row 0: this is no span. Got: O. Allowed: {"start", "end", "label"}'),
    ),
    "no probabilities": (
        lambda made, t, m: made.fit("a", t, [len(x) / 3 for x in t]).predict_proba(t, "a"),
        errors.BadValue,
        "regression",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_used_is_said(trunk, what):
    call, error, words = WRONG[what]
    texts, moods, _ = rows()
    made = Model(trunk, backend="reference", verbose=False)
    with pytest.raises(error, match=words):
        call(made, texts, moods)
    assert what == "no probabilities" or made.tasks == {}


def test_one_row_of_each_label_is_enough_and_its_score_is_said_to_say_nothing(trunk, capsys):
    texts, moods, _ = rows()
    first = [moods.index(mood) for mood in sorted(set(moods))]
    made = Model(trunk, backend="reference")
    made.fit("mood", [texts[row] for row in first], [moods[row] for row in first], effort="quick")
    assert made.predict([texts[row] for row in first])["mood"] == [moods[row] for row in first]
    assert "each is the only one of its label, so this score says nothing" in capsys.readouterr().err


def test_a_folder_is_changed_where_it_lies(trunk, tmp_path):
    texts, moods, things = rows()
    Model(trunk, folder=tmp_path / "bundle", backend="reference", verbose=False).fit("mood", texts, moods)
    Model.load(tmp_path / "bundle", backend="reference", verbose=False).fit("thing", texts, things)
    assert list(Bundle.open(tmp_path / "bundle").tasks) == ["mood", "thing"]


def test_versions_are_those_that_answer_and_a_change_begins_from_what_others_made(trunk, tmp_path):
    """`versions` named those in the folder, which another model had changed, while the earlier ones answered."""
    texts, moods, things = rows()
    options = {"folder": tmp_path / "bundle", "backend": "reference", "verbose": False}
    one, two = Model(trunk, **options).fit("mood", texts, moods).fit("thing", texts, things), Model(trunk, **options)
    swapped = [{"good": "bad", "bad": "good"}[mood] for mood in moods]
    assert two.predict("the lamp is happy")["mood"] == "good"
    one.fit("mood", texts, swapped).remove("thing")
    assert (two.predict("the lamp is happy")["mood"], two.versions) == ("good", {"mood": "v0001", "thing": "v0001"})
    with pytest.raises(errors.UnknownTask, match="no task 'thing'"):
        two.update("thing", texts, things)
    assert (two.predict("the lamp is happy"), two.versions) == ({"mood": "bad"}, {"mood": "v0002"})
    one.fit("mood", [*texts, "the lamp is odd"], [*moods, "odd"])
    two.fit("mood", [*texts, "the lamp is odd", "the lamp is even"], [*moods, "odd", "even"])
    assert two.tasks["mood"].labels == (*one.tasks["mood"].labels, "even")


def test_a_model_whose_folder_was_moved_answers_and_makes_no_other_bundle_there(trunk, tmp_path):
    """It said that it had no tasks, and `fit` began a new bundle with one task in the old place."""
    texts, moods, things = rows()
    made = Model(trunk, folder=tmp_path / "bundle", backend="reference", verbose=False).fit("mood", texts, moods)
    answers = made.predict(texts)
    (tmp_path / "bundle").rename(tmp_path / "moved")
    assert made.predict(texts, tasks="mood") == answers and made.versions == {"mood": "v0001"}
    with pytest.raises(errors.BundleError, match="no bundle"):
        made.fit("thing", texts, things)
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_a_bundle_is_saved_at_rest_and_never_into_itself(trunk, tmp_path):
    """A copy made while another process put in a version could name files that it lacked."""
    texts, moods, things = rows()
    made = Model(trunk, folder=tmp_path / "bundle", backend="reference", verbose=False).fit("mood", texts, moods)
    waiting = threading.Thread(target=made.save, args=(tmp_path / "saved",))
    with locked(tmp_path / "bundle", "train"):
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not (tmp_path / "saved").exists()
    waiting.join()
    Bundle.open(tmp_path / "saved").verify()
    with pytest.raises(errors.BundleError, match="into itself"):
        made.save(tmp_path / "bundle" / "backup")
    assert not (tmp_path / "bundle" / "backup").exists()


def encoded(said):
    """How many inputs a run of training encoded, as it says."""
    return [int(count.replace(",", "")) for count in re.findall(r"encoded ([\d,]+) inputs?", said)]


def test_features_are_kept_between_tasks(trunk, capsys):
    texts, moods, things = rows()
    made = Model(trunk, backend="reference").fit("mood", texts, moods)
    assert encoded(capsys.readouterr().err) == [len(set(texts))]
    made.fit("thing", texts, things)
    assert encoded(capsys.readouterr().err) in ([], [0])


def test_rows_in_memory_are_those_of_a_file(trunk, tmp_path):
    texts, moods, _ = rows()
    table = [{"text": text, "mood": mood} for text, mood in zip(texts, moods, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    known = {"kind": "single_label", "label": "mood", "labels": ("bad", "good")}
    for bundle, file, data in (("one", "rows.jsonl", None), ("two", "memory", {"mood": {"train": table}})):
        entry = TaskEntry(name="mood", train=file, training=Training(epochs=2), **known)
        project = Project(tasks=(entry,), bundle=bundle, trunk=TrunkChoice(name=trunk))
        train_project(project, folder=tmp_path, data=data, events=Events())
    one, two = (Bundle.open(tmp_path / name).record("mood").arrays for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"moods": {"train": []}}, errors.ConfigError, "did you mean 'mood'"),
        ({"mood": {"dev": []}}, errors.ConfigError, "no such split"),
        ({"mood": {"train": "rows"}}, errors.BadValue, "no table"),
        ({"mood": {"train": [1]}}, errors.BadValue, "no table"),
    ],
)
def test_data_in_memory_that_fits_nothing_is_refused(trunk, tmp_path, data, error, words):
    entry = TaskEntry(name="mood", kind="single_label", train="memory", labels=("a", "b"))
    with pytest.raises(error, match=words):
        train_project(
            Project(tasks=(entry,), trunk=TrunkChoice(name=trunk)), folder=tmp_path, data=data, events=Events()
        )
    assert list(tmp_path.iterdir()) == []


class Hub:
    """A hub that is a folder."""

    def __init__(self, root):
        self.root, self.files = root, {}

    def HfApi(self, token):
        return self

    def create_repo(self, name, *, private, exist_ok):
        assert private and exist_ok
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, folder_path, repo_id):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return "https://hub/commit"

    def snapshot_download(self, name, *, revision, token):
        if not (self.root / name).is_dir():
            raise FileNotFoundError(name)
        return str(self.root / name)


def test_a_bundle_goes_to_the_hub_and_comes_back(model, tmp_path, monkeypatch):
    from polyhead.api import hub

    monkeypatch.setattr(hub, "_hub", lambda: Hub(tmp_path / "hub"))
    assert model.push("team/support") == "https://hub/commit"
    card = (tmp_path / "hub/team/support/README.md").read_text()
    assert "| mood | single_label | bad, good |" in card
    again = Model.pull("team/support", tmp_path / "pulled", backend="reference")
    assert again.predict(["the lamp is good"]) == model.predict(["the lamp is good"])
    with pytest.raises(errors.BundleError, match="team/other"):
        Model.pull("team/other", tmp_path / "other")
    weights = next((tmp_path / "hub/team/support").rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(errors.BundleError):
        Model.pull("team/support", tmp_path / "damaged")
    assert not (tmp_path / "damaged").exists()


def test_a_bundle_is_uploaded_at_rest(trunk, tmp_path, monkeypatch):
    """An upload while another process put in a version could name files that it lacked."""
    from polyhead.api import hub

    texts, moods, _ = rows()
    made = Model(trunk, folder=tmp_path / "bundle", backend="reference", verbose=False).fit("mood", texts, moods)
    monkeypatch.setattr(hub, "_hub", lambda: Hub(tmp_path / "hub"))
    waiting = threading.Thread(target=made.push, args=("team/support",))
    with locked(tmp_path / "bundle", "train"):
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not (tmp_path / "hub").exists()
    waiting.join()
    Bundle.open(tmp_path / "hub/team/support").verify()
    assert not [*(tmp_path / "hub").rglob(".lock")]


def test_missing_values_of_tables_in_memory_are_null(tmp_path):
    """An NA of pandas could not be written."""
    from polyhead.api.rows import with_data

    pandas = pytest.importorskip("pandas")
    rows = [
        {"text": "a", "label": pandas.NA},
        {"text": pandas.NaT, "label": np.float64("nan")},
        {"text": "b", "label": 1},
    ]
    entry = TaskEntry(name="t", kind="single_label", labels=("0", "1"), train="x.jsonl")
    for table in (rows, pandas.DataFrame(rows)):
        with with_data(Project(tasks=(entry,)), {"t": {"train": table}}) as made:
            lines = [dict(row.values) for row in Rows(made.tasks[0].train)]
        assert [list(line.values()) for line in lines] == [["a", None], [None, None], ["b", 1]]


def test_decimals_of_tables_in_memory_are_numbers_at_any_depth():
    """Those in lists and objects were written as strings, and refused as probabilities and labels."""
    from polyhead.api.rows import with_data

    cells = [[Decimal("0.25"), Decimal(1)], (Decimal(2), "b"), {"no": Decimal("0.5"), "more": [Decimal("1.5")]}]
    rows = [{"text": "a", "label": cell} for cell in cells]
    entry = TaskEntry(name="t", kind="multi_label", labels=("0", "1"), train="x.jsonl")
    with with_data(Project(tasks=(entry,)), {"t": {"train": rows}}) as made:
        read = [row.values["label"] for row in Rows(made.tasks[0].train)]
    assert read == [[0.25, 1], [2, "b"], {"no": 0.5, "more": [1.5]}]


def test_what_a_bundle_does_not_list_is_not_kept(model, tmp_path, monkeypatch):
    """A repository may hold anything beside the bundle: what comes here is the bundle, byte for byte, and no more."""
    from polyhead.api import hub

    monkeypatch.setattr(hub, "_hub", lambda: Hub(tmp_path / "hub"))
    model.push("team/support")
    Model.pull("team/support", tmp_path / "plain")
    repository = tmp_path / "hub/team/support"
    wanted = {path.relative_to(repository) for path in repository.rglob("*") if path.is_file()} - {Path("README.md")}

    def files(root):
        return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    plain = files(tmp_path / "plain")
    assert set(plain) == wanted and len(wanted) > 8
    version = next((repository / "tasks" / "mood").iterdir())
    for place in (
        repository / "run.py",
        repository / "trunk" / "model.bin",
        version / "modeling.py",
        version / "deep" / "part.safetensors",
        repository / "tasks" / "ghost" / "v0001" / "task.json",
        repository / "tasks" / "mood" / "v1" / "task.json",
        repository / "families" / "ghost" / "v0001" / "family.json",
        repository / "tasks" / "ghost" / "v0001" / "model.safetensors",
        repository / "certificates" / "run.sh",
        repository / "cache" / "x.safetensors",
        repository / "elsewhere" / "a" / "b",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"junk")
    Model.pull("team/support", tmp_path / "again")
    assert files(tmp_path / "again") == plain
    folders = {path.relative_to(tmp_path / "again").parts[0] for path in (tmp_path / "again").iterdir()}
    assert folders == {path.parts[0] for path in wanted}


def test_of_labelled_spans_that_overlap_the_longest_stay_or_the_row_goes_if_that_is_said(trunk):
    texts = [f"the {thing} is late {count}" for count, thing in enumerate(THINGS * 6)]
    spans = [
        [{"start": 4, "end": len(text), "label": "what"}, {"start": 4, "end": 7, "label": "thing"}] for text in texts
    ]
    made = Model(trunk, backend="reference", verbose=False)
    with pytest.raises(errors.BadValue, match="two labelled spans overlap.*overlaps = 'longest'"):
        made.fit("what", texts, spans, kind="tagging")
    with pytest.raises(errors.ConfigError, match="overlaps"):
        made.fit("what", texts, spans, kind="tagging", overlaps="both")
    made.fit("what", texts, spans, kind="tagging", overlaps="longest")
    kept = [each[:1] for each in spans]
    assert made.evaluate("what", texts, spans, overlaps="longest") == made.evaluate("what", texts, kept)
    with pytest.raises(errors.BadValue, match="overlap"):
        made.evaluate("what", texts, spans)
    with pytest.raises(errors.EmptyData):
        made.evaluate("what", texts, spans, overlaps="skip")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "refrence"}, "did you mean 'reference'?"),
        ({"precision": "int9"}, "no backend can run the trunk in int9"),
        ({"backend": "reference", "precision": "int8"}, "the reference backend cannot run the trunk in int8"),
    ],
)
def test_a_backend_that_does_not_exist_is_refused_at_once(trunk, options, said):
    """It was refused in `predict`, after a training."""
    with pytest.raises(errors.BackendError) as raised:
        Model(trunk, **options)
    assert said in str(raised.value)
