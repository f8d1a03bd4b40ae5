"""The tasks to check: those of a project, or one for each data file, with guessed columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.check.split_rows import Finding
from polyhead.data.guess_columns import table_of
from polyhead.errors import ConfigError, DataError, UnknownTask
from polyhead.project.declare import InitOptions, clean_name, outlined
from polyhead.project.init import guessed, split_groups
from polyhead.project.tables import Project, TaskEntry, read_project
from polyhead.values import Value

TOKENS = 512  # that an encoder reads of a text where nothing else is known


class CheckedTasks(Value, eq=False):
    """The tasks to check, findings made while reading them, and the number of tokens that the encoder reads."""

    entries: tuple[TaskEntry, ...]
    folder: Path
    limit: int  # tokens
    findings: tuple[Finding, ...] = ()
    project: Project | None = None  # where the tasks are those of one

    @classmethod
    def of_project(cls, path: str, only: Sequence[str] = ()) -> CheckedTasks:
        """The tasks of a project file, or some of them; raises UnknownTask for others."""
        project, folder = read_project(path), Path(path).resolve().parent
        names = [entry.name for entry in project.tasks]
        if unknown := sorted(set(only) - set(names)):
            raise UnknownTask("the project declares no such task", got=unknown, allowed=names)
        entries = tuple(entry for entry in project.tasks if not only or entry.name in only)
        limit = _limit(project.trunk.place(folder), project.trunk.max_tokens)
        return cls(entries=entries, folder=folder, limit=limit, project=project)

    @classmethod
    def of_files(cls, data: Sequence[str], columns: Mapping[str, str | None]) -> CheckedTasks:
        """A task of every file, or set of splits; what `columns` and "kind" leave out is guessed.

        A file that makes no task is a finding; raises ConfigError for what a person has to say first.
        """
        entries, findings = list[TaskEntry](), list[Finding]()
        for files in split_groups(data):
            stem = files.pop("name") or Path(files["data"]).name.split(".")[0]
            try:
                options = InitOptions(**{"name": clean_name(stem), **columns, **files})
                entry = outlined(guessed(options, table_of(options.data, readable=True)), Path.cwd())
                entry.task()
                entries.append(entry)
            except (ConfigError, DataError) as error:
                kind = "unusable" if isinstance(error, DataError) else error.facts.get("fault")
                if kind is None:
                    raise
                message, do = error.what, error.do or "correct the file"
                findings.append(Finding(kind=str(kind), level="fault", what=message, do=do, task=stem))
        return cls(entries=tuple(entries), folder=Path.cwd(), limit=TOKENS, findings=tuple(findings))


def _limit(place: str, tokens: int | None) -> int:
    """Tokens that the encoder reads: those that are given, else a bundle's own, else the usual number."""
    if tokens is not None or not Path(place, BUNDLE).is_file():
        return tokens or TOKENS
    return Bundle.open(place, verify=False).trunk_facts().settings.max_tokens
