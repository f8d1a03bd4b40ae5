"""Every benchmark and study, one after another, so that none shares the machine with another.

But for `one_pass_gpu`, which needs a graphics card, and `many_rows`, which needs another checkout.
"""

from __future__ import annotations

import subprocess
import sys

# The tables are written before the tests, which check them, are timed; and again after, with that time in it.
COMMANDS = (
    "studies du2020 run-poolers",
    "benchmarks.first_light_speed",
    "benchmarks.first_light_eight_tasks",
    "studies wei2021 run",
    "studies wei2021 run-joint",
    "studies wei2021 run-searched",
    "benchmarks.branches_add_task",
    "benchmarks.together_speed",
    "benchmarks.together_resume",
    "studies aghajanyan2021 run",
    "studies du2020 run-leave-out",
    "studies du2020 run-sweep",
    "benchmarks.conditioning_costs",
    "studies huang2022 run",
    "studies stickland2019 run",
    "benchmarks.one_pass",
    "benchmarks.engine_plans",
    "benchmarks.kernels",
    "benchmarks.precision_change",
    "benchmarks.any_processor",
    "benchmarks.store_bytes",
    "benchmarks.store_extract",
    "benchmarks.store_backfill",
    "benchmarks.store_kills",
    "benchmarks.server_overhead",
    "benchmarks.rooms",
    "benchmarks.rooms_tests",
    "benchmarks.silent_stalls",
    "benchmarks.server_load",
    "benchmarks.server_queue",
    "benchmarks.server_start",
    "benchmarks.many_tasks",
    "benchmarks.server_rivals",
    "benchmarks.server_one_text",
    "benchmarks.server_change",
    "benchmarks.server_changes",
    "benchmarks.server_endurance",
    "benchmarks.right_tests",
    "benchmarks.right_cases",
    "benchmarks.right_snippet",
    "benchmarks.silent_uploads",
    "benchmarks.silent_growth",
    "benchmarks.silent_busy",
    "benchmarks.silent_cases",
    "benchmarks.silent_linear",
    "benchmarks.silent_scripts",
    "studies defaults run-entities",
    "studies defaults run",
    "studies defaults run-setfit",
    "studies defaults run-setfit --report",
    "studies defaults run-pairs",
    "studies defaults run-pairs --report",
    "benchmarks.words_cost",
    "studies sample run",
    "benchmarks.front_door",
    "benchmarks.workbench_check",
    "benchmarks.workbench_check --report",
    "benchmarks.workbench_several",
    "benchmarks.workbench_calibrate",
    "benchmarks.workbench_drift",
    "benchmarks.workbench_compare",
    "benchmarks.workbench_advise",
    "benchmarks.workbench_label",
    "benchmarks.workbench_label --report",
    "benchmarks.readme",
    "benchmarks.first_light_newcomer",
    "benchmarks.readme",
)

for command in COMMANDS:
    print(f"== {command}", flush=True)
    subprocess.run([sys.executable, "-m", *command.split()], check=True)
