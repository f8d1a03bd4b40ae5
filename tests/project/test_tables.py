"""The project file: what it may say, the defaults, and where relative names start."""

import msgspec
import pytest

from polyhead.errors import BadName, ConfigError, PolyheadError
from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.strategies.base import LIVE_TRAINING
from polyhead.project.strategies.branch import BRANCH_TRAINING
from polyhead.project.tables import (
    JOINT_TRAINING,
    AllocationRule,
    TrunkChoice,
    read_project,
    strategy_of,
    training_of,
    with_seed,
)
from support.tiny_project import to_toml

TASK = '[[tasks]]\nname = "mood"\nkind = "single_label"\nlabels = ["a", "b"]\ntrain = "x.jsonl"\n'


def read(folder, text):
    path = folder / "polyhead.toml"
    path.write_text(text)
    return read_project(path)


def test_a_task_and_a_file_are_enough(tmp_path):
    project = read(tmp_path, TASK)
    (entry,) = project.tasks
    assert (project.bundle, project.trunk.name, project.training) == ("bundle", "minilm", None)
    assert strategy_of(project, entry) == Pooled() and training_of(project, entry) == Training()
    assert entry.validation == 0.1
    assert entry.test is None
    assert entry.task().labels == ("a", "b")


def test_what_is_written_reads_back_equal(tmp_path):
    own = "[tasks.training]\nepochs = 3\n"
    project = read(tmp_path, f'bundle = "b"\n[strategy]\nkind = "pooled"\nlayers = "learned"\n{TASK}{own}')
    assert read(tmp_path, to_toml(project)) == project


def test_a_tasks_own_strategy_and_training_win(tmp_path):
    text = TASK + '[tasks.strategy]\nkind = "pooled"\npositions = "first"\n[tasks.training]\nepochs = 2\n'
    project = read(tmp_path, "[training]\nepochs = 9\n" + text)
    (entry,) = project.tasks
    assert strategy_of(project, entry).positions == "first"
    assert training_of(project, entry).epochs == 2
    plain = msgspec.structs.replace(entry, strategy=None, training=None)
    assert strategy_of(project, plain) == Pooled()
    assert training_of(project, plain).epochs == 9


def test_a_seed_reaches_every_task(tmp_path):
    own = TASK.replace("mood", "own") + "[tasks.training]\nepochs = 2\n"
    branch = TASK.replace("mood", "branch") + "[tasks.strategy]\nkind = 'branch'\n"
    for shared in ("", "[training]\nepochs = 9\nseed = 3\n"):
        before = read(tmp_path, shared + TASK + own + branch)
        project = with_seed(before, 5)
        assert len(project.tasks) == 3
        for entry, old in zip(project.tasks, before.tasks, strict=True):
            assert training_of(project, entry).seed == 5
            unseeded = msgspec.structs.replace(training_of(project, entry), seed=training_of(before, old).seed)
            assert unseeded == training_of(before, old), entry.name


BRANCH = "[strategy]\nkind = 'branch'\n"
JOINT = "[recipe]\nkind = 'joint'\n"
SHARED = "[tasks.strategy]\nkind = 'on_top'\npooler = 'shared'\n"
POOLERS = TASK + SHARED + TASK.replace("mood", "b") + SHARED + "pooler_init = 'random'\n"


def test_a_branch_says_everything_that_its_strategy_can(tmp_path):
    said = (
        "layers = 2\ntap = 1\nsearch = 'grid'\nseeds = 2\npositions = 'mean'\nhidden = 0\n"
        "pooler_init = 'random'\ndropout = 0.2\nstudents = [1]\ninit = 'pretrained'\n"
        "temperature = 1.5\nnoisy_teacher = true\n"
    )
    project = read(tmp_path, BRANCH + said + TASK)
    fields = msgspec.structs.asdict(project.strategy)
    plain = msgspec.structs.asdict(Branch())
    assert isinstance(project.strategy, Branch)
    assert {name for name in fields if fields[name] == plain[name]} == {"least", "most"}
    assert project.strategy.students == (1,) and project.strategy.tap == 1
    assert read(tmp_path, to_toml(project)) == project


def test_an_allocation_says_how_branches_are_chosen(tmp_path):
    assert read(tmp_path, TASK).allocation == AllocationRule(rule="marginal", c=1.0)
    greedy = read(tmp_path, "[allocation]\nrule = 'greedy'\nc = 2.5\n" + TASK)
    assert greedy.allocation == AllocationRule(rule="greedy", c=2.5)
    budget = read(tmp_path, "[allocation]\nrule = 'budget'\nbudget = 33\nunit = 'bytes'\n" + TASK)
    assert budget.allocation == AllocationRule(rule="budget", budget=33, unit="bytes")
    with pytest.raises(ConfigError, match=r"allocation.unit would change nothing"):  # it was ignored
        read(tmp_path, "[allocation]\nunit = 'bytes'\n" + TASK)


def test_training_that_is_not_said_is_that_of_the_tasks_strategy(tmp_path):
    """A file may mix strategies: each task has the numbers of its own, and what is said holds for all."""
    text = TASK + TASK.replace("mood", "deep") + "[tasks.strategy]\nkind = 'branch'\n"
    project = read(tmp_path, text)
    pooled, branch = project.tasks
    assert training_of(project, pooled) == Training() != training_of(project, branch) == BRANCH_TRAINING
    said = read(tmp_path, "[training]\nepochs = 9\n" + text)
    assert training_of(said, said.tasks[0]) == training_of(said, said.tasks[1]) == Training(epochs=9)
    whole = read(tmp_path, BRANCH + TASK)
    assert training_of(whole, whole.tasks[0]) == BRANCH_TRAINING


@pytest.mark.parametrize("kind", ["prompted", "in_layer", "on_top"])
def test_prompts_and_adapters_over_a_frozen_trunk_have_numbers_of_their_own(tmp_path, kind):
    """A higher rate and fewer passes than a pooler's; what a file says wins, and so does a recipe that learns."""
    text = TASK + TASK.replace("mood", "live") + f"[tasks.strategy]\nkind = '{kind}'\n"
    project = read(tmp_path, text)
    pooled, live = project.tasks
    assert training_of(project, pooled) == Training()
    found = training_of(project, live)
    assert found == LIVE_TRAINING
    assert 1e-3 <= found.learning_rate <= 5e-3 and 3 <= found.epochs <= 10
    said = read(tmp_path, "[training]\nlearning_rate = 3e-4\n" + text)
    assert training_of(said, said.tasks[1]) == Training(learning_rate=3e-4)
    own = read(tmp_path, text + "[tasks.training]\nepochs = 30\n")
    assert training_of(own, own.tasks[1]) == Training(epochs=30)
    joint = read(tmp_path, "[recipe]\nkind = 'joint'\n" + text)
    assert training_of(joint, joint.tasks[1]) == JOINT_TRAINING


def test_paths_start_at_the_project_file(tmp_path):
    (entry,) = read(tmp_path, TASK).tasks
    assert entry.source(entry.train, tmp_path).path == str(tmp_path / "x.jsonl")
    assert entry.source("/elsewhere/x.jsonl", tmp_path).path == "/elsewhere/x.jsonl"
    assert entry.source("datasets:a/b", tmp_path).path == "datasets:a/b"


def test_rows_can_be_chosen(tmp_path):
    text = TASK.replace('"x.jsonl"', '{ path = "x.jsonl", where = { split = "train" }, limit = 3 }')
    (entry,) = read(tmp_path, text).tasks
    source = entry.source(entry.train, tmp_path)
    assert (source.where, source.limit) == ({"split": "train"}, 3)


def test_a_trunk_folder_beside_the_file_is_taken_before_a_hub_id(tmp_path):
    (tmp_path / "trunk").mkdir()
    assert TrunkChoice(name="trunk").place(tmp_path) == str(tmp_path / "trunk")
    assert TrunkChoice(name=str(tmp_path / "trunk")).place(tmp_path / "other") == str(tmp_path / "trunk")
    assert TrunkChoice(name="owner/model").place(tmp_path) == "owner/model"
    (tmp_path / "minilm").mkdir()
    assert TrunkChoice().place(tmp_path) == "minilm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tasks"),
        ("tasks = []", "no task"),
        (TASK + TASK, "two tasks"),
        (TASK + TASK.replace("mood", "MOOD"), "two tasks"),
        (TASK.replace("mood", "a/b"), "name"),
        (TASK.replace("single_label", "essay"), "essay"),
        (TASK + "validation = 1.5\n", "validation"),
        (TASK + "validation = 0.0\n", "validation"),
        (TASK + "validation = 1\n", "validation"),
        (TASK + "validation = true\n", "validation"),
        (TASK + "range = [0, 1]\n", "range"),
        # Values that kinds which read them have anyway were taken for every kind.
        (TASK + 'decoder = "greedy"\n', "'mood': kind 'single_label' has no use for 'decoder'"),
        (TASK + "threshold = 0.5\n", "'mood': kind 'single_label' has no use for 'threshold'"),
        (TASK.replace('["a", "b"]', '["a", "a"]'), "label"),
        (TASK.replace('["a", "b"]', '["a"]'), "label"),
        (TASK.replace('["a", "b"]', "[1, 2]"), "labels"),
        (TASK + 'metric = "span_f1"\n', "span_f1"),
        (TASK + 'labls = ["a"]\n', "did you mean 'labels'?"),
        (TASK + "[tasks.training]\nepocs = 1\n", "did you mean 'epochs'?"),
        (TASK + '[tasks.strategy]\nkind = "pooled"\nposition = "first"\n', "did you mean 'positions'?"),
        (TASK + '[tasks.strategy]\nkind = "poled"\n', "kind"),
        ("[trunk]\nmax_tokens = 2\n" + TASK, "max_tokens"),
        ("[training]\nepochs = -1\n" + TASK, "epochs"),
        ("[training]\nlearning_rate = nan\n" + TASK, "learning_rate"),
        ("[training]\nlearning_rate = inf\n" + TASK, "learning_rate"),
        ("[training]\nweight_decay = -0.1\n" + TASK, "weight_decay"),
        ("[training]\nclip = 0.0\n" + TASK, "clip"),
        ("[training]\ndropout = 1.0\n" + TASK, "dropout"),
        ("[training]\nwarmup = -0.1\n" + TASK, "warmup"),
        ("[strategy]\nkind = 'pooled'\nof = 0\n" + TASK, "of"),
        ("[strategy]\nkind = 'pooled'\nheads = 0\n" + TASK, "heads"),
        ("[strategy]\nkind = 'pooled'\nhidden = -1\n" + TASK, "hidden"),
        ("[strategy]\nlayers = 2\n" + TASK, "kind"),
        (BRANCH + "layers = 0\n" + TASK, "strategy.layers"),
        (BRANCH + "layers = 1.5\n" + TASK, "layers"),
        (BRANCH + "layer = 1\n" + TASK, "did you mean 'layers'?"),
        (BRANCH + "tap = 2\n" + TASK, "strategy.tap needs strategy.layers"),
        (BRANCH + "layers = 1\ntap = -1\n" + TASK, "strategy.tap"),
        (BRANCH + "least = 0\n" + TASK, "strategy.least"),
        (BRANCH + "most = 0\n" + TASK, "strategy.most"),
        (BRANCH + "least = 3\nmost = 2\n" + TASK, "strategy.most is below strategy.least"),
        (BRANCH + "layers = 2\nleast = 2\n" + TASK, "strategy.least would change nothing"),
        (BRANCH + "layers = 2\nmost = 3\n" + TASK, "strategy.most would change nothing"),
        (BRANCH + "temperature = 1.5\n" + TASK, "strategy.temperature would change nothing"),
        ("recipe = {kind = 'joint', head_learning_rate = 0.01}\n" + TASK, "recipe.head_learning_rate would change"),
        ("recipe = {kind = 'fine_tune', head_learning_rate = 0.01}\n" + TASK, "recipe.head_learning_rate would change"),
        (
            "recipe = {kind = 'joint', micro_batches = 8, sampling = {kind = 'all'}}\n" + TASK,
            "recipe.micro_batches would change nothing: with sampling 'all'",
        ),
        (BRANCH + "init = 'pretrained'\n" + TASK, "strategy.init would change nothing"),
        (BRANCH + "noisy_teacher = true\n" + TASK, "strategy.noisy_teacher would change nothing"),
        (
            JOINT + BRANCH + "layers = 2\ndropout = 0.2\n" + TASK,
            "strategy.dropout would change nothing: recipe.layer_dropout is",
        ),
        (POOLERS, "share a pooler have one strategy.pooler_init"),
        (BRANCH + "seeds = 0\n" + TASK, "strategy.seeds"),
        (BRANCH + "search = 'random'\n" + TASK, "search"),
        (BRANCH + "positions = 'tokens'\n" + TASK, "positions"),
        (BRANCH + "hidden = -1\n" + TASK, "strategy.hidden"),
        (BRANCH + "dropout = 1.0\n" + TASK, "strategy.dropout"),
        (BRANCH + "dropout = -0.1\n" + TASK, "strategy.dropout"),
        (BRANCH + "temperature = 0.0\n" + TASK, "strategy.temperature"),
        (BRANCH + "temperature = inf\n" + TASK, "strategy.temperature"),
        (BRANCH + "students = [1, 0]\n" + TASK, "student"),
        (BRANCH + "students = 1\n" + TASK, "students"),
        (BRANCH + "layers = 2\nstudents = [1, 2]\n" + TASK, "fewer private layers than its teacher"),
        (BRANCH + "most = 2\nstudents = [3]\n" + TASK, "fewer private layers than its teacher"),
        (BRANCH + "init = 'random'\n" + TASK, "init"),
        ("[allocation]\nrule = 'best'\n" + TASK, "rule"),
        ("[allocation]\nc = -1\n" + TASK, "allocation.c"),
        ("[allocation]\nc = inf\n" + TASK, "allocation.c"),
        ("[allocation]\nrule = 'budget'\n" + TASK, "allocation.budget"),
        ("[allocation]\nbudget = 9\n" + TASK, "allocation.budget"),
        ("[allocation]\nrule = 'greedy'\nbudget = 9\n" + TASK, "allocation.budget"),
        ("[allocation]\nrule = 'budget'\nbudget = 0\n" + TASK, "allocation.budget"),
        ("[allocation]\nrule = 'budget'\nbudget = 9\nunit = 'seconds'\n" + TASK, "unit"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_files_name(tmp_path, text, said):
    with pytest.raises((ConfigError, BadName)) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert "polyhead.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[training]\nepochs = -1\n" + TASK, "training"),
        (BRANCH + "tap = 2\n" + TASK, "strategy"),
        (TASK + TASK.replace("mood", "b") + "[tasks.strategy]\nkind = 'branch'\ntap = 2\n", "tasks[1].strategy"),
        (TASK + "[tasks.training]\nclip = 0.0\n", "tasks[0].training"),
        ("[recipe]\nkind = 'joint'\n[recipe.sampling]\ncap = 0\n" + TASK, "recipe.sampling"),
        (TASK + TASK.replace("mood", "a/b"), "tasks[1]"),  # of the task that is declared
        (TASK + TASK, None),
    ],
)
def test_what_is_refused_is_named_with_its_place(tmp_path, text, where):
    with pytest.raises((ConfigError, BadName)) as caught:
        read(tmp_path, text)
    place = f"polyhead.toml, {where}: " if where else "polyhead.toml: "
    assert str(caught.value).count("polyhead.toml") == 1 and place in str(caught.value)
    assert caught.value.path == (f"$.{where}" if where else "$")


def test_every_refusal_is_one_of_ours(tmp_path):
    """Any one line of a file, dropped or doubled, is read or refused, and nothing else."""
    whole = "bundle = 'b'\n[trunk]\nname = 'x'\n[training]\nseed = 2\n" + TASK
    lines = whole.splitlines()
    for index in range(len(lines)):
        for kept in (lines[:index] + lines[index + 1 :], lines[: index + 1] + lines[index:]):
            try:
                read(tmp_path, "\n".join(kept))
            except PolyheadError as error:
                assert "polyhead.toml" in str(error)


def test_a_key_of_another_table_is_said_to_belong_there(tmp_path):
    """`learning_rate` in a task was taken for a slip of `long_texts`."""
    cases = {
        TASK + "learning_rate = 0.1\n": "put it into the table [training]",
        TASK + "lr = 0.1\n": "write 'learning_rate' in the table [training]",
        TASK + "max_tokens = 64\n": "put it into the table [trunk]",
        'labels = ["a"]\n' + TASK: "put it into the table [[tasks]]",
        '[trunk]\nname = "minilm"\nmetric = "accuracy"\n' + TASK: "put it into the table [[tasks]]",
        TASK + "labls = 1\n": "did you mean 'labels'?",
    }
    for text, said in cases.items():
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, text)
        assert said in str(caught.value), text


@pytest.mark.parametrize("name", ["mood.csv", "mood.TSV", "mood.jsonl.gz", "mood.xlsx", "mood.parquet"])
def test_a_table_in_place_of_the_project_file_is_told_from_it(tmp_path, name):
    """It was a TOML file of which a line was to be corrected."""
    path = tmp_path / name
    path.write_text("text,mood\na,b\n")
    with pytest.raises(ConfigError, match="no project file") as caught:
        read_project(path)
    assert f"`polyhead init {path}` first" in caught.value.do
    with pytest.raises(ConfigError, match="no project file"):
        read_project(tmp_path / "gone.csv")
