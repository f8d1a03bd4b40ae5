"""Makes the claims of the engine's results anew from the rows that are there, where what makes them has changed.

    python -m benchmarks.restate

Nothing is measured: date, hardware, command and rows stay. A file of another machine, `one_pass_NAME.json`, has the
same claims with that name in their ids, whether they hold there or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from benchmarks import engine_plans_claims, one_pass_claims
from studies.results import Claim, Results, read_results, write_results
from studies.settings import RESULTS

Row = dict[str, object]
MAKERS: dict[str, Callable[[Sequence[Row]], tuple[list[Claim], list[str]]]] = {
    "one_pass": one_pass_claims.claims,
    "engine_plans": engine_plans_claims.claims,
}


def main() -> None:
    for file in read_results(RESULTS):
        if (made := restated(file)) is not None:
            print(write_results(RESULTS, made))


def restated(file: Results) -> Results | None:
    """The file with the claims that its rows make today; None for a file of something else."""
    for name, make in MAKERS.items():
        machine = file.name.removeprefix(name).removeprefix("_")
        if file.name in (name, f"{name}_{machine}"):
            claims = [of(claim, machine, file.hardware) for claim in make(file.rows)[0]]
            return msgspec.structs.replace(file, claims=claims)
    return None


def of(claim: Claim, machine: str, hardware: str) -> Claim:
    """The claim of this machine; of the first one, which has no name, as it is."""
    if not machine:
        return claim
    id = f"{claim.id.partition('.')[0]}.{machine}.{claim.id.partition('.')[2]}"
    return msgspec.structs.replace(claim, id=id, text=f"{claim.text}; on {hardware}")


if __name__ == "__main__":
    main()
