"""A move to another encoder: what is compared, what is read from which side, and when readers are switched."""

import json

import msgspec
import numpy as np
import pytest
from scipy.stats import binomtest

from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, DataError, StoreError, UnknownTask
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs.answers import answer_columns
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.compare import check_agreement, check_whole_store, compare, comparison_with_texts
from polyhead.store.jobs.labels import LabelRequest, label_rows
from polyhead.store.jobs.migrate import open_current, read_pointer, switch, switch_back
from polyhead.store.jobs.stored_answers import StoredAnswers
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from support.backfills import ANSWERED, TASKS, TRUNK, add, append, make_bundle, schema, texts
from support.disk_failures import FullDisk

OTHER = tiny_trunk(seed=6)  # with these seeds of heads some answers differ and some do not
KINDS = ["store", "store.lance"]


def fill(folder, name, bundle, trunk, *ranges, tasks=()):
    """A store of the texts of these ranges, a fragment each, answered by the bundle."""
    path = next(iter(Bundle.open(bundle).tasks.values())).path
    store = create_corpus(folder / name, schema(path, trunk=trunk))
    for numbers in ranges:
        append(store, path, texts(numbers), trunk=trunk)
    backfill(folder / name, bundle, BackfillRequest(tasks=tasks, executor="inline"))
    return StoredAnswers(folder / name, bundle)


@pytest.fixture(scope="module", params=KINDS)
def sides(request, tmp_path_factory):
    """Two encoders over the same texts, in other fragments and another order; the new one lacks 5, and has 3 more."""
    folder = tmp_path_factory.mktemp("sides")
    bundles = make_bundle(folder / "old", seed=2), make_bundle(folder / "new", trunk=OTHER, seed=6)
    old = fill(folder, f"old-{request.param}", bundles[0], TRUNK, range(20), range(20, 45), range(45, 60))
    new = fill(folder, f"new-{request.param}", bundles[1], OTHER, range(62, 30, -1), range(30, 4, -1))
    return old, new


def answers_of(side, task):
    """The naive way: every document's answer and score, by id."""
    (column,) = answer_columns(task, side.bundle.lines[task], all_scores=False)
    found, labels = {}, side.bundle.tasks[task].task.labels
    for fragment in side.store.fragments:
        arrays = side.store.results(fragment.name, column.name)
        for row, identity in enumerate(side.store.ids(fragment.name)):
            if arrays is None:
                continue
            score = float(arrays["score"][row]) if "score" in arrays else None
            if "label" in arrays:
                answer = labels[arrays["label"][row]]
            elif "labels" in arrays:
                answer = [labels[i] for i in np.flatnonzero(arrays["labels"][row])]
            else:
                answer = float(arrays["value"][row])
            found[identity.tobytes().hex()] = answer, score
    return found


def test_the_comparison_is_the_naive_one(sides):
    old, new = sides
    found = compare(old, new, flips=1000)
    assert (found.documents, found.lacking, found.added) == (60, 5, 3)
    assert (found.old_trunk, found.new_trunk) == (TRUNK.digest, OTHER.digest) and TRUNK.digest != OTHER.digest
    assert [task.new.task for task in found.tasks] == list(ANSWERED)
    for task in found.tasks:
        name = task.new.task
        before, after = answers_of(old, name), answers_of(new, name)
        both = [(before[one], after[one]) for one in before if one in after]
        differing = {one for one in before if one in after and not alike(before[one][0], after[one][0])}
        assert 0 < len(differing) < len(both) == task.compared == 55
        assert (task.answered, task.lacking, task.equal) == (60, 5, 55 - len(differing))
        interval = binomtest(task.equal, 55).proportion_ci(method="wilson")
        np.testing.assert_allclose((task.low, task.high), (interval.low, interval.high), atol=1e-9)
        flips = [flip for flip in found.flips if flip.task == name]
        assert {flip.id for flip in flips} == differing and len(flips) == len(differing)
        for flip in flips:
            assert ((flip.before, flip.before_score), (flip.after, flip.after_score)) == (
                before[flip.id],
                after[flip.id],
            )
        sure = [surety(flip) for flip in flips]
        assert sure == sorted(sure, reverse=True)
        assert compare(old, new, [name], flips=4).flips == tuple(flips[:4])


def alike(a, b):
    return abs(a - b) <= 0.01 if isinstance(a, float) else a == b


def surety(flip):
    if flip.before_score is None:
        return abs(flip.before - flip.after)
    sides = [(flip.before, flip.before_score), (flip.after, flip.after_score)]
    return min(score if answer else 1 - score for answer, score in map(as_float32, sides))


def as_float32(pair):
    return pair[0], np.float32(pair[1])


def test_changes_and_differences_are_counted(sides):
    old, new = sides
    mood, topics, urgency = compare(old, new).tasks
    pairs = {name: both(old, new, name) for name in ANSWERED}
    moods = [(a, b) for a, b in pairs["mood"] if a != b]
    assert {(c.old, c.new): c.documents for c in mood.changes} == {one: moods.count(one) for one in moods}
    counts = {}
    for a, b in pairs["topics"]:
        for label in {*a} - {*b}:
            counts[label, None] = counts.get((label, None), 0) + 1
        for label in {*b} - {*a}:
            counts[None, label] = counts.get((None, label), 0) + 1
    assert {(c.old, c.new): c.documents for c in topics.changes} == counts
    differences = np.array([b - a for a, b in pairs["urgency"]])
    np.testing.assert_allclose(urgency.mean_difference, differences.mean(), atol=1e-9)
    np.testing.assert_allclose(urgency.mean_distance, abs(differences).mean(), atol=1e-9)
    assert mood.mean_difference is None and urgency.changes == ()
    documents = [change.documents for change in topics.changes]
    assert documents == sorted(documents, reverse=True) and len(documents) > 1


def both(old, new, name):
    before, after = answers_of(old, name), answers_of(new, name)
    return [(before[one][0], after[one][0]) for one in before if one in after]


def test_flips_have_their_texts(sides, tmp_path):
    old, new = sides
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for (text,) in texts(range(70))))
    flips = compare(old, new, ["mood"], flips=6).flips
    named = comparison_with_texts(flips, file, {"text": "body"})
    assert len(named) == 6 and all(document_id(flip.texts).hex() == flip.id for flip in named)
    file.write_text('{"body": "of another file"}\n')
    assert all(flip.texts is None for flip in comparison_with_texts(flips, file, {"text": "body"}))


def test_agreement_below_what_is_asked_is_refused(sides):
    found = compare(*sides)
    worst = min(found.tasks, key=lambda task: task.low)
    check_agreement(found, worst.low)
    shown = msgspec.structs.replace(worst, low=0.00918931649)  # shown as 0.00918932, which was refused
    check_agreement(msgspec.structs.replace(found, tasks=(shown,)), 0.00918932)
    with pytest.raises(StoreError, match=f"less than asked, .*{worst.new.task}.*{worst.share:.4f} of {worst.compared}"):
        check_agreement(found, worst.low + 1e-6)
    same = compare(sides[0], sides[0], flips=9)
    check_agreement(same, 1)
    nearly = msgspec.structs.replace(same.tasks[0], compared=10**9, equal=10**9 - 1)
    with pytest.raises(StoreError, match="equal answers to all documents"):
        check_agreement(msgspec.structs.replace(same, tasks=(nearly,)), 1)
    check_agreement(same, 0.93)
    with pytest.raises(StoreError, match="too few documents to tell"):  # 60 of 60 are 94 to 100 %
        check_agreement(same, 0.98)
    check_whole_store(same)
    assert same.flips == () and all(task.equal == task.compared == 60 for task in same.tasks)


def test_a_store_is_never_read_by_the_bundle_of_another_encoder(sides):
    old, new = sides
    for side, other in ((old, new), (new, old)):
        for opening in (
            lambda side=side, other=other: StoredAnswers(side.location, other.bundle.root),
            lambda side=side, other=other: backfill(side.location, other.bundle.root, BackfillRequest()),
        ):
            with pytest.raises(StoreError, match="another trunk") as error:
                opening()
            assert side.trunk in str(error.value) and other.trunk in str(error.value)


def test_labels_are_compared_by_name_whatever_their_order(tmp_path, monkeypatch):
    """The new task has the labels in another order, one of them renamed; its answers are put in by hand."""
    old = fill(tmp_path, "old-store", make_bundle(tmp_path / "old", ["mood", "topics"]), TRUNK, range(6))
    changed = {
        "mood": Task(name="mood", kind="single_label", labels=("good", "awful")),
        "topics": Task(name="topics", kind="multi_label", labels=("person", "order", "card")),
    }
    with monkeypatch.context() as patch:
        for name, task in changed.items():
            patch.setitem(TASKS, name, task)
        new = fill(tmp_path, "new-store", make_bundle(tmp_path / "new", [*changed], trunk=OTHER), OTHER, range(6))
    assert new.bundle.tasks["mood"].task.labels == ("good", "awful")
    put(old, "mood", label=[1, 1, 0, 0, -1, -1], score=[0.9, 0.8, 0.7, 0.6, np.nan, np.nan])
    put(new, "mood", label=[0, 1, 1, 0, 1, -1], score=[0.9, 0.7, 0.9, 0.95, 0.5, np.nan])
    flags = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]], bool)
    put(old, "topics", labels=flags, score=[0.9, 0.9, 0.9, 0.2, 0.9, np.nan])
    put(new, "topics", labels=flags[:, [2, 0, 1]], score=[0.9, 0.6, 0.7, 0.1, 0.9, 0.3])
    mood, topics = compare(old, new, flips=9).tasks
    assert (mood.compared, mood.equal, topics.compared, topics.equal) == (5, 1, 6, 3)
    counts = {(c.old, c.new): c.documents for c in mood.changes}
    assert counts == {("good", "awful"): 1, ("bad", "awful"): 1, ("bad", "good"): 1, (None, "awful"): 1}
    assert {(c.old, c.new): c.documents for c in topics.changes} == {("bill", None): 2, (None, "card"): 2}
    flips = [flip for flip in compare(old, new, flips=9).flips if flip.task == "mood"]
    assert [(f.before, f.after) for f in flips] == [
        (None, "awful"),
        ("good", "awful"),
        ("bad", "awful"),
        ("bad", "good"),
    ]


def put(side, name, **arrays):
    """Answers of the first fragment, by the number of each text."""
    kinds = {"label": np.int32, "labels": bool, "score": np.float32}
    made = {key: np.asarray(array, kinds[key]) for key, array in arrays.items()}
    side.store.refresh()
    side.store.put_results(side.store.fragments[0].name, side.column(name).name, made)
    side.store.refresh()


def test_tasks_that_cannot_be_compared_are_said(sides, tmp_path):
    old, _ = sides
    fewer = fill(tmp_path, "fewer-store", make_bundle(tmp_path / "fewer", ["mood"], trunk=OTHER), OTHER, range(60))
    found = compare(old, fewer)
    assert found.missing == ("topics", "urgency") and [task.new.task for task in found.tasks] == ["mood"]
    with pytest.raises(StoreError, match="lacking are task 'topics', task 'urgency'"):
        check_whole_store(found)
    with pytest.raises(UnknownTask, match="topics"):
        compare(old, fewer, ["topics"])
    check_whole_store(compare(old, fewer, ["mood"]))
    other = make_bundle(tmp_path / "other", ["topics"], trunk=OTHER)
    mood = msgspec.structs.replace(TASKS["topics"], name="mood")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "mood", mood)
        add(Bundle.open(other), "mood", trunk=OTHER)
    with pytest.raises(StoreError, match=r"another kind.*single_label and multi_label"):
        compare(old, fill(tmp_path, "other-store", other, OTHER, range(5)), ["mood"])


def test_answers_that_are_not_there_yet_are_lacking(sides, tmp_path):
    old, _ = sides
    bundle = make_bundle(tmp_path / "new", trunk=OTHER)
    new = fill(tmp_path, "new-store", bundle, OTHER, range(50), tasks=("mood",))
    append(new.store, new.bundle.tasks["mood"].path, texts(range(50, 60)), trunk=OTHER)
    new.store.refresh()
    found = compare(old, new)
    assert [task.lacking for task in found.tasks] == [10, 60, 60] and found.lacking == 0
    assert [task.compared for task in found.tasks] == [50, 0, 0] and found.tasks[1].share is None
    with pytest.raises(StoreError, match="'mood' for 10 documents, answers of 'topics' for 60 documents"):
        check_whole_store(found)
    with pytest.raises(StoreError, match="nothing to compare"):
        check_agreement(found, 0)
    backfill(new.location, bundle, BackfillRequest())
    new.store.refresh()
    check_whole_store(compare(old, new))


def test_stores_without_documents_or_answers_compare_as_nothing(tmp_path):
    bundles = make_bundle(tmp_path / "old"), make_bundle(tmp_path / "new", trunk=OTHER)
    old, new = fill(tmp_path, "a", bundles[0], TRUNK), fill(tmp_path, "b", bundles[1], OTHER)
    found = compare(old, new, flips=3)
    assert (found.documents, found.tasks, found.flips, found.is_whole) == (0, (), (), True)
    with pytest.raises(StoreError, match="no task of the old bundle is answered"):
        check_agreement(found, 0.5)


def test_readers_are_switched_in_one_step_and_back(sides, tmp_path, monkeypatch):
    old, new = sides
    file = tmp_path / "current.json"
    with pytest.raises(StoreError, match=r"no file at .*features switch"):
        open_current(file)
    assert switch(file, old.location, old.bundle.root) is None
    first = file.read_bytes()
    with pytest.raises(StoreError, match="5 of 60 documents, answers of 'mood' for 5 documents"):
        switch(file, new.location, new.bundle.root)
    with pytest.raises(StoreError, match="agree less than asked"):
        switch(file, new.location, new.bundle.root, incomplete=True, at_least=0.999)
    with pytest.raises(StoreError, match="another trunk"):
        switch(file, new.location, old.bundle.root)
    with pytest.raises(StoreError, match="named nothing before"):
        switch_back(file)
    assert file.read_bytes() == first and open_current(file).trunk == TRUNK.digest
    assert switch(file, new.location, new.bundle.root, incomplete=True).lacking == 5
    assert open_current(file).trunk == OTHER.digest and read_pointer(file).previous.trunk == TRUNK.digest
    switched = file.read_bytes()
    switch(file, new.location, new.bundle.root)  # to where it is: what was before is kept
    assert file.read_bytes() == switched
    copy = tmp_path / "copy.json"
    copy.write_bytes(switched)
    switch_back(copy)
    back, failing, errors = copy.read_bytes(), 0, 0
    while True:  # a disk that is full at any step
        failing += 1
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                switch_back(file)
            except OSError:
                errors += 1
                assert file.read_bytes() in (switched, back)
        if disk.calls < failing:
            break
    assert errors >= 3


def test_a_switch_back_names_what_was_named_before(sides, tmp_path):
    old, new = sides
    file = tmp_path / "current.json"
    switch(file, old.location, old.bundle.root)
    switch(file, new.location, new.bundle.root, incomplete=True)
    back = switch_back(file)
    assert (back.current.trunk, back.previous.trunk) == (TRUNK.digest, OTHER.digest)
    assert open_current(file).location == old.location
    assert switch_back(file).current.trunk == OTHER.digest


def test_a_pointer_in_a_folder_that_is_reached_by_a_link_names_places_that_are_there(tmp_path, monkeypatch):
    """Its names began at the link's own folder, and could not be opened."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "store", make_bundle(tmp_path / "bundle"), TRUNK, range(5))
    (tmp_path / "releases/v1").mkdir(parents=True)
    (tmp_path / "deploy").symlink_to("releases/v1")
    switch("deploy/corpus.json", "store", "bundle")
    for pointer in ("deploy/corpus.json", "releases/v1/corpus.json"):
        assert open_current(pointer).documents == 5


def test_a_pointer_names_a_link_to_a_store_as_it_is_named(tmp_path, monkeypatch):
    """It named the place behind the link, which is another one from where the folder is moved to."""
    bundle = make_bundle(tmp_path / "corpus" / "bundle")
    fill(tmp_path, "far/away/store", bundle, TRUNK, range(5))
    (tmp_path / "corpus/store").symlink_to(tmp_path / "far/away/store")
    monkeypatch.chdir(tmp_path)
    switch("corpus/current.json", "corpus/store", "corpus/bundle")
    (tmp_path / "other/place").mkdir(parents=True)
    (tmp_path / "corpus").rename(tmp_path / "other/place/corpus")
    assert open_current("other/place/corpus/current.json").documents == 5


def test_a_pointer_names_places_relative_to_its_folder_and_refuses_what_was_replaced(tmp_path, monkeypatch):
    bundle = make_bundle(tmp_path / "corpus" / "bundle", ["mood"])
    fill(tmp_path / "corpus", "store", bundle, TRUNK, range(3))
    monkeypatch.chdir(tmp_path)
    switch("corpus/current.json", "corpus/store", "corpus/bundle")
    assert json.loads((tmp_path / "corpus/current.json").read_text())["current"]["store"] == "store"
    (tmp_path / "corpus").rename(tmp_path / "moved")
    assert open_current("moved/current.json").documents == 3
    for name in ("store", "bundle"):
        (tmp_path / "moved" / name).rename(tmp_path / "moved" / f"old-{name}")
    fill(tmp_path / "moved", "store", make_bundle(tmp_path / "moved" / "bundle", ["mood"], trunk=OTHER), OTHER)
    with pytest.raises(StoreError, match="another trunk than it says") as error:
        open_current("moved/current.json")
    assert TRUNK.digest in str(error.value) and OTHER.digest in str(error.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", ConfigError),
        ("{}", ConfigError),
        ('{"format": 2, "current": {"store": "a", "bundle": "b", "trunk": "c"}}', StoreError),
        ('{"format": 1, "current": {"store": "a", "bundle": "b", "trunk": "c"}}', StoreError),
        ('{"format": 1, "current": {"store": "a", "bundle": "b", "trunk": "c", "more": 1}}', ConfigError),
    ],
    ids=["empty", "no-keys", "newer", "gone", "unknown-key"],
)
def test_a_pointer_that_cannot_be_read_is_refused(tmp_path, content, error):
    (tmp_path / "current.json").write_text(content)
    with pytest.raises(error):
        open_current(tmp_path / "current.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        open_current(tmp_path / "folder")


def write(folder, rows):
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "texts.jsonl"


def test_stored_answers_become_labelled_rows(sides, tmp_path):
    old, _ = sides
    numbers = [*range(50, 66), 3, 3, 51]  # some twice, some that the store lacks
    source = write(tmp_path, [{"body": text} for (text,) in texts(numbers)])
    wish = LabelRequest(tasks=ANSWERED, columns={"text": "body"})
    rows = list(label_rows(old, source, wish))
    assert [row["text"] for row in rows] == [text for (text,) in texts([*range(50, 60), 3])]
    for name in ANSWERED:
        known = answers_of(old, name)
        for row in rows:
            assert (row[name], row.get(f"{name}.score")) == known[row["id"]]
    assert "urgency.score" not in rows[0]


def test_answers_that_are_less_sure_are_no_labels_and_some_rows_are_drawn(sides, tmp_path):
    old, _ = sides
    source = write(tmp_path, [{"text": text} for (text,) in texts(range(60))])
    known = answers_of(old, "mood")
    middle = float(np.median([score for _, score in known.values()]))
    sure = list(label_rows(old, source, LabelRequest(tasks=("mood",), at_least=middle)))
    assert {row["id"] for row in sure} == {one for one, (_, score) in known.items() if score >= middle}
    assert len(sure) == 30
    several = list(label_rows(old, source, LabelRequest(tasks=("mood", "topics"), at_least=middle)))
    assert any(row["mood"] is None and row["mood.score"] is None for row in several)
    few = list(label_rows(old, source, LabelRequest(tasks=("mood",), rows=20)))
    more = list(label_rows(old, source, LabelRequest(tasks=("mood",), rows=40)))
    assert 8 < len(few) < 32 and {row["id"] for row in few} < {row["id"] for row in more}
    with pytest.raises(ConfigError, match="urgency"):
        list(label_rows(old, source, LabelRequest(tasks=("urgency",), at_least=0.5)))
    with pytest.raises(DataError, match="no answer of mood"):
        list(label_rows(old, write(tmp_path, [{"text": "of another file"}]), LabelRequest(tasks=("mood",))))
    with pytest.raises(DataError):
        list(label_rows(old, tmp_path / "none.jsonl", LabelRequest(tasks=("mood",))))


def test_labels_that_cannot_be_asked_for_are_refused():
    for wrong in ({"tasks": ()}, {"tasks": ("id",)}, {"tasks": ("a",), "rows": 0}, {"tasks": ("a",), "at_least": 2.0}):
        with pytest.raises(ConfigError):
            LabelRequest(**wrong)


def test_pairs_are_labelled_whether_read_together_or_each_by_itself(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", ["mood"])
    path = Bundle.open(bundle).tasks["mood"].path
    (a,), (b,), (c,) = texts([1, 2, 3])
    source = write(tmp_path, [{"text": a, "text_b": b}, {"text": c, "text_b": a}])
    for name, documents in (("together", [(a, b)]), ("apart", [(a,), (b,), (c,)])):
        store = create_corpus(tmp_path / name, schema(path))
        append(store, path, documents)
        backfill(tmp_path / name, bundle, BackfillRequest())
        rows = list(label_rows(StoredAnswers(tmp_path / name, bundle), source, LabelRequest(tasks=("mood",))))
        assert [tuple(row[key] for key in ("text", "text_b") if key in row) for row in rows] == documents
        answers = Session(bundle, backend="reference").columns(documents, tasks=["mood"])["mood"]
        assert [row["mood"] for row in rows] == [("bad", "good")[i] for i in answers.label]


def test_another_version_over_the_same_encoder_is_compared_in_one_store(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", ["mood"])
    side = fill(tmp_path, "store", bundle, TRUNK, range(30))
    other = make_bundle(tmp_path / "other", ["mood"], seed=9)
    backfill(tmp_path / "store", other, BackfillRequest())
    (mood,) = compare(side, StoredAnswers(tmp_path / "store", other)).tasks
    assert mood.old.column != mood.new.column and mood.compared == 30
    assert len(open_corpus(tmp_path / "store").fragments[0].results) == 2


def test_a_file_of_a_switch_that_cannot_be_read_names_the_command_that_writes_one(tmp_path):
    """A folder in its place; the message named a command of an earlier version."""
    with pytest.raises(StoreError, match="polyhead features switch"):
        read_pointer(tmp_path)
