"""Writes the results of the studies with whole training sets from the rows that came back from a card."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from studies.gpu.claims import at_best_rates, claims
from studies.gpu.run import ROWS, read_rows
from studies.settings import report

NAME = "whole_sets"
COMMAND = "make gpu; python -m studies gpu run-report --rows FILE..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, nargs="*", default=[ROWS], help="files of rows (runs/gpu.jsonl)")
    everything = [row for file in parser.parse_args().rows for row in read_rows(file)]
    rows = [row for row in everything if row.get("whole")]
    if not rows:
        raise SystemExit("there are no rows of whole sets: run `make gpu`; rows of --tiny measure nothing")
    settings = rows[-1]["settings"]
    kept = list({_key(row): row for row in rows if row["settings"] == settings}.values())
    tell(kept)
    others = len(everything) - len(kept)
    lacking = [f"{others} rows left out, of other settings or there twice"] * bool(others)
    report(NAME, command=COMMAND, rows=kept, claims=claims(kept), lacking=lacking)


def tell(rows: list[dict[str, Any]]) -> None:
    """Mean test points of each option and task, and of how many seeds."""
    options: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for row in at_best_rates(rows):
        of_task = options.setdefault((row["method"], row["layers"], row["init"]), {})
        of_task.setdefault(row["task"], []).append(100 * row["test"])
    for (method, layers, init), by_task in options.items():
        scores = "  ".join(f"{task} {sum(of) / len(of):.1f} ({len(of)})" for task, of in by_task.items())
        print(f"{method:16s} {layers} {init:10s}  {scores}")


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("task", "method", "layers", "init", "seed", "rate"))


if __name__ == "__main__":
    main()
