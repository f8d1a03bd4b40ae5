"""Prompts and adapters over a frozen trunk, and with it: who learns, what stays, and what a bundle answers."""

import re
from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open

from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.deep.recipes import joint_loop as starts
from polyhead.deep.recipes.joint_loop import JointLoop, frequent_tokens, start_parts
from polyhead.deep.recipes.paths import joint_paths
from polyhead.engine.session import Session
from polyhead.errors import BadName, BundleError, ConfigError, PlanError, TrainError
from polyhead.plan import cost, merge
from polyhead.project.recipes import ONE_TASK, Joint, Sampling, Smoothing
from polyhead.project.strategies import Adapter, InLayer, OnTop, Pooled, Prompted
from polyhead.project.tables import Project, TrunkChoice
from polyhead.train.data.prepare import prepare
from polyhead.train.data.task_groups import prepare_groups, task_groups
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project
from support.tiers import first_of

NAMES = ("mood", "urgency")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=1, learning_rate=3e-3, batch=4)
GROUP = Prompted(hidden=6)
STRATEGIES = {
    "group": GROUP,
    "shared rows": Prompted(shared=2, hidden=6),
    "isolated": Prompted(isolated=True),
    "in_layer": InLayer(adapters=(Adapter(size=4, heads=2),)),
    "pooler": InLayer(adapters=(Adapter(delta="low_rank", size=4, tied=False),), pooler="shared"),
    "on_top": OnTop(width=8, heads=2, layers=2),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def project(home, strategy, *names, bundle="bundle", recipe=None):
    made = tiny_project.project(home, *(names or NAMES), training=TRAINING)
    changed = {"strategy": strategy, "bundle": bundle} | ({"recipe": recipe} if recipe else {})
    entries = tuple(msgspec.structs.replace(entry, strategy=None) for entry in made.tasks)
    return msgspec.structs.replace(made, tasks=entries, **changed)


def course_of(home, strategy, *names, frozen=True, recipe=ONE_TASK, **changes):
    from polyhead.project.pretrained import load_trunk

    prepared = [
        msgspec.structs.replace(p, training=msgspec.structs.replace(TRAINING, **changes))
        for p in prepare(project(home, strategy, *names), home)
    ]
    data = load_trunk(str(home / "trunk"))
    paths = joint_paths(prepared, data, recipe)
    return JointLoop(prepared, paths, data, recipe, training=prepared[0].training, precision="float32", frozen=frozen)


def bytes_of(arrays):
    return {name: np.ascontiguousarray(value).tobytes() for name, value in arrays.items()}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_frozen_trunk_stays_to_the_bit_while_every_own_array_learns(home, name):
    loop = course_of(home, STRATEGIES[name])
    trunk = bytes_of(loop.module.model.trunk.to_arrays())
    before = {task: bytes_of(part.state_dict()) for task, part in loop.module.model.parts.items()}
    learned = loop.learn()
    assert learned.data.digest == loop.data.digest
    assert bytes_of(loop.module.model.trunk.to_arrays()) == trunk
    for task, arrays in learned.arrays.items():
        moved = {n for n, value in bytes_of(arrays).items() if value != before[task][n]}
        assert {n for n in before[task] if not n.endswith("key.bias")} <= moved


@pytest.mark.parametrize("precision", first_of(["float32", "bfloat16"]))
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_was_trained_is_what_the_bundle_answers(home, tmp_path, name, precision):
    made = project(home, STRATEGIES[name])
    training = msgspec.structs.replace(made.training, precision=precision)
    made = msgspec.structs.replace(made, bundle=str(tmp_path / "bundle"), training=training)
    outcome = train_project(made, folder=home, cache=tmp_path / "cache")
    assert set(outcome.trained) == set(NAMES)
    session = Session(tmp_path / "bundle")
    for p in prepare(made, home):
        outputs = session.outputs(p.task.name, p.validation.examples.inputs)
        found, said = (p.validation.examples.scores(p.task, outputs), outcome.trained[p.task.name]["validation"])
        if precision == "float32":
            assert found == pytest.approx(said, abs=1e-5)  # a correlation of nearly equal answers moves that much
        elif "accuracy" in found:  # rows whose two best labels are a rounding apart may differ
            assert found["accuracy"] == pytest.approx(said["accuracy"], abs=1.01 / len(outputs))
    again = train_project(made, folder=home, cache=tmp_path / "cache")
    assert not again.trained and set(again.kept) == set(NAMES)


def test_a_checkpoint_holds_what_learns_and_a_stopped_run_goes_on_to_the_same_bits(home, tmp_path, monkeypatch):
    from polyhead.deep.loop import fit
    from polyhead.deep.loop.checkpoint import read_checkpoint

    monkeypatch.setattr(fit, "SAVE_SECONDS", 0.0)
    file, strategy = tmp_path / "c.checkpoint", Prompted(hidden=6, shared=1)
    whole = course_of(home, strategy, epochs=3).learn()
    stopped = course_of(home, strategy, epochs=3)
    stopped._checkpoint = file
    save, saved = fit.TrainingLoop.save, []

    def killed(run):
        save(run)
        saved.append(run.done)
        if run.done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(fit.TrainingLoop, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        stopped.learn()
    monkeypatch.setattr(fit.TrainingLoop, "save", save)
    state = read_checkpoint(file)
    assert saved == [1, 2] and not any("trunk" in name for name in (*state["module"], *state["best"][0]))
    resumed = course_of(home, strategy, epochs=3)
    resumed._checkpoint = file
    again = resumed.learn()
    for task, arrays in whole.arrays.items():
        assert bytes_of(arrays) == bytes_of(again.arrays[task])
    for owner, arrays in whole.families.items():
        assert bytes_of(arrays) == bytes_of(again.families[owner])


def test_a_group_is_trained_whole_or_not_at_all(home, tmp_path):
    made = msgspec.structs.replace(project(home, GROUP), bundle=str(tmp_path / "bundle"))
    with pytest.raises(ConfigError, match="each other's arrays") as caught:
        train_project(made, folder=home, cache=tmp_path / "cache", only=("mood",))
    assert "urgency" in str(caught.value.got)


@pytest.mark.parametrize("room", [9, 8, 7, 0, -400])
def test_shifted_prompts_leave_room_for_the_longest_text(home, room):
    """Where fewer than 8 tokens were left, a length was advised that no trunk may have."""
    from polyhead.project.pretrained import load_trunk

    positions = load_trunk(str(home / "trunk")).architecture.max_tokens
    with pytest.raises(TrainError, match="position") as caught:
        course_of(home, Prompted(hidden=6, shift=True, rows=positions - room), NAMES[0])
    assert ("max_tokens" in caught.value.do) == (room >= 8)
    assert ("fewer prompt rows" in caught.value.do) == (room < 8)
    for length in map(int, re.findall(r"max_tokens to (\d+)", caught.value.do)):
        TrunkChoice(max_tokens=length)


def test_units_are_the_groups_and_families_that_tasks_share():
    shared = InLayer(pooler="shared")
    found = task_groups(
        {
            "a": Prompted(group="x"),
            "b": InLayer(),
            "c": Prompted(group="x"),
            "d": Prompted(isolated=True),
            "e": shared,
            "f": OnTop(pooler="shared"),
            "g": Pooled(),
        }
    )
    assert found == [("a", "c"), ("b",), ("d",), ("e", "f"), ("g",)]
    assert InLayer(adapters=(Adapter(share="ends", tied=True),)).bonds() == {"adapters"}


def test_a_step_of_one_task_leaves_the_others_prompt_and_pooler_alone(home):
    """With the gradient stop: to the bit, under AdamW with decay. Without it the prompt moves."""
    for stop in (True, False):
        loop = course_of(home, Prompted(hidden=6, stop_gradient=stop), frozen=False, weight_decay=0.1)
        parts, (batch,) = loop.module.model.parts, _one_batch(loop, "mood")
        before = bytes_of(parts["urgency"].state_dict())
        optimizer = torch.optim.AdamW(loop.module.parameters(), lr=1e-2, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loop.loss("mood", batch).backward()
            optimizer.step()
        after = bytes_of(parts["urgency"].state_dict())
        moved = {name for name in after if after[name] != before[name]}
        assert moved == (set() if stop else {"prompt.weight"})


def test_a_prompt_that_learned_and_is_idle_now_stays_to_the_bit(home):
    """In training itself, where moments and decay would go on moving it; shared rows learn with every task."""
    turns = Sampling(kind="schedule", schedule=({"mood": 1.0, "urgency": 1.0}, {"mood": 1.0}))
    recipe = Joint(families=(), micro_batches=1, steps=4, sampling=turns, layer_dropout=0.0)
    made = course_of(home, Prompted(hidden=6, shared=1), frozen=False, recipe=recipe, epochs=2, weight_decay=0.1)
    model, scores, seen = made.module.model, made.scores, []

    def state():
        parts = {name: bytes_of(part.state_dict()) for name, part in model.parts.items()}
        return parts | {owner: bytes_of(family.state_dict()) for owner, family in model.families.items()}

    def scored():
        seen.append(state())
        return scores()

    start, made.scores = state(), scored
    made.learn()
    drawn, idle = seen[:2]
    (shared,) = model.families
    assert all(drawn[name] != start[name] for name in start)
    assert {name for name in start if idle[name] != drawn[name]} == {"mood", shared}


def _one_batch(loop, task):
    return [loop.examples[task].batch(np.arange(4))]


def test_frequent_tokens_are_words_of_the_task_and_fill_the_prompt(home):
    loop = course_of(home, Prompted(hidden=6, init="frequent", rows=3))
    start_parts(loop)
    words = loop.data.arrays["embeddings.word.weight"]
    for name, prepared in loop.prepared.items():
        ids = {int(i) for e in loop.tokenizer.encode(prepared.train.examples.inputs) for i in e.ids}
        special = set(loop.tokenizer.encode([("",)])[0].ids.tolist())
        rows = frequent_tokens(prepared, loop.tokenizer, 3)
        assert set(rows.tolist()) <= ids - special
        given = loop.module.model.parts[name].prompt.weight.detach().numpy()
        np.testing.assert_array_equal(given, words[rows])


def test_the_most_frequent_tokens_are_counted_over_the_training_texts(home, monkeypatch):
    """As many prompt rows as there are tokens to draw from: these, and by hand."""
    monkeypatch.setattr(starts, "FREQUENT", 4)
    loop = course_of(home, Prompted(hidden=6, init="frequent", rows=4))
    for prepared in loop.prepared.values():
        counts = Counter()
        for (text,) in prepared.train.examples.inputs:
            counts.update(loop.tokenizer.encode([(text,)])[0].ids.tolist()[1:-1])
        wanted = sorted(counts, key=lambda token: (-counts[token], token))[:4]
        assert sorted(frequent_tokens(prepared, loop.tokenizer, 4)) == sorted(wanted)
        assert counts[wanted[-1]] > min(counts.values())  # there were others to take


def test_donors_give_prompt_and_pooler_but_not_the_head(home):
    """They are what the task learns alone over the frozen trunk, at the donors' rate and for their epochs."""
    donors = {"donor_epochs": 1, "donor_learning_rate": 1e-2}
    loop = course_of(home, Prompted(hidden=6, init="donors", pooler_init="donors", **donors), frozen=False)
    drawn = bytes_of(loop.module.model.parts["mood"].state_dict())
    trunk = bytes_of(loop.module.model.trunk.to_arrays())
    start_parts(loop)
    alone = course_of(home, Prompted(hidden=6), "mood", epochs=1, learning_rate=1e-2).learn()
    found = bytes_of(loop.module.model.parts["mood"].state_dict())
    assert found["head.output.weight"] == drawn["head.output.weight"]
    for name in ("prompt.weight", "head.hidden.weight", "head.hidden.bias"):
        assert found[name] == bytes_of(alone.arrays["mood"])[name] != drawn[name]
    assert bytes_of(loop.module.model.trunk.to_arrays()) == trunk


@pytest.mark.parametrize("name", first_of(["group", "shared rows", "pooler", "on_top"]))
def test_a_trunk_that_learns_with_them_is_a_bundle_that_answers(home, tmp_path, name):
    recipe = Joint(families=(), micro_batches=1, layer_dropout=0.0)
    made = project(home, STRATEGIES[name], recipe=recipe)
    made = msgspec.structs.replace(made, bundle=str(tmp_path / "bundle"))
    assert isinstance(made, Project)
    outcome = train_project(made, folder=home, cache=tmp_path / "cache")
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.digest == outcome.trunk != outcome.learned_from
    answers = Session(bundle).predict([("where is my order?",)])
    assert set(answers[0].answers) == set(NAMES)


def test_tied_matrices_are_one_tensor_in_the_file(home, tmp_path):
    """Over both layers one encoder and one decoder; untied there are two of each."""
    for tied, each in ((True, 1), (False, 2)):
        adapter = Adapter(size=4, heads=2, tied=tied)
        made = project(home, InLayer(adapters=(adapter,)), "mood", bundle=str(tmp_path / f"tied-{tied}"))
        train_project(made, folder=home, cache=tmp_path / "cache")
        (file,) = (tmp_path / f"tied-{tied}").glob("tasks/mood/**/*.safetensors")
        with safe_open(file, framework="np") as part:
            names = list(part.keys())
            shapes = {name: part.get_slice(name).get_shape() for name in names}
        for end, shape in (("encoder", [4, 16]), ("decoder", [16, 4])):
            found = [name for name in names if name.endswith(f"{end}.weight")]
            assert [shapes[name] for name in found] == [shape] * each, found


def test_heads_are_probed_over_the_frozen_trunk_before_it_learns(home, monkeypatch):
    """What the first joint update starts from is what a frozen run of the same epochs, rate and seed gives."""
    from polyhead.deep.recipes import joint_loop as joint

    strategy = Pooled(layers="last", positions="mean")
    probing = course_of(home, strategy, epochs=3, patience=3, learning_rate=1e-2).learn().arrays
    recipe = msgspec.structs.replace(ONE_TASK, head_epochs=3, head_learning_rate=1e-2, layer_dropout=0.0)
    loop, seen = course_of(home, strategy, frozen=False, recipe=recipe), {}

    def devices(place, loss, **kwargs):
        if not loop.module.model.trunk.training and loss is loop.loss:
            seen.update({name: bytes_of(part.state_dict()) for name, part in loop.module.model.parts.items()})
        return real(place, loss, **kwargs)

    real = joint.devices_of
    monkeypatch.setattr(joint, "devices_of", devices)
    learned = loop.learn()
    assert seen == {name: bytes_of(arrays) for name, arrays in probing.items()}
    assert learned.data.digest != loop.data.digest


ENDS = InLayer(adapters=(Adapter(size=4, heads=2, share="ends"),))
ALL = InLayer(adapters=(Adapter(size=4, heads=2, share="all"),))
POOLER = OnTop(width=8, heads=2, layers=1, pooler="shared")
ROWS = Prompted(shared=1, hidden=6)


def trained(home, root, strategy, *names, retrain=(), **changes):
    made = msgspec.structs.replace(project(home, strategy, *names), bundle=str(root), **changes)
    return train_project(made, folder=home, cache=root.with_name("cache"), retrain=retrain)


def refused(home, root, monkeypatch, strategy, *names, error=BundleError):
    """What the run says, which neither encodes nor trains nor writes."""

    def never(*_, **__):
        raise AssertionError("worked before it refused")

    before = (root / "bundle.json").read_bytes()
    with monkeypatch.context() as patched:
        for what in (
            "train.heads.run.feature_paths",
            "deep.recipes.joint.JointLoop",
            "train.heads.run.train_task",
            "train.job._extract",
        ):
            patched.setattr(f"polyhead.{what}", never)
        with pytest.raises(error) as caught:
            trained(home, root, strategy, *names)
    assert (root / "bundle.json").read_bytes() == before
    return caught.value


@pytest.mark.parametrize(
    ("strategy", "owner", "way"),
    [
        (ENDS, "family:adapters", "another bundle"),
        (POOLER, "family:pooler", "another bundle"),
        (ROWS, "family:prompts:prompts", "another name"),
    ],
    ids=["adapters", "pooler", "rows"],
)
def test_a_family_that_other_tasks_read_is_refused_before_any_work(home, tmp_path, monkeypatch, strategy, owner, way):
    root = tmp_path / "bundle"
    trained(home, root, strategy, "mood")
    error = refused(home, root, monkeypatch, strategy, "urgency")
    assert owner in str(error.got) and "mood" in str(error.got) and "urgency" in error.what
    assert way in error.do and f"tasks remove {root} mood" in error.do
    remove_tasks(root, ["mood"])  # as it says
    assert set(trained(home, root, strategy, "urgency").trained) == {"urgency"}


def test_a_group_that_lost_a_member_is_refused_before_any_work(home, tmp_path, monkeypatch):
    root = tmp_path / "bundle"
    trained(home, root, GROUP, "mood", "urgency", "topics")
    for strategy, names in ((GROUP, ("mood", "urgency")), (Pooled(), ("mood",)), (POOLER, ("mood", "urgency"))):
        error = refused(home, root, monkeypatch, strategy, *names)
        assert "topics" in str(error.got) and "task:mood" in str(error.got)
        again = ",".join(names)
        assert f"tasks remove {root} mood topics urgency` first, then train with --retrain {again}" in error.do
    remove_tasks(root, ["mood", "urgency", "topics"])
    again = ("mood", "urgency")  # as it says
    assert set(trained(home, root, GROUP, *again, retrain=again).trained) == set(again)


def test_names_of_groups_that_differ_in_case_alone_are_refused_before_any_work(home, tmp_path, monkeypatch):
    root = tmp_path / "bundle"
    trained(home, root, ROWS, "mood")
    other = msgspec.structs.replace(ROWS, group="Prompts")
    error = refused(home, root, monkeypatch, other, "urgency", error=BadName)
    assert "case" in error.what


@pytest.mark.slow
@pytest.mark.parametrize("strategy", first_of([GROUP, ROWS, ENDS, POOLER]), ids=["group", "rows", "adapters", "pooler"])
def test_a_unit_is_trained_again_in_its_bundle_and_grows(home, tmp_path, strategy):
    root = tmp_path / "bundle"
    trained(home, root, strategy)
    again = msgspec.structs.replace(TRAINING, seed=5)
    assert set(trained(home, root, strategy, training=again).trained) == set(NAMES)
    assert set(trained(home, root, strategy, *NAMES, "topics").trained) == {*NAMES, "topics"}


def test_arrays_that_an_earlier_step_of_the_run_sets_free_are_no_clash(home, tmp_path):
    root = tmp_path / "bundle"
    trained(home, root, POOLER, "mood")
    made = project(home, POOLER)
    entries = (msgspec.structs.replace(made.tasks[0], strategy=Pooled()), made.tasks[1])
    made = msgspec.structs.replace(made, tasks=entries, bundle=str(root))
    assert set(train_project(made, folder=home, cache=tmp_path / "cache").trained) == set(NAMES)


def test_a_unit_of_which_a_task_was_removed_stays_and_is_trained_whole_where_that_task_is_named(home, tmp_path):
    root = tmp_path / "bundle"
    trained(home, root, ENDS)
    remove_tasks(root, ["urgency"])
    found = trained(home, root, ENDS)
    assert (set(found.left), found.kept, found.trained) == ({"urgency"}, ("mood",), {})
    other = msgspec.structs.replace(TRAINING, seed=5)
    assert "it was removed" in trained(home, root, ENDS, training=other).left["mood"]
    assert set(trained(home, root, ENDS, retrain=("urgency",)).trained) == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [GROUP, ROWS, ENDS, ALL, POOLER], ids=["group", "rows", "ends", "all", "pooler"])
@pytest.mark.parametrize("learns", first_of([False, True]), ids=["frozen", "joint"])
def test_outlook_card_and_inspect_count_the_same(home, tmp_path, strategy, learns):
    said, root = [], tmp_path / "bundle"
    recipe = Joint(families=(), micro_batches=1, layer_dropout=0.0) if learns else None
    made = msgspec.structs.replace(project(home, strategy, recipe=recipe), bundle=str(root))
    train_project(made, folder=home, cache=tmp_path / "cache", events=Events(say=said.append))
    plan = merge({name: record.path for name, record in Bundle.open(root).tasks.items()})
    for name in NAMES:
        own = cost.added(plan, name, Bundle.open(root).architecture, tokens=32, folded=True)
        row = next(line.split() for line in said if line.split()[:1] == [name])
        assert row[-2:] == [f"{own.parameters:,}", f"{own.flops / 1e6:.2f}"]
        told = f"{own.parameters:,} parameters and {own.flops / 1e6:.2f} MFLOP of its own"
        assert told in Bundle.open(root).card(name)
    shared = {line.split(",")[0]: line for line in said if line.startswith("family:")}
    assert set(shared) == set(Bundle.open(root).families)
    for owner, line in shared.items():
        size = sum(array.size for array in Bundle.open(root).others("mood")[owner].values())
        assert line == f"{owner}, which mood, urgency share: {size:,} parameters"
    shape, start = Bundle.open(root).architecture, "mood, urgency together: "
    if strategy in (GROUP, ROWS, ALL):  # no layer runs as the plain trunk: all that is not a task's own is both's
        own = [cost.added(plan, name, shape, tokens=32, folded=True).flops for name in NAMES]
        flops = cost.flops(plan, shape, 32, folded=True) - sum(own)
        line = f"{start}{flops / 1e6:,.2f} MFLOP/text, for as long as one of them is there"
        assert [each for each in said if each.startswith(start)] == [line]


def test_a_card_says_whose_the_prompt_rows_are(home, tmp_path):
    trained(home, tmp_path / "bundle", ROWS)
    card = Bundle.open(tmp_path / "bundle").card("mood")
    assert "5 prompt rows, which the text sees (1 of the group, 2 of its own, 2 of `urgency`)," in card
    trained(home, tmp_path / "alone", Prompted(rows=1))
    assert "(1 of its own, 1 of `urgency`)" in Bundle.open(tmp_path / "alone").card("mood")
    trained(home, tmp_path / "apart", Prompted(rows=1, isolated=True), "mood")
    assert "1 prompt row, which the text does not see, positions" in Bundle.open(tmp_path / "apart").card("mood")


@pytest.mark.parametrize("frozen", [True, False])
def test_what_to_do_with_a_separate_pair_helps_whatever_learns(home, frozen):
    with pytest.raises(TrainError, match="separately") as caught:
        course_of(home, Pooled(positions="mean"), "alike", frozen=frozen)
    for way in ("pair = 'joined'", "'pooled'", "'branch'"):
        assert way in caught.value.do


def test_heads_are_probed_where_they_are_normalised_too(home):
    recipe = msgspec.structs.replace(
        ONE_TASK, head_epochs=1, head_rate=10.0, smoothing=Smoothing(spectral=True), layer_dropout=0.0
    )
    learned = course_of(home, Pooled(layers="last", positions="mean"), frozen=False, recipe=recipe).learn()
    for arrays in learned.arrays.values():
        assert np.linalg.norm(arrays["head.output.weight"], 2) == pytest.approx(1.0, abs=1e-4)


def test_unlike_adapters_are_not_shared(home):
    """Two functions cannot have one owner's arrays: said before anything is trained."""
    first, second = (
        InLayer(adapters=(Adapter(delta="low_rank", size=4, tied=False, share="all", gelu=gelu),))
        for gelu in ("none", "inside")
    )
    prepared = prepare(project(home, first), home)
    prepared[1] = msgspec.structs.replace(prepared[1], strategy=second)
    from polyhead.project.pretrained import load_trunk

    data = load_trunk(str(home / "trunk"))
    with pytest.raises(PlanError, match="two different adapters"):
        JointLoop(
            prepared, joint_paths(prepared, data, ONE_TASK), data, ONE_TASK, training=TRAINING, precision="float32"
        )


def test_shared_adapters_that_start_in_two_ways_have_no_paths(home):
    """Said before a text is encoded, as all that a declaration alone decides."""
    from polyhead.project.pretrained import load_trunk

    prepared = [
        msgspec.structs.replace(p, strategy=InLayer(adapters=(Adapter(size=6, heads=2, share="all", init=i),)))
        for p, i in zip(prepare(project(home, GROUP), home), ("zero", "normal"), strict=True)
    ]
    with pytest.raises(ConfigError, match="init = 'zero' and 'normal'"):
        joint_paths(prepared, load_trunk(str(home / "trunk")), ONE_TASK)


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ([Adapter(size=size, heads=2, share="ends") for size in (4, 6)], "two shapes"),
        ([Adapter(delta="low_rank", size=size, share="all") for size in (4, 6)], "two shapes"),
    ],
    ids=["ends", "all"],
)
def test_shared_adapters_of_two_shapes_have_no_paths(home, adapters, said):
    from polyhead.project.pretrained import load_trunk

    prepared = [
        msgspec.structs.replace(p, strategy=InLayer(adapters=(adapter,)))
        for p, adapter in zip(prepare(project(home, GROUP), home), adapters, strict=True)
    ]
    with pytest.raises(ConfigError, match=f"share arrays, 'family:.*{said}"):
        joint_paths(prepared, load_trunk(str(home / "trunk")), ONE_TASK)


def test_a_unit_trains_on_no_text_that_another_of_its_tasks_is_evaluated_on(home):
    made = prepare(project(home, GROUP), home)
    text = ("a text of more than twenty-five letters and digits stands here",)
    leaky = _with_text(made[0], "train", text), _with_text(made[1], "validation", text)
    told = []
    clean = prepare_groups(leaky, Events(say=told.append))
    assert len(clean[0].train.examples.targets) == len(made[0].train.examples.targets) - 1
    assert any("urgency" in line for line in told)
    alone = [msgspec.structs.replace(p, strategy=Prompted(isolated=True)) for p in leaky]
    assert prepare_groups(alone, Events()) == alone


def _with_text(prepared, split, text):
    """The task with its first row's input of that split replaced."""
    one = getattr(prepared, split)
    examples = msgspec.structs.replace(one.examples, inputs=[text, *one.examples.inputs[1:]])
    return msgspec.structs.replace(prepared, **{split: msgspec.structs.replace(one, examples=examples)})


def test_a_units_training_numbers_are_compared_before_anything_is_read(home):
    first, second = prepare(project(home, GROUP), home)
    other = msgspec.structs.replace(second.training, epochs=7)
    with pytest.raises(TrainError, match="one set of training numbers"):
        prepare_groups([first, msgspec.structs.replace(second, training=other)], Events())
