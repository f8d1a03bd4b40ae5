"""Nothing that is no finite number is answered, verified or certified: arrays, settings and outputs, on any backend."""

import itertools

import msgspec
import numpy as np
import pytest

from bundle.test_write import contents
from polyhead.bundle.create import write_bundle
from polyhead.bundle.files import write_arrays
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.certify import certified, checked
from polyhead.encoder import data as trunk_data
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.inputs import Passage, input_type_of, input_types_of
from polyhead.engine.scale_files import CACHE, RECORD, ScalesRecord, read_scales
from polyhead.engine.scales import Scale
from polyhead.engine.session import Session
from polyhead.errors import BackendError, BundleError, CorruptFile, PlanError, TrunkError, WeightsMismatch
from polyhead.plan import Codec, Delta, Pool
from polyhead.project.tables import Project, TaskEntry
from polyhead.store.jobs import ScoreRequest, score
from polyhead.tasks.kinds import kind_of
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from polyhead.testing.tiny import CODECS, PIECES
from polyhead.text.question import Question
from polyhead.values import to_json
from support.cases import cases
from support.split_scores import split_scores
from support.tiers import first_of
from support.tiny_project import write_jsonl
from support.writing_bundles import tiny_draft

NAN, INF = float("nan"), float("inf")
BY_NAME = {task.name: task for task in tiny_tasks()}
ATTENTION = Pool(layers="mean", of=2, positions="attention", part="task:x", heads=2)
PACKAGES = {"reference": "numpy", "torch": "torch", "openvino": "openvino", "onnxruntime": "onnxruntime"}
TRUNK_PLACES = {
    "one word's vector": ("embeddings.word.weight", (PIECES.index("lamp"), 3)),
    "a position": ("embeddings.position.weight", (-1, -1)),
    "the last bias of a layer": ("layers.1.feed_forward.outer.bias", -1),
    "the gain of a norm": ("embeddings.norm.weight", 0),
}
PART_PLACES = ("pool.query", "pool.value.bias", "head.hidden.weight", "head.output.bias")
INPUTS = (
    ("where is my order?",),
    ("the lamp is late",),
    ("thank you",),
    ("is it good?", "the kettle is bad"),
    ("sad", "my phone bill is late"),
    Passage(question="who is happy?", context="ben is happy and not late"),
    Question(text="is it good?", options=("no", "good", "late")),
    Question(text="when?", options=("today", "monday")),
)


def with_value(arrays, name, place, value):
    """Copies, of which one number is another."""
    changed = {**arrays, name: arrays[name].copy()}
    changed[name][place] = value
    return changed


def forged(monkeypatch, make):
    """What `make` gives where nobody looks at the numbers: one who knows the format computes all digests anew."""
    with monkeypatch.context() as patch:
        patch.setattr(trunk_data, "check_finite", lambda *_, **__: None, raising=False)
        return make()


def paths(trunk, *names, pool=ATTENTION):
    return {name: tiny_path(BY_NAME[name], trunk, pool=pool) for name in names}


def add(root, trunk, name, change=lambda arrays: arrays, **options):
    """Adds a tiny task; `change` is made to its drawn arrays."""
    path = tiny_path(BY_NAME[name], trunk, pool=options.pop("pool", ATTENTION))
    arrays = change(tiny_part(path, trunk.architecture, f"task:{name}"))
    record = TaskRecord(task=BY_NAME[name], path=path, trunk=trunk.digest)
    probes = options.pop("probes", [{"text": ["the lamp is late"]}])
    Bundle.open(root).add_task(record, arrays, scores={}, probes=probes, card="", **options)


def overflowing(name):
    """A change after which an array holds the largest finite numbers, of both signs."""

    def change(arrays):
        signs = np.where(np.arange(arrays[name].size).reshape(arrays[name].shape) % 3, 1, -1)
        return {**arrays, name: (3e38 * signs).astype(np.float32)}

    return change


def assert_no_answer(session, names):
    """Of no input; the error says which task it is, and what to do."""
    for name in names:
        fitting = [one for one in INPUTS if input_type_of(one) in input_types_of(session.tasks[name])]
        with pytest.raises((BackendError, Exception), match="finite|not numbers") as caught:
            session.predict(fitting, tasks=[name])
        assert "Do: " in str(caught.value)


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture
def root(trunk, tmp_path):
    """Two tasks with probes."""
    write_bundle(tmp_path / "b", trunk)
    for name in ("mood", "topics"):
        add(tmp_path / "b", trunk, name)
    return tmp_path / "b"


@pytest.fixture(scope="module")
def session(trunk, tmp_path_factory):
    """Every tiny task."""
    bundle = tiny_bundle(tmp_path_factory.mktemp("finite") / "b", trunk, paths(trunk, *BY_NAME))
    return Session(bundle, backend="reference")


# -- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "value"), list(itertools.product(TRUNK_PLACES, (NAN, INF, -INF))), ids=str)
def test_a_trunk_with_a_number_that_is_not_finite_is_refused_by_name(trunk, tmp_path, monkeypatch, place, value):
    """One word's vector of NaN gave the first label for every text that has the word, and every check passed."""
    name, at = TRUNK_PLACES[place]

    def make():
        bad = msgspec.structs.replace(trunk, arrays=with_value(trunk.arrays, name, at, value))
        write_bundle(tmp_path / "b", bad)
        add(tmp_path / "b", bad, "mood")

    forged(monkeypatch, make)
    with pytest.raises(CorruptFile, match=rf"{name}: {value}"):
        Session(tmp_path / "b", backend="reference")
    found = checked(tmp_path / "b")
    assert found.written is None and len(found.findings) == 1 and "the trunk" in found.findings[0].what


@pytest.mark.parametrize(("name", "value"), list(itertools.product(PART_PLACES, (NAN, INF, -INF))), ids=str)
def test_a_part_with_a_number_that_is_not_finite_is_refused_and_never_certified(trunk, root, monkeypatch, name, value):
    forged(monkeypatch, lambda: add(root, trunk, "urgency", lambda arrays: with_value(arrays, name, -1, value)))
    with pytest.raises(CorruptFile, match=rf"urgency.*{name}: {value}"):
        Session(root, backend="reference")
    found = checked(root)
    assert found.written is None and [finding.task for finding in found.findings] == ["urgency"]
    before = contents(root)
    with pytest.raises(BundleError, match="urgency"):
        certified(root, "rollback", lambda: Bundle.open(root).set_version("mood", "v0001"), changing=["mood"])
    assert {name: raw for name, raw in contents(root).items() if "lock" not in name} == {
        name: raw for name, raw in before.items() if "lock" not in name
    }


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_arrays_that_are_given_are_looked_at_before_they_are_written_or_attached(trunk, root, value):
    path = tiny_path(BY_NAME["urgency"], trunk, pool=ATTENTION)
    drawn = tiny_part(path, trunk.architecture, "task:urgency")
    bad = with_value(drawn, "head.output.weight", (0, 0), value)
    record = TaskRecord(task=BY_NAME["urgency"], path=path, trunk=trunk.digest)
    session = Session(root, backend="reference")
    before = contents(root)
    with pytest.raises(WeightsMismatch, match=r"head\.output\.weight"):
        session.attach(record, bad)
    with pytest.raises(WeightsMismatch, match=r"head\.output\.weight"):
        add(root, trunk, "urgency", lambda arrays: bad)
    with pytest.raises(WeightsMismatch, match=r"embeddings\.norm\.weight"):
        msgspec.structs.replace(trunk, arrays=with_value(trunk.arrays, "embeddings.norm.weight", 0, value))
    assert contents(root) == before and "urgency" not in session.tasks


def test_arrays_of_whole_numbers_are_refused_where_answers_are_computed_with_them(trunk):
    whole = {name: array.astype(np.int64) for name, array in trunk.arrays.items()}
    with pytest.raises(WeightsMismatch, match="int64"):
        msgspec.structs.replace(trunk, arrays=whole)


def test_every_number_of_a_large_array_is_looked_at(monkeypatch):
    monkeypatch.setattr(trunk_data, "FINITE_CHUNK", 7)
    for place in range(20):
        array = np.zeros(20, np.float32)
        trunk_data.check_finite({"a": array}, owner="a task")
        array[place] = INF
        with pytest.raises(WeightsMismatch, match="a: inf"):
            trunk_data.check_finite({"a": array}, owner="a task")


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_decoder_with_such_a_number_is_refused(trunk, value, tmp_path):
    drawn = tiny_draft(trunk)
    drawn.arrays["decoder.norm.bias"][1] = value
    write_bundle(tmp_path / "b", trunk)
    with pytest.raises(WeightsMismatch, match="decoder.norm.bias"):
        add_tasks(tmp_path / "b", [drawn])


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, NAN, INF, -INF, 1e-60, 2.0])
def test_a_norm_that_could_divide_by_nothing_is_refused(epsilon):
    shape = {"layers": 1, "width": 4, "heads": 1, "feed_forward": 8, "vocabulary": 5}
    with pytest.raises(TrunkError, match="norm_epsilon"):
        Architecture(**shape, norm_epsilon=epsilon)
    Architecture(**shape, norm_epsilon=1e-12)


@cases(
    ("scale", "zero"),
    [(value, 0.0) for value in (0.0, -1.0, NAN, INF, 1e-45, 1e39)] + [(1.0, value) for value in (NAN, INF)],
)
def test_a_codec_that_could_divide_by_nothing_is_refused(scale, zero):
    with pytest.raises(PlanError, match="constants"):
        Codec(name="uint8", scale=(0.5, scale), zero=(0.0, zero))


@pytest.mark.parametrize("alpha", [NAN, INF, 0.0, -1.0])
def test_an_adapter_of_no_finite_weight_is_refused(alpha):
    with pytest.raises(PlanError, match="alpha"):
        Delta(kind="lora", part="task:t", size=2, alpha=alpha, targets=("attention.query",))


@pytest.mark.parametrize(
    ("smooth", "step", "zero"),
    [(value, 1.0, 0) for value in (0.0, -1.0, NAN, INF, 1e-45)]
    + [(1.0, value, 0) for value in (0.0, -1.0, NAN, INF)]
    + [(1.0, 1.0, -1), (1.0, 1.0, 256)],
)
def test_a_scale_of_8_bits_that_gives_no_number_is_refused(root, smooth, step, zero):
    with pytest.raises(BackendError):
        Scale(smooth=np.array([1, smooth], np.float32), step=step, zero=zero)
    folder = root / CACHE
    folder.mkdir()
    arrays = {"0.smooth": np.array([1, smooth], np.float32), "0.eight": np.array([step, zero], np.float32)}
    digest = write_arrays(folder / "new", arrays)
    (folder / "new").rename(folder / f"int8-{digest[:16]}.safetensors")
    bundle = Bundle.open(root)
    told = ScalesRecord(trunk=bundle.digest, scales=digest, texts=1)
    (folder / RECORD).write_bytes(to_json(told))
    with pytest.raises(BackendError, match="damaged"):
        read_scales(bundle)


# -- outputs: numbers that overflow, on every backend ----------------------------------------------------------------


@pytest.mark.parametrize("codec", first_of(["float32", "float16", "uint8", "sign", "pca1", "token1"]))
@pytest.mark.parametrize("backend", PACKAGES)
def test_a_trunk_whose_states_overflow_answers_nothing(trunk, tmp_path, backend, codec):
    """Codecs clip and compare: OpenVINO and ONNX Runtime made one bit, and so a label, of what is no number."""
    pytest.importorskip(PACKAGES[backend])
    name = "layers.1.feed_forward.outer.weight"
    bad = msgspec.structs.replace(trunk, arrays=overflowing(name)(dict(trunk.arrays)))
    names, pool = ("mood", "names", "alike"), msgspec.structs.replace(ATTENTION, codec=CODECS[codec])
    bundle = tiny_bundle(tmp_path / "b", bad, paths(bad, *names, pool=pool))
    with np.errstate(all="ignore"):
        assert_no_answer(Session(bundle, backend=backend, precision="float32"), names)


@pytest.mark.parametrize("backend", PACKAGES)
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_a_pooler_that_overflows_answers_nothing(trunk, tmp_path, backend, activation):
    """OpenVINO's max(x, 0) gives 0 for what is no number, and the head then a label."""
    pytest.importorskip(PACKAGES[backend])
    write_bundle(tmp_path / "b", trunk)
    path = tiny_path(BY_NAME["mood"], trunk, pool=ATTENTION)
    head = msgspec.structs.replace(path.head, activation=activation)
    path = msgspec.structs.replace(path, nodes=(*path.nodes[:-1], head))
    arrays = overflowing("pool.value.weight")(tiny_part(path, trunk.architecture, "task:mood"))
    record = TaskRecord(task=BY_NAME["mood"], path=path, trunk=trunk.digest)
    Bundle.open(tmp_path / "b").add_task(record, arrays, scores={}, probes=[], card="")
    with np.errstate(all="ignore"):
        assert_no_answer(Session(tmp_path / "b", backend=backend, precision="float32"), ["mood"])


@pytest.mark.parametrize("backend", PACKAGES)
def test_a_head_that_overflows_fails_alone_and_by_name(trunk, root, backend):
    pytest.importorskip(PACKAGES[backend])
    add(root, trunk, "urgency", overflowing("head.output.weight"))
    session = Session(root, backend=backend, precision="float32")
    with np.errstate(all="ignore"):
        for result in session.predict(["where is my order?", "the lamp"]):
            assert set(result.answers) == {"mood", "topics"} and list(result.failed) == ["urgency"]
            assert "task 'urgency' gave an output that is not finite" in result.failed["urgency"]


# -- outputs: one input of several, of every kind --------------------------------------------------------------------


def poison(monkeypatch, name, value):
    """The reference's head of a task gives this number in the first row of each batch."""
    inner = ReferenceBackend._headed

    def headed(self, task, features):
        outputs = np.array(inner(self, task, features))
        if task == name:
            outputs[(0,) * outputs.ndim] = value
        return outputs

    monkeypatch.setattr(ReferenceBackend, "_headed", headed)


@pytest.mark.parametrize(("name", "value"), list(itertools.product(BY_NAME, (NAN, INF, -INF))), ids=str)
def test_an_output_that_is_not_finite_fails_its_input_alone(session, monkeypatch, name, value):
    form = input_types_of(BY_NAME[name])[0]  # of one form, so that there is one batch
    fitting = [one for one in INPUTS if input_type_of(one) == form]
    whole = session.predict(fitting, tasks=[name])
    poison(monkeypatch, name, value)
    found = session.predict(fitting, tasks=[name])
    failed = [row for row, one in enumerate(found) if one.failed]
    assert len(failed) == 1 and not any(one.late or one.skipped for one in found)
    assert "not finite" in found[failed[0]].failed[name]
    for row, (one, before) in enumerate(zip(found, whole, strict=True)):
        assert one.answers == ({} if row in failed else before.answers)
    early = session.stream(fitting, tasks=[name])
    answers = {row: answer for one in early for row, answer in one.answers.items()}
    assert answers == {row: one.answers[name] for row, one in enumerate(whole) if row not in failed}
    assert list(early.columns()[name].failed) == failed
    with pytest.raises(BackendError, match="not finite"):
        session.outputs(name, fitting)


@pytest.mark.parametrize("name", ["names", "mood"])
def test_of_a_text_in_windows_one_wrong_window_fails_it(trunk, tmp_path, monkeypatch, name):
    task = msgspec.structs.replace(BY_NAME[name], long_texts="windows")
    path, long = tiny_path(task, trunk, pool=ATTENTION), "the lamp is broken and late . " * 20
    write_bundle(tmp_path / "b", trunk)
    record = TaskRecord(task=task, path=path, trunk=trunk.digest)
    arrays = tiny_part(path, trunk.architecture, f"task:{name}")
    Bundle.open(tmp_path / "b").add_task(record, arrays, scores={}, probes=[], card="")
    session = Session(tmp_path / "b", backend="reference")
    assert all(one.answers for one in session.predict([long, "good"]))
    poison(monkeypatch, name, NAN)
    assert [list(one.failed) for one in session.predict([long, long.replace("lamp", "box"), "good"])][0] == [name]


def test_words_that_no_token_stands_for_are_no_failure(session):
    """Their outputs are NaN inside, which no kind takes for an answer."""
    cut = "the lamp of anna is late and " * 20  # longer than the trunk reads
    column = session.columns([cut, "ben"], tasks=["names"])["names"]
    assert not column.failed and len(column.rows) == 2
    assert np.isnan(column.outputs[0]).any() and np.isfinite(column.outputs[1]).all()


# -- what stands on outputs ------------------------------------------------------------------------------------------


def test_verify_names_a_task_whose_answers_are_no_numbers_and_certifies_nothing(trunk, root):
    add(root, trunk, "urgency", overflowing("head.output.weight"))
    found = checked(root)
    assert [finding.task for finding in found.findings] == ["urgency"]
    assert "not finite" in found.findings[0].what and found.written is None
    assert not list((root / "certificates").glob("*.json"))


def test_no_operation_is_certified_beside_answers_that_are_no_numbers(trunk, root):
    add(root, trunk, "urgency", overflowing("head.output.weight"))
    before = (root / "bundle.json").read_bytes()
    with pytest.raises(BackendError, match="urgency"):
        certified(root, "remove", lambda: Bundle.open(root).remove_task("mood"), changing=["mood"])
    assert (root / "bundle.json").read_bytes() == before


def test_a_task_that_would_answer_no_numbers_is_not_added_with_a_certificate(trunk, root):
    before = (root / "bundle.json").read_bytes()
    with pytest.raises(BundleError, match="urgency.*not finite"):
        certified(
            root, "add", lambda: add(root, trunk, "urgency", overflowing("head.output.weight")), changing=["urgency"]
        )
    assert (root / "bundle.json").read_bytes() == before and "urgency" not in Bundle.open(root).tasks


def test_score_writes_the_reason_in_the_place_of_an_answer(session, tmp_path, monkeypatch):
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in ("the lamp is late", "good", "ben")])
    poison(monkeypatch, "mood", NAN)
    done = score(session, tmp_path / "in.jsonl", tmp_path / "out.jsonl", ScoreRequest(tasks=("mood", "topics")))
    rows = [msgspec.json.decode(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [row["mood"] is None for row in rows].count(True) == 1 == done.counts.failed["mood"]
    assert all(("error" in row) == (row["mood"] is None) and row["topics"] is not None for row in rows)


def test_evaluate_gives_no_score_of_such_outputs(session, tmp_path, monkeypatch):
    rows = [{"text": f"{word} lamp", "label": "good"} for word in ("my", "the")]
    write_jsonl(tmp_path / "t.jsonl", rows)
    entry = TaskEntry(name="mood", kind="single_label", labels=("bad", "good"), train="x", test="t.jsonl")
    poison(monkeypatch, "mood", INF)
    with pytest.raises(BackendError, match="mood.*not finite"):
        split_scores(session, Project(tasks=(entry,)), folder=tmp_path)


def test_nothing_is_exported_that_answers_no_numbers(trunk, root, tmp_path):
    pytest.importorskip("onnx")
    from polyhead.engine.export.write import export_bundle

    add(root, trunk, "urgency", overflowing("head.output.weight"))
    with np.errstate(all="ignore"), pytest.raises(BackendError, match="urgency.*not finite"):
        export_bundle(root, tmp_path / "out", backend="reference")
    assert not (tmp_path / "out").exists()


def test_kinds_that_are_tested_here_are_all_that_read_the_trunk():
    assert len({kind_of(task).name for task in tiny_tasks()}) == 6
