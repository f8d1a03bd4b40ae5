"""The folders show the architecture, and these tests hold it: ranks, the torch line, sizes, public names."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "polyhead"
FILES = sorted(SOURCE.rglob("*.py"))

RANKS = {
    "errors": 0,
    "config": 0,
    "arguments": 1,
    "files": 1,
    "processor": 1,
    "folders": 1,
    "progress": 1,
    "recipe": 1,
    "architecture": 1,
    "trunk_data": 1,
    "seq2seq_data": 1,
    "plan": 1,
    "strategy": 1,
    "cost": 1,
    "metrics": 1,
    "tasks": 1,
    "text": 1,
    "project": 2,
    "allocate": 2,
    "bundle": 2,
    "store": 2,
    "nn": 2,
    "engine": 3,
    "sharing": 3,
    "model": 3,
    "train": 4,
    "scoring": 4,
    "report": 5,
    "sample": 5,
    "testing": 5,
    "cli": 6,
}
# Rank 1 is ordered inside: each may import those before it.
RANK_ONE = [
    "arguments",
    "files",
    "processor",
    "folders",
    "progress",
    "recipe",
    "architecture",
    "plan",
    "strategy",
    "trunk_data",
    "seq2seq_data",
    "cost",
    "metrics",
    "text",
    "tasks",
]
TORCH_HALF = {"nn", "sharing", "model", "train"}
# The one light module that stands on the torch half; it is itself imported inside a function only.
TORCH_BACKEND = "engine/backends/torch.py"
# Areas that reach the torch half inside functions only.
LAZY = {"cli", "testing", "__init__"}
# file or file:function -> (limit, reason)
LONGER: dict[str, tuple[int, str]] = {}
FILE_LIMIT, FUNCTION_LIMIT = 400, 60


def area(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imports(tree: ast.AST, *, top_only: bool) -> list[str]:
    nodes = tree.body if top_only and isinstance(tree, ast.Module) else list(ast.walk(tree))
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def parsed() -> list[tuple[Path, ast.Module]]:
    assert len(FILES) >= 30, f"only {len(FILES)} files found under {SOURCE}"
    return [(path, ast.parse(path.read_text())) for path in FILES]


def test_every_area_has_a_rank():
    areas = {area(path) for path in FILES} - {"__init__", "__main__"}
    assert areas <= set(RANKS), areas - set(RANKS)


def test_modules_import_lower_ranks_only():
    looked_at = 0
    for path, tree in parsed():
        own = area(path)
        if own in ("__init__", "__main__") or str(path.relative_to(SOURCE)) == TORCH_BACKEND:
            continue
        for name in imports(tree, top_only=False):
            parts = name.split(".")
            if parts[0] != "polyhead" or len(parts) < 2 or parts[1] not in RANKS or parts[1] == own:
                continue
            looked_at += 1
            other = parts[1]
            if RANKS[own] == RANKS[other] == 1:
                assert RANK_ONE.index(other) < RANK_ONE.index(own), f"{path} imports {name}"
            elif RANKS[own] == RANKS[other] == 0:
                assert (own, other) == ("config", "errors"), f"{path} imports {name}"
            elif {own, other} <= {"sharing", "model"}:
                assert own == "model", f"{path} imports {name}"
            else:
                assert RANKS[other] < RANKS[own], (
                    f"{path} (rank {RANKS[own]}) imports {name} (rank {RANKS[other]})"
                )
    assert looked_at > 60, looked_at


def test_light_half_never_imports_torch():
    looked_at = 0
    heavy = ("torch", "transformers", *(f"polyhead.{name}" for name in TORCH_HALF))
    for path, tree in parsed():
        relative = str(path.relative_to(SOURCE))
        if area(path) in TORCH_HALF:
            continue
        if relative == TORCH_BACKEND:
            continue
        names = imports(tree, top_only=area(path) in LAZY)
        looked_at += 1
        for name in names:
            assert not any(name == h or name.startswith(h + ".") for h in heavy), f"{relative} imports {name}"
    assert looked_at > 25, looked_at


def test_files_and_functions_stay_small():
    functions = 0
    for path, tree in parsed():
        relative = str(path.relative_to(SOURCE))
        lines = len(path.read_text().splitlines())
        assert lines <= LONGER.get(relative, (FILE_LIMIT,))[0], f"{relative} has {lines} lines"
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions += 1
                size = (node.end_lineno or 0) - node.lineno + 1
                limit = LONGER.get(f"{relative}:{node.name}", (FUNCTION_LIMIT,))[0]
                assert size <= limit, f"{relative}:{node.name} has {size} lines"
    assert functions > 150, functions


def test_public_names_are_listed_sorted_and_there():
    import polyhead

    assert polyhead.__all__ == sorted(polyhead.__all__)
    assert len(polyhead.__all__) >= 8
    for name in polyhead.__all__:
        assert getattr(polyhead, name) is not None


def test_import_loads_neither_torch_nor_transformers():
    code = "import sys, polyhead; print(sorted({'torch', 'transformers', 'pyarrow', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_light_half_imports_where_torch_is_missing():
    """Every light module is imported in a process in which importing torch or transformers fails."""
    names = [
        ".".join(("polyhead", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in FILES
        if area(path) not in TORCH_HALF
        and area(path) != "__main__"
        and str(path.relative_to(SOURCE)) != TORCH_BACKEND
    ]
    code = (
        "import sys, importlib\n"
        "sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(len(sys.modules))"
    )
    assert len(names) > 20
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
