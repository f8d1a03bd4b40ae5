"""Branches of a task, kept and chosen between: what is trained once, what a choice changes, and what is refused."""

import errno
import os
import shutil
from functools import partial

import msgspec
import numpy as np
import pytest

from polyhead import files
from polyhead.bundle.read import Bundle
from polyhead.deep.branch.run import Branches
from polyhead.deep.branch.task import (
    BranchSearch,
    ChosenBranch,
    branch_paths,
    check_affordable,
    choose,
    chosen_part,
    depths_of,
    grow,
    grown_lines,
    kept_search,
    write_options,
)
from polyhead.deep.features import wanted_taps
from polyhead.deep.loop import fit as fitting
from polyhead.deep.nn.runtime import has_native_bfloat16
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, TrainError
from polyhead.plan import Embed, Head, Layers, Path, Pool
from polyhead.plan.cost.allocate import OptionsFile, best_under, by_rule, greedy, price_of
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.strategies.branch import private_layers, tap_of
from polyhead.project.tables import AllocationRule, with_seed
from polyhead.tasks.kinds.base import softmax
from polyhead.train import job as running
from polyhead.train.events import Events
from polyhead.train.heads.inputs import scaled
from polyhead.train.run import train_project
from polyhead.train.runs import Fitted
from support.split_scores import split_scores
from support.tiers import first_of
from support.tiny_branches import (
    DEPTH,
    TRAINING,
    branches_of,
    bytes_of,
    copied,
    extractor_of,
    home_in,
    prepared_of,
    project,
    seeded,
)

FIXED = Branch(layers=3, hidden=8, students=(1, 2))
SEARCHED = Branch(hidden=8, students=(1,), seeds=2, search="grid")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def kept(home, tmp_path_factory):
    extractor = extractor_of(home, tmp_path_factory.mktemp("kept"))
    for name in ("mood", "urgency"):
        branches_of(home, extractor, name)
    return extractor


@pytest.fixture(scope="module")
def cache(home, tmp_path_factory):
    """What a run keeps that grew the usual branches of two tasks: their features, and every branch."""
    folder = copied(home, tmp_path_factory.mktemp("cache"))
    runs(folder, "mood", "urgency")
    (folder / "bundle-cache" / "options.json").unlink()
    return folder / "bundle-cache"


@pytest.fixture
def fresh(home, cache, tmp_path):
    """A folder without a bundle, where the usual branches need not be trained again."""
    folder = copied(home, tmp_path)
    shutil.copytree(cache, folder / "bundle-cache")
    return folder


@pytest.fixture
def trained(monkeypatch):
    """The modules that were trained for an epoch, one entry an epoch."""
    epochs, epoch = [], fitting.TrainingLoop.epoch
    monkeypatch.setattr(
        fitting.TrainingLoop, "epoch", lambda run, *given: epochs.append(id(run.module)) or epoch(run, *given)
    )
    return epochs


def grown(home, kept, folder, strategy=FIXED, name="mood", **changes):
    prepared = prepared_of(home, name, strategy=strategy, **changes)
    return prepared, grow(prepared, kept, precision="float32", folder=folder, events=Events())


# depths


@pytest.mark.parametrize(
    ("strategy", "depths"),
    [
        (Branch(), [1, 2, 3]),
        (Branch(layers=2), [2]),
        (Branch(layers=1, tap=0), [1]),
        (Branch(layers=1, tap=2), [1]),
        (Branch(least=2), [2, 3]),
        (Branch(most=2), [1, 2]),
        (Branch(least=3), [3]),
        (Branch(least=2, most=2), [2]),
    ],
    ids=str,
)
def test_depths_to_try_end_where_the_trunk_ends_or_start_at_the_tap(home, kept, strategy, depths):
    prepared = prepared_of(home, "mood", strategy=strategy)
    assert depths_of(prepared, kept.data.architecture) == depths
    paths = branch_paths(prepared, kept)
    assert [len(private_layers(path)) for path in paths] == depths
    taps = [DEPTH - layers if strategy.tap is None else strategy.tap for layers in depths]
    assert [tap_of(path) for path in paths] == taps


@pytest.mark.parametrize(
    "strategy",
    [Branch(layers=4), Branch(layers=2, tap=2), Branch(layers=1, tap=3), Branch(most=4), Branch(least=4)],
    ids=str,
)
def test_a_branch_deeper_than_the_trunk_is_refused_by_the_tasks_name(home, kept, strategy):
    prepared = prepared_of(home, "mood", strategy=strategy)
    with pytest.raises(ConfigError, match="'mood': its branch is deeper than the trunk") as caught:
        depths_of(prepared, kept.data.architecture)
    assert caught.value.allowed == "tap and layers together at most 3"


# growing


def test_a_teacher_and_its_students_are_grown_and_kept(home, kept, tmp_path):
    prepared, grove = grown(home, kept, tmp_path)
    assert [one.name for one in grove.kept] == ["teacher", "student-1", "student-2"]
    assert [len(private_layers(one.path)) for one in grove.kept] == [3, 1, 2]
    assert {tap_of(one.path) for one in grove.kept} == {0} and grove.candidates == ()
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "branches.json", "student-1.safetensors", "student-2.safetensors", "teacher.safetensors"
    ]  # fmt: skip
    branches = branches_of(home, kept, "mood", strategy=FIXED, depths=())
    teacher = branches.teacher(3)
    wanted = {"teacher": teacher} | {f"student-{n}": branches.student(teacher, n) for n in (1, 2)}
    for one in grove.kept:
        trained = chosen(prepared, grove, one.name, kept, tmp_path)
        assert bytes_of(trained.arrays) == bytes_of(scaled(wanted[one.name].arrays, trained.scale))
        assert one.fitted.score == wanted[one.name].fitted.score


def test_a_student_is_the_best_of_its_seeds(home, kept, tmp_path):
    """A grid trains all seeds of the teacher to the end, as here; halving gives some up early."""
    strategy = msgspec.structs.replace(FIXED, students=(1,), seeds=3, search="grid")
    prepared, grove = grown(home, kept, tmp_path, strategy=strategy)
    branches = branches_of(home, kept, "mood", strategy=strategy, depths=())
    seeds = range(prepared.training.seed, prepared.training.seed + 3)
    teacher = max((branches.teacher(3, seed=seed) for seed in seeds), key=lambda one: one.fitted.score)
    students = [branches.student(teacher, 1, seed=seed) for seed in seeds]
    best = max(students, key=lambda one: one.fitted.score)
    assert len({tuple(bytes_of(one.arrays).values()) for one in students}) == 3
    trained = chosen(prepared, grove, "student-1", kept, tmp_path)
    assert bytes_of(trained.arrays) == bytes_of(scaled(best.arrays, trained.scale))


def test_a_branch_is_as_sure_as_it_is_right_on_rows_held_out(home, kept, tmp_path):
    """It kept the confidence of its training rows, where a head did not. Which label is first stays as it was."""
    prepared, grove = grown(home, kept, tmp_path)
    trained, branches = chosen(prepared, grove, "teacher", kept, tmp_path), branches_of(home, kept, "mood", depths=())
    part = branches.restored(trained.path, trained.arrays)
    outputs = branches.outputs(part, prepared.validation)
    np.testing.assert_allclose(outputs, trained.held.outputs, rtol=1e-5, atol=1e-6)
    raw = [row / trained.scale for row in trained.held.outputs]
    right = np.stack(prepared.validation.examples.taught)

    def cost(scale):
        return -np.log([softmax(scale * row)[target] for row, target in zip(raw, right, strict=True)]).sum()

    near = [cost(trained.scale * factor) + np.log(trained.scale * factor) ** 2 / 2 for factor in (0.5, 1.0, 2.0)]
    assert trained.scale != 1 and near[1] == min(near)


def chosen(prepared, grove, name, kept, folder):
    option = next(option for option in grove.options() if option.name == name)
    return chosen_part(prepared, grove, option, kept, precision="float32", folder=folder)


def test_a_student_as_deep_as_the_teacher_that_was_found_is_not_grown_and_the_run_says_so(home, kept, tmp_path):
    strategy, lines = Branch(least=3, hidden=8, students=(1, 3)), []
    prepared = prepared_of(home, "mood", strategy=strategy)
    told = Events(say=lines.append)
    grove = grow(prepared, kept, precision="float32", folder=tmp_path, events=told)
    assert [one.name for one in grove.kept] == ["teacher", "student-1"]
    assert lines == ["mood: no student of 3 layers: the teacher has 3"]


def test_a_search_keeps_its_winner_the_best_of_other_depths_and_every_candidate(home, kept, tmp_path):
    prepared, grove = grown(home, kept, tmp_path, SEARCHED)
    names = {one.name: one for one in grove.kept}
    depth = len(private_layers(names["teacher"].path))
    others = {f"branch-{n}" for n in (1, 2, 3) if n != depth}
    assert set(names) == {"teacher", *others} | ({"student-1"} if depth > 1 else set())
    assert {(c.layers, c.seed) for c in grove.candidates} == {(n, s) for n in (1, 2, 3) for s in (1, 2)}
    assert names["teacher"].fitted.score == max(c.score for c in grove.candidates)
    for name in others:
        several = [c.score for c in grove.candidates if c.layers == int(name[-1])]
        assert names[name].fitted.score == max(several)
    tried = chosen(prepared, grove, "teacher", kept, tmp_path).tried
    assert len(tried) == len(names) + 6
    assert tried["2 layers, seed 2, 3 epochs"] == next(
        c.score for c in grove.candidates if (c.layers, c.seed) == (2, 2)
    )


def test_branches_that_are_kept_are_found_again_without_training(home, kept, tmp_path, trained):
    _, grove = grown(home, kept, tmp_path)
    assert len(set(trained)) == 3 and len(trained) == 9
    stamps = {f.name: (f.stat().st_mtime_ns, f.stat().st_ino) for f in tmp_path.iterdir()}
    trained.clear()
    _, again = grown(home, kept, tmp_path)
    assert not trained and again == grove
    assert {f.name: (f.stat().st_mtime_ns, f.stat().st_ino) for f in tmp_path.iterdir()} == stamps


def test_checkpoints_go_when_all_branches_are_kept(home, kept, tmp_path, monkeypatch):
    """Optimizer states are three times the size of what is kept; nothing reads them any more."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    save, seen = fitting.TrainingLoop.save, []
    monkeypatch.setattr(fitting.TrainingLoop, "save", lambda run: (save(run), seen.append(run.checkpoint.exists()))[0])
    grown(home, kept, tmp_path)
    assert len(seen) == 9 and all(seen)
    assert not list(tmp_path.glob("*.checkpoint"))


@pytest.fixture(scope="module")
def straight(home, kept, tmp_path_factory):
    """The usual branches grown without a break, and their folder."""
    folder = tmp_path_factory.mktemp("straight")
    return grown(home, kept, folder)[1], folder


@pytest.mark.slow
@pytest.mark.parametrize("after", first_of([2, 4, 8]), ids=["teacher", "first student", "second student"])
def test_growing_that_was_interrupted_goes_on_and_ends_in_the_same_bytes(
    home, kept, straight, tmp_path, monkeypatch, trained, after
):
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    whole, folder = straight
    save = fitting.TrainingLoop.save

    def saved(run):
        save(run)
        if len(trained) == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "save", saved)
        with pytest.raises(KeyboardInterrupt):
            grown(home, kept, tmp_path / "cut")
    assert kept_search(tmp_path / "cut") is None
    _, grove = grown(home, kept, tmp_path / "cut")
    assert len(trained) == 9  # no epoch twice
    for one in whole.kept:
        files = [place / f"{one.name}.safetensors" for place in (folder, tmp_path / "cut")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert [k.fitted.score for k in grove.kept] == [k.fitted.score for k in whole.kept]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("branches.json", b"{"),
        ("branches.json", b"[]"),
        ("branches.json", b'{"task": "mood", "kept": [{"name": "teacher"}]}'),
        ("teacher.safetensors", b"\x08\x00"),
        ("teacher.safetensors", b""),
        ("teacher.safetensors", None),
    ],
    ids=["cut short", "another shape", "a field missing", "part cut short", "part empty", "part gone"],
)
def test_a_damaged_kept_branch_is_named_with_what_to_delete(home, kept, tmp_path, name, content):
    prepared, grove = grown(home, kept, tmp_path / "mood", Branch(layers=1, hidden=8))
    file = tmp_path / "mood" / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(TrainError, match=name.replace(".", r"\.")) as caught:
        _, found = grown(home, kept, tmp_path / "mood", Branch(layers=1, hidden=8))
        chosen(prepared, found, "teacher", kept, tmp_path / "mood")
    assert str(tmp_path / "mood") in caught.value.do and "trains anew" in caught.value.do


def test_a_kept_branch_of_other_bytes_is_named(home, kept, tmp_path):
    """It reads well and has the right shapes; a digest beside it tells."""
    prepared, grove = grown(home, kept, tmp_path, Branch(layers=1, hidden=8))
    file = tmp_path / "teacher.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(TrainError, match=r"teacher\.safetensors") as caught:
        chosen(prepared, grove, "teacher", kept, tmp_path)
    assert "trains anew" in caught.value.do


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["teacher.safetensors", "branches.json"])
def test_a_full_disk_while_branches_are_kept_is_a_training_error_and_leaves_no_half_file(
    home, kept, tmp_path, monkeypatch, name
):
    class Full:
        """A file of which the disk takes nine bytes."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def write(self, content):
            self.file.write(content[:9])
            full_disk()

    def full(path, *rest):
        file = open(path, *rest)  # noqa: SIM115
        return Full(file) if name in str(path) else file

    folder = tmp_path / "g"
    with monkeypatch.context() as patched:
        patched.setattr(files, "open", full, raising=False)
        with pytest.raises(TrainError, match="cannot keep the trained branches of task 'mood'") as caught:
            grown(home, kept, folder, Branch(layers=1, hidden=8))
    assert "No space left" in str(caught.value) and "disk space" in caught.value.do
    left = {"teacher.safetensors"} if name == "branches.json" else set()
    assert {file.name for file in folder.iterdir()} == left and kept_search(folder) is None
    _, grove = grown(home, kept, folder, Branch(layers=1, hidden=8))
    assert [one.name for one in grove.kept] == ["teacher"]


# options and choices


def curve(*scores, tap=0, name="mood"):
    """A grove whose branches of 1, 2, ... layers score these."""

    def path(layers):
        own = Layers(start=tap, stop=tap + layers, weights=f"task:{name}")
        below = (Layers(start=0, stop=tap),) if tap else ()
        head = Head(kind="single_label", width=2, part=f"task:{name}")
        return Path(nodes=(Embed(trunk="t"), *below, own, Pool(), head))

    def fitted(score):
        return Fitted(best_epoch=1, score=score, history=(), examples_seen=0, seconds=0.0)

    return BranchSearch(
        task=name,
        kept=tuple(
            ChosenBranch(name=f"branch-{place}", path=path(place), fitted=fitted(score), arrays="")
            for place, score in enumerate(scores, 1)
        ),
    )


def test_options_are_in_points_and_say_tap_and_layers(home, kept, tmp_path):
    (one, two) = curve(0.5, 0.625, tap=1).options()
    assert (one.task, one.name, one.tap, one.layers, one.score) == ("mood", "branch-1", 1, 1, 50.0)
    assert (two.tap, two.layers, two.score) == (1, 2, 62.5)


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 3.0, 50.0])
def test_the_rule_and_the_wording_choose_from_the_options_of_every_task(kept, c):
    groves = [curve(0.80, 0.79, 0.85), curve(0.60, 0.605, 0.606, name="urgency")]
    options = [option for grove in groves for option in grove.options()]
    shape = kept.data.architecture
    assert choose(groves, AllocationRule(c=c), shape) == by_rule(options, c)
    assert choose(groves, AllocationRule(rule="greedy", c=c), shape) == greedy(options, c)
    if c == 1.0:  # the rule looks over the dip, the wording stops before it
        names = [choose(groves, AllocationRule(rule=rule, c=c), shape)["mood"].name for rule in ("marginal", "greedy")]
        assert names == ["branch-3", "branch-1"]


def test_a_budget_is_for_the_trunk_and_all_private_layers_together(kept):
    """Worked by hand: mood gains 10 points by its second layer, urgency 20 and 1 more by the third."""
    groves = [curve(0.5, 0.6, tap=1), curve(0.4, 0.6, 0.61, tap=0, name="urgency")]
    shape = kept.data.architecture

    def layers(budget):
        found = choose(groves, AllocationRule(rule="budget", budget=budget), shape)
        return {name: option.layers for name, option in found.items()}

    assert layers(3) == {"mood": 1, "urgency": 1}  # one of the trunk, two private
    assert layers(4) == {"mood": 1, "urgency": 2}
    assert layers(5) == {"mood": 2, "urgency": 2}
    assert layers(6) == layers(60) == {"mood": 2, "urgency": 3}
    with pytest.raises(ConfigError, match="within the budget"):
        layers(2)


@pytest.mark.parametrize("unit", ["flops", "bytes"])
def test_a_budget_may_be_in_another_unit(kept, unit):
    groves, shape = [curve(0.5, 0.6, 0.7)], kept.data.architecture
    price = price_of(unit, shape)
    for layers in (1, 2, 3):
        budget = price.base + layers * price.private
        chosen = choose(groves, AllocationRule(rule="budget", budget=budget, unit=unit), shape)
        assert chosen["mood"].layers == layers


def test_what_is_written_is_what_allocate_reads(kept, tmp_path):
    groves = [curve(0.5, 0.6, tap=1), curve(0.4, name="urgency")]
    file = tmp_path / "new" / "options.json"
    write_options(file, groves, kept.data.architecture)
    read = msgspec.json.decode(file.read_bytes(), type=OptionsFile, strict=True)
    assert list(read.options) == [option for grove in groves for option in grove.options()]
    assert read.trunk == kept.data.architecture and read.full == {}


def test_a_full_disk_while_options_are_written_is_a_training_error(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "open", full_disk, raising=False)
    with pytest.raises(TrainError, match=r"options\.json") as caught:
        write_options(tmp_path / "options.json", [curve(0.5)], kept.data.architecture)
    assert "disk space" in caught.value.do and not list(tmp_path.iterdir())


def test_the_line_of_a_task_says_every_branch_with_its_layers_tap_and_score():
    (said,) = grown_lines(curve(0.5, 0.61237, tap=1))
    assert said == (
        "mood: branch-1 (1 layer above tap 1) 0.5000, branch-2 (2 layers above tap 1) 0.6124, on validation"
    )


def test_the_chosen_part_is_scored_on_validation_and_once_on_test(home, kept, tmp_path, monkeypatch):
    asked, outputs = [], Branches.outputs
    monkeypatch.setattr(
        Branches, "outputs", lambda this, one, split: asked.append(split.name) or outputs(this, one, split)
    )
    prepared, grove = grown(home, kept, tmp_path)
    assert set(asked) <= {"train"}  # nothing was chosen on anything but the validation scores of training
    asked.clear()
    part = chosen(prepared, grove, "student-1", kept, tmp_path)
    assert asked == ["validation", "test"]
    kept_one = next(one for one in grove.kept if one.name == "student-1")
    assert part.scores["validation"]["accuracy"] == kept_one.fitted.score
    assert part.path == kept_one.path and part.fitted == kept_one.fitted
    assert part.tried == {one.name: one.fitted.score for one in grove.kept}


# in a run of training


def runs(folder, *names, strategy=FIXED, allocation=None, **changes):
    base = project(folder, *names, strategy=strategy, **changes)
    asked = base if allocation is None else msgspec.structs.replace(base, allocation=allocation)
    lines = []
    outcome = train_project(asked, folder=folder, events=Events(say=lines.append))
    return outcome, lines


def layers_of(folder):
    records = Bundle.open(folder / "bundle").tasks
    return {name: len(private_layers(record.path)) for name, record in records.items()}


def options_of(folder):
    file = folder / "bundle-cache" / "options.json"
    return msgspec.json.decode(file.read_bytes(), type=OptionsFile)


@pytest.mark.slow
def test_options_of_tasks_that_a_run_leaves_out_stay(fresh):
    """`polyhead allocate` then chose among those of the last run alone."""
    made = project(fresh, "mood", "urgency", strategy=FIXED)
    for names in (("mood",), ("urgency",), ("mood", "urgency")):
        train_project(made, folder=fresh, only=names)
        assert {one.task for one in options_of(fresh).options} >= set(names)
    assert {one.task for one in options_of(fresh).options} == {"mood", "urgency"}
    (fresh / "bundle-cache" / "options.json").write_text("{")  # damaged: it is made anew
    train_project(with_seed(made, 5), folder=fresh, only=("mood",))
    assert {one.task for one in options_of(fresh).options} == {"mood"}


def test_another_price_chooses_another_branch_and_trains_nothing_again(home, tmp_path, trained):
    folder = copied(home, tmp_path)
    runs(folder, "mood", allocation=AllocationRule(c=0.0))
    assert len(trained) == 9
    first, options = layers_of(folder), options_of(folder)
    trained.clear()
    outcome, _ = runs(folder, "mood", allocation=AllocationRule(c=1000.0))
    assert not trained and outcome.extraction.passes == 0
    assert layers_of(folder) == {"mood": 1} and tuple(outcome.trained) == ("mood",)
    assert options_of(folder) == options
    assert first["mood"] == by_rule(options.options, 0.0)["mood"].layers
    assert Bundle.open(folder / "bundle").versions("mood") == ["v0001", "v0002"]
    again, _ = runs(folder, "mood", allocation=AllocationRule(c=1000.0))
    assert again.kept == ("mood",) and not again.trained


def test_a_choice_changes_nothing_where_there_is_one_branch_only(home, tmp_path):
    folder, one = copied(home, tmp_path), Branch(layers=1, hidden=8)
    runs(folder, "mood", strategy=one, allocation=AllocationRule(c=0.0))
    outcome, _ = runs(folder, "mood", strategy=one, allocation=AllocationRule(c=5.0))
    assert outcome.kept == ("mood",)


def test_a_choice_is_made_again_where_a_search_kept_several_depths(home, tmp_path, trained):
    """Without students too: the best of every depth may be chosen."""
    folder, short = copied(home, tmp_path), Branch(hidden=8, search="grid")
    runs(folder, "mood", strategy=short, allocation=AllocationRule(c=0.0))
    trained.clear()
    outcome, _ = runs(folder, "mood", strategy=short, allocation=AllocationRule(c=1000.0))
    assert tuple(outcome.trained) == ("mood",) and not trained
    assert layers_of(folder) == {"mood": 1}


@pytest.mark.slow
def test_options_of_tasks_that_were_trained_before_stay_in_the_file(fresh):
    runs(fresh, "mood")
    first = options_of(fresh).options
    outcome, _ = runs(fresh, "mood", "urgency")
    assert outcome.kept == ("mood",)
    found = options_of(fresh).options
    assert found[: len(first)] == first
    assert [option.task for option in found] == ["mood"] * 3 + ["urgency"] * 3


def budget(layers):
    return AllocationRule(rule="budget", budget=layers)


def spent(folder):
    records = Bundle.open(folder / "bundle").tasks.values()
    return max(tap_of(r.path) for r in records) + sum(len(private_layers(r.path)) for r in records)


@pytest.mark.slow
def test_a_budget_holds_for_all_branches_of_the_project(home, tmp_path, trained):
    folder = copied(home, tmp_path)
    for layers in (2, 3, 4, 6):
        runs(folder, "mood", "urgency", allocation=budget(layers))
        assert 2 <= spent(folder) <= layers
    assert len(trained) == 18  # two tasks of three branches, three epochs each, once


def test_a_budget_that_nothing_can_be_within_is_refused_before_any_training(fresh, trained):
    """It was refused after minutes of training, though layers and taps alone say what the least is."""
    trained.clear()
    with pytest.raises(ConfigError, match="whatever is learned") as caught:
        runs(fresh, "mood", "urgency", allocation=budget(1))
    assert caught.value.allowed == "2 or more" and not trained
    runs(fresh, "mood", "urgency", allocation=budget(2))
    assert layers_of(fresh) == {"mood": 1, "urgency": 1}


def test_the_least_that_branches_cost_counts_students_above_each_tap(home, kept):
    """By hand, of a trunk of L layers: a branch of 3 from tap L - 3, and its student of 1 there, cost L - 3 + 1."""
    prepared = [
        msgspec.structs.replace(prepared_of(home, name), strategy=Branch(least=2, most=3, students=(1,), hidden=8))
        for name in ("mood", "urgency")
    ]
    paths = {p.task.name: branch_paths(p, kept) for p in prepared}
    shape = kept.data.architecture
    least = shape.layers - 3 + 1 + 1  # the trunk up to the tap once, and two students
    check_affordable(prepared, paths, budget(least), shape)
    with pytest.raises(ConfigError, match="nothing is trained") as caught:
        check_affordable(prepared, paths, budget(least - 1), shape)
    assert caught.value.allowed == f"{least} or more"
    check_affordable(prepared, paths, AllocationRule(rule="marginal", c=1.0), shape)


def test_a_budget_below_what_was_learned_says_that_branches_are_kept(kept):
    with pytest.raises(ConfigError, match="trains nothing again"):
        choose([curve(0.5, 0.6, tap=1)], budget(1), kept.data.architecture)


def changed_training(base, name, **changes):
    entries = [
        msgspec.structs.replace(entry, training=seeded(**changes)) if entry.name == name else entry
        for entry in base.tasks
    ]
    return msgspec.structs.replace(base, tasks=tuple(entries))


def best_of(folder, name, layers):
    """The depth that the task would take of a budget of its own."""
    options = [option for option in options_of(folder).options if option.task == name]
    price = price_of("layers", Bundle.open(folder / "bundle").trunk().architecture)
    return best_under(options, layers, price).chosen[name].layers


@pytest.fixture(scope="module")
def contested(home, tmp_path_factory):
    """A project and its folder: of a budget of 4 for two tasks, mood has less than it would take of 3, or 4, alone."""
    for seed in (9, *range(1, 9), *range(10, 13)):  # that has been found is asked first
        folder = copied(home, tmp_path_factory.mktemp("contested"))
        base = project(folder, "alike", "mood", strategy=FIXED, training=seeded(seed=seed))
        base = msgspec.structs.replace(base, allocation=budget(4))
        train_project(base, folder=folder)
        if all(best_of(folder, "mood", left) > layers_of(folder)["mood"] for left in (3, 4)):
            return base, folder
    pytest.fail("of a dozen seeds none has two tasks that want the same layers")


@pytest.mark.slow
def test_what_one_task_no_longer_needs_of_a_budget_goes_to_the_others(contested, tmp_path):
    """Another way of training one task is another choice for all, those that are trained already too."""
    base, whole = contested
    folder = shutil.copytree(whole, tmp_path / "grown", symlinks=True)
    wanted = best_of(folder, "mood", 3)
    smaller = msgspec.structs.replace(base.tasks[0], strategy=Branch(layers=1, tap=0, hidden=8))
    train_project(msgspec.structs.replace(base, tasks=(smaller, base.tasks[1])), folder=folder)
    assert layers_of(folder) == {"alike": 1, "mood": wanted}


@pytest.mark.slow
def test_a_budget_holds_when_one_task_alone_is_trained_anew(contested, tmp_path):
    """The choice for that task alone would spend the whole budget on it, beside what the other has already."""
    base, whole = contested
    folder = shutil.copytree(whole, tmp_path / "anew", symlinks=True)
    before = layers_of(folder)
    again = changed_training(base, "mood", seed=base.training.seed, clip=1.001)
    outcome = train_project(again, folder=folder)
    assert "mood" in outcome.trained and layers_of(folder) == before and spent(folder) <= 4


@pytest.mark.slow
def test_a_budget_counts_branches_that_leave_no_choice(fresh):
    """One task has its depth said: a larger budget later must still leave room for it."""

    def asked(layers):
        base = project(fresh, "mood", "urgency", strategy=FIXED)
        fixed = msgspec.structs.replace(base.tasks[1], strategy=Branch(layers=2, tap=0, hidden=8))
        return msgspec.structs.replace(base, tasks=(base.tasks[0], fixed), allocation=budget(layers))

    for layers in (3, 4):
        train_project(asked(layers), folder=fresh)
        assert layers_of(fresh)["urgency"] == 2 and spent(fresh) <= layers
    assert Bundle.open(fresh / "bundle").versions("urgency") == ["v0001"]


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True], ids=["cache kept", "cache deleted"])
def test_a_budget_is_kept_by_a_run_that_was_killed_between_two_tasks(
    home, contested, tmp_path, monkeypatch, trained, gone
):
    """The second run finds one task done: the choice is that among both, and the first is not written again."""
    base, whole = contested  # or the test could not tell
    cut, training = copied(home, tmp_path), base.training
    shutil.copytree(whole / "bundle-cache", cut / "bundle-cache")
    (cut / "bundle-cache" / "options.json").unlink()
    again = partial(runs, cut, "alike", "mood", training=training, strategy=FIXED, allocation=budget(4))
    with monkeypatch.context() as patched:
        patched.setattr(running, "task_lines", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            again()
    assert tuple(Bundle.open(cut / "bundle").tasks) == ("alike",)
    if gone:
        shutil.rmtree(cut / "bundle-cache")
    trained.clear()
    outcome, _ = again()
    assert outcome.kept == ("alike",) and (outcome.extraction.passes > 0) == bool(trained) == gone
    assert layers_of(cut) == layers_of(whole) and spent(cut) <= 4
    one, two = ((place / "bundle" / "bundle.json").read_bytes() for place in (whole, cut))
    assert one == two


@pytest.mark.slow
def test_a_budget_after_the_cache_was_deleted_trains_what_it_must_compare(fresh):
    runs(fresh, "mood", "urgency", allocation=budget(6))
    shutil.rmtree(fresh / "bundle-cache")
    runs(fresh, "mood", "urgency", allocation=budget(2))
    assert layers_of(fresh) == {"mood": 1, "urgency": 1}


def test_other_training_numbers_are_another_grove(home, tmp_path, trained):
    folder = copied(home, tmp_path)
    runs(folder, "mood", strategy=Branch(layers=1, hidden=8))
    for changes in ({"dropout": 0.3}, {"dropout": 0.2}):
        trained.clear()
        runs(folder, "mood", strategy=Branch(layers=1, hidden=8, **changes))
        assert trained
    assert len(list((folder / "bundle-cache" / "branches").iterdir())) == 3


def test_branches_and_pooled_tasks_of_one_project_share_the_pass(home, tmp_path):
    folder = copied(home, tmp_path)
    base = project(folder, "mood", "urgency", strategy=Branch(layers=1, hidden=8))
    pooled = msgspec.structs.replace(base.tasks[1], strategy=Pooled(of=2, heads=2, hidden=8, codec="float32"))
    outcome = train_project(msgspec.structs.replace(base, tasks=(base.tasks[0], pooled)), folder=folder)
    assert outcome.extraction.passes == 56 and set(outcome.trained) == {"mood", "urgency"}


def test_scores_of_a_bundle_hold_what_was_tried(home, tmp_path):
    folder = copied(home, tmp_path)
    outcome, lines = runs(folder, "mood", allocation=AllocationRule(c=1000.0))
    scores = Bundle.open(folder / "bundle").scores("mood")
    assert set(scores["tried"]) == {"teacher", "student-1", "student-2"}
    assert scores["splits"] == outcome.trained["mood"]
    assert scores["splits"]["validation"]["accuracy"] == scores["tried"]["student-1"]
    assert [set(row) for row in scores["history"]] == [{"epoch", "loss", "score"}] * 3
    assert any("mood: teacher (3 layers above tap 0)" in line for line in lines)
    assert any("; 1 private layer above tap 0" in line for line in lines)


def test_a_bundle_says_the_choice_that_decided_its_part(fresh):
    runs(fresh, "mood", "urgency", allocation=budget(6))
    trained_with = {n: r.trained_with for n, r in Bundle.open(fresh / "bundle").tasks.items()}
    for name in ("mood", "urgency"):
        assert trained_with[name]["allocation"]["budget"] == 6
        assert set(trained_with[name]["allocation"]["among"]) == {"mood", "urgency"}
        assert trained_with[name]["strategy"]["kind"] == "branch"


def test_another_seed_gives_other_branches(home, tmp_path):
    found = []
    for place, seed in (("a", 1), ("b", 1), ("c", 2)):
        folder = copied(home, tmp_path / place)
        runs(folder, "mood", strategy=Branch(layers=1, hidden=8), training=seeded(TRAINING, seed=seed))
        found.append(bytes_of(Bundle.open(folder / "bundle").part("mood")))
    assert found[0] == found[1] != found[2]
    assert all(np.isfinite(np.frombuffer(b, np.float32)).all() for b in found[2].values())


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_live_answers_score_what_training_wrote(home, tmp_path, precision):
    """In bfloat16 the served layers are those that validation was scored with; few rows may round otherwise."""
    folder = copied(home, tmp_path)
    training = seeded(precision=precision)
    asked = project(folder, "urgency", "names", "alike", strategy=Branch(layers=2, hidden=8), training=training)
    outcome = train_project(asked, folder=folder)
    chosen = Session(folder / "bundle", backend="torch").backend.precision
    assert chosen == (precision if has_native_bfloat16() else "float32")
    session = Session(folder / "bundle", backend="torch", precision=precision)  # emulated where it is not native
    for score in split_scores(session, asked, folder=folder):
        wrote = outcome.trained[score.task]["test"]
        assert score.scores == pytest.approx(wrote, abs=1e-5 if precision == "float32" else 0.05), score.task


def test_states_are_read_for_the_depths_that_are_tried_alone(home, tmp_path):
    extractor = extractor_of(home, tmp_path)
    prepared = prepared_of(home, "mood", strategy=Branch(least=2, hidden=8))
    for path in branch_paths(prepared, extractor):
        extractor.fill(wanted_taps(prepared, path, extractor))
    stores = [folder for folder in extractor.folder.iterdir() if folder.is_dir()]
    assert len(stores) == 2
