"""All errors. Each one says what failed, what was given, what is allowed and what to do.

PolyheadError
├── ConfigError        a TOML file or an option is wrong
├── DataError          rows that cannot be used
│   ├── EmptyData      nothing to read, or nothing left after skipping
│   ├── MissingColumn  a column that the task names is not in the file
│   └── BadValue       one row's text or label cannot be used (row number in `row`)
│       └── UnknownLabel
├── TrunkError         the encoder cannot be found, read or trusted
│   ├── TrunkNotFound
│   └── WeightsMismatch    arrays missing, extra, of another shape or not finite; a tokenizer that does not fit
├── PlanError          a path or plan that means nothing
├── BundleError        a bundle cannot be read or changed
│   ├── UnknownFormat      written by a newer or foreign version
│   ├── CorruptFile        truncated, changed or hostile
│   ├── WrongTrunk         a part trained on another trunk
│   ├── UnknownTask
│   ├── BadName            a task name that is not allowed, or taken
│   └── IsolationError     a change that would have changed other tasks' answers; it was undone
├── LockError          a lock file that cannot be used
├── StoreError         kept encoder outputs cannot be read or written
│   └── NoStore            no store at a location
├── JobError           workers of a job were lost, or failed
├── TrainError         training cannot go on
│   └── NotFinite          a loss, a gradient or a weight is no finite number
├── BackendError       a backend cannot run a plan, or gave an output that is not finite
├── Overloaded         too much waits in a queue (seconds until it is answered in `retry_after`)
└── MissingExtra       a package that is not installed, with the line that installs it
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Self, TypeVar

SEVERAL = (list, tuple, set, frozenset)  # shown value by value
LONGEST_NAME, MOST_SHOWN = 1000, 1000  # characters, values


class PolyheadError(Exception):
    """What failed, what was given, what is allowed, what to do; the facts are attributes too."""

    def __init__(
        self, what: str, *, got: object = None, allowed: object = None, do: str | None = None, **facts: object
    ) -> None:
        self.what, self.got, self.allowed, self.do, self.facts = what, got, allowed, do, facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(_sentence(what, got, allowed, do))

    def at(self, where: str, **facts: object) -> Self:
        """The same error with a place before its message; `facts` are added to its own."""
        what, facts, error = f"{where}: {self.what}", {**self.facts, **facts}, type(self).__new__(type(self))
        PolyheadError.__init__(error, what, got=self.got, allowed=self.allowed, do=self.do, **facts)
        return error


ErrorT = TypeVar("ErrorT", bound=PolyheadError)


def reworded(error: ErrorT, change: Callable[[str], str], **more: object) -> ErrorT:
    """The error with its sentences changed, and facts: a file or an option is then called what a user calls it."""
    made, facts = type(error).__new__(type(error)), {**error.facts, **more}
    source = facts.get("source")
    facts |= {"source": change(source)} if isinstance(source, str) else {}
    got, allowed = (change(part) if isinstance(part, str) else part for part in (error.got, error.allowed))
    do = None if error.do is None else change(error.do)
    PolyheadError.__init__(made, change(error.what), got=got, allowed=allowed, do=do, **facts)
    return made


def suggestion(name: str, names: Iterable[str]) -> str | None:
    """A question that suggests the name that was probably meant, if one is near."""
    near = near_name(name, names)
    return None if near is None else f"did you mean '{near}'?"


def near_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, if one is near; none is to a name that nobody would type."""
    if len(name) > LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def summary_of(error: PolyheadError) -> str:
    """What failed and what was given, for use in another error's message."""
    return error.what if error.got is None else f"{error.what}: {_shown(error.got)}"


def in_words(error: Exception) -> str:
    """The message of an error, with the type's name unless it is ours."""
    return str(error) if isinstance(error, PolyheadError) else f"{type(error).__name__}: {error}"


def without_frames(error: Exception) -> Exception:
    """The error without its tracebacks, which would keep the local values of the code that raised it."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is not None and current.__traceback__ is not None:
            current.__traceback__ = None
            waiting += [current.__cause__, current.__context__]
    return error


def _sentence(what: str, got: object, allowed: object, do: str | None) -> str:
    parts = [_ended(_shown(what, 1000))]
    if got is not None:
        parts.append(f"Got: {_ended(_shown(_quoted(got)))}")
    if allowed is not None:
        parts.append(f"Allowed: {_ended(_shown(allowed))}")
    if do is not None:
        parts.append(f"Do: {_ended(_shown(do, 1000))}")
    return " ".join(parts)


def _ended(text: str) -> str:
    return text if text.endswith((".", "?")) and not text.endswith("..") else f"{text}."


def _quoted(got: object) -> object:
    """A name that is empty or ends in a point is quoted, to set it apart from the point of the sentence."""
    if isinstance(got, SEVERAL):
        return [*map(_quoted, islice(got, MOST_SHOWN)), *islice(got, MOST_SHOWN, None)]
    is_bare = isinstance(got, str) and len(got) <= LONGEST_NAME and not any(map(str.isspace, got))
    return repr(got) if is_bare and (not got or str(got).endswith(".")) else got


def _shown(value: object, limit: int = 300) -> str:
    """A short, printable form: long values cut, control characters and lone surrogates escaped."""
    text = ", ".join(map(str, _each(value))) or ("none" if isinstance(value, SEVERAL) else "")
    beginning = text[: limit + 1]  # what is not shown is not looked at: it may be megabytes
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in beginning)
    return shown if len(shown) <= limit else f"{shown[:limit]}… ({len(text)} characters)"


def _each(value: object) -> list[object]:
    """The values of a collection; a list of any other value, empty for None."""
    if isinstance(value, SEVERAL):
        return list(value)
    return [] if value is None else [value]


class ConfigError(PolyheadError):
    """A project file or an option is wrong."""


class DataError(PolyheadError):
    """Rows that cannot be used."""


class EmptyData(DataError):
    """Nothing to read, or nothing left after skipping."""


class MissingColumn(DataError):
    """A column that the task names is not in the file."""


class BadValue(DataError):
    """One row's text or label cannot be used."""


class UnknownLabel(BadValue):
    """A label that the task does not declare."""


class TrunkError(PolyheadError):
    """The encoder cannot be found, read or trusted."""


class TrunkNotFound(TrunkError):
    """No encoder under this name, in this folder or under this hub id."""


class WeightsMismatch(TrunkError):
    """Arrays missing, extra, of another shape or not finite, or a tokenizer that does not fit the weights."""


class PlanError(PolyheadError):
    """A path or plan that means nothing."""


class BundleError(PolyheadError):
    """A bundle cannot be read or changed."""


class UnknownFormat(BundleError):
    """A bundle written by a newer or foreign version."""


class CorruptFile(BundleError):
    """A file that is truncated, changed since it was written, or hostile."""


class WrongTrunk(BundleError):
    """A part trained on another trunk; both digests are named."""


class UnknownTask(BundleError):
    """A task that the bundle does not hold; without `do`, the error suggests a near name."""

    def __init__(
        self, what: str, *, got: object = None, allowed: object = None, do: str | None = None, **facts: object
    ) -> None:
        unknown, names = _each(got), [str(name) for name in _each(allowed)]
        near = suggestion(str(unknown[0]), names) if unknown else None
        otherwise = "name one of these" if names else "name another bundle, or train the task first"
        super().__init__(what, got=got, allowed=allowed, do=do or near or otherwise, **facts)


class BadName(BundleError):
    """A task name that is not allowed, or taken already."""


class IsolationError(BundleError):
    """A change that touched other tasks, or of which nobody can prove that it did not; it was undone."""


class LockError(PolyheadError):
    """A lock file that cannot be used: a link, a folder, or one that may not be opened."""


class StoreError(PolyheadError):
    """Kept encoder outputs cannot be read or written."""


class NoStore(StoreError):
    """There is no store of features at a location."""


class JobError(PolyheadError):
    """Workers of a job were lost again and again, or failed."""


class TrainError(PolyheadError):
    """Training cannot go on."""


class NotFinite(TrainError):
    """A loss, a gradient or a weight is no finite number any more."""


class BackendError(PolyheadError):
    """A backend cannot run this plan, or what it gave is not finite."""


class Overloaded(PolyheadError):
    """Too much waits in a queue; `retry_after` is the estimated number of seconds until that is answered."""


class MissingExtra(PolyheadError):
    """A package that is not installed; the message holds the line that installs it.

    `extra` is the one that brings it; "" for a package that every installation has.
    """

    def __init__(self, package: str, extra: str, purpose: str, *, instead: str | None = None) -> None:
        wanted = f"'polyhead[{extra}]'" if extra else package
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed",
            do=f"pip install {wanted}" + (f", or {instead}" if instead else ""),
            package=package,
            extra=extra,
        )
