"""What a run says before, while and after it works: plan, progress, events, card, probes, splits, numerics."""

import json
from contextlib import nullcontext

import msgspec
import numpy as np
import pytest
import torch

from polyhead.deep.nn.runtime import numerics, precision_of
from polyhead.errors import BadName, EmptyData
from polyhead.machine import Processor
from polyhead.plan import Codec
from polyhead.progress import duration, progress_line
from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch
from polyhead.project.tables import DataFile, Project
from polyhead.testing import tiny_trunk
from polyhead.train import events as telling
from polyhead.train.data.prepare import prepare, single_inputs
from polyhead.train.events import Events
from polyhead.train.record.draft import PROBES, validation_probes
from polyhead.train.record.lines import codec_lines, effort_lines, outlook, seen_lines, skipped, untaught
from support import tiny_project
from support.cases import cases, fresh

AUTO = msgspec.structs.replace(tiny_project.STRATEGY, positions="auto")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("said")
    return prepare(tiny_project.project(folder), folder)


def test_the_plan_tells_examples_steps_and_cost_of_every_task_before_work_starts(prepared, caplog):
    """Where only heads are trained, work and costs are lines of the log."""
    caplog.set_level("INFO")
    trunk = tiny_trunk()
    shape = trunk.architecture
    paths = {p.task.name: [p.strategy.path(p.task, trunk=trunk.digest, shape=shape, codec=Codec())] for p in prepared}
    lines = outlook(prepared, paths, shape, kept=["old"])
    assert "old" in lines[0]
    rows = {line.split()[0]: line.split() for line in lines if line.split()[0] in paths}
    assert set(rows) == {p.task.name for p in prepared}
    assert rows["mood"] == ["mood", "single_label", "32", "12", "12"]
    logged = [record.getMessage() for record in caplog.records]
    (costs,) = [line.split() for line in logged if line.startswith("mood")]
    assert costs[1] == "4" and "all 6 tasks" in logged[-1] and "2 layers" in logged[-1]


@pytest.mark.parametrize(("strategy", "folds"), [(tiny_project.STRATEGY, True), (Branch(layers=1), False)])
def test_the_plan_says_which_tasks_are_trained_in_folds(tmp_path, strategy, folds):
    trunk = tiny_trunk()
    (one,) = prepare(tiny_project.project(tmp_path, "mood", strategy=strategy, validation=0.25), tmp_path)
    path = tiny_project.STRATEGY.path(one.task, trunk=trunk.digest, shape=trunk.architecture, codec=Codec())
    row = outlook([one], {"mood": [path]}, trunk.architecture, kept=[], folds=True)[1].split()
    assert row[2:4] == (["32", "folds"] if folds else ["24", "8"])


@pytest.mark.parametrize(
    ("recipe", "strategy", "effort", "says"),
    [
        ("frozen", AUTO, "quick", ""),
        ("frozen", AUTO, "default", ""),
        ("joint", AUTO, "default", ""),
        ("leave_out", AUTO, "quick", ""),  # it said otherwise: new parts over the frozen trunk try several heads
        ("joint", AUTO, "quick", "for mood: it says which heads are tried, and recipe 'joint' tries one way"),
        ("frozen", Branch(layers=1), "best", "for mood: it says which heads are tried, and the strategy or kind fixes"),
        ("frozen", tiny_project.STRATEGY, "quick", "and the strategy or kind fixes that"),
    ],
)
def test_an_effort_that_changes_nothing_is_told(tmp_path, recipe, strategy, effort, says):
    """It was silent, whatever recipe or strategy had one way to train."""
    training = msgspec.structs.replace(tiny_project.TRAINING, effort=effort)
    made = prepare(tiny_project.project(tmp_path, "mood", strategy=strategy, training=training), tmp_path)
    lines = effort_lines(made, recipe)
    assert len(lines) == bool(says)
    assert all(line.startswith(f"effort '{effort}' changes nothing") and says in line for line in lines)


@pytest.mark.parametrize(
    ("recipe", "codec", "is_told"),
    [
        ("joint", "sign", True),
        ("fine_tune", "sign", True),
        ("joint", "float32", False),
        ("joint", None, False),
        ("leave_out", "sign", False),  # of the new parts
        ("frozen", "sign", False),
    ],
)
def test_a_codec_that_changes_nothing_is_told(tmp_path, recipe, codec, is_told):
    """Tasks that learn with their encoder read its states as they are, and a codec was ignored in silence."""
    strategy = msgspec.structs.replace(AUTO, codec=codec)
    made = prepare(tiny_project.project(tmp_path, "mood", "names", strategy=strategy), tmp_path)
    says = f"codec '{codec}' changes nothing for mood, names: recipe '{recipe}' reads states as float32"
    assert codec_lines(made, recipe) == ([says] if is_told else [])


def test_batches_of_a_task_in_windows_are_a_floor_before_its_texts_are_read(tmp_path, caplog):
    """32 rows in eights are four batches; how many windows they make nobody knows yet."""
    trunk = tiny_trunk(max_tokens=8)
    (one,) = prepare(tiny_project.project(tmp_path, "names", long_texts="windows"), tmp_path)
    path = one.strategy.path(one.task, trunk=trunk.digest, shape=trunk.architecture, codec=Codec())
    caplog.set_level("INFO")
    outlook([one], {"names": [path]}, trunk.architecture, kept=())
    assert any(
        record.getMessage().startswith("names  ") and "  at least 4  " in record.getMessage()
        for record in caplog.records
    )
    counted = outlook([one], {"names": [path]}, trunk.architecture, kept=(), in_a_pass={"names": 11})
    assert next(line.split() for line in counted if line.startswith("names"))[5] == "11"


@pytest.mark.parametrize("empty", ["none", "skip"])
def test_how_many_rows_have_an_empty_label_cell_is_said_whatever_it_says(tmp_path, empty):
    """Ten true negatives of one file went as rows that nobody labelled."""
    tiny_project.project(tmp_path)  # writes the trunk and the data
    cells = ["order", "bill;card", "", "card", "", "order;bill", "bill", "", "order"]
    rows = "".join(f"the lamp is good {i},{cell}\n" for i, cell in enumerate(cells))
    (tmp_path / "rows.csv").write_text(f"text,topics\n{rows}")
    asked = tiny_project.project(tmp_path, "topics", train="rows.csv", separator=";", empty=empty)
    entry = msgspec.structs.replace(asked.tasks[0], validation="rows.csv", test=None)
    (one,) = prepare(msgspec.structs.replace(asked, tasks=(entry,)), tmp_path)
    said = {
        "none": "topics, train: of 9 rows: 3 with an empty label cell, read as none of the labels",
        "skip": "topics, train: of 9 rows: 3 without a label, skipped",
    }
    assert said[empty] in skipped([one])
    assert len(one.train.examples.targets) == (9 if empty == "none" else 6)


def test_labels_that_no_row_has_are_told(prepared):
    """They were declared, and never answered."""
    by_kind = {p.task.kind: p for p in prepared if p.task.labels}
    for kind, more, told in (
        ("single_label", ("lost", "gone"), "label 'lost', 'gone', so"),
        ("tagging", ("B-lost", "I-lost"), "label 'lost', so"),
    ):
        task = by_kind[kind].task
        assert untaught(by_kind[kind]) == []
        (line,) = untaught(
            msgspec.structs.replace(by_kind[kind], task=msgspec.structs.replace(task, labels=(*task.labels, *more)))
        )
        assert line.startswith(f"{task.name}: no row has the {told}")


def test_a_share_of_train_is_held_out_the_same_for_the_same_seed_and_never_twice(tmp_path):
    def of(seed):
        training = msgspec.structs.replace(tiny_project.TRAINING, seed=seed)
        project = tiny_project.project(tmp_path, "mood", training=training, validation=0.25)
        (one,) = prepare(project, tmp_path)
        return one.train.examples.inputs, one.validation.examples.inputs

    train, held = of(1)
    assert of(1) == (train, held) != of(2)
    assert not set(train) & set(held) and len(train) + len(held) == 32 and 6 <= len(held) <= 10


def test_a_fingerprint_changes_with_data_settings_and_labels_alone(tmp_path):
    def of(**changes):
        return prepare(tiny_project.project(tmp_path, "mood", **changes), tmp_path)[0].fingerprint()

    first = of()
    assert of() == first
    assert of(labels=("good", "bad")) != first
    assert of(training=msgspec.structs.replace(tiny_project.TRAINING, dropout=0.3)) != first
    assert of(train=DataFile(path="data/messages-train.jsonl", limit=31)) != first
    assert of(team="support") == first  # who answers for a task changes no weight


def test_rows_of_a_file_are_chosen_by_their_columns(tmp_path):
    chosen = DataFile(path="data/messages-train.jsonl", where={"mood": "good"}, limit=3)
    (one,) = prepare(tiny_project.project(tmp_path, "mood", train=chosen), tmp_path)
    assert [int(t) for t in one.train.examples.targets] == [1, 1, 1]


def test_a_split_with_nothing_left_is_an_error_that_names_task_and_split(tmp_path):
    none = DataFile(path="data/messages-train.jsonl", where={"mood": "other"})
    with pytest.raises(EmptyData, match="mood"):
        prepare(tiny_project.project(tmp_path, "mood", train=none), tmp_path)


def test_two_tasks_of_one_name_are_refused():
    with pytest.raises(BadName, match="one name"):
        Project(tasks=(tiny_project.ENTRIES["mood"], tiny_project.ENTRIES["mood"]))


def test_the_trunk_reads_joined_pairs_whole_and_separate_pairs_text_by_text(prepared):
    tasks = {p.task.name: p.task for p in prepared}
    pairs = [("a", "b"), ("c", "d")]
    assert single_inputs(pairs, tasks["same"]) == [pairs]
    assert single_inputs(pairs, tasks["alike"]) == [[("a",), ("c",)], [("b",), ("d",)]]


def test_probes_are_at_most_as_many_as_said_with_every_label_and_the_longest_text(tmp_path):
    tiny_project.write_trunk(tmp_path / "trunk")
    tiny_project.write_data(tmp_path / "data", other=200)
    (one,) = prepare(tiny_project.project(tmp_path, "names"), tmp_path)
    probes = validation_probes(one)
    texts = [probe["text"][0] for probe in probes]
    given = [text for (text,) in one.validation.examples.inputs]
    assert len(probes) == PROBES and len(set(texts)) == PROBES
    assert max(given, key=len) in texts
    assert [given.index(t) for t in texts] == sorted(given.index(t) for t in texts)
    seen = {int(v) for t in texts for v in np.unique(one.validation.examples.targets[given.index(t)])}
    assert seen == {0, 1, 2}
    assert json.dumps(probes) and all(len(p["words"]) == len(p["text"][0].split()) for p in probes)


def test_durations_read_as_people_say_them():
    assert [duration(s) for s in (0.4, 59, 60, 185, 3599.7, 3720)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 00 min",
        "1 h 02 min",
    ]


@cases(
    "facts, line",
    [
        ({"done": 5, "seconds": 10.0}, "a: 5 of 10 texts, 2.0 s each, about 10 s left"),
        ({"done": 1, "seconds": 400.0}, "a: 1 of 10 texts, 6 min 40 s each, about 1 h 00 min left"),
        ({"done": 8, "seconds": 4.0, "at_most": True}, "a: 8 of 10 texts, 2 a second, at most 1 s left"),
        ({"done": 8, "seconds": 5.0}, "a: 8 of 10 texts, 1.6 a second, about 1 s left"),
        ({"done": 8, "seconds": 0.1}, "a: 8 of 10 texts, 80 a second"),
        ({"done": 0, "seconds": 9.0}, "a: 0 of 10 texts"),
        ({"done": 6, "seconds": 8.0, "before": 6}, "a: 6 of 10 texts"),
        ({"done": 2, "seconds": 10.0, "share": 0.5}, "a: 2 of 10 texts, 5.0 s each, about 10 s left"),
    ],
)
def test_a_rate_is_never_zero_and_what_may_end_early_takes_so_long_at_most(facts, line):
    """`0 a second` stood below one, and an estimate was ten times the time that it took."""
    assert progress_line("a", total=10, unit="texts", **facts) == line


def test_progress_is_shown_and_cleared_and_lines_clear_it_too(monkeypatch):
    now, shown, said = [100.0], [], []
    monkeypatch.setattr(telling.time, "monotonic", lambda: now[0])
    events = Events(say=said.append, show=shown.append)
    progress = events.progress("encoding", unit="texts")
    progress.update(5, 10, note="note")
    assert shown[-1].startswith("encoding: 5 of 10 texts") and shown[-1].endswith("note")
    now[0] += 0.1
    progress.update(6, 10)
    assert len(shown) == 1  # not more than five a second
    now[0] += 0.2
    progress.update(7, 10)
    assert len(shown) == 2 and shown[-1].startswith("encoding: 7 of 10 texts")
    assert progress.finish() == pytest.approx(0.3) and shown[-1] == ""
    events.line("done")
    assert said == ["done"] and shown[-1] == ""


def test_events_are_one_json_object_a_line(tmp_path):
    events = Events(file=tmp_path / "deep" / "events.jsonl")
    events.event("task", task="mood", score=0.5)
    events.event("end")
    rows = [json.loads(x) for x in (tmp_path / "deep" / "events.jsonl").read_text().splitlines()]
    assert [row.pop("time") > 0 for row in rows] == [True, True]
    assert rows == [{"event": "task", "task": "mood", "score": 0.5}, {"event": "end"}]


def processor_with(monkeypatch, *features):
    """Training sees a processor of this machine's kind with these features alone."""
    made = Processor(machine="x86_64", features=frozenset(features))
    monkeypatch.setattr("polyhead.deep.nn.runtime.processor", lambda: made)


def test_precision_is_the_asked_one_and_auto_is_what_the_processor_has(monkeypatch):
    assert precision_of(Training(precision="float32")) == "float32"
    for native, features, expected in (
        (True, ["avx512_bf16"], "bfloat16"),
        (False, ["avx512_bf16"], "float32"),
        (True, [], "float32"),  # oneDNN is capped, and would leave it to slower arithmetic
    ):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        processor_with(monkeypatch, *features)
        assert precision_of(Training()) == expected
    assert set(numerics("float32")) == {"backend", "precision", "version", "processor"}


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_precision_auto_is_what_the_device_has_that_trains(monkeypatch, native):
    """A CUDA device without bfloat16 of its own emulates it, which torch counts as support unless told not to."""
    asked = []
    processor_with(monkeypatch, "avx512_bf16")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: not native)
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card of {device}")
    assert precision_of(Training(), "cuda:1") == ("bfloat16" if native else "float32")
    assert precision_of(Training(), "cpu") == ("float32" if native else "bfloat16")
    assert asked == ["cuda:1"] and numerics("float32", "cuda:1")["processor"] == "card of cuda:1"


@cases(("seen", "files", "told"), [(4, "test", True), (3, "test", False), (40, "test", True), (4, "both", True)])
def test_rows_that_are_scored_and_were_learned_from_are_told(tmp_path, seen, files, told):
    """A test file that was the training file had a score near 1, without a word; a tenth of the rows is told."""
    tmp_path = fresh(tmp_path)
    rows = [{"text": f"the lamp number {i}", "mood": ("good", "bad")[i % 2]} for i in range(80)]
    for name, part in (("train", rows[:40]), ("other", rows[40 - seen : 80 - seen])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    held = {"validation": "other.jsonl" if files == "both" else 0.25, "test": "other.jsonl"}
    (one,) = prepare(tiny_project.project(tmp_path, "mood", train="train.jsonl", **held), tmp_path)
    splits = ["validation", "test"] if files == "both" else ["test"]
    assert [line.split("warning: ")[1].split(" have")[0] for line in seen_lines(one)] == [
        f"{seen} of 40 {split} rows" for split in splits if told
    ]
