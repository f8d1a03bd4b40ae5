"""`polyhead features near` on a tiny bundle and what `features extract` made of its texts."""

import json

import pytest

from polyhead.store.corpus.ids import document_id
from support.backfills import make_bundle, texts
from support.commands import run

REFERENCE = ("--backend", "reference")


@pytest.fixture
def folder(tmp_path):
    make_bundle(tmp_path / "bundle")
    rows = [{"text": text} for (text,) in texts(range(30))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("features", "extract", "bundle", "texts.jsonl", "store", *REFERENCE, "--tap", "mean2:pca4", cwd=tmp_path)
    assert done.code == 0, done.err
    return tmp_path


def near(folder, *words, store="store"):
    return run("features", "near", store, *words, "--bundle", "bundle", *REFERENCE, cwd=folder)


def test_a_text_of_the_store_is_shown_first_with_its_id_its_cosine_and_its_text(folder):
    ((text,),) = texts([11])
    done = near(folder, text, "--top", "3", "--texts", "texts.jsonl")
    assert done.code == 0, done.err
    head, first, below, *rest = done.out.splitlines()
    assert head.startswith("store: 30 documents compared") and len(rest) == 4
    assert first == f"1.0000  {document_id((text,)).hex()}" and below == f"  {text}"


def test_json_holds_what_is_printed_and_texts_where_the_extracted_file_is_there(folder):
    ((text,),) = texts([4])
    (folder / "texts.jsonl").rename(folder / "elsewhere.jsonl")
    report = json.loads(near(folder, text, "--json", "-").out)
    assert len(report["found"]) == 10 and report["documents"] == 30 and report["codec"] == "pca4"
    assert report["found"][0]["id"] == document_id((text,)).hex() and report["found"][0]["text"] is None
    (folder / "elsewhere.jsonl").rename(folder / "texts.jsonl")
    again = json.loads(near(folder, text, "--json", "-").out)
    assert again["found"][0]["text"] == [text]
    cosines = [each["cosine"] for each in report["found"]]
    assert cosines == sorted(cosines, reverse=True)


def test_a_pair_is_one_document_and_with_separate_two(folder):
    rows = [(a, b) for (a,), (b,) in zip(texts(range(6)), texts(range(6, 12)), strict=True)]
    (folder / "pairs.csv").write_text("text_a,text_b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    for store, words in (("pairs", ()), ("apart", ("--separate",))):
        done = run(
            "features", "extract", "bundle", "pairs.csv", store, *REFERENCE, "--tap", "last:float16", *words, cwd=folder
        )
        assert done.code == 0, done.err
    one = json.loads(near(folder, *rows[2], "--texts", "pairs.csv", "--json", "-", store="pairs").out)
    assert one["documents"] == 6 and one["found"][0]["text"] == list(rows[2])
    two = json.loads(near(folder, rows[2][1], "--texts", "pairs.csv", "--json", "-", store="apart").out)
    assert two["documents"] == 12 and two["found"][0]["text"] == [rows[2][1]]


def test_what_is_left_out_is_told(folder):
    (folder / "some.csv").write_text("said\nnothing of it\n")
    done = near(folder, "good " * 80, "--top", "2", "--texts", "some.csv", "--text", "said")
    assert done.code == 0 and "34 tokens were left out" in done.err
    assert "some.csv has no text for 2 documents of these" in done.err


def test_what_cannot_be_found_is_an_error(folder):
    assert "the text is empty" in near(folder, " ").err
    assert "there is no store at none" in near(folder, "good", store="none").err
    other = near(folder, "good", "--digest", "zz")
    assert other.code == 1 and "keeps no features" in other.err
    assert "no file at none.csv" in near(folder, "good", "--texts", "none.csv").err
