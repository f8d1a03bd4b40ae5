"""What `polyhead evaluate` tells beyond scores: options, the work, and the files that it is written to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from polyhead.cli.command import OutputFile, option
from polyhead.cli.output import writing_file
from polyhead.data.columns import no_column
from polyhead.data.rows import first_columns
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.evaluate.compare import Comparison
    from polyhead.evaluate.details import Details


class ReportOptions(Value):
    """What is asked beyond scores."""

    details: Annotated[
        bool, option("Also print intervals, confusion, how right the surest answers are, and the worst mistakes.")
    ] = False
    slices: Annotated[
        tuple[str, ...],
        option(
            "Also score the rows of each value of this column of the file; of many numbers, of each quarter.",
            "--slice",
            metavar="COLUMN",
        ),
    ] = ()
    against: Annotated[
        str | None,
        option(
            "Compare with another version of each task, such as v0001, or with the tasks of the same names of another "
            "bundle, by its folder: which rows changed, and whether that is chance.",
            metavar="VERSION",
        ),
    ] = None
    report: Annotated[
        str | None,
        option(
            "Write all of it to FILE (.html), one page that needs no network, with plots and the words that moved the "
            "worst mistakes.",
            metavar="FILE",
            type=OutputFile(".html", ".htm"),
        ),
    ] = None

    def check(self, data: str | None) -> None:
        """Raises, before any work, for a column that `data` does not have."""
        for column in self.slices if data is not None and os.path.exists(data) else ():
            if (there := first_columns(str(data))) and column not in there:
                raise no_column(str(data), column, there)

    @property
    def is_detailed(self) -> bool:
        """Whether more than scores is computed."""
        return self.details or bool(self.slices) or self.report is not None


def write_report(
    path: str, details: Sequence[Details], comparisons: Sequence[Comparison], how: dict[str, str], facts: Sequence[str]
) -> None:
    """Writes the page; `facts` are lines about the scores."""
    from polyhead._version import __version__
    from polyhead.evaluate.report.evaluation import Reported, page_of

    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    computed = ", ".join(f"{name} {value}" for name, value in how.items())
    reported = Reported(
        title="Evaluation",
        facts=(f"{now}, polyhead {__version__}, {computed}", *facts),
        details=tuple(details),
        comparisons=tuple(comparisons),
    )
    with writing_file(path) as file:
        file.write(page_of(reported).encode())
