"""The methods of tables 2 and 3 on eight tasks of GLUE (Huang et al. 2022), for three seeds.

It has the sets, rows and reported splits of `stickland2019 run`: 2,000 training rows each in the mean, in proportion to
their files; whole test splits, or the published validation split where test has no labels; each by one metric of its
own, and the mean is of eight. All learn at 5e-5, the best rate of the search on NHC, in at most 16 epochs of 124
updates of 16 rows (eight epochs read the sets once), until four epochs bring nothing better on 100 rows of each task.
`--epochs` changes how many: rows of other numbers are other rows, and only those that came last count.

The simple answers come first: the constant one, regression on mean vectors, the untrained cosine. Then the methods by
their worth for the paper's claims, each for all seeds; `--methods` names some. It goes on where it stopped
(`runs/conditioning_glue.jsonl`). `--part 1/2 --rows FILE` makes every other seed of a group of methods; `--report
--rows FILE...` writes the results from the rows that are there and trains nothing. `python -m studies huang2022 table2`
and `table3` read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from polyhead.tasks.kinds import kind_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepared import Prepared
from studies import huang2022 as paper
from studies.defaults.run import baselines
from studies.huang2022.claims import glue_claims
from studies.huang2022.glue import GlueRuns, GlueScale
from studies.huang2022.methods import ABLATION, METHODS, NO_STOP, SINGLE, Method
from studies.results import Study
from studies.settings import DATA, checked_names, parsed, part_of, report, rows_of, say, study_arguments
from studies.shared.glue import TITLES
from studies.shared.runs import Facts
from studies.trained import SIMPLE

NAME = "conditioning_glue"
COMMAND = (
    "python -m studies huang2022 run-glue --threads 1 --rows FILE; "
    "python -m studies huang2022 run-glue --report --rows FILE"
)
SEEDS = (1, 2, 3)
GROUPS = (  # by worth: the headline, the gradient stop and donors, the other baselines, the rest of table 3
    ("shared-pooler", "mtop", "single"),
    (NO_STOP.name, ABLATION[2].name),
    ("p-tuning", "p-tuning-v2"),
    ("ca-mtl",),
    tuple(ABLATION[number].name for number in (5, 4, 3, 0)),
)
ORDER = [name for group in GROUPS for name in group]


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", seeds=SEEDS, part=True, device=True)
    parser.add_argument("--methods", default=",".join(ORDER))
    parser.add_argument("--epochs", type=int, help="of 124 updates at most, by default 16")
    options = parsed(parser)
    if options.report:
        write_report(rows_of(options.rows))
        return
    methods, seeds = (
        checked_names(options.methods, ORDER, "method"),
        checked_names(options.seeds, map(str, SEEDS), "seed"),
    )
    file, scale = options.rows[0], scale_of(options.epochs)
    runs = GlueRuns(DATA, file.with_suffix(""), Study(file), scale=scale, device=options.device, say=say)
    if options.part.startswith("1/"):
        simple_answers(runs)
    for job in part_of(jobs_of(methods, [int(seed) for seed in seeds]), options.part):
        for method, seed in job:
            runs.run(method, seed)


def simple_answers(runs: GlueRuns) -> None:
    """A row a task: the constant answer, regression on mean vectors, and for pairs the untrained cosine."""
    for task, prepared in runs.glue.items():
        row = runs.study.row(partial(of_task, runs, prepared), stage="simple", task=task, data=runs._rows)
        say(f"{task:15s} {row['baselines']}")


def of_task(runs: GlueRuns, prepared: Prepared) -> Facts:
    asked = prepared.task
    if asked.pair == "joined":  # both texts are read apart, for their cosine
        asked = msgspec.structs.replace(asked, pair="separate")
    extractor = Extractor(runs.plain, folder=runs.folder / "features", precision=runs.precision(SINGLE))
    metric = kind_of(asked).default_metric(asked)
    learning = msgspec.structs.replace(prepared, task=asked, whole=prepared.train.examples)
    scores = baselines(learning, metric, 1, extractor)
    there = {name: score for name, score in scores.items() if name in SIMPLE}
    return {"metric": metric, "rows": runs.size(asked.name), "baselines": there}


def scale_of(epochs: int | None) -> GlueScale:
    scale = GlueScale()
    training = scale.trunk if epochs is None else msgspec.structs.replace(scale.trunk, epochs=epochs)
    return msgspec.structs.replace(scale, trunk=training)


def jobs_of(methods: Sequence[str], seeds: Sequence[int]) -> list[list[tuple[Method, int]]]:
    """The runs of a group of methods and a seed, which share donors."""
    jobs = [[(METHODS[m], seed) for m in group if m in methods] for group in GROUPS for seed in seeds]
    return [job for job in jobs if job]


def write_report(raw: list[dict[str, object]]) -> None:
    """Rows as they come, and what they show."""
    rows = paper.rows_of(raw, tasks=TITLES)
    report(NAME, command=COMMAND, rows=raw, claims=glue_claims(raw), lacking=paper.missing(rows, ORDER, seeds=SEEDS))


if __name__ == "__main__":
    main()
