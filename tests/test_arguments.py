"""Wrong types, numbers and names in any public call: an error of ours that says what is allowed, never Python's own."""

import collections.abc
import inspect
import pathlib
import typing

import msgspec
import numpy as np
import pytest

import polyhead
from polyhead import (
    Bundle,
    CalibrationChoice,
    Codec,
    Passage,
    Path,
    Project,
    Question,
    Session,
    SessionSet,
    Task,
    cost_of,
    load_trunk,
    merge,
    read_project,
    train_project,
)
from polyhead.arguments import check_fields, fits, typed
from polyhead.errors import ConfigError, PolyheadError
from polyhead.plan import Pool
from polyhead.project.tables import DataFile, TaskEntry, TrunkChoice
from polyhead.project.tables import read_project as read
from polyhead.store.jobs import ScoreRequest, score
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from polyhead.values import Value
from support.cases import cases

WRONG = {
    "None": None,
    "5": 5,
    "-1": -1,
    "0": 0,
    "2.5": 2.5,
    "nan": float("nan"),
    "True": True,
    "bytes": b"x",
    "a string": "x",
    "no string": "",
    "two points": "..",
    "a point": "t.",
    "NUL": "\0",
    "no list": [],
    "a list": ["x"],
    "a list of None": [None],
    "a dict": {},
    "a fuller dict": {"x": 1},
    "a set": {1},
    "an object": object(),
    "a class": int,
    "a function": lambda: 0,
    "a tuple": ("x",),
    "a path": pathlib.Path("/nowhere"),
    "an array": np.zeros(2),
}
LABELS = {"name": "t", "kind": "single_label", "labels": ("a", "b")}
ENTRY = {**LABELS, "train": "rows.jsonl"}
TASK_FIELDS = tuple(Task.__struct_fields__)
PROJECT_FIELDS = ("tasks", "bundle", "trunk", "strategy", "training", "allocation", "recipe", "donors")


class Here(msgspec.Struct, frozen=True):
    """What the calls are made on."""

    folder: pathlib.Path
    session: Session
    paths: dict
    project: Project

    @property
    def bundle(self):
        return self.session.bundle

    def score(self, session=None, source=None, target=None, wish=None, **wanted):
        given = (source or self.folder / "rows.csv", target or self.folder / "out.csv")
        return score(session or self.session, *given, wish or ScoreRequest(**({"tasks": ("mood",)} | wanted)))


def task_with(field, value, **fields):
    return Task(**({**LABELS, **fields} | {field: value}))


CALLS = {
    "Session.bundle": lambda h, v: Session(v, backend="reference"),
    "Session.backend": lambda h, v: Session(h.bundle.root, backend=v),
    "Session.precision": lambda h, v: Session(h.bundle.root, backend="reference", precision=v),
    "Session.deterministic": lambda h, v: Session(h.bundle.root, backend="reference", deterministic=v),
    "SessionSet.bundles": lambda h, v: SessionSet(v),
    "SessionSet.cascades": lambda h, v: SessionSet([h.bundle.root], cascades=v, backend="reference"),
    "predict.inputs": lambda h, v: h.session.predict(v),
    "predict.input": lambda h, v: h.session.predict([v]),
    "predict.pair": lambda h, v: h.session.predict([("a", v)]),
    "predict.tasks": lambda h, v: h.session.predict(["a"], tasks=v),
    "predict.task": lambda h, v: h.session.predict(["a"], tasks=[v]),
    "predict.words": lambda h, v: h.session.predict(["a"], words=v),
    "predict.word": lambda h, v: h.session.predict(["a"], words=[v]),
    "predict.deadline": lambda h, v: h.session.predict(["a"], deadline=v),
    "predict.calibrated": lambda h, v: h.session.predict(["a"], calibrated=v),
    "predict.choice": lambda h, v: h.session.predict(["a"], calibrated={"mood": v}),
    "CalibrationChoice.thresholds": lambda h, v: CalibrationChoice(thresholds=v),
    "CalibrationChoice.unsure_below": lambda h, v: CalibrationChoice(unsure_below=v),
    "CalibrationChoice.coverage": lambda h, v: CalibrationChoice(coverage=v),
    "columns.tasks": lambda h, v: h.session.columns(["a"], tasks=v),
    "columns[]": lambda h, v: h.session.columns(["a"])[v],
    "stream.inputs": lambda h, v: list(h.session.stream(v)),
    "outputs.task": lambda h, v: h.session.outputs(v, [("a",)]),
    "outputs.inputs": lambda h, v: h.session.outputs("mood", v),
    "attach.record": lambda h, v: h.session.attach(v, {}),
    "attach.arrays": lambda h, v: h.session.attach(h.session.records["mood"], v),
    "attach.others": lambda h, v: h.session.attach(h.session.records["mood"], h.bundle.part("mood"), others=v),
    "detach": lambda h, v: h.session.detach(v),
    "Passage": lambda h, v: h.session.predict([Passage(question=v, context="b")]),
    "Question.text": lambda h, v: h.session.predict([Question(text=v, options=("a", "b"))]),
    "Question.options": lambda h, v: h.session.predict([Question(text="a", options=v)]),
    "Question.context": lambda h, v: h.session.predict([Question(text="a", options=("a", "b"), context=v)]),
    "Bundle.open": lambda h, v: Bundle.open(v),
    **{
        f"Bundle.{name}": lambda h, v, name=name: getattr(h.bundle, name)(v)
        for name in ("version", "versions", "part", "others", "card", "scores", "probes", "family", "headline")
    },
    "Bundle.remove_task": lambda h, v: h.bundle.remove_task(v),
    "Bundle.set_version": lambda h, v: h.bundle.set_version(v, "v0001"),
    "Bundle.set_version.version": lambda h, v: h.bundle.set_version("mood", v),
    "score.session": lambda h, v: score(v, h.folder / "rows.csv", h.folder / "out.csv", ScoreRequest()),
    "score.source": lambda h, v: score(h.session, v, h.folder / "out.csv", ScoreRequest()),
    "score.target": lambda h, v: score(h.session, h.folder / "rows.csv", v, ScoreRequest()),
    "score.wish": lambda h, v: score(h.session, h.folder / "rows.csv", h.folder / "out.csv", v),
    **{
        f"Wish.{name}": lambda h, v, name=name: h.score(**{name: v})
        for name in ("tasks", "columns", "kept", "prefix", "scores")
    },
    "read_project": lambda h, v: read_project(v),
    "train.project": lambda h, v: train_project(v, folder=h.folder),
    "train.folder": lambda h, v: train_project(h.project, folder=v),
    "train.only": lambda h, v: train_project(h.project, folder=h.folder, only=v),
    "load_trunk": lambda h, v: load_trunk(v),
    "load_trunk.max_tokens": lambda h, v: load_trunk("/nowhere", max_tokens=v),
    "merge": lambda h, v: merge(v),
    "merge.path": lambda h, v: merge({"a": v}),
    "Plan.path": lambda h, v: merge(h.paths).path(v),
    "Plan.only": lambda h, v: merge(h.paths).only(v),
    "cost_of.plan": lambda h, v: cost_of(v, h.session.shape, 10),
    "cost_of.shape": lambda h, v: cost_of(merge(h.paths), v, 10),
    "cost_of.tokens": lambda h, v: cost_of(merge(h.paths), h.session.shape, v),
    "Path.nodes": lambda h, v: Path(nodes=v),
    "Codec.name": lambda h, v: Codec(name=v),
    "Codec.scale": lambda h, v: Codec(name="uint8", scale=v, zero=(0.0,)),
    **{f"Task.{field}": lambda h, v, field=field: task_with(field, v) for field in TASK_FIELDS},
    "Task.threshold of many": lambda h, v: task_with("threshold", v, kind="multi_label"),
    "Task.range of a number": lambda h, v: task_with("range", v, kind="regression", labels=()),
    **{
        f"Project.{field}": lambda h, v, field=field: Project(**({"tasks": (TaskEntry(**ENTRY),)} | {field: v}))
        for field in PROJECT_FIELDS
    },
    **{
        f"TaskEntry.{field}": lambda h, v, field=field: TaskEntry(**(ENTRY | {field: v})).task()
        for field in TaskEntry.__struct_fields__
    },
    "Model": lambda h, v: polyhead.Model(v),
    "DataFile.limit": lambda h, v: DataFile(path="x", limit=v),
    "DataFile.where": lambda h, v: DataFile(path="x", where=v),
    "TrunkChoice.name": lambda h, v: TrunkChoice(name=v),
    "TrunkChoice.max_tokens": lambda h, v: TrunkChoice(max_tokens=v),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder, trunk = tmp_path_factory.mktemp("arguments"), tiny_trunk()
    paths = {task.name: tiny_path(task, trunk, pool=Pool(positions="mean")) for task in tiny_tasks()}
    session = Session(tiny_bundle(folder / "b", trunk, paths), backend="reference")
    (folder / "rows.csv").write_text("text\nwhere is it?\nthe lamp is late\n")
    (folder / "rows.jsonl").write_text('{"text": "a", "label": "x"}\n' * 4)
    return Here(folder=folder, session=session, paths=paths, project=Project(tasks=(TaskEntry(**ENTRY),)))


@pytest.mark.parametrize("call", CALLS)
def test_no_wrong_argument_ends_in_an_error_of_python(here, call, monkeypatch):
    """Of 2,500 calls 840 ended in TypeError, AttributeError or KeyError, some of them after work was done."""
    monkeypatch.chdir(here.folder)
    before = {path: path.stat().st_mtime_ns for path in here.folder.glob("b/**/*")}
    refused = 0
    for what, value in WRONG.items():
        try:
            CALLS[call](here, value)
        except PolyheadError as error:
            refused += 1
            assert error.allowed is not None or error.do is not None, (what, str(error))
        except Exception as error:
            pytest.fail(f"{call} of {what}: {type(error).__name__}: {error}")
    assert refused >= 2, "what nothing is refused of is not checked"
    assert {path: path.stat().st_mtime_ns for path in here.folder.glob("b/**/*")} == before


def test_every_public_name_is_called(here):
    called = {"PolyheadError", "Plan", "Result"}  # an error, and values that calls give
    called |= {"PolyheadClassifier", "PolyheadRegressor"}  # which raise what scikit-learn asks for
    source = inspect.getsource(pathlib.sys.modules[__name__]).partition("CALLS = {")[2]
    called |= {name for name in polyhead.__all__ if f"{name}(" in source or f"{name}.open(" in source}
    assert called == set(polyhead.__all__)


# -- by hand ---------------------------------------------------------------------------------------------------------


class Pairs(Value):
    """A value that is checked."""

    names: tuple[str, ...] = ()
    size: int = 0
    share: float | None = None

    def __post_init__(self):
        check_fields(self)


@typed
def added(first: int, *rest: int, times: float = 1, of: collections.abc.Mapping[str, int] | None = None) -> float:
    """Adds."""
    return (first + sum(rest) + sum((of or {}).values())) * times


def test_what_fits_is_passed_on_and_what_does_not_is_named():
    assert added(1, of={"a": 2}, times=2) == 6 and added.__name__ == "added"
    with pytest.raises(ConfigError) as caught:
        added(1, times="2")
    assert str(caught.value) == (
        "added: 'times' is of a type, or holds one, that cannot be used. Got: '2' (str). Allowed: a number. "
        "Do: give one of these."
    )
    with pytest.raises(ConfigError, match="a mapping of a string to a whole number or None"):
        added(1, of={"a": "b"})
    with pytest.raises(TypeError, match="missing"):  # as for any function of Python
        added()


def test_lists_become_the_tuples_that_fields_are():
    assert Pairs(names=["a", "b"]) == Pairs(names=("a", "b")) and hash(Pairs(names=["a"]))
    assert Pairs(size=np.int64(3), share=np.float32(0.5)).size == 3
    for wrong in ({"names": "ab"}, {"names": {"a"}}, {"size": True}, {"size": 1.0}, {"share": "1"}):
        with pytest.raises(ConfigError, match=f"Pairs: '{next(iter(wrong))}'"):
            Pairs(**wrong)


@cases(
    ("hint", "good", "bad"),
    [
        (int, [0, np.int32(1)], [True, 1.0, "1", None]),
        (float, [0, 1.5, np.float32(1)], [True, "1", None, 1j]),
        (bool, [True, False], [0, 1, None, "yes"]),
        (typing.Literal["a", 1], ["a", 1], ["b", True, 1.0, None]),
        (tuple[int, str], [(1, "a"), [1, "a"]], [(1,), (1, 2), ("a", 1), "1a"]),
        (tuple[str, ...], [(), ("a",), ["a"]], ["a", {"a"}, (1,), None]),
        (collections.abc.Sequence[str], [[], ("a",)], ["a", b"a", [1], {"a": 1}]),
        (collections.abc.Iterable[str], [[], {"a": 2}.keys()], ["a", 1, [1], {"a": 1}]),
        (collections.abc.Mapping[str, int], [{}, {"a": 1}], [[], {"a": "b"}, {1: 1}]),
        (collections.abc.Callable[[str], None], [print, int], ["print", None]),
        (typing.Any, [1, None, "a"], []),
        (pathlib.Path | str | None, [None, "a", pathlib.Path()], [1, b"a"]),
    ],
    ids=str,
)
def test_annotations_mean_what_they_say(hint, good, bad):
    assert all(fits(value, hint) for value in good)
    assert not any(fits(value, hint) for value in bad)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_no_row_is_refused_where_it_stands(tmp_path, limit):
    path = tmp_path / "p.toml"
    path.write_text(
        '[[tasks]]\nname = "t"\nkind = "single_label"\nlabels = ["a", "b"]\n'
        f'train = {{path = "rows.jsonl", limit = {limit}}}\n'
    )
    with pytest.raises(ConfigError, match=rf"tasks\[0\].*'limit' of rows.jsonl leaves no row. Got: {limit}"):
        read(path)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", ["threshold", "range", "validation", "training"])
def test_settings_that_are_no_finite_numbers_are_refused(tmp_path, key, value):
    kind = {"threshold": "multi_label", "range": "regression"}.get(key, "single_label")
    said = {"range": f"[0.0, {value}]", "training": f"{{learning_rate = {value}}}"}.get(key, value)
    labels = "" if kind == "regression" else 'labels = ["a", "b"]\n'
    path = tmp_path / "p.toml"
    path.write_text(f'[[tasks]]\nname = "t"\nkind = "{kind}"\n{labels}train = "a.jsonl"\n{key} = {said}\n')
    with pytest.raises(ConfigError, match=key if key != "training" else "learning_rate"):
        read(path)


def test_a_range_as_wide_as_no_number_is_refused():
    for wide in ((-1e308, 1e308), (0, 10**400)):
        with pytest.raises(ConfigError, match="range"):
            Task(name="t", kind="regression", range=wide)
