"""What a trunk that learned from many tasks gives to tasks it never saw, beside the plain trunk and full fine-tuning.

Hours on two cores. It goes on where it stopped (`runs/together.jsonl`). `--part 1/2 --rows FILE` makes half of the
runs, so that two processes of one thread each share the work; `--jobs` names some of them; `--report --rows FILE...`
writes the results from the rows that are there and trains nothing. Learned trunks lie beside the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from settings import DATA, RUNS

from polyhead.papers.together.mixes import NATURAL_MIXES, NESTED_MIXES, ROWS, SMALL_MIXES, Mix
from polyhead.papers.together.runs import Runs
from polyhead.report.results import Study

NAME = "together_quality"
SEEDS = (1, 2, 3)
SIZES = (100, 300, 700, ROWS)  # training rows of a held-out task, for the heat map
JOBS = ("main", "nested", "schemes", "samplers", "sizes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--rows", type=Path, nargs="*", default=[RUNS / "together.jsonl"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    runs = runs_in(asked.rows[0])
    number, of = map(int, asked.part.split("/"))
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    jobs = [job for name in asked.jobs.split(",") for job in jobs_of(name, runs, seeds)]
    for job in jobs[number - 1 :: of]:
        job()


def runs_in(file: Path) -> Runs:
    return Runs(DATA, file.with_suffix(""), Study(file), say=lambda line: print(line, flush=True))


def jobs_of(name: str, runs: Runs, seeds: list[int]) -> Iterator[Callable[[], None]]:
    """The runs of one part of the study, seed by seed, so that what is there at any time is a whole study of fewer."""
    mixes: dict[str, tuple[Mix, ...]] = {
        "nested": NESTED_MIXES[:-1],
        "schemes": SMALL_MIXES,
        "samplers": NATURAL_MIXES,
    }
    for seed in seeds:
        if name == "main":
            yield partial(runs.full, seed)
            yield partial(plain_and_best, runs, seed)
        elif name == "sizes":
            yield partial(runs.frozen, seed, mix=None, sizes=SIZES)
            yield partial(runs.frozen, seed, mix=NESTED_MIXES[-1], sizes=SIZES)
        else:
            for mix in mixes[name]:
                yield partial(runs.frozen, seed, mix=mix)


def plain_and_best(runs: Runs, seed: int) -> None:
    runs.frozen(seed, mix=None)
    runs.frozen(seed, mix=NESTED_MIXES[-1])


if __name__ == "__main__":
    main()
