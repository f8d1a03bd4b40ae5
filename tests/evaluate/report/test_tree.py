"""A plan drawn as a tree."""

from polyhead.evaluate.report.tree import describe, tree
from polyhead.plan import Codec, Delta, Embed, Layers, Path, Pool, Prompt, merge
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk

TASKS = {task.name: task for task in tiny_tasks()}


def test_a_tree_names_every_task_once_below_what_it_shares():
    trunk = tiny_trunk()
    paths = {
        "mood": tiny_path(TASKS["mood"], trunk, pool=Pool(), stop=1),
        "topics": tiny_path(TASKS["topics"], trunk, pool=Pool(positions="mean")),
        "alike": tiny_path(TASKS["alike"], trunk, pool=Pool(positions="mean")),
    }
    lines = tree(merge(paths))
    assert lines[0].startswith("Embed") and trunk.digest[:12] in lines[0]
    for name in paths:
        assert sum(name in line.split() for line in lines) == 1, lines
    assert [line.split("[")[1] for line in lines if "[" in line] == ["3 tasks]", "3 tasks]", "2 tasks]", "2 tasks]"]
    depth = {name: next(len(x) - len(x.lstrip(" │├└─")) for x in lines if name in x.split()) for name in paths}
    assert depth["mood"] < depth["topics"] == depth["alike"]


def test_every_node_says_what_is_its_own():
    prompted = describe(Embed(trunk="a" * 64, prompts=(Prompt(part="task:a", rows=3),)))
    assert prompted.endswith("1 prompt of 3 rows before the text")
    two = Embed(trunk="a" * 64, prompts=(Prompt(part="task:a", rows=1), Prompt(part="task:b", rows=1)))
    assert describe(two).endswith("2 prompts of 2 rows before the text")
    apart = Embed(trunk="a" * 64, prompts=(Prompt(part="task:a", rows=1),), isolated=True)
    assert describe(apart) == "own prompt of 1 row"
    layers = Layers(start=2, stop=4, weights="task:a", delta=Delta(kind="low_rank", part="task:b", size=4))
    for piece in ("3", "4", "of task:a", "with low_rank 4 of task:b"):
        assert piece in describe(layers)
    pool = Pool(layers="mean", of=4, positions="attention", heads=6, part="task:a", codec=Codec(before_mean=True))
    for piece in ("mean", "4", "attention", "6 heads", "float16", "before the mean"):
        assert piece in describe(pool)


def test_isolated_prompts_stand_beside_one_text():
    trunk = tiny_trunk()
    plain = tiny_path(TASKS["mood"], trunk, pool=Pool())
    paths = {"mood": plain}
    for name in ("topics", "alike"):
        owner = f"task:{name}"
        embed = Embed(trunk=trunk.digest, prompts=(Prompt(part=owner, rows=2),), isolated=True)
        head = tiny_path(TASKS[name], trunk, pool=Pool()).head
        pool = Pool(positions="prompt", part=owner)
        paths[name] = Path(nodes=(embed, Layers(start=0, stop=2), pool, head))
    lines = tree(merge(paths))
    header = next(i for i, line in enumerate(lines) if line.startswith("Beside the text"))
    assert trunk.digest[:12] in lines[header] and "run once" in lines[header]
    assert any("mood" in line for line in lines[:header])
    below = lines[header + 1 :]
    assert [line.split()[1] for line in below] == ["topics", "alike"]
    assert all("own prompt of 2 rows" in line for line in below)
