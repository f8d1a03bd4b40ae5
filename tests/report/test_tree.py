"""A plan drawn as a tree."""

from polyhead.plan import Codec, Delta, Embed, Layers, Pool, Prompt, merge
from polyhead.report.tree import describe, tree
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk

TASKS = {task.name: task for task in tiny_tasks()}


def test_a_tree_has_one_line_a_step_and_names_every_task():
    trunk = tiny_trunk()
    paths = {
        "mood": tiny_path(TASKS["mood"], trunk, pool=Pool(), stop=1),
        "topics": tiny_path(TASKS["topics"], trunk, pool=Pool(positions="mean")),
        "alike": tiny_path(TASKS["alike"], trunk, pool=Pool(positions="mean")),
    }
    plan = merge(paths)
    lines = tree(plan)
    assert len(lines) == len(plan.steps)
    assert lines == [
        f"Embed trunk {trunk.digest[:12]}  [3 tasks]",
        "└─ Layers 1..1  [3 tasks]",
        "   ├─ Pool last layer, first, float32",
        "   │  └─ Head single_label, tanh 8, 2 outputs  → mood",
        "   └─ Layers 2..2  [2 tasks]",
        "      └─ Pool last layer, mean, float32  [2 tasks]",
        "         ├─ Head multi_label, tanh 8, 3 outputs  → topics",
        "         └─ Head regression, tanh 8, 1 outputs, two texts compared  → alike",
    ]


def test_every_node_says_what_is_its_own():
    assert describe(Embed(trunk="a" * 64, prompts=(Prompt(part="task:a", rows=3),))).endswith("1 prompts")
    layers = Layers(start=2, stop=4, weights="task:a", delta=Delta(kind="low_rank", part="task:b", size=4))
    assert describe(layers) == "Layers 3..4 of task:a with low_rank of task:b"
    pool = Pool(
        layers="mean", of=4, positions="attention", heads=6, part="task:a", codec=Codec(before_mean=True)
    )
    assert describe(pool) == "Pool mean of the last 4, attention, 6 heads, float16 before the mean"
