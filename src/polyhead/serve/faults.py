"""What msgspec says of a body of another form: the fault, and the fields that lead to it."""

from __future__ import annotations

import re

import msgspec

from polyhead.values import Value

LONGEST = 1000  # characters of a fault, which may hold what the client sent
REQUIRED = "Field required"
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class Fault(Value):
    """What is wrong, and where: names and numbers from the top of the body, "..." for any key of an object."""

    what: str
    place: tuple[str | int, ...]

    @property
    def path(self) -> str:
        """The place as it is written in code: `questions[2].choices`."""
        steps = "".join(f"[{step}]" if isinstance(step, int) or step == "..." else f".{step}" for step in self.place)
        return steps.removeprefix(".")


def fault_of(error: msgspec.ValidationError) -> Fault:
    """The fault that an error tells of."""
    what, mark, path = str(error).rpartition(" - at `")
    if not mark:
        what, path = path, ""
    steps = _STEP.findall(path.removesuffix("`").removeprefix("key in "))
    place = tuple(int(index) if index.isdigit() else name or index for name, index in steps)
    if what.startswith(missing := "Object missing required field `"):
        return Fault(what=REQUIRED, place=(*place, what.removeprefix(missing).removesuffix("`")))
    return Fault(what=what[:LONGEST], place=place)
