"""Several bundles behind one session: each task is answered as its own bundle alone answers it."""

import msgspec
import pytest

from polyhead.bundle import write
from polyhead.bundle.read import Bundle
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.request import Request
from polyhead.engine.session import Session
from polyhead.engine.several import SessionSet, Turns, bundle_names, confidence, errors_of_call
from polyhead.errors import BadValue, ConfigError, UnknownTask
from polyhead.tasks.calibration import Calibration, CalibrationChoice, SetRule
from support.admin_server import TASKS, draft
from support.bundle_sets import CHEAP, DEEP, EXACT, TEXTS, bundle_of, set_of, two_bundles

PAIRS = [("is the lamp good?", "the lamp is late"), ("when was it late?", "it was late on monday")]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return two_bundles(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def alone(bundles):
    return [Session(root, **EXACT) for root in bundles]


def answers(results, *tasks):
    return [{name: result.answers[name] for name in tasks} for result in results]


def test_each_task_answers_as_its_bundle_alone(bundles, alone):
    """Bit for bit; a text whose tasks are in both bundles is read by both trunks, once each."""
    cheap, deep = alone
    results = set_of(bundles, mood=2.0).predict(TEXTS)
    assert answers(results, "urgency") == answers(cheap.predict(TEXTS), "urgency")
    assert answers(results, "mood", "topics") == answers(deep.predict(TEXTS), "mood", "topics")
    for result in results:
        assert list(result.answers) == ["mood", "urgency", "topics"]  # `same` reads pairs
        assert result.skipped.keys() == {"same"}
        assert (result.receipt.passes, result.receipt.layers) == (2, 2 + 4)
        assert result.receipt.bundles == {"mood": "deep", "urgency": "cheap", "topics": "deep"}
        assert result.versions == dict.fromkeys(("mood", "urgency", "same", "topics"), "v0001")


def test_tasks_of_one_bundle_leave_the_other_trunk_alone(bundles, alone):
    results = set_of(bundles, mood=0.5).predict(PAIRS, tasks=["same"])
    assert answers(results, "same") == answers(alone[0].predict(PAIRS, tasks=["same"]), "same")
    assert [result.receipt.layers for result in results] == [2, 2]


@pytest.mark.parametrize("threshold", [0.0, 2.0], ids=["always sure", "never sure"])
def test_a_cascade_at_its_ends_is_one_bundle(bundles, alone, threshold):
    results = set_of(bundles, mood=threshold).predict(TEXTS, tasks=["mood"])
    is_cheap = threshold == 0
    by = alone[0 if is_cheap else 1].predict(TEXTS, tasks=["mood"])
    assert answers(results, "mood") == answers(by, "mood")
    for result in results:
        assert result.receipt.bundles == {"mood": "cheap" if is_cheap else "deep"}
        assert result.receipt.layers == (2 if is_cheap else 2 + 4)


def test_only_unsure_texts_go_on_to_the_deeper_trunk(bundles, alone):
    cheap, deep = (answers(session.predict(TEXTS, tasks=["mood"]), "mood") for session in alone)
    sure = sorted(max(answer["mood"]["scores"].values()) for answer in cheap)
    threshold = sure[len(sure) // 2]
    results = set_of(bundles, mood=threshold).predict(TEXTS, tasks=["mood"])
    assert {result.receipt.bundles["mood"] for result in results} == {"cheap", "deep"}
    for result, first, second in zip(results, cheap, deep, strict=True):
        is_sure = max(first["mood"]["scores"].values()) >= threshold
        assert result.answers == (first if is_sure else second)
        assert (result.receipt.passes, result.receipt.layers) == ((1, 2) if is_sure else (2, 6))


def test_an_unsure_text_is_read_once_for_all_tasks_of_the_deeper_trunk(bundles, alone):
    cheap, deep = (answers(session.predict(TEXTS, tasks=["mood"]), "mood") for session in alone)
    sure = sorted(max(answer["mood"]["scores"].values()) for answer in cheap)
    results = set_of(bundles, mood=sure[len(sure) // 2]).predict(TEXTS, tasks=["topics", "mood"])
    assert answers(results, "topics") == answers(alone[1].predict(TEXTS, tasks=["topics"]), "topics")
    assert {result.receipt.bundles["mood"] for result in results} == {"cheap", "deep"}
    for result in results:
        assert (result.receipt.passes, result.receipt.layers) == (2, 6)
        assert list(result.answers) == ["topics", "mood"]


def test_pairs_can_be_a_cascade(tmp_path):
    roots = [bundle_of(tmp_path / name, trunk, {"same": 2}) for name, trunk in (("a", CHEAP), ("b", DEEP))]
    for threshold, root in ((0.0, roots[0]), (2.0, roots[1])):
        results = set_of(roots, same=threshold).predict(PAIRS)
        assert answers(results, "same") == answers(Session(root, **EXACT).predict(PAIRS), "same")


def test_the_probability_is_the_calibrated_one(tmp_path):
    """A temperature of the cheap bundle makes it unsure of what its scores are sure of."""
    write_bundle_root = bundle_of(tmp_path / "cheap", CHEAP, {})
    own = draft("mood", 0, trunk=CHEAP)
    cooled = msgspec.structs.replace(own.record, calibration=Calibration(scale=(0.01,)))
    write.add_tasks(write_bundle_root, [msgspec.structs.replace(own, record=cooled)])
    deep = bundle_of(tmp_path / "deep", DEEP, {"mood": 5})
    session = Session(write_bundle_root, **EXACT)
    for result in session.predict(TEXTS):
        answer = result.answers["mood"]
        assert confidence(answer) == max(answer["calibrated"]["scores"].values()) < 0.51
    several = set_of([write_bundle_root, deep], mood=0.52)
    assert {result.receipt.bundles["mood"] for result in several.predict(TEXTS)} == {"deep"}
    several = set_of([write_bundle_root, deep], mood=0.4)
    plain = several.predict(TEXTS, calibrated=False)
    assert answers(plain, "mood") == answers(session.predict(TEXTS, calibrated=False), "mood")


def with_limits(root, trunk, *, sets=()):
    """A bundle with the task `mood`, calibrated, with these coverages."""
    bundle_of(root, trunk, {})
    own = draft("mood", 0, trunk=trunk)
    calibration = Calibration(scale=(0.5,), sets=tuple(SetRule(coverage=share, limit=0.1) for share in sets))
    write.add_tasks(
        root, [msgspec.structs.replace(own, record=msgspec.structs.replace(own.record, calibration=calibration))]
    )
    return root


@pytest.mark.parametrize("threshold", [0.0, 2.0], ids=["the first answers", "the last answers"])
def test_a_choice_that_the_task_does_not_have_is_refused_whichever_bundle_answers(tmp_path, monkeypatch, threshold):
    """It was refused only where the bundle answered that does not have it, after all had been encoded."""
    asked = []
    inner = Request.run
    monkeypatch.setattr(Request, "run", lambda self, *own, **named: asked.append(self) or inner(self, *own, **named))
    cheap = with_limits(tmp_path / "cheap", CHEAP, sets=(0.9,))
    deep = with_limits(tmp_path / "deep", DEEP, sets=(0.8, 0.9))
    plain = bundle_of(tmp_path / "plain", DEEP, {"mood": 5})
    for roots, choice in (
        ((cheap, deep), CalibrationChoice(coverage=0.8)),
        ((deep, cheap), CalibrationChoice(coverage=0.8)),
        ((cheap, plain), CalibrationChoice(coverage=0.8)),
        ((plain, cheap), CalibrationChoice(thresholds={"unknown": 0.5})),
        ((cheap, deep), CalibrationChoice(unsure_below=1.5)),
    ):
        several = set_of(roots, mood=threshold)
        for inputs in (TEXTS, PAIRS[:0]):
            with pytest.raises(BadValue):
                several.predict(inputs, calibrated={"mood": choice})
            assert not asked, "nothing is encoded for a call that is refused"
    chosen = set_of([cheap, deep], mood=threshold).predict(TEXTS, calibrated={"mood": CalibrationChoice(coverage=0.9)})
    assert asked and all("calibrated" in result.answers["mood"] for result in chosen)
    with pytest.raises(BadValue, match="'calibrated' names a task that is not asked. Got: mood"):
        set_of([cheap, deep], mood=threshold).predict(TEXTS, tasks=[], calibrated={"mood": CalibrationChoice()})


def test_a_third_bundle_answers_what_two_are_not_sure_of(tmp_path, bundles):
    third = bundle_of(tmp_path / "third", DEEP, {"mood": 9})
    results = set_of([*bundles, third], mood=2.0).predict(TEXTS, tasks=["mood"])
    assert answers(results, "mood") == answers(Session(third, **EXACT).predict(TEXTS), "mood")
    assert all(result.receipt.layers == 2 + 4 + 4 for result in results)


def test_a_deadline_that_has_passed_names_every_task_late(bundles):
    (result,) = set_of(bundles, mood=0.5).predict(TEXTS[:1], tasks=["topics", "mood"], deadline=0.0)
    assert not result.answers and sorted(result.late) == ["mood", "topics"]


def broken(bundles, monkeypatch, **heads):
    """The set, where in each of these bundles these heads cannot be computed."""
    inner, layers = ReferenceBackend._headed, {CHEAP.architecture.layers: "cheap", DEEP.architecture.layers: "deep"}

    def headed(self, task, features):
        if task in heads.get(layers[self.trunk.architecture.layers], ()):
            raise RuntimeError(f"the head of {task} is broken")
        return inner(self, task, features)

    monkeypatch.setattr(ReferenceBackend, "_headed", headed)
    return set_of(bundles, mood=0.0)


def test_a_cascade_goes_on_where_a_bundle_fails(bundles, alone, monkeypatch):
    several = broken(bundles, monkeypatch, cheap=["mood"])
    results, deep = several.predict(TEXTS, tasks=["mood"]), alone[1].predict(TEXTS, tasks=["mood"])
    assert answers(results, "mood") == answers(deep, "mood")
    for result in results:
        assert not result.failed and result.receipt.bundles == {"mood": "deep"}


def test_a_bundle_whose_tasks_all_fail_stops_no_other(bundles, alone, monkeypatch):
    several = broken(bundles, monkeypatch, cheap=["urgency"])
    results = several.predict(TEXTS, tasks=["urgency", "topics"])
    assert answers(results, "topics") == answers(alone[1].predict(TEXTS, tasks=["topics"]), "topics")
    assert all("the head of urgency is broken" in result.failed["urgency"] for result in results)


def test_where_no_bundle_has_any_answer_the_error_is_raised(bundles, monkeypatch):
    several = broken(bundles, monkeypatch, cheap=["urgency", "mood"], deep=["mood"])
    for names in (["mood"], ["urgency"], ["urgency", "mood"]):
        with pytest.raises(RuntimeError, match=f"the head of {names[0]} is broken"):
            several.predict(TEXTS, tasks=names)


def test_unknown_tasks_are_told(bundles):
    with pytest.raises(UnknownTask, match="no task 'nothing'"):
        set_of(bundles, mood=0.5).predict(TEXTS, tasks=["mood", "nothing"])


def other_labels(name):
    return {**TASKS, name: msgspec.structs.replace(TASKS[name], labels=("good", "bad"))}


@pytest.mark.parametrize(
    "cascades, what",
    [
        ({}, "several bundles have a task 'mood'. Got: cheap, deep.*--cascade mood=0.9"),
        ({"mood": 0.9, "topics": 0.9}, "a cascade needs two bundles with a task 'topics'. Got: deep. Allowed: mood"),
        ({"mood": 0.9, "moods": 0.9}, "a cascade needs two bundles with a task 'moods'.*no bundle has it"),
        ({"mood": -1.0}, "threshold of cascade 'mood' is no probability"),
        ({"mood": float("nan")}, "threshold of cascade 'mood' is no probability"),
    ],
    ids=["clash", "in one bundle", "in none", "negative", "no number"],
)
def test_a_set_that_cannot_be_is_refused(bundles, cascades, what):
    with pytest.raises(ConfigError, match=what):
        set_of(bundles, **cascades)


def test_a_cascade_of_tasks_that_differ_is_refused(tmp_path, bundles):
    turned = bundle_of(tmp_path / "turned", DEEP, {"mood": 1}, tasks=other_labels("mood"))
    with pytest.raises(ConfigError, match="cascade 'mood' differ in its labels"):
        set_of([bundles[0], turned], mood=0.9)
    topics = bundle_of(tmp_path / "topics", CHEAP, {"topics": 1})
    for cascades, told in (
        ({"topics": 0.9}, "task 'topics' cannot be a cascade. Got: kind 'multi_label'. Allowed: kind 'single_label'"),
        ({}, "several bundles have a task 'topics'"),
    ):
        with pytest.raises(ConfigError, match=told) as refused:
            set_of([topics, bundles[1]], **cascades)
        # It was advised to rename the task, and to make it the cascade that it cannot be.
        assert ("rename" in refused.value.do) == (not cascades) and "--cascade" not in refused.value.do


def test_errors_name_an_input_by_its_number_in_the_call():
    with (
        pytest.raises(BadValue, match=r"^a text of input 31 is too long\. Got: 11\.") as raised,
        errors_of_call([5, 31]),
    ):
        raise BadValue("a text of input 1 is too long", got=11, row=1)
    assert raised.value.row == raised.value.facts["row"] == 31
    with pytest.raises(BadValue, match=r"^'q\\1' is too long"), errors_of_call([5, r"'q\1'"]):
        raise BadValue("a text of input 1 is too long", row=1)
    with pytest.raises(BadValue, match="^something else about input 1"), errors_of_call([5, 31]):
        raise BadValue("something else about input 1")


def test_bundles_are_named_by_what_tells_them_apart(tmp_path):
    assert bundle_names(["a/cheap", "b/deep"]) == ["cheap", "deep"]
    assert bundle_names([str(tmp_path / "a" / "bundle"), str(tmp_path / "b" / "bundle")]) == ["a/bundle", "b/bundle"]
    for folders in ([], ["a", "a"], ["a", "./a"]):
        with pytest.raises(ConfigError, match="different bundles"):
            bundle_names(folders)


def test_a_change_that_breaks_the_set_is_refused(tmp_path):
    """A bundle gets a task that the other has: the set answers as before."""
    cheap, deep = two_bundles(tmp_path)
    several = SessionSet([cheap, deep], cascades={"mood": 2.0}, **EXACT)
    before = several.predict(TEXTS)
    write.add_tasks(deep, [draft("mood", 8, trunk=DEEP)], replace=True)
    assert several.refresh()["deep"].replaced == ("mood",)
    changed = several.predict(TEXTS)
    assert answers(changed, "mood") == answers(Session(deep, **EXACT).predict(TEXTS), "mood")
    assert answers(changed, "urgency", "topics") == answers(before, "urgency", "topics")
    write.add_tasks(deep, [draft("urgency", 8, trunk=DEEP)])
    with pytest.raises(ConfigError, match="several bundles have a task 'urgency'"):
        several.refresh()
    assert several.predict(TEXTS) == changed


@pytest.mark.parametrize("moved", ["topics", "urgency"])
def test_a_task_may_move_from_one_bundle_to_another(tmp_path, moved):
    """`topics` from the later bundle to the earlier, `urgency` the other way."""
    cheap, deep = two_bundles(tmp_path)
    several = set_of([cheap, deep], mood=2.0)
    source, target, trunk = (deep, cheap, CHEAP) if moved == "topics" else (cheap, deep, DEEP)
    Bundle.open(source).remove_task(moved)
    write.add_tasks(target, [draft(moved, 8, trunk=trunk)])
    changes = several.refresh()
    assert list(changes) == ["cheap", "deep"]
    assert (changes[source.name].detached, changes[target.name].attached) == ((moved,), (moved,))
    assert several.predict(TEXTS) == set_of([cheap, deep], mood=2.0).predict(TEXTS)


@pytest.mark.parametrize("moved", ["topics", "urgency"])
def test_calls_see_the_changes_of_all_bundles_or_of_none(tmp_path, monkeypatch, moved):
    """Between two bundles' changes a moved task was in both, or in none, and calls of other threads raised that."""
    cheap, deep = two_bundles(tmp_path)
    several, change, seen = set_of([cheap, deep], mood=2.0), Session._change, []
    before = several.predict(TEXTS)
    source, target, trunk = (deep, cheap, CHEAP) if moved == "topics" else (cheap, deep, DEEP)
    Bundle.open(source).remove_task(moved)
    write.add_tasks(target, [draft(moved, 8, trunk=trunk)])

    def asked_after(session, *arguments, **options):
        change(session, *arguments, **options)
        seen.append(several.predict(TEXTS))

    monkeypatch.setattr(Session, "_change", asked_after)
    several.refresh()
    assert seen == [before, before] and several.predict(TEXTS) != before


def test_a_call_is_answered_throughout_by_the_tasks_of_its_beginning(tmp_path, monkeypatch):
    """A later bundle answered with what it had by then: here it had lost a task that was asked."""
    cheap, deep = two_bundles(tmp_path)
    several, take = set_of([cheap, deep], mood=2.0), Turns.take
    before = several.predict(TEXTS)

    def changed_after(turns, bundle, *results):
        take(turns, bundle, *results)
        if bundle == "cheap" and "topics" in several.tasks:
            Bundle.open(deep).remove_task("topics")
            write.add_tasks(deep, [draft("mood", 8, trunk=DEEP)], replace=True)
            several.refresh()

    monkeypatch.setattr(Turns, "take", changed_after)
    assert several.predict(TEXTS) == before
    assert {name for result in several.predict(TEXTS) for name in result.answers} == {"mood", "urgency"}


@pytest.mark.parametrize("refused", ["cheap", "deep"])
def test_where_one_bundle_is_refused_none_changes(tmp_path, refused):
    roots = dict(zip(("cheap", "deep"), two_bundles(tmp_path), strict=True))
    several, trunks = set_of(roots.values(), mood=2.0), {"cheap": CHEAP, "deep": DEEP}
    before = several.predict(TEXTS)
    (other,) = roots.keys() - {refused}
    taken = {"cheap": "topics", "deep": "urgency"}[refused]  # the other has it, where it changes too
    write.add_tasks(roots[other], [draft(taken, 8, trunk=trunks[other])], replace=True)
    write.add_tasks(roots[refused], [draft(taken, 8, trunk=trunks[refused])])
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"several bundles have a task '{taken}'"):
            several.refresh()
        assert several.predict(TEXTS) == before
    Bundle.open(roots[refused]).remove_task(taken)
    assert several.refresh()[other].replaced == (taken,)
    assert several.predict(TEXTS) == set_of(roots.values(), mood=2.0).predict(TEXTS) != before
