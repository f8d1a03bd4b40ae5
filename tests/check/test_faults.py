"""Each kind of fault is found where it is planted, in all of its rows and in no others; clean rows give nothing."""

import pytest

from support.labelled_files import clean, entry, findings, rows_of, text, write


def with_rows(rows, changes):
    """The rows with some of them replaced, by their number from 1."""
    return [changes.get(number, row) for number, row in enumerate(rows, start=1)]


def train(changes=None, **task):
    return lambda folder: entry(folder, with_rows(clean(), changes or {}), **task)


SPLITS = {"validation": clean(60, start=2000), "test": clean(60, start=4000)}
SAME = clean()[4]
LONG = "word " * 40
PLANTED = {
    "empty_text": (train({5: {"text": "  ", "label": "bad"}}), [("train", 5)]),
    "unlabelled": (train({5: {"text": text(5000), "label": None}}), [("train", 5)]),
    "over_long": (train({9: {"text": LONG, "label": "odd"}}), [("train", 9)]),
    "mojibake": (train({7: {"text": "The cafÃ© is closed.", "label": "good"}}), [("train", 7)]),
    "invisible": (train({7: {"text": "The\u200b cafe is closed.", "label": "good"}}), [("train", 7)]),
    "markup": (
        train({n: {"text": f"<b>{text(5000 + n)}</b>", "label": "odd"} for n in (3, 4, 8)}),
        [("train", 3), ("train", 4), ("train", 8)],
    ),
    "unreadable": (train({11: '{"text": "cut off'}), [("train", 11)]),
    "unknown_label": (train({11: {"text": text(5000), "label": "godo"}}), [("train", 11)]),
    "label_variant": (train({11: {"text": text(5000), "label": " Good"}}), [("train", 11)]),
    "duplicate": (train({40: SAME | {"text": SAME["text"].upper() + "!"}}), [("train", 40)]),
    "conflict": (train({40: SAME | {"label": "odd"}}), [("train", 40)]),
    "tiny_class": (
        train({40: {"text": text(5000), "label": "rare"}}, labels=("good", "bad", "odd", "rare")),
        [("train", 40)],
    ),
    "leak": (train(test=[*clean(60, start=4000), SAME]), [("test", 61)]),
    "small_split": (train(test=clean(20, start=4000)), []),
    "absent_label": (train(labels=("good", "bad", "odd", "never")), []),
    "missing_column": (train(text="body"), []),
}


def tagged(changes, **task):
    """Sentences with one labelled word each, some of them with other spans."""
    rows = [{"text": (given := f"we met Ann{n} in Oslo"), "spans": [mark(given, f"Ann{n}")]} for n in range(40)]
    for number, parts in changes.items():
        given = rows[number - 1]["text"]
        rows[number - 1] = {"text": given, "spans": [mark(given, part) for part in parts]}
    keys = {"kind": "tagging", "spans": "spans", "labels": ("O", "B-x", "I-x"), **task}
    return lambda folder: entry(folder, rows, **keys)


def mark(given, part):
    start = given.index(part)
    return {"start": start, "end": start + len(part), "label": "x"}


PLANTED["lost_span"] = (tagged({3: ["Osl"], 9: ["Oslo", "Ann8 "], 12: ["n Oslo"]}), [("train", n) for n in (3, 9, 12)])
PLANTED["overlapping_spans"] = (tagged({4: ["Oslo", "in Oslo"]}, overlaps="longest"), [("train", 4)])


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_found_in_its_rows_and_nothing_else_is(tmp_path, kind):
    make, places = PLANTED[kind]
    found = findings(tmp_path, make(tmp_path), limit=30)
    assert set(found) == {kind}
    assert sorted(rows_of(found[kind])) == sorted(places)


def test_rows_without_a_fault_give_no_finding(tmp_path):
    assert findings(tmp_path, entry(tmp_path, clean(), **SPLITS)) == {}


def test_a_class_that_a_split_should_have_is_missed_and_one_that_chance_left_out_is_not(tmp_path):
    without = [row for row in clean(90, start=4000) if row["label"] != "odd"]
    assert "absent_label" in findings(tmp_path, entry(tmp_path, clean(), test=without))
    few = [row for row in clean(9, start=4000) if row["label"] != "odd"]
    assert "absent_label" not in findings(tmp_path, entry(tmp_path, clean(), test=few))


def test_labels_of_a_file_that_differ_in_case_alone_are_told_and_signs_are_not(tmp_path):
    labels = ("good", "Good", "+1", "-1")
    found = findings(tmp_path, entry(tmp_path, clean(labels=labels), labels=labels))
    assert "'good' (30) and 'Good' (30)" in found["label_variant"].what
    assert "1" not in found["label_variant"].what.replace("30", "")


def test_a_rare_label_that_is_written_nearly_like_a_frequent_one_is_told(tmp_path):
    rows = with_rows(clean(900, labels=("positive", "negative")), {8: {"text": text(6400), "label": "positve"}})
    rows += [{"text": text(6401 + i), "label": "positve"} for i in range(2)]
    found = findings(tmp_path, entry(tmp_path, rows, labels=("positive", "negative", "positve")))
    assert "'positve' (3) beside 'positive'" in found["misspelt_label"].what


def test_a_word_that_gives_the_label_away_is_told(tmp_path):
    rows = [row | {"text": f"{row['text']} #{row['label']}"} for row in clean()]
    found = findings(tmp_path, entry(tmp_path, rows))
    assert len(found["label_in_text"].places) == 120
    assert "'good' for 'good'" in found["label_in_text"].what


def test_one_label_or_one_text_in_every_row_is_a_fault(tmp_path):
    found = findings(tmp_path, entry(tmp_path, [row | {"label": "bad"} for row in clean()]))
    assert found["constant_label"].level == "fault"
    found = findings(tmp_path, entry(tmp_path, [row | {"text": "the same"} for row in clean()]))
    assert found["constant_text"].level == "fault"


def test_a_column_of_numbers_is_no_text(tmp_path):
    rows = [{"text": f"{1000 + i}", "label": "good" if i % 2 else "bad"} for i in range(60)]
    assert "no_text" in findings(tmp_path, entry(tmp_path, rows, labels=("good", "bad")))


def test_texts_of_exactly_the_greatest_length_look_cut_off(tmp_path):
    rows = [row | {"text": (row["text"] + " " + text(i))[:70]} for i, row in enumerate(clean())]
    lengths = [len(row["text"]) for row in rows]
    assert max(lengths) == 70
    found = findings(tmp_path, entry(tmp_path, rows))
    assert len(found["cut_off"].places) == lengths.count(70)


def test_columns_beside_the_text_are_told_for_what_they_are(tmp_path):
    rows = [
        row | {"source": "export", "stars": {"good": 5, "bad": 1, "odd": 3}[row["label"]], "topic": "abc"[i // 3 % 3]}
        for i, row in enumerate(clean())
    ]
    found = findings(tmp_path, entry(tmp_path, rows))
    assert "'source'" in found["constant_column"].what
    assert "'stars'" in found["telling_column"].what
    assert "'topic'" in found["undeclared_label"].what
    assert len({f.what for f in found.values()}) == 3


def test_columns_that_another_task_declares_are_no_finding(tmp_path):
    rows = [row | {"topic": "abc"[i // 3 % 3]} for i, row in enumerate(clean())]
    first = entry(tmp_path, rows)
    second = entry(tmp_path, rows, labels=("a", "b", "c"), label="topic")
    import msgspec

    other = msgspec.structs.replace(second, name="topic")
    assert findings(tmp_path, first, other) == {}


def test_a_split_with_other_labels_or_other_texts_is_told(tmp_path):
    skewed = [row | {"label": "good" if i % 10 else "bad"} for i, row in enumerate(clean(100, start=4000))]
    assert "label_shift" in findings(tmp_path, entry(tmp_path, clean(300), test=skewed + clean(9, start=2001)))
    lower = [row | {"text": row["text"].lower().rstrip(".")} for row in clean(100, start=4000)]
    found = findings(tmp_path, entry(tmp_path, clean(300), test=lower))["text_shift"]
    assert "0% of texts have a capital letter, in train 100%" in found.what


def test_splits_whose_rows_have_none_of_the_labels_are_compared(tmp_path):
    bare = [row | {"label": []} for row in clean()]
    alike = [row | {"label": []} for row in clean(60, start=4000)]
    other = [row | {"label": [row["label"]]} for row in clean(60, start=4000)]
    for test, is_told in ((alike, False), (other, True)):
        faults = findings(tmp_path, entry(tmp_path, bare, kind="multi_label", test=test))
        assert ("label_shift" in faults) is is_told


def test_groups_that_are_in_train_and_in_a_split_are_told(tmp_path):
    train_rows = [row | {"who": n // 4} for n, row in enumerate(clean(300))]
    test = [row | {"who": 70 + n // 4} for n, row in enumerate(clean(100, start=4000))]
    found = findings(tmp_path, entry(tmp_path, train_rows, test=test, group="who"))["group_leak"]
    assert "5 groups of column 'who'" in found.what and [place.row for place in found.places] == list(range(1, 21))
    assert "group_leak" not in findings(tmp_path, entry(tmp_path, train_rows, test=clean(100, start=4000), group="who"))


def test_texts_that_differ_in_a_word_are_near(tmp_path):
    base = [
        row | {"text": f"{row['text']} {text(3000 + i * 11)} {text(5000 - i * 3)}"} for i, row in enumerate(clean())
    ]
    near = [base[i] | {"text": base[i]["text"].replace(".", "!").replace("The", "the")[:-4]} for i in range(6)]
    test = [
        row | {"text": f"{row['text']} {text(1 + i * 13)} {text(4001 + i)}"}
        for i, row in enumerate(clean(60, start=2000))
    ]
    found = findings(tmp_path, entry(tmp_path, base, test=test + near))
    assert set(found) == {"near_leak"}
    assert rows_of(found["near_leak"]) == [("test", 61 + i) for i in range(6)]


def test_texts_that_one_task_trains_on_and_another_is_evaluated_on_are_told(tmp_path):
    first = entry(tmp_path, clean(), name="mood", test=clean(60, start=4000))
    second = entry(tmp_path, [*clean(80, start=2000), *clean(20, start=4000)], name="topic")
    found = findings(tmp_path, first, second)
    assert set(found) == {"shared_text"}
    assert rows_of(found["shared_text"]) == [("test", row) for row in range(1, 21)]


def test_numbers_of_one_text_that_lie_far_apart_are_a_conflict_and_near_ones_are_not(tmp_path):
    rows = [{"text": text(i), "label": i % 5 + 0.5} for i in range(60)]
    rows += [rows[0] | {"label": 0.6}, rows[1] | {"label": 4.5}]
    found = findings(tmp_path, entry(tmp_path, rows, kind="regression", range=(0.0, 5.0)))
    assert rows_of(found["conflict"]) == [("train", 62)]


def test_an_outlier_makes_no_numbers_equal_and_changes_none(tmp_path):
    """One cell widened the range, of which parts of a hundredth counted as equal, and rounded what was shown."""
    rows = [{"text": text(i), "label": 50.5 + i} for i in range(60)]
    rows += [rows[0] | {"label": 60.96}, rows[0] | {"label": 2000.0}, rows[1] | {"label": 51.6}]
    rows += [rows[2] | {"label": 90.96}]
    rows += [{"text": text(60), "label": -999.0}, {"text": text(61), "label": 999999.0}]
    by_code = findings(tmp_path, entry(tmp_path, rows, kind="regression", range=(-999.0, 999999.0)))
    assert rows_of(by_code["conflict"]) == [("train", 62), ("train", 64)]
    assert rows_of(by_code["duplicate"]) == [("train", 63)]
    shown = [(place.label, place.other) for place in by_code["conflict"].places]
    assert shown == [("2000", "train row 1: 50.5"), ("90.96", "train row 3: 52.5")]


def test_rows_of_every_kind_can_be_checked(tmp_path):
    """Tagging, questions with options and spans have no classes of rows; nothing fails, and texts are looked at."""
    words = [{"tokens": text(i).split(), "tags": ["O"] * len(text(i).split())} for i in range(60)]
    words[0]["tags"][1] = "B-x"
    tagging = entry(tmp_path, words, kind="tagging", tokens="tokens", tags="tags", labels=("O", "B-x", "I-x"))
    assert set(findings(tmp_path, tagging)) == set()
    options = [{"question": text(i), "choices": ["a man", "A man "], "label": 0} for i in range(60)]
    choice = entry(tmp_path, options, kind="multiple_choice", labels=())
    assert set(findings(tmp_path, choice)) == {"same_options"}
    answers = [
        {"question": text(i), "context": text(i * 5 + 1), "answers": [{"text": "The", "start": 0}]} for i in range(60)
    ]
    assert findings(tmp_path, entry(tmp_path, answers, kind="span", labels=())) == {}


def test_a_file_that_is_missing_is_a_finding_and_the_other_files_are_checked(tmp_path):
    task = entry(tmp_path, with_rows(clean(), {40: SAME | {"label": "odd"}}), test="gone.jsonl")
    assert set(findings(tmp_path, task)) == {"unreadable", "conflict"}


def test_a_file_of_which_no_row_can_be_read_is_told_row_by_row(tmp_path):
    found = findings(tmp_path, entry(tmp_path, ['{"text": "cut', "no json"]))
    assert set(found) == {"unreadable"}
    assert rows_of(found["unreadable"]) == [("train", 1), ("train", 2)]


def test_soft_labels_in_columns_are_read_as_labels(tmp_path):
    rows = [{"text": text(i), "a": float(i % 2), "b": 1.0 - i % 2} for i in range(60)]
    task = entry(tmp_path, rows, labels=("a", "b"), soft=("a", "b"))
    assert findings(tmp_path, task) == {}
    write(tmp_path / "mood-train.jsonl", [*rows, rows[0] | {"a": 1.0, "b": 0.0}])
    assert set(findings(tmp_path, task)) == {"conflict"}


@pytest.mark.parametrize(
    "declared, wrong", [({"weight": "times"}, {"times": -1}), ({"soft": "soft"}, {"soft": [0.5, 0.4]})]
)
def test_a_wrong_weight_or_soft_label_is_a_row_that_cannot_be_read(tmp_path, declared, wrong):
    right = {"times": 1} if "weight" in declared else {"soft": [0.5, 0.5]}
    rows = [{"text": text(i), "label": ("good", "bad")[i % 2], **right} for i in range(60)]
    rows[5] |= wrong
    by_code = findings(tmp_path, entry(tmp_path, rows, labels=("good", "bad"), **declared))
    assert [place.row for place in by_code["unreadable"].places] == [6]


@pytest.mark.parametrize("labels", [(0, 1), (False, True), ("no", "yes")])
def test_a_column_that_tells_labels_of_0_and_1_is_told(tmp_path, labels):
    rows = [{"text": text(i), "label": labels[i % 2], "verdict": "AB"[i % 2]} for i in range(120)]
    names = tuple(str(label).lower() for label in labels)
    assert "'verdict'" in findings(tmp_path, entry(tmp_path, rows, labels=names))["telling_column"].what
