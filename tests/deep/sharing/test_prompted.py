"""Strategy `prompted`: one input for a group, isolated prompts beside the text, and whose prompts a step trains."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead import plan
from polyhead.bundle.owners import check_family
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import make_families, make_part
from polyhead.deep.sharing.part import PromptRows
from polyhead.errors import BadName, ConfigError, PlanError
from polyhead.plan import Embed, Head, Layers, Path, Pool, Prompt, cost
from polyhead.plan.passes import read_first
from polyhead.project.strategies import Pooled, Prompted, prompt_groups
from polyhead.project.strategies.prompted import shared_prompt
from polyhead.tasks.task import check_name
from polyhead.testing import tiny_owned, tiny_trunk
from support import reference_encoder
from support.cases import cases
from support.models import LENGTHS, TASKS, answers, assert_by_the_book, model_of, numbered, paths_of, texts_of

GROUP = ("mood", "topics", "urgency")
APART = Prompted(isolated=True)


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def texts(trunk):
    return texts_of(trunk)[1]


# paths


@cases("name", ["", "a b", "../x", "a:b", "a+b", "a..b", "a.", "-a", "é", "x" * 65, "a\n"])
def test_a_group_is_named_as_a_task_may_be(name):
    """Since its shared rows are kept in a folder of this name: refused where the project is read."""
    with pytest.raises(BadName):
        check_name(name)
    with pytest.raises(ConfigError, match="strategy.group"):
        Prompted(group=name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_a_groups_good_name_is_that_of_a_family(name):
    check_family(shared_prompt(Prompted(group=name).group))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"isolated": True, "group": "g"}, "group"),
        ({"isolated": True, "stop_gradient": False}, "stop_gradient"),
        ({"donor_epochs": 3}, "donor_epochs"),
        ({"init": "frequent", "donor_learning_rate": 1e-2}, "donor_learning_rate"),
    ],
    ids=str,
)
def test_what_a_prompt_would_not_read_is_refused(fields, name):
    with pytest.raises(ConfigError, match=f"strategy.{name} would change nothing"):
        Prompted(**fields)
    assert Prompted(pooler_init="donors", donor_epochs=3).donor_epochs == 3


def test_a_group_is_one_input_with_the_tasks_prompts_in_order(trunk):
    paths = paths_of(trunk, Prompted(group="g", rows=3, shared=2, shift=True), *GROUP)
    prompts = (Prompt(part="family:prompts:g", rows=2), *(Prompt(part=f"task:{n}", rows=3) for n in GROUP))
    for name, path in paths.items():
        assert path.nodes == (
            Embed(trunk=trunk.digest, prompts=prompts, shift=True),
            Layers(start=0, stop=2),
            Pool(positions="prompt", part=f"task:{name}"),
            Head(kind=TASKS[name].kind, width=path.head.width, part=f"task:{name}", hidden=16, bias=False),
        )
    assert len([s for s in plan.merge(paths).steps if isinstance(s.node, (Embed, Layers))]) == 2


def test_an_isolated_task_stands_alone_in_its_path(trunk):
    paths = paths_of(trunk, Prompted(isolated=True, hidden=5), *GROUP)
    assert [path.embed.prompts for path in paths.values()] == [(Prompt(part=f"task:{name}", rows=2),) for name in GROUP]
    assert all(path.embed.isolated and path.head.hidden == 5 for path in paths.values())


def test_a_new_task_has_the_parameters_that_the_paper_counts():
    """d^2 + (L_P + c + 1) d; 592,896 for one label of a width of 768."""
    wide = tiny_trunk(width=768, layers=1)
    paths = paths_of(wide, Prompted(), "urgency", "mood", "topics")
    for name, count in (("urgency", 592_896), ("mood", 593_664), ("topics", 594_432)):
        sizes = cost.part_arrays(paths[name], wide.architecture, f"task:{name}").values()
        assert sum(int(np.prod(size)) for size in sizes) == count


def test_tasks_that_are_answered_by_words_read_the_texts_words_among_the_group(trunk):
    assert paths_of(trunk, Prompted(), "mood", "names")["names"].pool == Pool(positions="tokens")
    with pytest.raises(ConfigError, match="see no isolated prompt"):
        paths_of(trunk, APART, "names")


@pytest.mark.parametrize("change", [{"shared": 1}, {"shift": True}], ids=str)
def test_isolated_prompts_have_no_rows_beside_them_and_move_no_text(change):
    with pytest.raises(ConfigError, match="see no other rows than the text"):
        Prompted(isolated=True, **change)


def test_groups_hold_their_own_tasks_in_order_and_isolated_ones_none():
    strategies = [Prompted(group="a"), Pooled(), Prompted(group="b"), Prompted(group="a"), APART]
    tasks = [TASKS[name] for name in ("urgency", "names", "mood", "topics", "same")]
    assert prompt_groups(list(zip(tasks, strategies, strict=True))) == {
        "urgency": ("task:urgency", "task:topics"),
        "names": ("task:names",),
        "mood": ("task:mood",),
        "topics": ("task:urgency", "task:topics"),
        "same": ("task:same",),
    }


@pytest.mark.parametrize("change", [{"rows": 3}, {"shared": 1}, {"shift": True}], ids=str)
def test_tasks_of_a_group_that_differ_in_their_input_are_refused(change):
    pairs = [(TASKS["mood"], Prompted(group="g")), (TASKS["topics"], Prompted(group="g", **change))]
    with pytest.raises(ConfigError, match=f"group 'g'.*strategy.{next(iter(change))}") as caught:
        prompt_groups(pairs)
    assert set(caught.value.got) == {"mood", "topics"}


# what they compute


@pytest.mark.parametrize(
    "settings",
    [{}, {"rows": 1}, {"shared": 3}, {"shift": True, "shared": 1, "hidden": 5}, {"isolated": True}],
    ids=["group", "one row", "shared rows", "shifted", "isolated"],
)
def test_answers_are_those_of_the_papers_formula(trunk, settings):
    """The plain backend puts an isolated prompt and a text of its own under a mask."""
    paths = paths_of(trunk, Prompted(**settings), *GROUP, *(() if settings.get("isolated") else ("names",)))
    assert_by_the_book(trunk, paths, model_of(trunk, paths))


def test_a_group_is_read_from_one_pass_over_all_prompts_and_the_text(trunk, texts):
    """[P_1; P_2; P_3; X] with the mean over a task's own rows, each text alone, against loops in float64."""
    paths = paths_of(trunk, Prompted(hidden=5), *GROUP)
    model, owned = model_of(trunk, paths), tiny_owned(paths, trunk.architecture)
    found = answers(model, paths, texts)
    assert model.layers_run == 2
    for row, length in enumerate(LENGTHS):
        ids, segments = (getattr(texts, name)[row, :length].numpy() for name in ("ids", "segments"))
        prompts = [owned[name].arrays["prompt.weight"] for name in GROUP]
        hidden = reference_encoder.embedded(trunk.arrays, ids, segments, prompts=prompts)
        for index in range(2):
            hidden = reference_encoder.layer(
                trunk.arrays, f"layers.{index}", hidden, reference_encoder.everything(6 + length)
            )
        for place, name in enumerate(GROUP):
            own = hidden[2 * place : 2 * place + 2].mean(axis=0)[None]
            inner = np.tanh(reference_encoder.linear(owned[name].arrays, "head.hidden", own))
            expected = inner @ owned[name].arrays["head.output.weight"].T
            np.testing.assert_allclose(found[name][row].numpy(), expected[0], atol=1e-5)


def test_prompts_of_a_group_see_each_other(trunk, texts):
    three, two = (paths_of(trunk, Prompted(), *names) for names in (GROUP, GROUP[:2]))
    together, fewer = (answers(model_of(trunk, paths), paths, texts) for paths in (three, two))
    assert (together["mood"] - fewer["mood"]).abs().max() > 1e-3


def test_the_text_may_count_the_rows_before_it(trunk, texts):
    plain, moved = (
        answers(model_of(trunk, paths), paths, texts)
        for paths in (paths_of(trunk, Prompted(shift=shift), *GROUP) for shift in (False, True))
    )
    assert (plain["mood"] - moved["mood"]).abs().max() > 1e-3


# isolated prompts


def test_isolated_prompts_one_after_another_change_no_bit_of_each_other(trunk, texts):
    tasks = numbered(5)
    paths = paths_of(trunk, [APART] * 4 + [Prompted(isolated=True, rows=3)], *tasks)
    whole, stacked = (answers(model_of(trunk, paths, stacked=on), paths, texts) for on in (False, True))
    for several in (tasks[:1], tasks[1:3], tasks[:4], tasks[4:]):
        fewer = {task.name: paths[task.name] for task in several}
        for name, value in answers(model_of(trunk, fewer), fewer, texts).items():
            assert torch.equal(value, whole[name]), name
            torch.testing.assert_close(stacked[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("stacked", [False, True])
def test_isolated_prompts_share_the_text_and_leave_its_bits_alone(trunk, texts, stacked):
    prompted, rest = paths_of(trunk, APART, *GROUP), paths_of(trunk, Pooled(codec="float32"), "same", "names")
    model = model_of(trunk, {**prompted, **rest}, stacked=stacked)
    together = answers(model, {**prompted, **rest}, texts)
    assert model.layers_run == 2 == cost.layer_evaluations(plan.merge({**prompted, **rest}))
    alone = answers(model_of(trunk, rest), rest, texts)
    assert all(torch.equal(together[name], alone[name]) for name in rest)


def test_isolated_prompts_beside_a_narrow_text_are_those_beside_the_whole(trunk, texts):
    """The text's last layer is read by nobody, or at its first position alone."""
    first = Pooled(layers="last", positions="first", codec="float32")
    for paths in (paths_of(trunk, APART, *GROUP), paths_of(trunk, [APART, first], "mood", "same")):
        whole = answers(model_of(trunk, paths), paths, texts)
        narrow = answers(model_of(trunk, paths, narrow=True), paths, texts)
        for name, value in whole.items():
            torch.testing.assert_close(narrow[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("strategy", [Prompted(), Prompted(shared=1)], ids=["own rows", "shared rows too"])
def test_prompt_rows_alone_in_the_last_layer_are_those_of_the_whole(trunk, texts, strategy):
    """A task that reads words reads the text behind the prompts: with it, all rows are computed."""
    for names, rows in ((GROUP, 6 + strategy.shared), ((*GROUP, "names"), 0)):
        paths = paths_of(trunk, strategy, *names)
        merged = plan.merge(paths)
        assert read_first(merged, 1) == rows
        whole = answers(model_of(trunk, paths), paths, texts)
        narrow = answers(model_of(trunk, paths, narrow=True), paths, texts)
        for name, value in whole.items():
            torch.testing.assert_close(narrow[name], value, atol=1e-5, rtol=0)


def test_isolated_prompts_stand_beside_plain_layers_only(trunk, texts):
    path = paths_of(trunk, APART, "mood")["mood"]
    model = model_of(trunk, {"mood": path})
    strange = Path(nodes=tuple(Pool() if isinstance(node, Pool) else node for node in path.nodes))
    with pytest.raises(PlanError, match="stand beside the trunk's plain layers"):
        model.stored(plan.merge({"mood": strange}), texts)


# whose prompts a step trains


def gradients(model, paths, texts, *, learns):
    """Which prompts get a gradient from the loss of task `mood`, and its outputs."""
    model.zero_grad()
    merged = plan.merge({"mood": paths["mood"]})
    value = model.stored(merged, texts, learns=learns)["mood"]
    outputs = model.parts["mood"](value.values, value.mask)
    outputs.square().sum().backward()
    owned = {owner: module.prompt.weight.grad for owner, module in (*model.parts.items(), *model.families.items())}
    return outputs.detach(), {owner: grad is not None and bool(grad.any()) for owner, grad in owned.items()}


def test_a_stopped_gradient_changes_no_bit_of_the_answer(trunk, texts):
    paths = paths_of(trunk, Prompted(group="g", shared=1), *GROUP)
    model = model_of(trunk, paths)
    free, everywhere = gradients(model, paths, texts, learns=None)
    stopped, own = gradients(model, paths, texts, learns="mood")
    assert torch.equal(free, stopped)
    assert everywhere == dict.fromkeys((*GROUP, "family:prompts:g"), True)
    assert own == {"mood": True, "topics": False, "urgency": False, "family:prompts:g": True}


def test_a_stopped_gradient_goes_through_the_backbone_as_before(trunk, texts):
    """The other prompts' inputs are cut off, not their states: what the trunk gets is the same."""
    paths = paths_of(trunk, Prompted(), *GROUP)
    model, found = model_of(trunk, paths), []
    for learns in (None, "mood"):
        gradients(model, paths, texts, learns=learns)
        found.append([p.grad.clone() for p in model.trunk.layers.parameters() if p.grad is not None])
        own = model.parts["mood"].prompt.weight.grad
        found[-1].append(own.clone())
    assert len(found[0]) > 20 and all(map(torch.equal, *found))


@pytest.mark.parametrize("isolated", [False, True])
def test_a_step_leaves_other_tasks_parts_alone_to_the_bit(trunk, texts, isolated):
    """Separate parameters: no decay and no momentum reach a prompt whose task is not in the step (AdamW)."""
    paths = paths_of(trunk, Prompted(isolated=isolated), *GROUP)
    model = model_of(trunk, paths)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for learner in ("topics", "mood", "mood"):
        before = {n: {k: v.clone() for k, v in part.state_dict().items()} for n, part in model.parts.items()}
        optimizer.zero_grad(set_to_none=True)
        value = model.stored(plan.merge({learner: paths[learner]}), texts, learns=learner)[learner]
        model.parts[learner](value.values, value.mask).square().sum().backward()
        optimizer.step()
        for name, part in model.parts.items():
            equal = {k: torch.equal(v, before[name][k]) for k, v in part.state_dict().items()}
            assert all(equal.values()) if name != learner else not equal["prompt.weight"], (name, equal)


# arrays


@pytest.mark.parametrize("settings", [{}, {"shared": 2}, {"isolated": True}], ids=str)
def test_arrays_are_named_and_owned_as_cost_counts_them(trunk, settings):
    paths, shape = paths_of(trunk, Prompted(**settings), *GROUP), trunk.architecture
    families = make_families(paths, shape)
    assert set(families) == ({"family:prompts:prompts"} if "shared" in settings else set())
    merged = plan.merge(paths)
    for name, path in paths.items():
        part = make_part(path, shape, families=families)
        own = {k: tuple(v.shape) for k, v in part.state_dict().items()}
        assert own == cost.part_arrays(path, shape, f"task:{name}")
    for owner, family in families.items():
        found = {k: tuple(v.shape) for k, v in family.state_dict().items()}
        assert found == {a.name: a.shape for a in cost.arrays_of_plan(merged, shape) if a.owner == owner}


def test_a_prompt_of_a_task_that_is_not_loaded_is_a_family_of_its_own(trunk, texts):
    """A group's answer is the same where only one of its tasks is loaded, with the others' prompts."""
    paths = paths_of(trunk, Prompted(), *GROUP)
    whole, one = model_of(trunk, paths), model_of(trunk, {"mood": paths["mood"]})
    assert set(one.families) == {"task:topics", "task:urgency"}
    assert all(set(family.state_dict()) == {"prompt.weight"} for family in one.families.values())
    alone = answers(one, {"mood": paths["mood"]}, texts)["mood"]
    assert torch.equal(alone, answers(whole, {"mood": paths["mood"]}, texts)["mood"])


def test_prompts_start_as_a_normal_cut_at_two_deviations():
    rows = PromptRows(400, tiny_trunk().architecture, generator=torch.Generator().manual_seed(1)).weight
    again = PromptRows(400, tiny_trunk().architecture, generator=torch.Generator().manual_seed(1)).weight
    assert torch.equal(rows, again) and rows.abs().max() <= 0.04
    assert abs(rows.std() / (0.02 * 0.8796) - 1) < 0.03  # the deviation of a normal that is cut there


def test_prompts_of_a_narrow_embedding_are_as_wide_as_its_words():
    narrow = msgspec.structs.replace(tiny_trunk().architecture, embedding_width=8)
    assert PromptRows(2, narrow).weight.shape == (2, 8)


def test_a_trunk_in_another_precision_takes_prompts_in_float32(trunk, texts):
    paths = paths_of(trunk, Prompted(), *GROUP)
    half = answers(model_of(trunk, paths, live=Trunk.from_data(trunk, dtype=torch.bfloat16)), paths, texts)
    whole = answers(model_of(trunk, paths), paths, texts)
    assert all((half[name] - whole[name]).abs().max() < 0.5 for name in GROUP)
