"""`polyhead backfill` on a tiny store."""

import csv
import json

import pytest

from polyhead.bundle.read import Bundle
from polyhead.certify.annotations import Annotations, keep_annotations
from polyhead.data.rows import Rows
from polyhead.engine.session import Session
from polyhead.store.corpus.plain import PlainStore
from polyhead.tasks.calibration import Calibration, SetRule
from polyhead.values import few_digits
from support.backfills import add, append, make_bundle, schema, texts
from support.commands import run


@pytest.fixture
def folder(tmp_path):
    path = Bundle.open(make_bundle(tmp_path / "bundle")).tasks["mood"].path
    store = PlainStore.create(str(tmp_path / "store"), schema(path))
    append(store, path, texts(range(12)))
    rows = [{"text": text} for (text,) in texts(range(12))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_backfill_says_its_price_first_then_what_it_took_and_goes_on(folder):
    done = run("backfill", "bundle", "mood", "--features", "store", "--price", "2", cwd=folder)
    assert done.code == 0, done.err
    assert "price: 12 documents by 1 worker" in done.err and "0.00 dollars" in done.err
    assert "12 documents, 12 answered now" in done.out and "column mood_v0001_" in done.out
    assert "the estimate was" in done.out and "no document was encoded anew" in done.err
    again = run("backfill", "bundle", "mood", "--features", "store", "--json", "-", cwd=folder)
    found = json.loads(again.out)
    assert (found["backfill"]["filled"], found["backfill"]["price"], found["sample"]) == (0, None, [])


def test_a_size_of_a_sample_without_its_file_is_refused_before_anything_is_answered(folder):
    """It was left unread, and the run looked as if it had compared as many."""
    words = ("backfill", "bundle", "--features", "store", "--sample", "9")
    run(*words, cwd=folder).refuses("--sample goes with --sample-from", code=2)
    done = run("backfill", "bundle", "mood", "--features", "store", "--json", "-", cwd=folder)
    assert json.loads(done.out)["backfill"]["filled"] == 12


def test_scores_that_no_task_has_are_refused(folder):
    """They were left out without a word."""
    words = ("backfill", "bundle", "urgency", "--features", "store", "--scores")
    run(*words, cwd=folder).refuses("none of the tasks scores labels or options", "regression")


def test_a_sample_is_compared_and_counts_are_drawn(folder):
    pytest.importorskip("matplotlib")
    words = ("--sample-from", "texts.jsonl", "--sample", "9", "--backend", "reference", "--picture", "counts.png")
    done = run("backfill", "bundle", "--features", "store", "--scores", *words, cwd=folder)
    assert done.code == 0, done.err
    for task in ("mood", "topics", "urgency"):
        assert f"{task}: 9 of 9 encoded anew have the same answer (70.1 to 100.0 %)" in done.out
    assert (folder / "counts.png").read_bytes().startswith(b"\x89PNG")


def test_a_sample_that_fails_comes_after_what_was_answered_is_printed_and_written(folder):
    (folder / "other.jsonl").write_text('{"text": "nobody kept this"}\n')
    words = ("--sample-from", "other.jsonl", "--backend", "reference", "-o", "out.csv")
    done = run("backfill", "bundle", "--features", "store", *words, cwd=folder)
    done.refuses("the store holds none of 200 texts")
    assert "12 documents, 12 answered now" in done.out and "out.csv: 12 rows" in done.out


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_answers_are_written_as_a_table_that_other_programs_read(folder, ending):
    """To read a column one had to know its name, with version and digest, and modules five levels deep."""
    words = ("backfill", "bundle", "--features", "store", "-o", f"out{ending}", "--texts", "texts.jsonl")
    if ending == ".parquet":
        pytest.importorskip("pyarrow.parquet")
    done = run(*words, cwd=folder)
    assert done.code == 0 and f"out{ending}: 12 rows" in done.out, done.err
    path = folder / f"out{ending}"
    if ending == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    elif ending == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = list(csv.DictReader(path.read_text().splitlines()))
    wanted = Session(folder / "bundle", backend="reference").predict(
        [text for (text,) in texts(range(12))], tasks=["mood", "topics", "urgency"]
    )
    for row, (text,), result in zip(rows, texts(range(12)), wanted, strict=True):
        mood, topics = result.answers["mood"], result.answers["topics"]["labels"]
        assert row["text"] == text and row["mood"] == mood["label"]
        assert float(row["mood.score"]) == pytest.approx(mood["scores"][mood["label"]], abs=1e-3)
        assert (json.loads(row["topics"]) if ending == ".csv" else row["topics"]) == topics
        assert float(row["urgency"]) == pytest.approx(result.answers["urgency"]["value"], abs=1e-3)
        assert all(float(row[name]) == few_digits(float(row[name])) for name in ("mood.score", "urgency"))
    assert run(*words[:-2], cwd=folder).code == 0
    run(*words[:4], *words[-2:], cwd=folder).refuses("--texts goes with -o", code=2)


def test_a_file_is_read_through_once_to_know_its_columns(folder, monkeypatch):
    """It was for the check, again for the table, and again for the sample."""
    surveyed, survey = [], Rows._survey
    monkeypatch.setattr(Rows, "_survey", lambda rows, show: surveyed.append(rows.path) or survey(rows, show))
    words = ("-o", "out.csv", "--texts", "texts.jsonl", "--sample-from", "texts.jsonl", "--backend", "reference")
    done = run("backfill", "bundle", "mood", "--features", "store", *words, cwd=folder)
    assert done.code == 0 and surveyed == ["texts.jsonl"], done.err


@pytest.mark.parametrize("file", ["--texts", "--sample-from"])
@pytest.mark.parametrize(
    ("columns", "reason"),
    [(("--text", "body"), "no column 'body'"), (("--text", "text", "--text-b", "text"), "named twice. Got: text")],
    ids=["not there", "twice"],
)
def test_a_wrong_column_of_texts_is_refused_before_anything_is_answered(folder, file, columns, reason):
    """It was found when all documents had been answered."""
    words = ("backfill", "bundle", "mood", "--features", "store")
    table = ("-o", "out.csv") if file == "--texts" else ()
    run(*words, *table, file, "texts.jsonl", *columns, cwd=folder).refuses(reason)
    assert json.loads(run(*words, "--json", "-", cwd=folder).out)["backfill"]["filled"] == 12


@pytest.mark.parametrize("words", [("--precision", "int8"), ("--backend", "torch"), ("--text", "body")], ids=" ".join)
def test_what_only_texts_need_is_refused_without_them(folder, words):
    """It was ignored: --precision int8 answered in the precision of the store, and a column was not looked for."""
    run("backfill", "bundle", "--features", "store", *words, cwd=folder).refuses("--sample-from", code=2)


def test_a_table_of_texts_says_which_documents_it_lacks(folder):
    """A file of other texts gave a table without rows and exit code 0; of some, a shorter table without a word."""
    words = ("backfill", "bundle", "--features", "store", "-o", "out.csv", "--texts")
    lines = (folder / "texts.jsonl").read_text().splitlines(keepends=True)
    (folder / "some.jsonl").write_text("".join(lines[:5]) + '{"text": "nobody kept this"}\n')
    (folder / "others.jsonl").write_text('{"text": "nobody kept this"}\n')
    done = run(*words, "some.jsonl", cwd=folder)
    assert done.code == 0 and "out.csv: 5 rows" in done.out and "7 of 12 documents have no row" in done.err
    before = (folder / "out.csv").read_bytes()
    run(*words, "others.jsonl", cwd=folder).refuses("no answer", "to a text of others.jsonl")
    assert (folder / "out.csv").read_bytes() == before
    assert "have no row" not in run(*words, "texts.jsonl", cwd=folder).err


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_the_table_has_every_column_that_was_asked_for(folder, ending):
    """It had the answers alone: --scores and --calibrated changed the store, and the file in nothing."""
    bundle = Bundle.open(folder / "bundle")
    sets = (SetRule(coverage=0.9, limit=0.4),)
    beside = {
        "mood": Calibration(scale=(0.5,), unsure_below=0.55, sets=sets, coverage=0.9),
        "topics": Calibration(thresholds=(0.3,) * len(bundle.tasks["topics"].task.labels)),
        "urgency": Calibration(sets=(SetRule(coverage=0.9, limit=0.1),), coverage=0.9),
    }
    keep_annotations(bundle.root, {name: Annotations(calibration=each) for name, each in beside.items()}, read=bundle)
    words = ("--scores", "--calibrated", "-o", f"out{ending}")
    done = run("backfill", "bundle", "--features", "store", *words, cwd=folder)
    assert done.code == 0, done.err
    session = ("--tasks", "mood,topics,urgency", "--backend", "reference", *words[:-1], f"straight{ending}")
    straight = run("predict", "bundle", "texts.jsonl", *session, cwd=folder)
    assert straight.code == 0, straight.err
    stored, encoded = (rows_of(folder / f"{name}{ending}") for name in ("out", "straight"))
    assert len(stored) == len(encoded) == 12
    missing = {f"{name}.calibrated.scores" for name in beside}
    names = [name for name in encoded[0] if name not in ("text", "error") and name not in missing]
    assert {"mood.unsure", "mood.set", "topics.calibrated", "topics.scores", "urgency.interval"} <= set(names)
    assert set(stored[0]) == {"id", *names, "mood.score", "topics.score"}
    for stored_row, encoded_row in zip(stored, encoded, strict=True):
        for name in names:
            assert plain(stored_row[name]) == plain(encoded_row[name]), name


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("mood.scores", ("--scores",), "two columns of the table would have one name"),
        ("text", (), "a column of this name holds something else"),
    ],
)
def test_columns_of_one_name_are_refused_before_the_work(folder, name, words, said):
    """They were after it: all documents were answered, and the answers stored, for a table that was not written."""
    add(Bundle.open(folder / "bundle"), name)
    words = ("backfill", "bundle", "--features", "store", *words)
    run(*words, "-o", "out.csv", cwd=folder).refuses(said, name)
    assert not any(fragment.results for fragment in PlainStore.open(str(folder / "store")).fragments)
    assert not (folder / "out.csv").exists()
    assert run(*words, cwd=folder).code == 0  # columns of the store have names of their own


def rows_of(path):
    """The rows of a table as other programs read them; cells of CSV that hold JSON as its values."""
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    rows = list(csv.DictReader(path.read_text().splitlines()))
    return [{name: read_cell(cell) for name, cell in row.items()} for row in rows]


def read_cell(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell or None


def plain(value):
    """Numbers within the precision of half floats."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


def test_what_is_asked_wrongly_is_refused(folder):
    run("backfill", "bundle", "moods", "--features", "store", cwd=folder).refuses("moods", "mood")
    run("backfill", "bundle", "--features", "nowhere", cwd=folder).refuses("no store at nowhere")
    run("backfill", "bundle", "--features", "store", "--executor", "x", cwd=folder).refuses("'x'", code=2)
    run("backfill", "bundle", "--features", "store", "--picture", "x.txt", cwd=folder).refuses(".png", code=2)
    run("backfill", "bundle", "--features", "store", "--picture", "no/x.png", cwd=folder).refuses("no folder")
    run("backfill", "bundle", cwd=folder).refuses("--features", code=2)
