"""Many tasks in one pass on a graphics processor, beside the bare trunk and a `transformers` pipeline a task there.

    python -m benchmarks.one_pass_tasks        once: the 21 tasks
    python -m benchmarks.one_pass_gpu          an idle machine with an NVIDIA card, nothing else running

Texts, runs and ratios are those of `one_pass.py`; the trunk runs in bfloat16, as the pipelines do. How many kernels are
started is counted without a card by `kernels.py`. The rival's environment is that of `transformers`
(benchmarks/peers/environments.py), with torch's build for CUDA.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from benchmarks import one_pass_tasks
from benchmarks.one_pass import Row, against, arguments, ours, show
from benchmarks.one_pass_claims import MANY, Ratio, Run
from benchmarks.one_pass_tasks import FOLDER
from benchmarks.peers.rivals import RIVALS
from studies.results import Claim
from studies.settings import command, report

NAME, OURS, RIVAL = "one_pass_gpu", "torch-cuda:bfloat16", "transformers, a pipeline a task"
RATIOS = (
    Ratio(
        id="engine.gpu-21-tasks",
        text=f"on a graphics processor: texts a second with {MANY} tasks over the bare trunk",
        above=Run(who=OURS, tasks=0),
        below=Run(who=OURS, tasks=MANY),
        target=0.92,
    ),
    Ratio(
        id="engine.gpu-pipelines",
        text=f"on a graphics processor: texts a second of {MANY} tasks over {RIVAL}, both in bfloat16",
        above=Run(who=RIVAL, tasks=MANY, how="sorted"),
        below=Run(who=OURS, tasks=MANY),
        target=15,
        group=RIVAL,
    ),
)


def main() -> None:
    options = arguments()
    if not torch.cuda.is_available():
        raise SystemExit("there is no NVIDIA card here that torch can use")
    options.variants, options.device = (OURS,), "cuda"  # of the pipelines
    one_pass_tasks.train()
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = ours(options, OURS)
    for rival in RIVALS:
        if rival.name == RIVAL:
            rows += against(options, rival)
    show(rows)
    made = claims(rows)
    lacking = {ratio.id for ratio in RATIOS} - {claim.id for claim in made}
    rows.append({"what": "hardware", "card": torch.cuda.get_device_name(), "cuda": torch.version.cuda})
    report(NAME, command=command(), rows=rows, claims=made, lacking=sorted(lacking))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """One claim for each ratio whose runs were measured."""
    return [claim for ratio in RATIOS if (claim := ratio.claim(rows)) is not None]


if __name__ == "__main__":
    main()
