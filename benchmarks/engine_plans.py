"""What plans cost in the engine: branches, siblings stacked, every strategy on one text, a task that comes.

    python -m benchmarks.engine_plans              all of it; an idle machine, nothing else running
    python -m benchmarks.engine_plans --quick      two repeats, one thread, processor seconds; writes nothing

Weights are drawn, as time alone counts; texts are real tweets of mixed length. Every ratio is of runs that take turns
in one process; the median over the repeats is reported. Tokenization is on neither side, so that it hides nothing; for
the task that comes it is part of the first answer. "Bare" is the trunk alone, one directly built graph on the same
batches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import one_pass_tasks
from benchmarks.engine_plans_claims import LAYERED, STACKED, Row, claims, lines
from benchmarks.engine_plans_made import Machine, Run, drawn_trunk, over, runtime_of
from polyhead.bundle.read import Bundle
from polyhead.cli.output import text_table
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.session import Session
from polyhead.plan import cost
from polyhead.plan.cost.allocate import best_under, price_of
from polyhead.project.pretrained import load_trunk
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Pooled, Prompted, Strategy
from studies.huang2022.counts import BERT_BASE
from studies.results import read_results
from studies.settings import RESULTS, command, report, say
from studies.wei2021 import options_of, runs_of

NAME = "engine_plans"
LEAST = 0.1  # seconds of a timing: shorter runs are repeated within it
BUDGET = 24  # layer evaluations of the mixed model, half of eight full encoders of six layers
SHARED, PRIVATE, PRODUCTION = 8, 32, 21  # layers and tasks of Wei et al. 2021, appendix E
EIGHT = 8
STRATEGIES: dict[str, Strategy] = {
    "pooled": Pooled(),
    "branches of 3 layers": Branch(layers=3),
    "prompts, one input": Prompted(),
    "prompts, isolated": Prompted(isolated=True),
    "projected attention, every layer": InLayer(),
    "projected attention, top half": InLayer(adapters=(Adapter(size=138, start=3),)),
    "low rank, every layer": InLayer(adapters=(Adapter(delta="low_rank"),)),
    "LoRA, every layer": InLayer(adapters=(Adapter(delta="lora"),)),
    "bottlenecks, every layer": InLayer(adapters=(Adapter(delta="bottleneck"),)),
    "prefixes, every layer": InLayer(adapters=(Adapter(delta="prefix"),)),
    "projected attention on top": OnTop(),
    "a whole layer on top": OnTop(form="layer"),
}


def main() -> None:
    options = arguments()
    rows: list[Row] = []
    for name in options.parts:
        say(f"== {name}")
        rows += PARTS[name](options)
    for line in text_table(lines(rows), left=2):
        say(line)
    held, lacking = claims(rows)
    if options.quick:
        for claim in held:
            say(f"{claim.id}  {claim.value:.4g} {claim.unit} ({claim.target:g})  {claim.note}")
        return
    report(NAME, command=command(), rows=rows, claims=held, lacking=lacking)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--backend", default="openvino", choices=("openvino", "onnxruntime"))
    parser.add_argument("--precision", help="of the layers; by default the backend's own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--texts", type=int, default=512, help="of the mixed model; an eighth for production")
    parser.add_argument("--quick", action="store_true", help="to see that it runs, on a busy machine too")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.threads, options.texts = 2, 1, min(options.texts, 128)
    return options


# -- branches against bare layers ------------------------------------------------------------------------------------


def mixed(arguments: argparse.Namespace) -> Iterator[Row]:
    """The best of the study of branches within half of the layers, and a model of pooled tasks beside branches."""
    machine = minilm(arguments)
    options = options_of(runs_of(next(f.rows for f in read_results(RESULTS) if f.name == "branches_quality")))
    best = best_under(options, BUDGET, price_of("layers", machine.trunk.architecture))
    plans: dict[str, Sequence[Strategy]] = {
        "best within 24 layers": [Branch(tap=option.tap, layers=option.layers) for option in best.chosen.values()],
        "four pooled, four branches": [Pooled()] * 4
        + [Branch(tap=tap, layers=layers) for tap, layers in ((2, 2), (2, 4), (4, 2), (5, 1))],
    }
    yield from layered(arguments, "mixed-plan", machine, plans, one_pass_tasks.tweets(arguments.texts))


def production(options: argparse.Namespace) -> Iterator[Row]:
    """21 tasks on the first 8 layers of BERT-base's shape: eleven branches of two layers, ten of one."""
    machine = Machine.of(runtime_of_asked(options), drawn_trunk(BERT_BASE, load_trunk("minilm").tokenizer))
    longer = PRIVATE - PRODUCTION
    depths = [2] * longer + [1] * (PRODUCTION - longer)
    plan: list[Strategy] = [Branch(tap=SHARED, layers=layers) for layers in depths]
    texts = one_pass_tasks.tweets(max(8, options.texts // 8))
    yield from layered(options, "production-plan", machine, {"21 tasks": plan}, texts)


def layered(
    options: argparse.Namespace,
    part: str,
    machine: Machine,
    plans: Mapping[str, Sequence[Strategy]],
    texts: Sequence[str],
) -> Iterator[Row]:
    """Plans of branches and the bare trunk in turn; with each what its layers let expect."""
    assert part in LAYERED
    batches, layers = machine.batches(texts), machine.trunk.architecture.layers
    runs: dict[str, Run] = {"bare": over(machine.bare(), batches)}
    expected = {"bare": 1.0}
    for name, strategies in plans.items():
        tasks = machine.tasks(strategies)
        runs[name], expected[name] = tasks.run(batches), cost.layer_evaluations(tasks.plan()) / layers
    yield from in_turn(options, part, runs, expected, texts=len(texts))


# -- siblings --------------------------------------------------------------------------------------------------------


def stacked(options: argparse.Namespace) -> Iterator[Row]:
    """Eight equal branches, loaded as one stack or as halves of two: only those that are asked whole run as one."""
    machine = minilm(options)
    tasks = machine.tasks([Branch(layers=3)] * (2 * EIGHT))
    names, half = list(tasks.paths), EIGHT // 2
    together, apart = names[:EIGHT], names[:half] + names[EIGHT : EIGHT + half]
    for texts in (1, 4, 8, 16, 32):
        batches = machine.batches(one_pass_tasks.tweets(texts))
        runs = {"stacked": tasks.run(batches, together), "apart": tasks.run(batches, apart)}
        yield from in_turn(options, f"{STACKED}-{texts}", runs, dict.fromkeys(runs, 1.0), texts=texts)


# -- one text --------------------------------------------------------------------------------------------------------


def strategies(options: argparse.Namespace) -> Iterator[Row]:
    """Eight tasks of each strategy on one text of 32 and of 128 tokens, and what FLOPs let expect."""
    machine = minilm(options)
    bare, text = machine.bare(), " ".join(one_pass_tasks.tweets(64))
    loaded = {name: machine.tasks([strategy] * EIGHT) for name, strategy in STRATEGIES.items()}
    for tokens in (32, 128):
        batches = machine.batches([text], max_tokens=tokens)
        runs = {"bare": over(bare, batches)} | {name: tasks.run(batches) for name, tasks in loaded.items()}
        flops = machine.bare_flops(tokens)
        expected = {"bare": 1.0} | {
            name: cost.flops(tasks.plan(), tasks.shape, tokens, folded=True) / flops for name, tasks in loaded.items()
        }
        yield from in_turn(options, f"one-text-{tokens}", runs, expected, texts=1)


# -- a task that comes -----------------------------------------------------------------------------------------------


def attached(options: argparse.Namespace) -> Iterator[Row]:
    """One more pooled task beside fifty that are answered: until its first answer."""
    one_pass_tasks.train()
    bundle = Bundle.open(one_pass_tasks.bundle_of(50))
    session = Session(bundle, backend=runtime_of_asked(options))
    (text,) = one_pass_tasks.tweets(1)
    session.predict([text])
    clock = clock_of(options)
    trained = Bundle.open(one_pass_tasks.FOLDER / "trained")
    singles = [task.name for task in one_pass_tasks.TASKS if task.kind == "single_label"]
    for repeat in range(max(5, options.repeats)):
        draft = one_pass_tasks.copied(trained, singles[repeat % len(singles)], "newcomer")
        began = clock()
        session.attach(draft.record, draft.arrays)
        there = clock()
        session.predict([text], tasks=["newcomer"])
        seconds = clock() - began
        yield {
            "part": "attach",
            "run": "one more beside 50",
            "repeat": repeat,
            "seconds": seconds,
            "attached": there - began,
        }
        session.predict([text])
        session.detach("newcomer")


PARTS = {"mixed": mixed, "production": production, "stacked": stacked, "strategies": strategies, "attached": attached}


# -- timing ----------------------------------------------------------------------------------------------------------


def in_turn(
    options: argparse.Namespace, part: str, runs: Mapping[str, Run], expected: Mapping[str, float], *, texts: int
) -> Iterator[Row]:
    """Every run twice, unrecorded, then so many times, each time all of them one after another."""
    clock, calls = clock_of(options), {}
    for name, run in runs.items():
        run()
        calls[name] = max(1, round(LEAST / timed(run, 1, clock)))
    for repeat in range(1, options.repeats + 1):
        for name, run in runs.items():
            seconds = timed(run, calls[name], clock)
            row = {"part": part, "run": name, "texts": texts, "expected": round(expected[name], 4)}
            yield {**row, "repeat": repeat, "seconds": seconds}


def timed(run: Run, calls: int, clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    began = clock()
    for _ in range(calls):
        run()
    return (clock() - began) / calls


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if options.quick else time.perf_counter


def minilm(options: argparse.Namespace) -> Machine:
    return Machine.of(runtime_of_asked(options), load_trunk("minilm"))


def runtime_of_asked(options: argparse.Namespace) -> Runtime:
    return runtime_of(options.backend, options.precision, options.threads)


if __name__ == "__main__":
    main()
