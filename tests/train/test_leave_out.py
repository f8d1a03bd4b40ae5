"""The recipe `leave_out`: who teaches which trunk, that a round is its two stages, that a stopped run goes on."""

import json

import msgspec
import pytest

from polyhead.bundle.read import Bundle
from polyhead.deep.recipes import leave_out as leave_out_run
from polyhead.deep.recipes.joint import LearnsTogether
from polyhead.deep.recipes.trained_trunk import lineage_of
from polyhead.encoder.data import arrays_digest
from polyhead.errors import BadName, BundleError, ConfigError, TrainError, UnknownTask
from polyhead.evaluate.held_out import restore_answers
from polyhead.project.recipes import Frozen, Joint, LeaveOut, Sampling, TrunkOnly, Weighting
from polyhead.project.tables import DataFile, TrunkChoice, read_project, with_seed
from polyhead.train.data import prepared as prepared_rows
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.job import FrozenTrunk
from polyhead.train.run import train_project
from support import tiny_project

NAMES = ("mood", "urgency", "same")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2)
LEARNING = msgspec.structs.replace(TRAINING, epochs=1, learning_rate=1e-3)
LEARN = TrunkOnly(micro_batches=2, layer_dropout=0.0, steps=3, blend=0.5)
RECIPE = LeaveOut(learn=LEARN, training=LEARNING)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def project(home, out, *names, recipe=RECIPE, **named):
    made = tiny_project.project(home, *(names or NAMES), training=TRAINING)
    return msgspec.structs.replace(made, recipe=recipe, bundle=str(out), **named)


def digests(bundle):
    bundle = Bundle.open(bundle)
    return bundle.digest, {name: arrays_digest(bundle.part(name)) for name in bundle.tasks}


def test_a_round_is_a_trunk_of_the_other_tasks_and_then_a_part_over_it_frozen(home, tmp_path):
    told = []
    found = train_project(project(home, tmp_path / "out"), folder=home, events=Events(say=told.append))
    assert list(found.bundles) == list(NAMES)
    others = ("urgency", "same")
    made = project(home, tmp_path / "trunk", *others, recipe=LEARN, training=LEARNING)
    train_project(made, folder=home)
    over = TrunkChoice(name=str(tmp_path / "trunk"))
    alone = project(home, tmp_path / "part", "mood", recipe=Frozen(), trunk=over)
    train_project(alone, folder=home)
    assert digests(tmp_path / "out" / "mood") == digests(tmp_path / "part")
    assert set(Bundle.open(tmp_path / "out" / "mood").tasks) == {"mood"}
    assert set(lineage_of(tmp_path / "out" / "mood").tasks) == set(others) == set(found.bundles["mood"].taught)
    assert found.bundles["mood"].scores["mood"] == Bundle.open(tmp_path / "part").scores("mood")["splits"]
    assert len({one.trunk for one in found.bundles.values()}) == 3
    table = [line.split() for line in told[-4:-1]]
    assert [row[:2] for row in table] == [[name, name] for name in NAMES]
    assert table[0][3:] == [
        f"{found.bundles['mood'].scores['mood'][s]['accuracy']:.4f}" for s in ("validation", "test")
    ]


def test_a_text_on_which_the_left_out_task_is_evaluated_teaches_no_trunk(home, tmp_path):
    """Urgency reads the rows on which mood is tested, too."""
    files = [(home / f"data/messages-{split}.jsonl").read_text() for split in ("train", "test")]
    rows = [json.loads(line) for file in files for line in file.splitlines()]
    tiny_project.write_jsonl(home / "data" / "both.jsonl", rows)
    changed = msgspec.structs.replace(
        tiny_project.ENTRIES["urgency"], train=DataFile(path="data/both.jsonl"), test=None
    )
    made = project(home, tmp_path / "out")
    made = msgspec.structs.replace(made, tasks=(made.tasks[0], changed, made.tasks[2]))
    train_project(made, folder=home, only=("mood", "same"))
    texts = [row["text"] for row in rows[32:]]
    long = sum(sum(map(str.isalnum, text)) >= 25 for text in texts)
    assert long > 0
    kept = {name: lineage_of(tmp_path / "out" / name).tasks["urgency"]["rows"] for name in ("mood", "same")}
    # without mood its rows are those that nothing but mood is tested on; without `same` mood is there itself
    assert kept == {"mood": 44 - long, "same": 44 - long}


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["task", "nothing"])
def test_rows_that_are_held_out_teach_no_trunk_and_are_held_out_once(home, tmp_path, monkeypatch, leave):
    """Three tasks over one file of texts too short to be looked for, each holding out a share of it."""
    rows = [{"text": f"{a} {b}", "mood": a} for a in ("good", "bad") for b in map(str, range(30))]
    tiny_project.write_jsonl(home / "data" / "short.jsonl", rows)
    entry = msgspec.structs.replace(
        tiny_project.ENTRIES["mood"], train=DataFile(path="data/short.jsonl"), validation=0.2, test=None
    )
    entries = tuple(msgspec.structs.replace(entry, name=name) for name in "abc")
    recipe = msgspec.structs.replace(RECIPE, leave=leave)
    made = msgspec.structs.replace(project(home, tmp_path / "out", recipe=recipe), tasks=entries)
    seen = []

    class Noted(LearnsTogether):
        def __init__(self, run, recipe, prepared, *, held):
            seen.append((prepared, held))
            super().__init__(run, recipe, prepared, held=held)

    monkeypatch.setattr(leave_out_run, "LearnsTogether", Noted)
    train_project(made, folder=home)
    assert len(seen) == (3 if leave == "task" else 1)
    for given, held in seen:
        evaluated = {text for one in held for text in one.validation.examples.inputs}
        assert len(evaluated) == 12
        for one in given:
            assert len(one.train.examples.inputs) == 48  # nothing is lost for it
            assert not evaluated & set(one.train.examples.inputs)


def test_the_answers_of_a_task_to_rows_of_which_its_trunk_learned_none_are_kept_and_reported(home, tmp_path):
    """All rows of few are learned from by the other task's trunk, but those that this task holds out."""
    made = project(home, tmp_path / "out", "mood", "urgency")
    entries = tuple(msgspec.structs.replace(entry, validation=0.25, test=None) for entry in made.tasks)
    made = msgspec.structs.replace(made, tasks=entries)
    result = train_project(made, folder=home, only=("mood",), report=True)
    assert result.report is not None
    bundle = Bundle.open(tmp_path / "out" / "mood")
    then = restore_answers(
        bundle.tasks["mood"].task,
        entries[0].source(entries[0].train, home),
        tmp_path / "out-cache",
        bundle.record("mood").arrays,
    )
    assert len(then.answered.examples.inputs) == 8 and not then.facts.folds
    learned = lineage_of(tmp_path / "out" / "mood").tasks["urgency"]
    texts = prepare(made, home)[1].train.examples
    assert learned["sha256"] == texts.digest and not {*texts.inputs} & {*then.answered.examples.inputs}


def test_scores_in_folds_of_an_earlier_bundle_are_said_and_many_rows_are_all_learned_from(home, tmp_path, monkeypatch):
    """With many rows a part was not trained on the share that chose it either."""
    made = project(home, tmp_path / "out", "mood", "urgency")
    entries = tuple(msgspec.structs.replace(entry, validation=0.25, test=None) for entry in made.tasks)
    made = msgspec.structs.replace(made, tasks=entries)

    class Before(leave_out_run.LeftOut):
        def __init__(self, run, recipe, left_out, prepared):
            super().__init__(run, recipe, left_out, prepared)
            self._held = [prepared[name] for name in left_out.tasks]

    with monkeypatch.context() as patched:
        patched.setattr(leave_out_run, "LeftOut", Before)
        train_project(made, folder=home, only=("mood",))
    told = []
    train_project(made, folder=home, only=("mood",), events=Events(say=told.append))
    assert [line for line in told if " folds, " in line] == [
        "mood: its scores are those of rows held out in 2 folds, from which its trunk may have learned; another bundle "
        "name trains anew"
    ]

    few, many = (msgspec.structs.replace(made, bundle=str(tmp_path / name)) for name in ("few", "many"))
    train_project(few, folder=home, only=("mood",))
    monkeypatch.setattr(prepared_rows, "FOLDED_BELOW", 30)
    train_project(many, folder=home, only=("mood",))
    notes = [Bundle.open(tmp_path / name / "mood").scores("mood") for name in ("out", "few", "many")]
    assert [(each.get("folds"), each.get("refitted")) for each in notes] == [(2, True), (None, None), (None, True)]


def test_weights_and_shares_by_task_count_for_those_that_a_round_learns_from(home, tmp_path):
    weighting = Weighting(kind="fixed", fixed={"same": 2.0})
    shares = Sampling(kind="schedule", schedule=({"mood": 1.0, "urgency": 1.0, "same": 2.0},))
    learn = msgspec.structs.replace(LEARN, weighting=weighting, sampling=shares)
    made = project(home, tmp_path / "out", recipe=msgspec.structs.replace(RECIPE, learn=learn))
    train_project(made, folder=home)
    told = {name: lineage_of(tmp_path / "out" / name).recipe for name in NAMES}
    assert told["mood"]["weighting"]["fixed"] == {"same": 2.0} and told["same"]["weighting"]["kind"] == "none"
    assert told["same"]["sampling"]["schedule"] == [{"mood": 1.0, "urgency": 1.0}]
    for wrong in ({"weighting": Weighting(kind="fixed", fixed={"moods": 2.0})},):
        with pytest.raises(ConfigError, match="weights or shares to tasks"):
            learn = msgspec.structs.replace(LEARN, **wrong)
            project(home, tmp_path / "out", recipe=msgspec.structs.replace(RECIPE, learn=learn))
    alone = Sampling(kind="schedule", schedule=({"mood": 1.0},))
    made = project(
        home,
        tmp_path / "other",
        recipe=msgspec.structs.replace(RECIPE, learn=msgspec.structs.replace(LEARN, sampling=alone)),
    )
    with pytest.raises(ConfigError, match="without \\['mood'\\]"):
        train_project(made, folder=home)
    assert not (tmp_path / "other").exists()


def test_places_that_are_taken_are_said_before_any_training(home, tmp_path):
    train_project(project(home, tmp_path / "out"), folder=home, only=("same",))
    slower = msgspec.structs.replace(LEARNING, learning_rate=1e-4)
    other = msgspec.structs.replace(RECIPE, training=slower)
    with pytest.raises(BundleError, match="same holds another trunk"):
        train_project(project(home, tmp_path / "out", recipe=other), folder=home)
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"same"}
    with pytest.raises(BundleError, match="is a bundle"):
        train_project(project(home, tmp_path / "out" / "same"), folder=home)
    with pytest.raises(UnknownTask, match="moods"):
        train_project(project(home, tmp_path / "out"), folder=home, only=("moods",))


def test_a_project_file_needs_no_kind_and_no_heads_in_learn(tmp_path):
    path = tmp_path / "polyhead.toml"
    lines = [
        '[[tasks]]\nname = "a"\nkind = "regression"\nrange = [0.0, 1.0]\ntrain = "a.csv"',
        '[[tasks]]\nname = "b"\nkind = "regression"\nrange = [0.0, 1.0]\ntrain = "b.csv"',
        '[recipe]\nkind = "leave_out"\n[recipe.learn]\nblend = 0.5\nmicro_batches = 2',
    ]
    path.write_text("\n".join(lines))
    recipe = read_project(path).recipe
    assert (recipe.learn.blend, recipe.learn.heads, recipe.learn.micro_batches) == (0.5, "strip", 2)
    assert msgspec.to_builtins(recipe.learn) == msgspec.to_builtins(Joint(blend=0.5, heads="strip", micro_batches=2))
    path.write_text(path.read_text() + '\nheads = "keep"')
    with pytest.raises(ConfigError, match="heads"):
        read_project(path)


def test_events_say_of_which_round_they_are(home, tmp_path):
    file = tmp_path / "events.jsonl"
    train_project(project(home, tmp_path / "out"), folder=home, events=Events(file=file), only=("mood", "same"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["run"] for row in rows if row["event"] == "epoch"} == {"mood", "same"}


@pytest.mark.slow
def test_groups_are_left_out_as_a_whole_and_nothing_leaves_one_trunk(home, tmp_path):
    groups = {"messages": ("mood", "urgency"), "pairs": ("same",)}
    grouped = msgspec.structs.replace(RECIPE, leave="group", groups=groups)
    found = train_project(project(home, tmp_path / "out", recipe=grouped), folder=home)
    assert [(name, one.taught, tuple(one.scores)) for name, one in found.bundles.items()] == [
        ("messages", ("same",), ("mood", "urgency")),
        ("pairs", ("mood", "urgency"), ("same",)),
    ]
    whole = msgspec.structs.replace(RECIPE, leave="nothing")
    found = train_project(project(home, tmp_path / "all", recipe=whole), folder=home)
    one = found.bundles["all-tasks"]
    assert (one.taught, tuple(one.scores)) == (NAMES, NAMES)
    assert Bundle.open(tmp_path / "all" / "all-tasks").digest == one.trunk


@pytest.mark.slow
def test_a_run_that_was_stopped_between_the_stages_goes_on_and_a_whole_one_is_kept(home, tmp_path, monkeypatch):
    straight = train_project(project(home, tmp_path / "straight"), folder=home)
    made = project(home, tmp_path / "out")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FrozenTrunk, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            train_project(made, folder=home)
    stood = (tmp_path / "out" / "mood" / "trunk" / "weights.safetensors").stat().st_mtime_ns
    again = train_project(made, folder=home)
    assert (tmp_path / "out" / "mood" / "trunk" / "weights.safetensors").stat().st_mtime_ns == stood
    assert {n: one.scores for n, one in again.bundles.items()} == {n: one.scores for n, one in straight.bundles.items()}
    for name in NAMES:
        assert digests(tmp_path / "out" / name) == digests(tmp_path / "straight" / name)
    told = []
    kept = train_project(made, folder=home, events=Events(say=told.append))
    assert all(kept.bundles[n].scores == again.bundles[n].scores and kept.bundles[n].kept == (n,) for n in NAMES)
    assert sum("trained already, unchanged" in line for line in told) >= 3


def test_rounds_and_groups_that_do_not_fit_are_refused_with_what_is_wrong(home):
    for groups, said in (
        ({"one": ("mood", "urgency")}, "missing \\['same'\\]"),
        ({"one": ("mood", "urgency"), "two": ("same", "mood")}, "more than once \\['mood'\\]"),
        ({"one": ("mood", "urgency"), "two": ("same", "moods")}, "unknown \\['moods'\\]"),
        ({"one": NAMES}, "there must be tasks that remain"),
        ({"one": NAMES, "two": ()}, "there must be tasks that remain"),
    ):
        with pytest.raises(ConfigError, match=said):
            project(home, "out", recipe=msgspec.structs.replace(RECIPE, leave="group", groups=groups))
    with pytest.raises(ConfigError, match="must be tasks that remain"):
        project(home, "out", "mood")
    with pytest.raises(BadName, match="case alone"):
        groups = {"one": ("mood",), "One": ("urgency", "same")}
        project(home, "out", recipe=msgspec.structs.replace(RECIPE, leave="group", groups=groups))
    with pytest.raises(BadName, match="group"):
        groups = {"../one": ("mood",), "two": ("urgency", "same")}
        project(home, "out", recipe=msgspec.structs.replace(RECIPE, leave="group", groups=groups))
    for wrong in ({"leave": "group"}, {"groups": {"one": ("mood",)}}):
        with pytest.raises(ConfigError, match="belong together"):
            LeaveOut(**wrong)


def test_what_a_later_round_cannot_learn_is_said_before_the_first(home, tmp_path):
    """Without `alike` everything could learn; without `mood` it could not."""
    with pytest.raises(TrainError, match="read separately"):
        train_project(project(home, tmp_path / "out", "alike", "mood", "same"), folder=home)
    assert not (tmp_path / "out").exists()


def test_another_seed_is_another_trunk_and_another_part(home, tmp_path):
    made = project(home, tmp_path / "one")
    other = msgspec.structs.replace(with_seed(made, 7), bundle=str(tmp_path / "other"))
    assert other.recipe.training.seed == 7 and {e.training.seed for e in other.tasks} == {7}
    for one in (made, other):
        train_project(one, folder=home, only=("mood",))
    (first, part), (second, another) = (digests(tmp_path / "one" / "mood"), digests(tmp_path / "other" / "mood"))
    assert first != second and part != another
    assert not (tmp_path / "one" / "same").exists()
