"""`polyhead features` on a tiny bundle."""

import json

import pytest

from polyhead.bundle.read import Bundle
from polyhead.plan import Codec, Pool, digest
from polyhead.store.corpus import open_corpus
from support.backfills import add, append, make_bundle, schema, texts
from support.commands import run

REFERENCE = ("--backend", "reference")


@pytest.fixture
def folder(tmp_path):
    make_bundle(tmp_path / "bundle")
    rows = [{"text": text} for (text,) in texts(range(12))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def extract(folder, *words):
    return extract_to(folder, "store", *words)


def extract_to(folder, store, *words):
    return run("features", "extract", "bundle", "texts.jsonl", store, *REFERENCE, *words, cwd=folder)


def test_texts_are_extracted_once_shown_verified_and_compacted(folder):
    done = extract(folder, "--tap", "mean2:sign")
    assert done.code == 0, done.err
    assert "store: 12 documents, 12 added now" in done.out and "float32" in done.out
    with open(folder / "texts.jsonl", "a") as file:
        file.write('{"text": "one more"}\nnonsense\n')
    again = extract(folder, "--tap", "mean2:sign", "--json", "-")
    summary = json.loads(again.out)
    assert (summary["documents"], summary["before"], summary["total"], summary["unread"]) == (1, 12, 13, 1)
    assert "1 row could not be read; the first: " in again.err and "row 14" in again.err
    shown = run("features", "info", "store", cwd=folder).out
    assert "store: 13 documents in 2 fragments" in shown and "mean of layers 1 to 2, every token, sign" in shown
    assert "nothing was changed" in run("features", "verify", "store", cwd=folder).out
    joined = run("features", "compact", "store", "--days", "0", cwd=folder)
    assert "1 fragment left, 1 joined" in joined.out, joined.err
    assert "13 documents" in run("features", "verify", "store", cwd=folder).out


def test_what_tasks_read_is_kept_answered_and_listed(folder):
    done = extract(folder, "--tasks", "mood,urgency")
    assert done.code == 0, done.err
    assert run("backfill", "bundle", "mood", "--features", "store", cwd=folder).code == 0
    shown = run("features", "info", "store", cwd=folder).out
    assert "results mood_v0001_" in shown and "task 'mood' v0001, 12 of 12 documents" in shown


def test_tasks_that_a_store_will_not_answer_are_named_before_it_is_filled(folder):
    """Only `backfill` said it, when the corpus was encoded."""
    noted = extract(folder, "--tap", "mean2:float16").err
    assert "store can answer no task of bundle" in noted and "to answer mood" in noted and "--tasks" in noted
    assert "can answer no task" in extract(folder, "--tap", "mean2:float16").err
    named = extract_to(folder, "named", "--tasks", "mood")
    assert named.code == 0 and "can answer" not in named.err
    read = Bundle.open(folder / "bundle").tasks["mood"].path.stored()
    assert [column.digest for column in open_corpus(str(folder / "named")).schema.features] == [digest(read)]


def test_a_task_that_no_store_answers_is_told_and_no_advice_leads_back(folder):
    """The corpus was encoded for it, and each of three messages named another that did not help."""
    add(Bundle.open(folder / "bundle"), "names", pool=Pool(positions="tokens", codec=Codec(name="sign")))
    for store, words in {"named": ("--tasks", "names"), "both": ("--tasks", "mood,names"), "all": ()}.items():
        done = extract_to(folder, store, *words)
        assert done.code == 0 and "no store can answer names of bundle" in done.err and "predict" in done.err
        assert ("to answer mood, topics, urgency, give --tasks" in done.err) == (store == "all")
    backfill = run("backfill", "bundle", "names", "--features", "named", cwd=folder)
    backfill.refuses("needs the text beside its features", "polyhead predict")
    assert "words = false" not in backfill.err


def test_hashes_of_words_are_kept_where_a_task_reads_words_or_they_are_asked_for(folder):
    pool = Bundle.open(folder / "bundle").tasks["mood"].path.pool
    add(Bundle.open(folder / "bundle"), "mood", pool=pool, words=256, replace=True)
    for store, words in {"named": ("--tasks", "mood"), "others": ("--tasks", "urgency")}.items():
        assert extract_to(folder, store, *words).code == 0
    assert [open_corpus(folder / store).schema.words for store in ("named", "others")] == [True, False]
    assert "can answer" not in extract_to(folder, "named").err  # of what the store keeps already
    assert "to answer mood" in extract_to(folder, "others").err
    extract_to(folder, "others", "--tasks", "mood").refuses("does not keep the words", "another store")
    extract_to(folder, "parts", "--tasks", "mood", "--long-texts", "windows").refuses("whole texts")
    assert "hashes of words: " in run("features", "info", "named", cwd=folder).out
    assert run("backfill", "bundle", "mood", "--features", "named", cwd=folder).code == 0
    run("backfill", "bundle", "mood", "--features", "others", cwd=folder).refuses("--words")
    asked = extract_to(folder, "asked", "--tap", "last:sign", "--words", "--json", "-")
    assert asked.code == 0 and open_corpus(folder / "asked").schema.words
    assert json.loads(run("features", "info", "asked", "--json", "-", cwd=folder).out)["words_bytes"] > 0


def test_a_stop_says_how_many_documents_are_kept(folder, monkeypatch):
    """It said that what was finished is kept, when nothing was."""
    for said in ("nothing was finished yet", "new documents kept: 12"):

        def stopped(*words, said=said, **options):
            raise KeyboardInterrupt(said)

        monkeypatch.setattr("polyhead.cli.features.extract", stopped)
        done = extract(folder)
        assert done.code == 130
        assert done.err.splitlines()[-1] == f"polyhead: stopped; {said}; the same command goes on from there"


def test_long_texts_are_noted(folder):
    (folder / "texts.jsonl").write_text(json.dumps({"text": "a " * 100}) + "\n")
    noted = extract(folder, "--tap", "last:sign").err
    assert "1 text had more than 48 tokens" in noted and "--long-texts windows" in noted
    windows = ("--tap", "last:sign", "--long-texts", "windows")
    done = run("features", "extract", "bundle", "texts.jsonl", "parts", *windows, *REFERENCE, cwd=folder)
    assert "were not read" not in done.err and "parts: 1 document," not in done.out


def test_what_is_asked_wrongly_is_refused(folder):
    extract(folder, "--tap", "first").refuses("mean4:token1")
    extract(folder, "--tasks", "moods").refuses("moods", "mood")
    extract(folder, "--text", "body").refuses("body")
    extract(folder, "--tap", "mean4:token1", "--per", "dimension").refuses("--per is for codec uint8", code=2)
    extract(folder, "--separate").refuses("holds no pairs", "--text-b")
    extract(folder, "--per", "tensor").refuses("--per is for codec uint8", code=2)  # the default, said aloud
    run("features", "extract", "nowhere", "texts.jsonl", "store", cwd=folder).refuses("nowhere")
    run("features", "extract", "bundle", "none.jsonl", "store", *REFERENCE, cwd=folder).refuses("none.jsonl")
    assert not (folder / "store").exists()
    for verb in ("info", "verify", "compact"):
        run("features", verb, "store", cwd=folder).refuses("no store at store")
    (folder / "file").write_text("x")
    run("features", "extract", "bundle", "texts.jsonl", "file", *REFERENCE, cwd=folder).refuses("file")


def test_a_changed_byte_is_found(folder):
    path = Bundle.open(folder / "bundle").tasks["mood"].path
    assert extract(folder, "--tasks", "mood").code == 0
    store = open_corpus(folder / "store")
    assert store.schema.features[0].digest == schema(path).features[0].digest
    append(store, path, texts(range(50, 55)))
    (data, *_) = sorted((folder / "store" / "fragments").glob("*/*.data.bin"))
    raw = bytearray(data.read_bytes())
    raw[3] ^= 1
    data.write_bytes(raw)
    run("features", "verify", "store", cwd=folder).refuses(data.name)


@pytest.mark.slow
def test_an_encoder_without_a_bundle_is_named_as_in_a_project(folder):
    pytest.importorskip("torch")
    run("features", "extract", "no/such/folder/x", "texts.jsonl", "store", cwd=folder).refuses("no/such/folder/x")
    words = ("minilm", "texts.jsonl", "store", "--precision", "int8")
    run("features", "extract", *words, cwd=folder).refuses("int8", "a bundle")
    extract(folder, "--max-tokens", "9").refuses("a bundle says how many tokens")
    done = run("features", "extract", "minilm", "texts.jsonl", "store", "--max-tokens", "4", *REFERENCE, cwd=folder)
    assert done.code == 0 and "had more than 4 tokens" in done.err, done.err
