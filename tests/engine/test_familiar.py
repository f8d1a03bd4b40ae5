"""How familiar a text is: the distance and the rank, what answers say, and that nothing else of them changes."""

import csv
import json
import random
import shutil

import msgspec
import numpy as np
import pytest

from polyhead.bundle.format import SEEN
from polyhead.bundle.remove import remove_tasks
from polyhead.bundle.row_profile import RowProfile, stored_profile
from polyhead.bundle.write import add_tasks
from polyhead.cli import predict
from polyhead.engine import session as sessions
from polyhead.engine.familiar import NEAREST, KnownRows, directions, farness
from polyhead.engine.session import Session, attach_vectors
from polyhead.errors import BadValue, ConfigError, UnknownTask
from polyhead.store.jobs import ScoreRequest, score
from polyhead.tasks.task import Task
from polyhead.train.run import train_project
from support import tiny_project
from support.admin_server import TASKS as TINY
from support.admin_server import add, draft, make
from support.commands import run
from support.shared import made_once

TASKS = ("mood", "urgency", "same")
LONG = "good lamp is late " * 60  # more tokens than the tiny trunk reads
SIGNS = ("?!?!", "!!", "...", "??")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A bundle whose tasks know 150 messages, but for `same`, which reads pairs."""

    def make(home):
        tiny_project.write_data(home / "data", train=24, other=150)
        train_project(tiny_project.project(home, "mood", "urgency", "names", "same"), folder=home)

    return made_once(tmp_path_factory, "drift", make) / "bundle"


@pytest.fixture(scope="module")
def session(root):
    return Session(root, backend="reference", deterministic=True)


def seen(vectors):
    return RowProfile(vectors=vectors, lengths=np.ones(len(vectors)), scores=np.zeros((len(vectors), 0), np.float32))


def messages(count, seed):
    return [row["text"] for row in tiny_project.messages(count, seed)]


def gibberish(count):
    chance = random.Random(0)
    return [" ".join(chance.choice(SIGNS) for _ in range(12)) for _ in range(count)]


def shares(results, task="mood"):
    return np.array([result.answers[task]["familiar"] for result in results])


def test_distance_is_that_of_scikit_learns_neighbours():
    neighbours = pytest.importorskip("sklearn.neighbors")
    rng = np.random.default_rng(0)
    known, rows = (directions(rng.normal(size=(count, 16)).astype(np.float32)) for count in (60, 25))
    near = neighbours.NearestNeighbors(n_neighbors=NEAREST).fit(known)
    np.testing.assert_allclose(farness(rows, known), near.kneighbors(rows)[0].mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(farness(known, known, among=True), near.kneighbors()[0].mean(axis=1), atol=1e-5)


def test_share_is_the_rank_among_the_known_rows():
    far = np.array([0.0, 0.5, 1.4, 2.0], np.float32)
    known = KnownRows(near=np.eye(4, dtype=np.float32)[:1], usual=far, are_centres=True)
    at_a_right_angle = np.array([[0, 3, 0, 0]], np.float32)
    assert known.familiar(at_a_right_angle) == pytest.approx([2 / 5])  # one of 4 is as far, and the text itself
    rng = np.random.default_rng(1)
    own = KnownRows.of(seen(directions(rng.normal(size=(200, 8)).astype(np.float32))))
    of_alike = own.familiar(rng.normal(size=(2000, 8)))
    assert of_alike.min() >= 1 / 201 and of_alike.max() <= 1
    np.testing.assert_allclose(np.quantile(of_alike, (0.1, 0.5, 0.9)), (0.1, 0.5, 0.9), atol=0.1)  # a p-value


def test_answers_say_what_the_kept_rows_give(session):
    texts = [*messages(6, seed=5), *gibberish(2)]
    vectors = attach_vectors(session)
    means = np.stack(session.outputs(vectors, texts))
    session.detach(vectors)
    known = KnownRows.of(stored_profile(session.bundle, "mood"))
    assert known.are_centres and len(known.near) == 2  # of each label's training rows
    assert shares(session.predict(texts, familiar=True)) == pytest.approx(known.familiar(means))


def test_known_texts_are_familiar_and_gibberish_is_not(session):
    known = shares(session.predict(messages(100, seed=9), familiar=True))
    assert np.median(known) > 0.3
    assert np.median(shares(session.predict(gibberish(30), familiar=True))) < 0.05


@pytest.mark.parametrize("backend", ["reference", "openvino"])
def test_answers_are_the_same_bits_with_it(root, backend):
    if backend != "reference":
        pytest.importorskip(backend)
    session, texts = Session(root, backend=backend, deterministic=True), messages(12, seed=3)
    asked = ["mood", "urgency", "names"]
    plain = session.columns(texts, tasks=asked)
    told = session.columns(texts, tasks=asked, familiar=True)
    assert plain["mood"].familiar is None and told["mood"].familiar is not None
    for name in asked:
        for before, after in zip(plain[name].outputs, told[name].outputs, strict=True):
            np.testing.assert_array_equal(before, after)
    assert list(told.tasks) == asked
    for row in range(len(texts)):  # one pass, and the receipt names no task that was not asked
        assert told.receipt(row) == plain.receipt(row)


def test_receipt_of_a_text_in_windows_is_the_same_with_it(tmp_path):
    root = make(tmp_path / "b", "mood", "same", "alike")
    add(root, "topics", 5, task=msgspec.structs.replace(TINY["topics"], long_texts="windows"))
    session, texts = Session(root, backend="reference"), [LONG, "good lamp", ("good", LONG), LONG]
    for tasks in (["topics"], ["mood", "topics"], ["mood"], ["topics", "same", "alike"]):
        plain, told = (session.columns(texts, tasks=tasks, familiar=familiar) for familiar in (False, True))
        assert [told.receipt(row) for row in range(4)] == [plain.receipt(row) for row in range(4)]


@pytest.mark.parametrize("is_read", [True, False], ids=["read before", "not read before"])
def test_rows_are_those_of_now_also_where_a_version_has_the_name_of_a_removed_one(tmp_path, is_read):
    root = make(tmp_path / "b")
    session = Session(root, backend="reference", deterministic=True)
    vectors = attach_vectors(session)

    def begin_anew(texts, seed):
        if session.bundle.lines:
            remove_tasks(root, ["mood"])
        rows = directions(np.stack(session.outputs(vectors, texts)))
        add_tasks(root, [msgspec.structs.replace(draft("mood", seed), seen=seen(rows).content())])
        session.refresh()
        assert session.bundle.version("mood") == "v0001"

    def told(session):
        return shares(session.predict(messages(6, seed=5), tasks=["mood"], familiar=True))

    begin_anew(gibberish(40), 1)
    before = told(session) if is_read else np.zeros(6)
    begin_anew(messages(40, seed=9), 2)
    now = told(session)
    np.testing.assert_array_equal(now, told(Session(root, backend="reference", deterministic=True)))
    assert (now > before).all()


def test_only_tasks_of_one_text_with_kept_rows_say_it(session):
    (pair,) = session.predict([("good lamp", "bad lamp")], tasks=TASKS, familiar=True)
    assert "familiar" not in pair.answers["same"]
    (plain,) = session.predict(["good lamp"], tasks=["mood"])
    assert "familiar" not in plain.answers["mood"]


def test_nothing_is_said_where_too_few_rows_are_kept(tmp_path):
    tiny_project.write_data(tmp_path / "data")
    train_project(tiny_project.project(tmp_path, "mood"), folder=tmp_path)
    session = Session(tmp_path / "bundle", backend="reference")
    (result,) = session.predict(["good lamp"], familiar=True)
    assert "familiar" not in result.answers["mood"]
    assert session.loaded.hidden == session.loaded.hidden & session.records.keys()


def test_rows_that_could_not_be_read_are_read_again_by_the_next_call(root, tmp_path, caplog):
    """One failed read, of a disk that was away for a moment, was remembered for the life of the session."""
    shutil.copytree(root, tmp_path / "bundle")
    session = Session(tmp_path / "bundle", backend="reference")
    file = tmp_path / "bundle" / "tasks" / "mood" / session.bundle.version("mood") / SEEN
    file.rename(tmp_path / "away")
    for _ in range(3):
        (result,) = session.predict(["good lamp"], tasks=["mood", "urgency"], familiar=True)
        assert "familiar" not in result.answers["mood"] and "familiar" in result.answers["urgency"]
    assert caplog.text.count("task 'mood' does not say how familiar texts are") == 1
    (tmp_path / "away").rename(file)
    expected = Session(root, backend="reference").predict(["good lamp"], tasks=["mood"], familiar=True)
    found = session.predict(["good lamp"], tasks=["mood"], familiar=True)
    assert shares(found).tolist() == shares(expected).tolist()


def test_below_the_limit_it_is_none_of_these(session):
    texts = [*messages(4, seed=5), *gibberish(2)]
    told = session.predict(texts, tasks=["mood", "urgency"], familiar=True)
    results = session.predict(texts, tasks=["mood", "urgency"], none_below=0.05)
    for before, result in zip(told, results, strict=True):
        answer = result.answers["mood"]
        assert answer == before.answers["mood"] | {"none_of_these": answer["familiar"] < 0.05}
        assert result.answers["urgency"] == before.answers["urgency"]  # a number has no labels
    assert [result.answers["mood"]["none_of_these"] for result in results[-2:]] == [True, True]
    named = session.predict(texts, tasks=["mood"], none_below={"mood": 0.0})
    assert all("none_of_these" not in result.answers["mood"] for result in named)


def test_limit_of_a_task_applies_by_itself(session):
    record = session.records["mood"]
    limited = msgspec.structs.replace(record, task=msgspec.structs.replace(record.task, none_below=0.1))
    assert limited.task.none_below == 0.1
    columns = session.columns(gibberish(1), tasks=["mood"], familiar=True)
    columns["mood"].task = limited.task
    (result,) = columns.results(familiar=False)
    assert result.answers["mood"]["none_of_these"]


def test_limit_of_a_version_that_comes_during_a_call_applies_or_that_version_does_not_answer(root, monkeypatch):
    """The limits were read from one version, and the next version answered without its own."""
    session, reading = Session(root, backend="reference"), sessions.wants_vectors
    record, arrays = session.records["mood"], session.arrays("mood").arrays
    limited = msgspec.structs.replace(record, task=msgspec.structs.replace(record.task, none_below=0.1))

    def changed_after(now, *arguments, **options):
        wanted = reading(now, *arguments, **options)
        session.attach(limited, arrays)
        return wanted

    monkeypatch.setattr(sessions, "wants_vectors", changed_after)
    (result,) = session.predict(gibberish(1), tasks=["mood"])
    assert session.records["mood"] is limited and result.versions == {"mood": "v0001"}


@pytest.mark.parametrize(
    ("limit", "error"),
    [(1.5, BadValue), (True, BadValue), ({"urgency": 0.1}, BadValue), ({"nobody": 0.1}, UnknownTask)],
    ids=["above one", "no number", "no labels", "no task"],
)
def test_limit_that_means_nothing_is_refused(session, limit, error):
    with pytest.raises(error):
        session.predict(["good lamp"], none_below=limit)


def test_limit_of_a_task_is_a_share_of_a_kind_with_labels():
    with pytest.raises(ConfigError, match="none_below"):
        Task(name="mood", kind="single_label", labels=("a", "b"), none_below=2.0)
    with pytest.raises(ConfigError, match="none_below"):
        Task(name="stars", kind="regression", range=(0.0, 1.0), none_below=0.1)


def test_rows_of_a_table_get_what_a_session_says(session, tmp_path):
    texts = [*messages(4, seed=5), *gibberish(2)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    asked = {"familiar": True, "none_below": {"mood": 0.05}}
    wish = ScoreRequest(tasks=("mood", "urgency", "same"), **asked)
    done = score(session, tmp_path / "in.jsonl", tmp_path / "out.jsonl", wish)
    assert done.columns == (
        "mood",
        "mood.familiar",
        "mood.none_of_these",
        "urgency",
        "urgency.familiar",
        "same",
        "error",
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, result in zip(rows, session.predict(texts, tasks=["mood", "urgency"], **asked), strict=True):
        for name in ("mood", "urgency"):
            assert row[f"{name}.familiar"] == pytest.approx(result.answers[name]["familiar"], rel=1e-5)  # six digits
        assert row["mood.none_of_these"] == result.answers["mood"]["none_of_these"]
    plain = score(session, tmp_path / "in.jsonl", tmp_path / "plain.csv", ScoreRequest(tasks=("mood",)))
    assert plain.columns == ("mood", "error")
    with pytest.raises(ConfigError, match="how familiar"):
        score(session, tmp_path / "in.jsonl", tmp_path / "no.csv", ScoreRequest(tasks=("same",), familiar=True))


def test_commands_say_it_of_lines_and_of_rows(root, tmp_path):
    (text,) = gibberish(1)
    done = run("predict", str(root), text, "--task", "mood", "--none-below", "0.05", "--backend", "reference")
    (answer,) = [row["answers"]["mood"] for row in done.rows]
    assert answer["none_of_these"] is True and answer["familiar"] < 0.05
    (tmp_path / "in.csv").write_text(f"message\n{text}\n")
    table = ["predict", str(root), str(tmp_path / "in.csv"), "--text", "message", "-o", str(tmp_path / "out.csv")]
    run(*table, "--task", "mood", "--familiar", "--none-below", "0.05", "--backend", "reference")
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert row["mood.none_of_these"] == "true" and float(row["mood.familiar"]) == pytest.approx(
        answer["familiar"], rel=1e-5
    )


def test_a_limit_of_0_reaches_the_tasks(root, monkeypatch):
    """It means never, also for a task with a limit of its own; it was taken for no limit."""
    asked, plain = [], predict._by_session
    monkeypatch.setattr(predict, "_by_session", lambda *given: asked.append(given[2]) or plain(*given))
    for limit in ([], ["--none-below", "0"]):
        run("predict", str(root), "good lamp", "--task", "mood", *limit, "--backend", "reference")
    assert asked == [{}, {"none_below": 0.0}]


def test_a_backfill_says_what_a_session_says_of_each_document(root, tmp_path):
    texts = [*messages(20, seed=4), *gibberish(3)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(rows)
    made = ["features", "extract", str(root), "texts.jsonl", "store", "--tasks", "mood,urgency"]
    assert (done := run(*made, "--tap", "last:float16", cwd=tmp_path)).code == 0, done.err
    words = ["backfill", str(root), "--features", "store", "-o", "out.jsonl", "--texts", "texts.jsonl"]
    assert (done := run(*words, "--familiar", cwd=tmp_path)).code == 0, done.err
    said = {row["text"]: row for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    session = Session(root, backend="reference")
    for text, result in zip(texts, session.predict(texts, tasks=["mood", "urgency"], familiar=True), strict=True):
        for name, answer in result.answers.items():
            assert said[text][f"{name}.familiar"] == pytest.approx(answer["familiar"], abs=0.02)  # a rank among 150
    assert run(*words, cwd=tmp_path).code == 0
    assert "familiar" not in (tmp_path / "out.jsonl").read_text()
    made[4] = "bare"
    assert run(*made, cwd=tmp_path).code == 0
    words[3] = "bare"
    run(*words, "--familiar", cwd=tmp_path).refuses("mean vectors", "--tap last:float16", "leave out --familiar")
