"""What every way of sharing costs on one text, for 1, 8 and 21 tasks: receipts, counts and the papers' figures.

Minutes on one core; nothing is trained. Each bundle has the shape of BERT-base with drawn weights, tasks of two labels
and one text of as many tokens as a row says. Four numbers must be the same: what the papers' formulas give (written out
here), what `plan.cost` counts from the plan, what the receipt of a Session says, and what torch counts while it
answers (its own counter of matrix products, less those of isolated prompts with each other, which are masked out).
Poolers read the mean of all positions: where the first alone is read, the last layer of a part computes it alone, which
is less than is counted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import trunk_arrays
from polyhead.engine.session import Result, Session
from polyhead.plan import Path, cost, merge
from polyhead.plan.cost.allocate import by_rule
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Pooled, Prompted, Strategy, prompt_groups
from polyhead.tasks.task import Task
from polyhead.testing.tiny import tiny_part, tiny_tokenizer
from polyhead.values import Value
from studies.huang2022.counts import BERT_BASE
from studies.results import Claim, results, write_results
from studies.settings import RESULTS
from studies.wei2021.published import published_options

NAME = "conditioning_costs"
NUMBERS, TOKENS = (1, 8, 21), 128
D, N, ROWS = BERT_BASE.width, BERT_BASE.layers, 2  # width, layers, rows of a prompt
HEAD = 2 * D * D + 2 * D * 2  # tanh pooler and two outputs, which the papers leave out


class Counted(Value):
    """The papers' formulas for so many tasks and tokens."""

    layers: int
    flops: int  # of the encoder
    added: int  # what the receipt says that the tasks added to a plain pass, heads left out
    masked: int = 0  # computed while answering and masked out, so that nobody counts them


class Way(Value, eq=False):
    """A way of sharing: each task's strategy, and what the papers' formulas give for it."""

    name: str
    strategy: Callable[[int], Strategy]  # of the task of this number
    counted: Callable[[int, int], Counted]  # tasks, tokens
    printed: dict[str, float] = {}  # GFLOPs of the encoder, by tasks and tokens, worked out from the paper
    over_plain: dict[str, float] = {}  # over a plain pass, likewise


def layer(tokens: int) -> int:
    """24 d² L + 4 L² d."""
    return 24 * D**2 * tokens + 4 * tokens**2 * D


def projected(tokens: int, size: int) -> int:
    """Projected attention: V_E and V_D, three maps of `size`, two products of attention."""
    return 4 * D * size * tokens + 6 * size**2 * tokens + 4 * size * tokens**2


def narrow(tokens: int, size: int = 204) -> int:
    """Six layers of attention on top, with its output map, between V_E and V_D."""
    return 4 * D * size * tokens + 6 * (8 * size**2 * tokens + 4 * size * tokens**2)


def network(tokens: int, size: int = 204) -> int:
    """A feed-forward network between V_E and V_D, 3/2 as wide, so that it weighs what projected attention does."""
    return 4 * D * size * tokens + 4 * size * (size * 3 // 2) * tokens


def shared(tasks: int, tokens: int) -> Counted:
    return Counted(layers=N, flops=N * layer(tokens), added=0)


def inside(function: Callable[[int], int], start: int = 0) -> Callable[[int, int], Counted]:
    """A function of the task's own in every layer from `start`."""

    def counted(tasks: int, tokens: int) -> Counted:
        own = tasks * (N - start) * (layer(tokens) + function(tokens))
        below = start * layer(tokens)
        return Counted(layers=start + tasks * (N - start), flops=below + own, added=own)

    return counted


def above(layers: int, function: Callable[[int], int]) -> Callable[[int, int], Counted]:
    """Layers of the task's own above the whole trunk."""

    def counted(tasks: int, tokens: int) -> Counted:
        own = tasks * function(tokens)
        return Counted(layers=N + tasks * layers, flops=N * layer(tokens) + own, added=own)

    return counted


def branches(tasks: int, tokens: int) -> Counted:
    """D + sum of l; the paper's mixed row is 33 layers for its eight tasks."""
    chosen = [mixed(number) for number in range(tasks)]
    deepest, private = max(option.tap or 0 for option in chosen), sum(option.layers or 0 for option in chosen)
    return Counted(layers=deepest + private, flops=(deepest + private) * layer(tokens), added=private * layer(tokens))


def joint_prompts(tasks: int, tokens: int) -> Counted:
    """All prompts in one input, which all tasks add together."""
    whole = N * layer(tokens + tasks * ROWS)
    return Counted(layers=N, flops=whole, added=whole)


def isolated_prompts(tasks: int, tokens: int) -> Counted:
    """A prompt's rows see the text and themselves; the text is read once. All prompts are run at once."""
    own = tasks * N * (24 * D**2 * ROWS + 4 * D * ROWS * (tokens + ROWS))
    others = N * 4 * D * ROWS**2 * tasks * (tasks - 1)
    return Counted(layers=N, flops=N * layer(tokens) + own, added=own, masked=others)


def prompts_apart(tasks: int, tokens: int) -> Counted:
    """A pass for each task's prompt."""
    whole = tasks * N * layer(tokens + ROWS)
    return Counted(layers=tasks * N, flops=whole, added=whole)


def mixed(number: int) -> Branch:
    """The branch that the paper's allocation at c = 1 gives its task of this number, again and again."""
    options = list(by_rule(published_options(), 1.0).values())
    option = options[number % len(options)]
    return Branch(tap=option.tap, layers=option.layers, positions="mean")


def adapters(**fields: Any) -> Callable[[int], Strategy]:
    strategy = InLayer(adapters=(Adapter(**fields),), positions="mean")
    return lambda number: strategy


WAYS = (
    Way(
        name="shared trunk",
        strategy=lambda number: Pooled(layers="last", positions="mean", codec="float32"),
        counted=shared,
        printed={"8 x 128": 22.3},
    ),
    Way(
        name="projected attention, every layer",
        strategy=adapters(size=204),
        counted=inside(lambda tokens: projected(tokens, 204)),
        printed={"8 x 128": 190.8},
    ),
    Way(
        name="projected attention, top half",
        strategy=adapters(size=276, start=6),
        counted=inside(lambda tokens: projected(tokens, 276), 6),
        printed={"8 x 128": 109.4},
    ),
    Way(
        name="low rank, every layer",
        strategy=adapters(delta="low_rank", size=100),
        counted=inside(lambda tokens: 4 * D * 100 * tokens),
    ),
    Way(
        name="projected attention, not tied",
        strategy=adapters(size=84, tied=False),
        counted=inside(lambda tokens: projected(tokens, 84)),
    ),
    Way(
        name="projected attention, in series",
        strategy=adapters(size=204, serial=True),
        counted=inside(lambda tokens: projected(tokens, 204)),
    ),
    Way(name="feed-forward, every layer", strategy=adapters(delta="feed_forward", size=204), counted=inside(network)),
    Way(name="LHUC, every layer", strategy=adapters(delta="scale", size=None), counted=inside(lambda tokens: 0)),
    Way(
        name="bottlenecks, every layer",
        strategy=adapters(delta="bottleneck", size=50),
        counted=inside(lambda tokens: 2 * 4 * D * 50 * tokens),
    ),
    Way(
        name="LoRA on query and value, every layer",
        strategy=adapters(delta="lora", size=8),
        counted=inside(lambda tokens: 2 * 4 * D * 8 * tokens),
    ),
    Way(
        name="feed-forward on top",
        strategy=lambda number: OnTop(form="feed_forward", layers=1, width=204, feed_forward=408, positions="mean"),
        counted=above(1, lambda tokens: 4 * D * 204 * tokens + 4 * 204 * 408 * tokens),
    ),
    Way(
        name="projected attention on top",
        strategy=lambda number: OnTop(width=204, positions="mean"),
        counted=above(6, narrow),
        printed={"8 x 128": 25.7},
    ),
    Way(
        name="a whole layer on top",
        strategy=lambda number: OnTop(form="layer", positions="mean"),
        counted=above(1, layer),
        printed={"8 x 128": 37.2},
    ),
    Way(name="branches, mixed", strategy=mixed, counted=branches, printed={"8 x 128": 61.5}),
    Way(
        name="prompts, one input",
        strategy=lambda number: Prompted(rows=ROWS),
        counted=joint_prompts,
        printed={"8 x 128": 25.2},
        over_plain={
            "8 x 128": 1.13,
            "8 x 50": 1.32,  # 1.3245
            "21 x 128": 1.34,
            "100 x 128": 2.67,
        },
    ),
    Way(name="prompts, isolated", strategy=lambda number: Prompted(rows=ROWS, isolated=True), counted=isolated_prompts),
    Way(
        name="prompts, a pass each",
        strategy=lambda number: Prompted(rows=ROWS, group=f"t{number}"),
        counted=prompts_apart,
        over_plain={"1 x 128": 1.02},
    ),
    Way(
        name="prefixes, every layer",
        strategy=adapters(delta="prefix", size=8),
        counted=inside(lambda tokens: 4 * 8 * D * tokens),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    trunk, rows = drawn_trunk(), list[dict[str, object]]()
    digest = trunk.digest
    for way in WAYS:
        lengths = {(number, TOKENS) for number in NUMBERS}
        lengths |= {(int(n), int(t)) for n, t in (key.split(" x ") for key in {**way.printed, **way.over_plain})}
        for tasks, tokens in sorted(lengths):
            rows.append(measured(way, tasks, tokens, trunk, digest))
            print(line_of(rows[-1]), flush=True)
    wrong = [row for row in rows if not row["equal"]]
    file = results(NAME, command=f"python -m benchmarks.{NAME}", rows=rows, claims=claims(rows, wrong))
    write_results(RESULTS, file)


def drawn_trunk() -> TrunkData:
    """BERT-base with drawn weights, and a tokenizer of about a hundred pieces."""
    rng = np.random.default_rng(0)
    arrays = {
        name: np.asarray(0.02 * rng.standard_normal(size) + name.endswith("norm.weight"), np.float32)
        for name, size in trunk_arrays(BERT_BASE)
    }
    settings = TextSettings(max_tokens=BERT_BASE.max_tokens)
    return TrunkData(name="drawn", architecture=BERT_BASE, arrays=arrays, tokenizer=tiny_tokenizer(), settings=settings)


def measured(way: Way, tasks: int, tokens: int, trunk: TrunkData, digest: str) -> dict[str, object]:
    """One row: layers, FLOPs and additions by formula, by count, in the receipt, and while answering."""
    named = [Task(name=f"t{number}", kind="single_label", labels=("no", "yes")) for number in range(tasks)]
    paths = paths_of([(task, way.strategy(number)) for number, task in enumerate(named)], digest)
    plan = merge(paths)
    formula, counted = way.counted(tasks, tokens), cost.cost_of(plan, BERT_BASE, tokens)
    result, run_layers, run_flops = answered(trunk, named, paths, "lamp " * (tokens - 2))
    receipt = result.receipt
    assert receipt.tokens == tokens and receipt.passes == 1 and len(result.answers) == tasks
    heads = tasks * HEAD
    layers = {
        "formula": formula.layers,
        "cost": counted.layer_evaluations,
        "receipt": receipt.layers,
        "run": run_layers,
    }
    flops = {"formula": formula.flops + heads, "cost": counted.flops, "run": run_flops - formula.masked}
    added = {"formula": formula.added + heads, "receipt": sum(receipt.added_flops.values())}
    key = f"{tasks} x {tokens}"
    printed = {"gflops": way.printed.get(key), "over_plain": way.over_plain.get(key)}
    ours = {"gflops": round(formula.flops / 1e9, 1), "over_plain": round(formula.flops / (N * layer(tokens)), 2)}
    equal = all(len(set(several.values())) == 1 for several in (layers, flops, added))
    return {
        "strategy": way.name,
        "tasks": tasks,
        "tokens": tokens,
        "layers": layers,
        "flops": flops,
        "added_flops": added,
        "encoder": ours,
        "paper": {name: value for name, value in printed.items() if value is not None},
        "equal": equal and all(printed[name] in (None, ours[name]) for name in printed),
    }


def paths_of(both: Sequence[tuple[Task, Strategy]], trunk: str) -> dict[str, Path]:
    groups = prompt_groups(both)
    return {
        task.name: strategy.path(task, trunk=trunk, shape=BERT_BASE, group=groups[task.name]) for task, strategy in both
    }


def answered(trunk: TrunkData, tasks: Sequence[Task], paths: Mapping[str, Path], text: str) -> tuple[Result, int, int]:
    """The answer of a bundle of these tasks; layers that ran and FLOPs as torch counts them."""
    with tempfile.TemporaryDirectory() as folder:
        root = FilePath(folder) / "bundle"
        write_bundle(root, trunk)
        drafts = []
        for seed, task in enumerate(tasks):
            path = paths[task.name]
            arrays = tiny_part(path, BERT_BASE, path.head.part, seed=seed)
            record = TaskRecord(task=task, path=path, trunk=path.embed.trunk)
            drafts.append(Draft(record=record, arrays=arrays, scores={}, probes=[], card=""))
        add_tasks(root, drafts)
        session = Session(Bundle.open(root, verify=False), backend="torch", precision="float32")
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch counts it on other devices alone
    counted = {attention: attention_flops, torch.ops.aten.bmm: product_flops}
    with FlopCounterMode(display=False, custom_mapping=counted) as counter:
        (result,) = session.predict([text])
    return result, session.backend.layers_run, counter.get_total_flops()


def attention_flops(query: object, key: object, value: object, *others: object, **named: object) -> int:
    """Of one call, by the shapes of its arguments."""
    return int(sdpa_flop_count(query, key, value))


def product_flops(left: Sequence[int], right: Sequence[int], *others: object, **named: object) -> int:
    """FLOPs of one product of matrices for each text; 0 for one row, a mean of positions, which no formula counts."""
    texts, rows, shared = left
    return 0 if rows == 1 else 2 * texts * rows * shared * right[-1]


def line_of(row: dict[str, object]) -> str:
    layers, flops = row["layers"], row["flops"]
    assert isinstance(layers, dict) and isinstance(flops, dict)
    outcome = "equal" if row["equal"] else f"NOT EQUAL: {layers} {flops} {row['added_flops']} {row['paper']}"
    return (
        f"{row['strategy']:34s} {row['tasks']:3} tasks {row['tokens']:4} tokens  {layers['cost']:4} layers  "
        f"{flops['cost'] / 1e9:7.2f} GFLOPs  {outcome}"
    )


def claims(rows: Sequence[dict[str, object]], wrong: Sequence[dict[str, object]]) -> list[Claim]:
    printed = sum(bool(row["paper"]) for row in rows)
    return [
        Claim(
            id="conditioning.costs-equal",
            text="ways of sharing, by number of tasks, whose layers or FLOPs differ between receipt, count and paper",
            target=0,
            value=len(wrong),
            unit=f"of {len(rows)}",
            holds=not wrong,
            note=f"BERT-base, 1, 8 and 21 tasks, one text; {printed} rows have a figure worked out from the papers"
            + ("" if not wrong else f"; wrong: {', '.join(str(row['strategy']) for row in wrong)}"),
        )
    ]


if __name__ == "__main__":
    main()
