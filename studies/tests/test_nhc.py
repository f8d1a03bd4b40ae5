"""NHC: balanced binary tasks whose evaluation texts nobody trains on, the same ones again for the same seed."""

import json
import os
import shutil
from itertools import product
from pathlib import Path

import msgspec
import pytest

from polyhead.errors import BadValue, ConfigError, DataError, MissingColumn
from studies.huang2022.nhc import CATEGORIES, SIZE, STYLE, TASKS, build, in_form, jsonl, letters
from studies.huang2022.nhc_files import source_in, write
from studies.tests.headlines import OTHERS, rows, write_lines, write_sets

DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))
# The first 16 digits of the SHA-256 of train.jsonl and of validation.jsonl, seed 0
HASHES = {
    "politics": ("c3852fd933560aba", "a7d01090d02a0b9d"),
    "wellness": ("85ab7fc18f6171d5", "cc3c3280808c774b"),
    "entertainment": ("70b5c9a3db577e9b", "76b1dd8ccdd668d3"),
    "travel": ("f36817adebfe2a0e", "57c2ce1464f5c650"),
    "style_beauty": ("62d4ecbc7184fe08", "d0f5717f84d54b89"),
    "parenting": ("3f667f2143008f65", "965cd09f3daa5d81"),
    "healthy_living": ("64d162bb0f5beafb", "27ea089738cc61b5"),
    "subj": ("e1a8d94f53ac45dc", "b15ddcf01b10b3f8"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(data):
    return build(source_in(data))


def keys(several):
    return [letters(one.text) for one in several]


def test_every_task_is_balanced_and_a_fifth_of_it_is_held_out(made):
    assert [task.name for task in made.tasks] == [*TASKS, STYLE]
    assert made.size == 105  # 30 of train and of validation, 15 of each file of news
    for task in made.tasks:
        assert (len(task.train), len(task.validation)) == (168, 42)
        for split in (task.train, task.validation):
            assert len({*keys(split)}) == len(split)
            assert [sum(one.label == label for one in split) for label in task.labels] == [len(split) // 2] * 2


def test_labels_say_whether_the_headline_is_of_the_category(made):
    for category, task in zip(CATEGORIES, made.tasks, strict=False):
        for one in (*task.train, *task.validation, *task.test):
            assert (one.label == "yes") == one.text.startswith(category.split()[0])
        others = {one.text.split()[0] for one in task.train if one.label == "no"}
        assert {*OTHERS} <= others and len(others) == len(CATEGORIES) - 1 + len(OTHERS)


def test_no_text_on_which_a_task_is_evaluated_is_trained_on_by_any(made):
    tested = {key for task in made.tasks for key in keys(task.test)}
    held = {key for task in made.tasks for key in keys(task.validation)}
    for task in made.tasks:
        assert not {*keys(task.train)} & (tested | held)
        assert not {*keys(task.validation)} & tested
    assert made.source.left_out == 90  # a third of the test's texts is in huffpost_news too


def test_every_text_of_the_test_split_has_a_label_for_every_category(data, made):
    texts = [one.text for one in made.source.test]
    assert len(texts) == 30 * (len(CATEGORIES) + len(OTHERS))
    for task in made.tasks[:-1]:
        assert [one.text for one in task.test] == texts
        assert sum(one.label == "yes" for one in task.test) == 30


def test_the_same_seed_gives_the_same_rows_whatever_the_order_of_the_source(made):
    source = made.source
    turned = msgspec.structs.replace(source, headlines=dict(reversed(source.headlines.items())))
    assert [jsonl(task.train) for task in build(turned).tasks] == [jsonl(task.train) for task in made.tasks]
    other = build(source, seed=1)
    assert all(a.train != b.train for a, b in zip(other.tasks, made.tasks, strict=True))


def test_the_form_of_a_text_does_not_tell_its_source(made):
    """A headline that both sets have stands as huffpost41 has it; all others are brought to that form."""
    news = {in_form(text.title()) for text, _ in rows(15, "news train")}
    used = {one.text for task in made.tasks for one in task.train}
    assert len(news & used) > 20
    assert all(text == text.lower() and "'s" not in text.split()[1] for text in used)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Why Don't We Care?", "why do n't we care ?"),
        ("It’s $200 For Trump-Themed U.S. Boots", "it ’s $ 200 for trump - themed u.s. boots"),
        ("An 11-Year-Old's 1,000 'Facts'", "an 11-year - old 's 1,000 ' facts '"),
        ("won't", "wo n't"),
    ],
)
def test_words_and_signs_stand_apart(text, found):
    assert in_form(text) == found
    assert in_form(found) == found


def test_a_full_file_gives_the_size_of_the_paper(tmp_path, data):
    file = tmp_path / "News_Category_Dataset_v3.json"
    lines = [{"category": label.upper(), "headline": text, "link": "x"} for text, label in rows(SIZE + 50, "full")]
    write_lines(file, lines)
    found = build(source_in(None, file))
    assert found.size == SIZE and [task.name for task in found.tasks] == [*TASKS]
    assert all(
        {name: len(s) for name, s in task.splits.items()} == {"train": 3200, "validation": 800} for task in found.tasks
    )
    with_test = build(source_in(data, file), size=50)
    assert len(with_test.tasks) == 8 and len(with_test.tasks[0].test) == 270


def test_a_headline_under_two_categories_is_left_out(tmp_path):
    file = tmp_path / "full.jsonl"
    several = rows(20, "two")
    twice = [(several[0][0].upper() + " !", "travel")]
    write_lines(file, [{"category": label, "headline": text} for text, label in (*several, *twice)])
    source = source_in(None, file)
    assert source.unclear == 1 and letters(several[0][0]) not in source.headlines
    assert build(source).size == 15


def test_what_is_written_is_the_tasks_and_a_card(made, tmp_path):
    folder = tmp_path / "nhc"
    card = write(made, folder)
    told = json.loads((folder / "card.json").read_text())
    for task in made.tasks:
        for split, several in task.splits.items():
            lines = [json.loads(line) for line in (folder / task.name / f"{split}.jsonl").read_text().splitlines()]
            assert lines == [{"text": one.text, "label": one.label} for one in several]
    assert [task["rows"]["train"] for task in told["tasks"]] == [168] * 8
    assert told["left_out"] == 90 and len(card.sources) == 8
    again = write(made, tmp_path / "again")
    assert [task.sha256 for task in again.tasks] == [task.sha256 for task in card.tasks]
    assert "| politics | no, yes | 168 | 42 | 270 |" in (folder / "README.md").read_text()


def test_nothing_is_written_over(made, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="something at"):
        write(made, tmp_path)
    with pytest.raises(ConfigError, match="something at"):
        write(made, tmp_path / "mine.txt")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.txt"]


@pytest.mark.parametrize("size", [0, 7, 110])
def test_a_size_that_cannot_be_made_is_refused_with_what_is_there(made, size):
    with pytest.raises(DataError, match="a multiple of 5 up to 105") as error:
        build(made.source, size=size)
    assert "politics 105" in str(error.value)


def test_files_that_are_no_headlines_are_refused(tmp_path, data):
    for name, content, kind, words in (
        ("cut.jsonl", b'{"headline": "a", "category": "travel"}\n{"headl', BadValue, "cut.jsonl row 2"),
        ("number.jsonl", b'{"headline": 1, "category": "travel"}\n', BadValue, "row 1"),
        ("other.jsonl", b'{"title": "a"}\n', MissingColumn, "holds no headlines"),
        ("none.jsonl", b"", MissingColumn, "an empty file"),
        ("few.jsonl", b'{"headline": "a", "category": "travel"}\n', DataError, "travel 1"),
        ("broken.jsonl.gz", b"\x1f\x8b\x08", DataError, "cannot read"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(kind, match=words):
            build(source_in(None, file))
    with pytest.raises(DataError, match="huffpost41"):
        source_in(tmp_path)
    broken = shutil.copytree(data, tmp_path / "data")
    write_lines(broken / "subj" / "train.jsonl.gz", [{"text": "a b", "label": "neutral"}])
    with pytest.raises(DataError, match="neutral"):
        source_in(broken)


@pytest.fixture(scope="module")
def real():
    for name, split in product(("huffpost41", "huffpost_news", "subj"), ("train", "test")):
        if not (DATA / name / f"{split}.jsonl.gz").is_file():
            pytest.skip(f"no data set in {DATA / name}; set POLYHEAD_DATA to where they are")
    return build(source_in(DATA))


def test_the_real_headlines_give_the_tasks_of_the_study(real, tmp_path):
    assert real.size == 900  # 'healthy living' has 992, 92 of them in the test
    assert {len(task.test) for task in real.tasks[:-1]} == {3693}
    tested = {letters(one.text) for one in real.source.test}
    held = {key for task in real.tasks for key in keys(task.validation)}
    for task in real.tasks[:-1]:
        assert not {*keys(task.train)} & (tested | held)
    card = write(real, tmp_path / "nhc")
    found = {task.name: (task.sha256["train"][:16], task.sha256["validation"][:16]) for task in card.tasks}
    assert found == HASHES
