"""Which failures stop a job: those of the machine, which would be gone the next time. Those of a row are its answer."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence

from polyhead.engine.call import said
from polyhead.engine.inputs import AnyInput, Form, forms_of
from polyhead.engine.session import Result, Session
from polyhead.errors import BackendError, BadValue
from polyhead.text.question import Question

# How numpy, torch, ONNX Runtime and OpenVINO say that there is no memory, behind the name of an error.
NO_MEMORY = re.compile(
    r"\w*MemoryError\b|\w*(Error|Exception|Fail): .*(out of memory|can't allocate|failed to allocate|bad_alloc)",
    re.IGNORECASE | re.DOTALL,
)
NAME = re.compile(r"(\w+):")
# Texts of our own, each of which every task of its form answers.
PROBES: Mapping[Form, AnyInput] = {
    "text": ("a text",),
    "pair": ("a text", "another text"),
    "question": Question(text="which one?", options=("this", "that")),
}


def check_machine(session: Session, results: Sequence[Result | BadValue]) -> None:
    """Raises what no row is to blame for: MemoryError, OSError, or BackendError where no task answers any text.

    Where a row failed in every task that it fits, those tasks are asked about a text of our own. If one answers, the
    row is at fault; if none does, whatever was asked would fail, and the reason is nobody's answer.
    """
    failed = [one for one in results if isinstance(one, Result) and one.failed]
    for reason in dict.fromkeys(reason for one in failed for reason in one.failed.values()):
        _check_reason(reason)
    without = {task: reason for one in failed if not one.answers for task, reason in one.failed.items()}
    if not without:
        return
    asked = [
        PROBES[form] for form in PROBES if any(form in forms_of(session.tasks[name]) for name in without)
    ]
    try:
        session.predict(asked, tasks=without)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise BackendError(
            "tasks fail on every text, also on one of our own; what was answered before is kept",
            got=f"{', '.join(without)}: {said(error)}",
            do="run the same command again when this is repaired",
        ) from error


def _check_reason(reason: str) -> None:
    """A result has the words of an error, and not the error."""
    if NO_MEMORY.match(reason):
        raise MemoryError(reason)
    named = NAME.match(reason)
    kind = getattr(builtins, named[1], None) if named else None
    if isinstance(kind, type) and issubclass(kind, OSError):
        raise OSError(reason)
