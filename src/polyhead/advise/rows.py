"""The stored results of a comparison: a row for each finished run, and each way's cost, in atomically written files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from polyhead.advise.measure import WayCosts
from polyhead.advise.sharing_ways import TaskSet
from polyhead.errors import ConfigError
from polyhead.files import replace_file
from polyhead.project.tables import Project, data_files
from polyhead.values import Value, digested, from_json, to_json

ROWS, COSTS = "rows", "costs"


class TaskScore(Value):
    """A task's own metric, in points, by split."""

    metric: str
    validation: float
    test: float | None = None

    @property
    def value(self) -> float:
        """The test value if there is one."""
        return self.validation if self.test is None else self.test


class FinishedRun(Value):
    """A finished run: one way under one seed."""

    way: str
    seed: int
    key: str  # digest of the project and of its files
    tasks: dict[str, TaskScore]
    seconds: float
    estimated: float  # beforehand, without corrections
    stood_in: dict[str, str] = {}  # tasks that the way cannot answer, which were pooled: the reason
    processor: str = ""  # machine that trained it: rows of a comparison may come from several

    @property
    def quality(self) -> float:
        """The mean over the tasks, in points."""
        return sum(score.value for score in self.tasks.values()) / len(self.tasks)

    @property
    def validation(self) -> float:
        """The mean over the tasks on validation, in points."""
        return sum(score.validation for score in self.tasks.values()) / len(self.tasks)


class Kept:
    """The rows of a comparison, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (ROWS, COSTS):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def rows(self) -> list[FinishedRun]:
        """All stored rows; raises ConfigError for an invalid file."""
        files = sorted((self.folder / ROWS).glob("*.json"))
        return [from_json(file.read_bytes(), FinishedRun, source=str(file)) for file in files]

    def row(self, way: str, seed: int, key: str) -> FinishedRun | None:
        """The row of this run over this data, if it is finished."""
        file = self._file(ROWS, f"{way}-{seed}")
        row = from_json(file.read_bytes(), FinishedRun, source=str(file)) if file.exists() else None
        return row if row is not None and row.key == key else None

    def keep(self, row: FinishedRun) -> None:
        """Writes a row, replacing an older one of its run."""
        replace_file(self._file(ROWS, f"{row.way}-{row.seed}"), to_json(row))

    def costs(self, way: str, key: str) -> WayCosts | None:
        """The cost of the way, if known for this key."""
        file = self._file(COSTS, f"{way}-{key}")
        return from_json(file.read_bytes(), WayCosts, source=str(file)) if file.exists() else None

    def keep_costs(self, way: str, key: str, costs: WayCosts) -> None:
        """Writes the cost of the way."""
        replace_file(self._file(COSTS, f"{way}-{key}"), to_json(costs))

    def _file(self, section: str, name: str) -> Path:
        return self.folder / section / f"{name}.json"


def data_digest(tasks: TaskSet) -> str:
    """A digest of the content of every file that the tasks read."""
    total = hashlib.sha256()
    for file in sorted(data_files(tasks.project, Path(tasks.folder))):
        try:
            total.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            raise ConfigError(f"cannot read {file}", got=error.strerror, do="correct the project file") from None
    return total.hexdigest()


def key_of(project: Project, data: str) -> str:
    """Everything that a run depends on: the same key, the same row."""
    plain = digested(msgspec.structs.replace(project, bundle=""))
    return hashlib.sha256(msgspec.json.encode([plain, data], order="sorted")).hexdigest()[:16]
