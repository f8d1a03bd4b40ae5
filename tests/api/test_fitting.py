"""How a model learns: own rows for each call, earlier rows beside new ones, labels that would be lost, wrong calls."""

import re
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from polyhead import DataFile, errors
from polyhead.api.rows import LabelledTexts, kind_of_rows
from polyhead.bundle.read import Bundle
from polyhead.certify.annotations import Annotations, keep_annotations
from polyhead.project.recipes import Training
from polyhead.project.tables import Project
from polyhead.tasks.calibration import Calibration
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Progress
from support.mood_texts import Quick, texts_of
from support.notebook import Notebook
from support.tiny_project import write_trunk

pytest.importorskip("torch")

MOODS = ["good", "bad"] * 15
TEXTS = texts_of(MOODS)
FIVE = ["good", "bad", "red", "green", "blue"]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    return str(write_trunk(tmp_path_factory.mktemp("fitting") / "trunk"))


@pytest.fixture
def made(trunk):
    return Quick(trunk, backend="reference", verbose=False)


def five_classes(made):
    moods = FIVE * 8
    return made.fit("mood", texts_of(moods), moods)


def test_rows_of_new_classes_alone_replace_nothing_unless_that_is_said(made):
    """They replaced a task that knew five classes by one that answered everything with two, in silence."""
    five_classes(made)
    new = ["cyan", "pink"] * 10
    with pytest.raises(errors.BundleError, match="5 of the 5 labels of its live version v0001 have no row") as raised:
        made.fit("mood", texts_of(new), new)
    assert "add=True" in str(raised.value) and "allow_lost_labels=True" in str(raised.value)
    assert made.versions == {"mood": "v0001"} and made.tasks["mood"].labels == tuple(sorted(FIVE))
    with pytest.raises(errors.BundleError, match="4 of the 5"):
        made.update("mood", texts_of(["red", "pink"] * 10), ["red", "pink"] * 10, if_better=False)
    made.fit("mood", texts_of(new), new, allow_lost_labels=True)
    assert made.versions == {"mood": "v0002"}
    assert set(made.predict(texts_of(FIVE * 2))["mood"]) <= {"cyan", "pink", *FIVE}


def test_new_classes_are_added_to_the_rows_before(made, capsys):
    """The version is that of all rows together, to the bit, and none of the earlier texts is encoded again."""
    five_classes(made)
    new = ["cyan", "pink"] * 10
    made.verbose = True
    capsys.readouterr()
    made.fit("mood", texts_of(new, seed=2), new, add=True)
    told = capsys.readouterr().err
    encoded = int(re.search(r"encoded (\d+) inputs?", told)[1])
    assert encoded <= len(set(texts_of(new, seed=2)))
    labels = made.tasks["mood"].labels
    assert made.versions == {"mood": "v0002"} and labels == (*sorted(FIVE), "cyan", "pink")
    whole = Quick(made.trunk, backend="reference", verbose=False)
    whole.fit("mood", texts_of(FIVE * 8) + texts_of(new, seed=2), FIVE * 8 + new, classes=labels)
    asked = texts_of(FIVE + new)
    assert np.array_equal(whole.predict_proba(asked), made.predict_proba(asked))
    more = ["grey"] * 6
    made.fit("mood", [f"a grey {n}" for n in range(6)], more, add=True)
    assert made.tasks["mood"].labels == (*labels, "grey"), "rows of all fits so far"


def test_rows_are_added_to_those_of_the_version_that_is_live(made):
    five_classes(made)
    made.fit("mood", texts_of(["cyan"] * 8, seed=3), ["cyan"] * 8, add=True)
    made.rollback("mood")
    made.fit("mood", texts_of(["pink"] * 8, seed=4), ["pink"] * 8, add=True)
    assert made.tasks["mood"].labels == (*sorted(FIVE), "pink")


def test_rows_are_never_kept_for_a_version_that_did_not_learn_from_them(made, monkeypatch):
    """Another model rolled back while a fit ended: the rows of the new version took the place of the earlier one's."""
    five_classes(made)
    train = made._train

    def rolled_back_meanwhile(*arguments, **options):
        outcome = train(*arguments, **options)
        Quick.load(made.folder, backend="reference", verbose=False).rollback("mood")
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(made, "_train", rolled_back_meanwhile)
        made.fit("mood", texts_of(["cyan", "pink"] * 10), ["cyan", "pink"] * 10, allow_lost_labels=True)
    made.fit("mood", texts_of(["grey"] * 8, seed=4), ["grey"] * 8, add=True)
    assert made.tasks["mood"].labels == (*sorted(FIVE), "grey")
    made.rollback("mood", "v0002")
    with pytest.raises(errors.ConfigError, match="are not kept here"):
        made.fit("mood", TEXTS, MOODS, add=True)


def test_rows_that_another_model_learned_from_are_not_there(made, tmp_path):
    made.fit("mood", TEXTS, MOODS, add=True)  # the first rows of all
    again = Quick.load(made.save(tmp_path / "saved"), backend="reference", verbose=False)
    with pytest.raises(errors.ConfigError, match="rows that the live version of task 'mood' .* are not kept here"):
        again.fit("mood", TEXTS, MOODS, add=True)
    with pytest.raises(errors.BadValue, match="rows of another form"):
        made.fit("mood", [(text, text) for text in TEXTS], MOODS, add=True)
    assert made.versions == {"mood": "v0001"}


def test_rows_are_there_after_a_calibration(made):
    five_classes(made)
    calibration = Annotations(calibration=Calibration(scale=(0.5,)))
    keep_annotations(made.folder, {"mood": calibration}, read=Bundle.open(made.folder))
    made.fit("mood", texts_of(["pink"] * 8, seed=4), ["pink"] * 8, add=True)
    assert made.tasks["mood"].labels == (*sorted(FIVE), "pink")


def test_rows_that_are_named_by_a_record_are_read(made):
    """As caches of before do."""
    five_classes(made)
    (file,) = [file for file in made.folder.parent.rglob("*.jsonl") if file.parent.name == "rows"]
    file.rename(file.with_name(f"{Bundle.open(made.folder).lines['mood'].record}.jsonl"))
    made.fit("mood", texts_of(["pink"] * 8, seed=4), ["pink"] * 8, add=True)
    assert made.tasks["mood"].labels == (*sorted(FIVE), "pink")


def test_rows_of_an_earlier_program_are_in_the_cache_that_both_name(trunk, tmp_path):
    """The easy way to a new class in a job of every day, which has the new rows alone."""
    first = Quick(trunk, folder=tmp_path / "b", cache=tmp_path / "c", backend="reference", verbose=False)
    five_classes(first)
    del first
    later = Quick.load(tmp_path / "b", cache=tmp_path / "c", backend="reference", verbose=False)
    later.fit("mood", texts_of(["pink"] * 8, seed=4), ["pink"] * 8, add=True)
    assert later.tasks["mood"].labels == (*sorted(FIVE), "pink") and later.versions == {"mood": "v0002"}
    assert {*later.predict(texts_of(FIVE * 4))["mood"]} & set(FIVE), "what was known is known"


def test_a_cache_stays_where_it_was_named(trunk, tmp_path, monkeypatch):
    """After a change of the folder, as notebooks do, another cache was begun there, and the rows were gone."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    made = Quick(trunk, backend="reference", verbose=False, cache="kept").fit("mood", TEXTS, MOODS)
    monkeypatch.chdir(second)
    made.fit("mood", texts_of(["so-so"] * 4), ["so-so"] * 4, add=True)
    assert made.versions == {"mood": "v0002"} and not list(second.iterdir())


@pytest.mark.slow
def test_each_fit_learns_its_own_rows_whatever_others_fit(trunk):
    """Rows of a task lay in one file, so that threads learned those of another."""
    made, count = Quick(trunk, backend="reference", verbose=False), 4
    together, learned, failed = threading.Barrier(count), {}, []

    class Watched(Quick):
        def _train(self, *given, **options):
            outcome = super()._train(*given, **options)
            learned[threading.current_thread().name] = self.session.bundle.record("mood").trained_with["data"]
            return outcome

    made.__class__ = Watched

    def fit(number):
        together.wait(60)
        try:
            made.fit("mood", TEXTS[: 12 + 2 * number], MOODS[: 12 + 2 * number])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=fit, args=(number,), name=str(number)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    rows = {name: data["train"]["rows"] + data["validation"]["rows"] for name, data in learned.items()}
    assert rows == {str(number): 12 + 2 * number for number in range(count)}
    assert made.versions == {"mood": f"v{count:04}"}


def test_a_fit_in_the_order_of_other_libraries_is_told_the_right_one(made):
    pandas = pytest.importorskip("pandas")
    for call in (
        lambda: made.fit(TEXTS, MOODS),
        lambda: made.fit(pandas.Series(TEXTS), pandas.Series(MOODS)),
        lambda: made.fit(np.array(TEXTS), np.array(MOODS)),
    ):
        with pytest.raises(errors.BadValue, match=r"fit\(name, texts, labels\)"):
            call()
    with pytest.raises(errors.BadValue, match="no labels"):
        made.fit("mood", TEXTS)


def test_rows_without_a_text_are_refused_with_their_numbers(made):
    with pytest.raises(errors.BadValue, match="2 of 30 rows have no text. Got: rows 1, 4") as raised:
        made.fit("mood", [None if n in (1, 4) else text for n, text in enumerate(TEXTS)], MOODS)
    assert raised.value.rows == (1, 4)
    with pytest.raises(errors.BadValue, match="row 3 has no text"):
        made.fit("mood", [(text, None if n == 3 else text) for n, text in enumerate(TEXTS)], MOODS)


def test_errors_name_rows_of_the_call_and_no_temporary_file(made):
    spans = [[{"start": 0, "end": 3, "label": "word"}] for _ in TEXTS]
    spans[7] = [{"start": 0, "end": 999, "label": "word"}]
    with pytest.raises(errors.BadValue, match=r"task 'words', row 7: a span lies outside") as raised:
        made.fit("words", TEXTS, spans)
    assert "jsonl" not in str(raised.value) and raised.value.row == 7
    with pytest.raises(errors.BadValue, match="row 2: .*'label' is no number") as raised:
        made.fit("size", TEXTS, [1.0, 2.0, "three", *[2.5] * 27], kind="regression")
    assert "jsonl" not in str(raised.value) and "--" not in str(raised.value)


def test_a_lone_surrogate_in_a_text_is_read_and_in_a_label_refused(made):
    """Half of an emoji in a text was called a label that is no plain value."""
    made.fit("mood", ["the lamp \ud83d is good", *TEXTS[1:]], MOODS)
    assert made.predict("the lamp \ud83d is good")["mood"] in ("good", "bad")
    with pytest.raises(errors.BadValue, match="label of row 0 holds half of a character"):
        made.fit("other", TEXTS, ["good\ud83d", *MOODS[1:]])


def test_labels_that_json_would_write_otherwise_are_refused(made):
    """Bytes became letters that stand for them, and infinity a row without a label."""
    infinite = [(value, "regression") for value in (float("inf"), Decimal("Infinity"))]
    for wrong, kind in ((b"good", "single_label"), *infinite, ([b"good"], "multi_label")):
        labels = [wrong, *([1.5, 2.5] * 15 if kind == "regression" else MOODS)][: len(TEXTS)]
        labels = [label if n == 0 or kind != "multi_label" else [label] for n, label in enumerate(labels)]
        with pytest.raises(errors.BadValue, match="row 0 has bytes or infinity"):
            made.fit("mood", TEXTS, labels, kind=kind)
    lists = [np.array([mood]) for mood in MOODS]
    assert made.fit("moods", TEXTS, lists).tasks["moods"].labels == ("bad", "good")


def test_decimals_are_numbers(made):
    """They were recognised as numbers, and then refused as none."""
    made.fit("size", TEXTS, [Decimal(len(text)) / 7 for text in TEXTS])
    made.fit("mark", TEXTS, [Decimal(mood == "good") for mood in MOODS])
    made.fit("marks", TEXTS, [[Decimal(n % 2), "odd"] for n in range(30)])
    assert [task.kind for task in made.tasks.values()] == ["regression", "single_label", "multi_label"]
    assert made.tasks["size"].range == (min(map(len, TEXTS)) / 7, max(map(len, TEXTS)) / 7)
    assert made.tasks["mark"].labels == ("0", "1") and made.tasks["marks"].labels == ("0", "1", "odd")


@pytest.mark.parametrize("other", ["a", "1", "2"])
@pytest.mark.parametrize("kind", [None, "single_label"])
def test_labels_of_one_task_are_numbers_or_strings(made, other, kind):
    """1 and 'a' were learned as '1' and 'a', and 1 and '1' as one label, without a word."""
    labels = [None, 1, other] * 10
    with pytest.raises(errors.BadValue, match=re.escape(f"row 1: 1, row 2: '{other}'")) as refused:
        made.fit("mood", TEXTS, labels, kind=kind)
    assert "write all of them as strings" in str(refused.value) and not made.tasks
    with pytest.raises(errors.BadValue, match="row 1: 1, row 2"):
        made.fit("mood", TEXTS, np.array(labels, object), kind=kind)


def test_empty_cells_are_of_no_type(made):
    """A column of objects holds None, NaN and empty strings beside its labels."""
    pandas = pytest.importorskip("pandas")
    empty = (None, float("nan"), pandas.NA, "")
    for name, mark in (("n", lambda mood: np.int64(mood == "good")), ("s", str), ("b", lambda mood: mood == "good")):
        column = [empty[row // 3 % 4] if row % 3 == 0 else mark(mood) for row, mood in enumerate(MOODS)]
        made.fit(name, TEXTS, pandas.Series(column, dtype=object))
    assert [task.labels for task in made.tasks.values()] == [("0", "1"), ("bad", "good"), ("false", "true")]


def test_labels_in_one_string_are_split_as_they_are_recognised(made):
    """They were recognised, and then refused with words of the command line."""
    cells = ["actor; plot", "actor", "plot;music", "music"] * 8
    texts = texts_of(cells)
    made.fit("about", texts, cells)
    assert made.tasks["about"].kind == "multi_label" and made.tasks["about"].labels == ("actor", "music", "plot")
    assert made.evaluate("about", texts, cells) == made.evaluate(
        "about", texts, [re.split(r";\s*", cell) for cell in cells]
    )
    for wrong, words in ((["actor", ["plot"]], "takes a list of labels"), (["a; b", ""], "row 1: .*empty='none'")):
        with pytest.raises(errors.BadValue, match=words):
            made.fit("other", texts[:32], wrong * 16, kind="multi_label")


FRAMES = ["pandas", "polars"]


def frame_for(library):
    """A frame with a title and a body, two columns of labels, of which one has several, and a person."""
    moods = [None if n == 4 else mood for n, mood in enumerate(MOODS)]
    asks = ["" if n % 5 == 0 else "price; lamp" if mood == "good" else "lamp" for n, mood in enumerate(MOODS)]
    half = [text.split(" ", 1) for text in TEXTS]
    columns = {"title": [a for a, _ in half], "body": [b for _, b in half], "the mood": moods, "asks": asks}
    return pytest.importorskip(library).DataFrame(columns | {"person": [n // 3 for n in range(len(TEXTS))]})


@pytest.mark.parametrize("library", FRAMES)
def test_columns_of_a_frame_are_tasks_over_joined_texts(made, library):
    frame, joined = frame_for(library), [text.replace(" ", "\n", 1) for text in TEXTS]
    made.fit(frame, text=["title", "body"], labels=["the mood", "asks"], empty="none")
    assert {name: task.kind for name, task in made.tasks.items()} == {"the-mood": "single_label", "asks": "multi_label"}
    assert made.tasks["asks"].labels == ("lamp", "price")
    rows = [n for n in range(len(TEXTS)) if n != 4]
    made.fit("alone", [joined[n] for n in rows], [MOODS[n] for n in rows])
    assert made.versions == {"the-mood": "v0001", "asks": "v0001", "alone": "v0001"}
    named = {"text": ["title", "body"]}
    assert made.predict(frame, **named)["the-mood"].to_list() == made.predict(joined)["the-mood"]
    assert [r.answers["asks"] for r in made.results(frame, **named)] == [
        r.answers["asks"] for r in made.results(joined)
    ]
    moods = [None if n == 4 else mood for n, mood in enumerate(MOODS)]
    assert made.evaluate("the-mood", frame, "the mood", **named) == made.evaluate("the-mood", joined, moods)


def test_a_frame_says_what_is_missing_of_a_call(made):
    frame = frame_for("pandas")
    with pytest.raises(errors.BadValue, match="names of the columns that hold labels.*title, body, the mood"):
        made.fit(frame, text="body")
    with pytest.raises(errors.MissingColumn, match="no column 'moods'"):
        made.fit(frame, text="body", labels=["moods"])
    with pytest.raises(errors.BadValue, match="one name of a task"):
        made.fit(frame, text="body", labels=["the mood", "the-mood"])
    with pytest.raises(errors.BadValue, match="column 'asks', row 0: an empty label"):
        made.fit(frame, text="body", labels=["the mood", "asks"])
    frame["body"] = range(len(TEXTS))
    with pytest.raises(errors.BadValue, match="row 0 is no text"):
        made.fit(frame, text=["title", "body"], labels="asks", kind="multi_label", empty="skip")


def test_a_frame_of_another_split_gets_no_labels_of_the_training_rows(made):
    """Lists of labels were paired with the rows of a frame that happened to be as long: scores were those of noise."""
    frame = frame_for("pandas")
    for labels in (MOODS, frame["the mood"]):
        with pytest.raises(errors.BadValue, match="the test of task 'mood' has no labels"):
            made.fit("mood", TEXTS, labels, text="body", test=frame)
    with pytest.raises(errors.BadValue, match="the validation of task 'mood' has no labels"):
        made.fit("mood", TEXTS, MOODS, validation=[TEXTS, MOODS])


def test_arguments_that_would_be_ignored_are_refused(made):
    frame = frame_for("pandas")
    with pytest.raises(errors.BadValue, match="names of the columns that hold labels"):
        made.fit(frame, "body", "the mood")  # the column of texts was that of the default
    for pair in ("body", list(frame.body)):
        with pytest.raises(errors.BadValue, match="text_b"):
            made.fit("mood", list(frame.title), MOODS, text_b=pair)
    by_task = {"text": "body", "labels": {"mood": "the mood"}}
    for named in ({"kind": {"Mood": "multi_label"}}, {"classes": {"moods": ["good", "bad"]}}):
        with pytest.raises(errors.BadValue, match="did you mean 'mood'"):
            made.fit(frame, **by_task, **named)
    pairs = list(zip(frame.title, frame.body, strict=True))
    made.fit(frame, text="title", text_b="body", labels="the mood", test=(pairs, MOODS))
    with pytest.raises(errors.BadValue, match="text_b"):
        made.predict(frame.title, text_b="body")
    for text in ("body", ("title", "body")):
        with pytest.raises(errors.BadValue, match="name one column"):  # each text was compared with itself
            made.predict(frame, text=text, text_b="body")
        for call in (made.predict, made.results, lambda texts, **named: made.fit("tone", texts, MOODS, **named)):
            with pytest.raises(errors.BadValue, match="text names a column of a data frame, and the texts are none"):
                call(list(frame.title), text=text)


def test_a_name_of_a_column_is_for_the_data_frame_among_the_rows_and_the_test(made):
    frame = frame_for("pandas")
    lists = (list(frame.body), list(frame["the mood"]))
    made.fit("mood", *lists, text="body", test=(frame, "the mood"))
    of_test = made.scores("mood")["test"]
    made.fit(frame, text="body", labels={"mood": "the mood"}, test=lists)
    assert made.scores("mood")["test"] == of_test == made.evaluate("mood", *lists)


def test_texts_and_labels_in_a_set_are_refused(made):
    """It has no order: labels went to other texts, and answers to whatever came first."""
    made.fit("mood", TEXTS, MOODS)
    for call in (made.predict, lambda texts: made.fit("tone", texts, MOODS), made.predict_proba):
        for texts in (set(TEXTS), frozenset(TEXTS)):
            with pytest.raises(errors.BadValue, match="a set has no order"):
                call(texts)
    with pytest.raises(errors.BadValue, match="labels are given one a row.*a set has no order"):
        made.fit("tone", TEXTS, set(MOODS))


def test_words_in_arrays_are_words_in_lists(made):
    """A frame read from Parquet has an array in each cell."""
    words, tags = [text.split() for text in TEXTS], [["B-x", *["O"] * (len(text.split()) - 1)] for text in TEXTS]
    arrays = [list(map(np.array, rows)) for rows in (words, tags)]
    asked = made.fit("thing", words, tags).predict(words)
    assert made.predict(arrays[0]) == asked
    made.fit("thing", *arrays)
    assert made.predict(words) == asked and made.evaluate("thing", *arrays) == made.evaluate("thing", words, tags)


@pytest.mark.parametrize("rows", [[[1, 0], [0, 1]], [np.array([1.0, 0.0]), (True, False)]])
def test_rows_of_a_matrix_are_no_names_of_labels_whatever_kind_is_named(made, rows):
    """With two columns both labels, '0' and '1', were learned of every row."""
    for kind in (None, "multi_label"):
        with pytest.raises(errors.ConfigError, match="a list of 0 and 1 says of each label whether it applies"):
            made.fit("mood", TEXTS[:30], rows * 15, kind=kind)
    names = ["0", "1"]
    made.fit("mood", TEXTS[:30], [[0], [0, 1]] * 15, kind="multi_label", classes=names)
    assert made.tasks["mood"].labels == ("0", "1")


def test_settings_of_a_strategy_that_nothing_reads_are_refused_as_in_a_project_file(made):
    """They were checked where a project file was read, and ignored here."""
    for key, value in (("temperature", 1.5), ("noisy_teacher", True)):
        with pytest.raises(errors.ConfigError, match=f"task 'mood': strategy.{key} would change nothing") as refused:
            made.fit("mood", TEXTS, MOODS, strategy={"kind": "branch", "layers": 1, key: value})
        assert "project" not in str(refused.value)
    assert not made.tasks


def test_pairs_are_tested_on_a_frame_whose_columns_are_named(made):
    """The call was refused: `text_b` was for the training rows alone, which were pairs already."""
    frame = frame_for("pandas")
    pairs = list(zip(frame.title, frame.body, strict=True))
    columns = {"text": "title", "text_b": "body"}
    made.fit("mood", pairs, MOODS, test=(frame, "the mood"), validation=(frame, "the mood"), **columns)
    by_columns = made.scores("mood")
    assert by_columns["test"] == made.evaluate("mood", frame, "the mood", **columns)
    other = (pairs, list(frame["the mood"]))
    made.fit("mood", pairs, MOODS, test=other, validation=other)
    assert by_columns == made.scores("mood")
    for split in ((pairs, MOODS), 0.5, None):
        with pytest.raises(errors.BadValue, match="text_b names a column of a data frame, and the texts are none"):
            made.fit("mood", pairs, MOODS, validation=split, **columns)


def test_labels_in_one_column_of_an_array_are_labels(made):
    """Each became a list of one label, and the task one with several labels a text."""
    columns = [np.array(values, object).reshape(-1, 1) for values in (TEXTS, MOODS, [1.0] * 30)]
    made.fit("mood", columns[0], columns[1], weights=columns[2], groups=columns[0])
    assert made.tasks["mood"].kind == "single_label"
    assert made.evaluate("mood", *columns[:2]) == made.evaluate("mood", TEXTS, MOODS)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_labels_of_one_task_are_not_held_out_for_all(made, split):
    """Each task was scored, and its head chosen, by labels of another, if they were spelled alike."""
    frame = frame_for("pandas").assign(late=MOODS[::-1])
    for rows in ((frame, "late"), (list(frame.body), MOODS)):
        with pytest.raises(errors.BadValue, match=f"the {split} of task 'late' has the labels of every task"):
            made.fit(frame, text="body", labels=["late", "the mood"], **{split: rows})
    made.fit(frame, text="body", labels=["late", "the mood"], test=frame)
    made.fit(frame, text="body", labels=["late"], **{split: (frame, "late")})


@pytest.mark.parametrize("classes", [[0, 1, 2], [False, True]], ids=["numbers", "booleans"])
def test_classes_are_spelled_like_labels(made, classes):
    """They were refused, as no strings, where labels of the same type were read."""
    made.fit("mood", TEXTS, classes[:2] * 15, kind="single_label", classes=classes)
    assert made.tasks["mood"].labels == tuple(str(name).lower() for name in classes)


class Text(str):
    """As parsers of HTML give, such as BeautifulSoup."""


@pytest.mark.parametrize("form", [np.str_, Text])
def test_strings_of_other_types_are_strings(made, form):
    """A fit ended in a TypeError of the file format, after it had learned; also if the arrays were zipped to pairs."""
    texts, moods = list(map(form, TEXTS)), list(map(form, MOODS))
    made.fit("mood", texts, moods, classes=list(map(form, ("good", "bad"))))
    made.fit("listed", TEXTS, [[mood] for mood in moods])
    made.fit("pair", [*zip(texts, moods, strict=True)], MOODS)
    made.fit("words", [list(map(form, text.split())) for text in TEXTS], [["O", "B-w", "O", "O"] for _ in TEXTS])
    assert made.tasks["mood"].labels == ("good", "bad")
    before = made.predict_proba(texts, "mood")
    made.fit("mood", TEXTS, MOODS, classes=np.array(["good", "bad"]))
    assert np.array_equal(made.predict_proba(TEXTS, "mood"), before)


def test_a_task_of_labels_becomes_one_of_numbers_or_tags(made):
    """The labels of the live version were looked for in kinds that have none, and put among tags."""
    made.fit("mood", TEXTS, MOODS).fit("mood", TEXTS, [len(text) / 7 for text in TEXTS], kind="regression")
    assert made.tasks["mood"].kind == "regression"
    made.fit("said", TEXTS, MOODS)
    words, tags = [text.split() for text in TEXTS], [["O", "B-w", "O", "O"] for _ in TEXTS]
    made.fit("said", words, tags, kind="tagging", allow_lost_labels=True)
    assert made.tasks["said"].labels == ("O", "B-w", "I-w")


def test_texts_and_a_named_series_name_their_task(made):
    frame = frame_for("pandas")
    assert [*made.fit(frame.body, frame["the mood"]).tasks] == ["the-mood"]
    assert [*made.fit(frame, frame["the mood"], text="body").tasks] == ["the-mood"]
    made.fit(frame, labels={"mood": "the mood"}, text="body")
    assert made.versions == {"the-mood": "v0002", "mood": "v0001"}


def test_kinds_and_classes_may_be_given_by_task(made):
    frame, kinds = frame_for("pandas"), {"a": "single_label", "b": "multi_label"}
    labels, classes = {"a": "asks", "b": "asks"}, {"b": ["price", "lamp", "rare"]}
    made.fit(frame, text="body", labels=labels, kind=kinds, classes=classes, empty="skip")
    assert made.tasks["a"].labels == ("lamp", "price; lamp") and made.tasks["b"].labels == ("price", "lamp", "rare")


def test_rows_of_one_person_are_held_out_together_and_weights_count_rows(made, monkeypatch):
    """What `fit` hands to training keeps groups together, from lists as from a column."""
    seen = []

    def prepared(entries, display, **_):
        seen.append(prepare(Project(tasks=tuple(entries)), Path())[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(made, "_train", prepared)
    with pytest.raises(KeyboardInterrupt):
        made.fit("mood", TEXTS, MOODS, groups=[n // 3 for n in range(len(TEXTS))])
    with pytest.raises(KeyboardInterrupt):
        made.fit("mood", frame_for("polars"), "the mood", text="body", groups="person")
    with pytest.raises(KeyboardInterrupt):
        made.fit("mood", TEXTS, MOODS, weights=[3.0 if mood == "good" else 1.0 for mood in MOODS])
    for one in seen[:2]:
        kept, held = ({*split.examples.groups} for split in (one.train, one.validation))
        assert kept and held and kept.isdisjoint(held)
    whole = seen[2].whole
    by_mood = {(MOODS[row], weight) for row, weight in zip(whole.rows, whole.weights, strict=True)}
    assert by_mood == {("good", 1.0), ("bad", 1 / 3)}
    with pytest.raises(errors.BadValue, match="30 texts, 2 groups"):
        made.fit("mood", TEXTS, MOODS, groups=[1, 2])


def test_rows_of_weight_0_say_nothing_of_the_kind():
    """One label that is no number, in a row that does not count, made classes of numbers."""
    numbers = [n / 8 for n in range(24)] * 10

    def kind_of(*labels, **columns):
        rows = LabelledTexts(inputs=["a text"] * len(labels), labels=[*labels], of_training=columns)
        return kind_of_rows(rows, say=[].append, task="size")

    assert kind_of(*numbers, "unknown") == "single_label"
    assert kind_of(*numbers) == kind_of(*numbers, "unknown", weight=[1] * 240 + [0.0]) == "regression"
    assert kind_of(*numbers, weight=[0] * 240) == "regression", "training says that no row counts"


def test_added_rows_leave_the_earlier_ones_their_groups_and_weights(made, monkeypatch):
    """A later fit that named neither read the earlier rows without them."""
    groups, weights = [n // 3 for n in range(30)], [3.0] * 15 + [1.0] * 15
    made.fit("mood", TEXTS, MOODS, groups=groups, weights=weights)
    seen, train = [], made._train

    def prepared(entries, display, **options):
        seen.append(prepare(Project(tasks=tuple(entries)), Path())[0].whole)
        return train(entries, display, **options)

    monkeypatch.setattr(made, "_train", prepared)
    made.fit("mood", texts_of(MOODS[:6], seed=2), MOODS[:6], add=True)
    assert seen[0].weights == [1.0] * 15 + [1 / 3] * 21
    assert seen[0].groups == [*map(str, groups), *[None] * 6]
    made.fit("other", TEXTS, MOODS).fit("other", TEXTS[:6], MOODS[:6], groups=[*"aabbcc"], add=True)
    assert seen[-1].groups == [None] * 30 + [*"aabbcc"] and seen[-1].weights is None
    assert "accuracy" in made.report("other").html, "the rows held out are read in the same way"


def test_other_splits_are_read_as_the_rows_of_training(made, tmp_path, monkeypatch):
    """What `separator` and `empty` say was forgotten for them, and a path was sought in a folder of the model's own."""
    cells = ["good/lamp", "bad", "", "bad/lamp", "lamp/good"] * 6
    lists = [[name for name in cell.split("/") if name] for cell in cells]
    reading = {"separator": "/", "empty": "none"}
    other = (TEXTS[:20], cells[:20])
    made.fit("asks", TEXTS, cells, validation=other, test=other, **reading)
    made.fit("lists", TEXTS, lists, validation=(TEXTS[:20], lists[:20]), test=(TEXTS[:20], lists[:20]))
    assert made.scores("asks") == made.scores("lists") and len(made.scores("asks")) == 2
    assert made.evaluate("asks", TEXTS, cells, **reading) == made.evaluate("asks", TEXTS, lists)
    assert made.report("asks", TEXTS, cells, **reading).html == made.report("asks", TEXTS, lists).html
    with pytest.raises(errors.BadValue, match="empty='none'"):
        made.evaluate("asks", TEXTS, cells, separator="/")
    lines = "".join(f"{text},{cell}\n" for text, cell in zip(*other, strict=True))
    (tmp_path / "more.csv").write_text(f"text,label\n{lines}")
    monkeypatch.chdir(tmp_path)
    for place in ("more.csv", Path("more.csv"), DataFile(path="more.csv"), str(tmp_path / "more.csv")):
        made.fit("asks", TEXTS, cells, validation=other, test=place, **reading)
        assert made.scores("asks") == made.scores("lists"), place


def test_what_no_task_of_a_call_reads_is_refused(made):
    """A separator and what an empty cell says were taken for tasks with one label, and two efforts in one call."""
    single, frame = {"kind": "single_label"}, {"text": TEXTS, "mood": MOODS, "asks": ["good/lamp", ""] * 15}
    with pytest.raises(errors.ConfigError, match="'separator' would change nothing: .*'multi_label'"):
        made.fit("mood", TEXTS, MOODS, separator="/", **single)
    with pytest.raises(errors.ConfigError, match="'empty' would change nothing"):
        made.fit("mood", TEXTS, MOODS, empty="skip")
    pandas = pytest.importorskip("pandas")
    table, said = pandas.DataFrame(frame | {"other": MOODS}), {"separator": "/", "empty": "none"}
    for name in said:
        with pytest.raises(errors.ConfigError, match=f"'{name}' would change nothing"):
            made.fit(table, labels=["mood", "other"], **{name: said[name]}, **single)
    assert made.tasks == {}
    made.fit(table, labels=["mood", "asks"], kind={"mood": "single_label"}, **said)
    assert made.tasks["asks"].labels == ("good", "lamp") and made.tasks["mood"].labels == ("bad", "good")
    for name in said:
        with pytest.raises(errors.ConfigError, match=f"'{name}' would change nothing"):
            made.evaluate("mood", TEXTS, MOODS, **{name: said[name]})


@pytest.mark.parametrize("training", [{"effort": "best"}, Training(effort="best", epochs=2)], ids=["dict", "value"])
def test_two_efforts_of_one_call_are_refused(made, training):
    with pytest.raises(errors.ConfigError, match="'effort' twice.* effort='quick' and training={'effort': 'best'}"):
        made.fit("mood", TEXTS, MOODS, effort="quick", training=training)
    assert made.tasks == {}
    made.fit("mood", TEXTS, MOODS, effort="quick", training={"effort": "quick", "epochs": 2})


def test_a_file_of_another_split_leaves_the_rows_of_training_as_they_are(made, tmp_path, monkeypatch):
    """References with a separator between them were one text, and with a file of validation rows two."""
    seen = []

    def prepared(entries, display, **_):
        whole = prepare(Project(tasks=tuple(entries)), Path())[0].whole
        seen.append([target.tolist() for target in whole.targets])
        raise KeyboardInterrupt

    monkeypatch.setattr(made, "_train", prepared)
    (tmp_path / "more.csv").write_text("text,label\na lamp,a|b\n")
    for split in (None, str(tmp_path / "more.csv"), (["a lamp"], ["a|b"])):
        with pytest.raises(KeyboardInterrupt):
            made.fit("brief", TEXTS, ["one|two"] * 30, kind="summarization", separator="|", test=split)
    assert seen == [[["one", "two"]] * 30] * 3


def test_shares_are_numbers_of_any_type_between_zero_and_one(made):
    made.fit("mood", TEXTS, MOODS, validation=0.3).fit("other", TEXTS, MOODS, validation=np.float32(0.3))
    made.fit("third", TEXTS, MOODS, validation=Decimal("0.3"))
    data = [made.session.bundle.record(name).trained_with["data"] for name in ("mood", "other", "third")]
    assert data[0]["validation"]["rows"] == data[1]["validation"]["rows"] == data[2]["validation"]["rows"]
    for share in (0, 1, 1.5, True):
        with pytest.raises(errors.ConfigError, match="between 0 and 1"):
            made.fit("mood", TEXTS, MOODS, validation=share)


def test_lines_about_training_say_how_python_trains_again(made, capsys, monkeypatch):
    """They named an option of the command line alone."""
    monkeypatch.setattr("polyhead.train.candidates.is_installed", lambda package: False)
    made.verbose = True
    made.fit("mood", TEXTS, MOODS)
    assert "then train such a task again (--retrain, in Python `fit`)" in capsys.readouterr().err
    made.fit("mood", TEXTS, MOODS)
    made.rollback("mood", "v0001")
    assert not made.update("mood", TEXTS[4:], MOODS[4:])
    assert "(--retrain mood, in Python `fit` without `if_better`, trains it)" in capsys.readouterr().err
    made.fit("mood", TEXTS[4:], MOODS[4:])
    assert made.versions == {"mood": "v0003"}, "as the line says"


def test_a_fit_in_a_notebook_is_one_output_which_ends_with_what_was_done(made, monkeypatch, capsys):
    made.verbose, notebook = True, Notebook(monkeypatch)
    made.fit("mood", TEXTS, MOODS)
    assert capsys.readouterr() == ("", "")
    assert len(notebook.outputs) == 1 and any("<progress" in each["text/html"] for each in notebook.outputs[0][1:])
    assert re.search(r"^bundle .*: 1 trained, 0 kept, in \d+ s$", notebook.outputs[0][-1]["text/plain"], re.MULTILINE)


def test_no_bar_stays_in_a_notebook_after_a_stop(made, monkeypatch):
    """It stood as if the work went on."""
    made.verbose, notebook = True, Notebook(monkeypatch)

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        made.fit("mood", TEXTS, MOODS)
    shown = [each["text/html"] for each in notebook.outputs[0][1:]]
    assert any("<progress" in each for each in shown) and "<progress" not in shown[-1]
