"""Makes claims anew from the rows that are there, where what makes or judges them has changed.

    python -m benchmarks.restate [NAME ...]

Nothing is measured: date, hardware, command and rows stay. A file of another machine, `one_pass_NAME.json`, has the
same claims with that name in their ids, whether they hold there or not. Of a file that is not in MAKERS the claims stay
as they are, but one about quality that tells no seeds becomes "not shown".
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from studies.results import Claim, Results, honest, read_results, write_results
from studies.settings import RESULTS, results_rows

# file -> what makes its claims: a module and a function of the rows; then other files whose rows it takes too
MAKERS: dict[str, tuple[str, ...]] = {
    "one_pass": ("benchmarks.one_pass_claims:claims",),
    "one_pass_gpu": ("benchmarks.one_pass_gpu:claims",),
    "engine_plans": ("benchmarks.engine_plans_claims:claims",),
    "branches_quality": ("studies.wei2021.claims:claims",),
    "branches_searched": ("studies.wei2021.searched:claims",),
    "branches_mtdnn": ("studies.wei2021.claims:joint_claims", "branches_quality"),
    "conditioning_adapters": ("studies.stickland2019.claims:claims",),
    "conditioning_glue": ("studies.huang2022.claims:glue_claims",),
    "conditioning_nhc": ("studies.huang2022.claims:claims",),
    "first_light_quality": ("studies.du2020.claims:pooler_claims",),
    "together_leave_out": ("studies.du2020.claims:leave_out_claims",),
    "together_sweep": ("studies.du2020.claims:sweep_claims",),
    "together_quality": ("studies.aghajanyan2021.claims:claims",),
    "encoders_cascade": ("studies.defaults.run_cascade:claims",),
    "encoders_decoder": ("benchmarks.encoders_decoder:claims",),
    "encoders_tasks": ("benchmarks.encoders_tasks:claims",),
    "encoders_speed": ("benchmarks.encoders:claims",),
    "encoders_defaults": ("studies.defaults.run_encoders:claims",),
    "heads_cost": ("benchmarks.words_cost:claims",),
    "heads_defaults": ("studies.defaults.claims:claims", "right_defaults"),
    "heads_entities": ("studies.defaults.run_entities:claims",),
    "heads_familiar": ("studies.defaults.run_familiar:claims",),
    "heads_labels": ("studies.defaults.run_labels:restated",),
    "heads_many_rows": ("benchmarks.many_rows:claims",),
    "heads_pairs": ("studies.defaults.run_pairs:claims",),
    "heads_setfit": ("studies.defaults.run_setfit:claims",),
    "minute_calibration": ("studies.defaults.run_calibration:claims",),
    "minute_efforts": ("studies.defaults.run_efforts:restated",),
    "right_defaults": ("studies.defaults.claims:earlier_claims",),
    "right_entities": ("studies.defaults.run_entities:earlier_claims",),
    "right_processor": ("benchmarks.any_processor:claims",),
    "precision_change": ("benchmarks.precision_change:claims",),
    "sample_scores": ("studies.sample.run:restated",),
    "server_rivals": ("benchmarks.server_rivals:claims",),
    "server_similarity": ("studies.similarity.run:claims",),
    "silent_scripts": ("benchmarks.silent_scripts:claims",),
    "silent_linear": ("benchmarks.silent_linear:claims",),
    "store_codecs": ("studies.codecs.run:claims",),
    "store_pooled_vector": ("studies.codecs.run_vector:claims",),
    "whole_sets": ("studies.gpu.claims:claims",),
    "workbench_calibrate": ("benchmarks.workbench_calibrate:claims",),
    "workbench_check": ("benchmarks.workbench_check:claims",),
    "workbench_compare": ("benchmarks.workbench_compare:claims",),
    "workbench_label": ("benchmarks.workbench_label:claims",),
    "workbench_several": ("benchmarks.workbench_several:claims",),
}


def main() -> None:
    names = sys.argv[1:]
    for file in read_results(RESULTS):
        if (not names or file.name in names) and (made := restated(file)) != file:
            print(write_results(RESULTS, made))


def restated(file: Results) -> Results:
    """The file with the claims that its rows make today, judged by the rules of today."""
    claims: Iterable[Claim] = file.claims
    for name, (maker, *others) in MAKERS.items():
        machine = file.name.removeprefix(name).removeprefix("_")
        if file.name == name or (file.name == f"{name}_{machine}" and file.name not in MAKERS):
            made = maker_of(maker)(file.rows, *map(results_rows, others))
            claims = made[0] if isinstance(made, tuple) else made
            claims = [of(claim, machine, file.hardware) for claim in claims]
    return msgspec.structs.replace(file, claims=[honest(claim) for claim in claims])


def maker_of(name: str) -> Callable[..., Any]:
    """The function `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def of(claim: Claim, machine: str, hardware: str) -> Claim:
    """The claim of this machine; of the first one, which has no name, as it is."""
    if not machine:
        return claim
    id = f"{claim.id.partition('.')[0]}.{machine}.{claim.id.partition('.')[2]}"
    return msgspec.structs.replace(claim, id=id, text=f"{claim.text}; on {hardware}")


if __name__ == "__main__":
    main()
