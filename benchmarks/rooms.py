"""The size of the house, and how many meanings its names have.

    python -m benchmarks.rooms

Code lines are those that are not blank, no docstring and no comment. A public name has several meanings if two modules
define a class or function of this name at their top. A room is a folder or file directly in src/polyhead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from studies.results import Claim
from studies.settings import ROOT, answer_help, command, report, say

SOURCE = ROOT / "src" / "polyhead"
LINES, CLASSES, LONGEST_FILE, LONGEST_FUNCTION = 42_000, 600, 400, 60
EXPLAINED = ("command", "train_project")  # see tests/test_architecture.py
BEFORE = "before, at commit c50afade: 54,886 lines, 907 classes, 179 names, 15 rooms"
NOTES = {
    "lines": "missed. What had several homes was joined (tables, changes of a bundle, options of commands, penalty "
    "sweeps, orders of sampling, the comparison of answers); most of what is left are features and their defences, and "
    "no feature was dropped. Between the survey and this work came 3,900 lines against silent wrongs. Summaries are "
    "still a second world in the bundle, links are still checked at every write, and most verbs of the command line "
    "still hold logic: these would close some of it, not all",
    "classes": "missed, for the reasons of rooms.lines",
}


def counts() -> dict[str, int]:
    """Lines, classes, names with several meanings, and the longest file and function."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    homes: dict[str, set[Path]] = {}
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, defined) and node.name[0] != "_":
                homes.setdefault(node.name, set()).add(path)
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        "code_lines": sum(map(_code_lines, trees, trees.values())),
        "files": len(trees),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "names": len({name for name, paths in homes.items() if len(paths) > 1} - set(EXPLAINED)),
        "longest_file": max(len(path.read_text(encoding="utf-8").splitlines()) for path in trees),
        "longest_function": max((node.end_lineno or 0) - node.lineno + 1 for node in functions),
        "climbs": len(list(_climbs(trees))),
    }


def _code_lines(path: Path, tree: ast.Module) -> int:
    words: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                words.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in words for n, line in lines)


def _climbs(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """Imports of one room from another that, directly or by others, imports it too."""
    edges: dict[str, set[str]] = {}
    for path, tree in trees.items():
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module] if "." in node.module else [f"{node.module}.{a.name}" for a in node.names]
            others = {name.split(".")[1] for name in names if name.startswith("polyhead.")}
            edges.setdefault(room, set()).update(others - {room})
    for room in ("__init__", "__main__"):  # the public names, which import every room
        edges.pop(room, None)

    def reached(start: str) -> set[str]:
        found, waiting = set[str](), [start]
        while waiting:
            for other in edges.get(waiting.pop(), set()) - found:
                found.add(other)
                waiting.append(other)
        return found

    yield from ((room, other) for room, others in edges.items() for other in others if room in reached(other))


def claims(row: dict[str, int]) -> list[Claim]:
    """Targets of the house."""
    longest = max(row["longest_file"] / LONGEST_FILE, row["longest_function"] / LONGEST_FUNCTION)
    asked = [
        ("lines", f"code lines of the package; {BEFORE}", LINES, row["code_lines"], "lines"),
        ("classes", "classes of the package", CLASSES, row["classes"], "classes"),
        ("names", "public names with several meanings, but for two that are explained", 0, row["names"], "names"),
        ("circles", "imports between rooms that stand in a circle", 0, row["climbs"], "imports"),
        ("sizes", "the longest file over 400 lines, or the longest function over 60", 1, round(longest, 3), "ratio"),
    ]
    return [
        Claim(
            id=f"rooms.{name}",
            text=text,
            target=target,
            value=value,
            unit=unit,
            holds=value <= target,
            note=NOTES.get(name, "") if value > target else "",
        )
        for name, text, target, value, unit in asked
    ]


def main() -> None:
    row = counts()
    say(str(row))
    report("rooms", command=command(), rows=[row], claims=claims(row), lacking=[])


if __name__ == "__main__":
    answer_help(__doc__)
    main()
