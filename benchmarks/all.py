"""Every benchmark, one after another, so that none shares the machine with another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The tables are written before the tests, which check them, are timed; and again after, with that time in it.
NAMES = (
    "first_light_quality",
    "first_light_speed",
    "first_light_eight_tasks",
    "branches_quality",
    "branches_mtdnn",
    "branches_add_task",
    "together_speed",
    "together_resume",
    "together_quality",
    "together_leave_out",
    "together_sweep",
    "conditioning_costs",
    "conditioning_nhc",
    "conditioning_adapters",
    "one_pass",
    "engine_plans",
    "precision_change",
    "any_processor",
    "right_tests",
    "right_cases",
    "right_snippet",
    "right_entities",
    "right_defaults",
    "readme",
    "first_light_newcomer",
    "readme",
)

for name in NAMES:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py"))], check=True)
