"""The folders show the architecture, and these tests hold it: ranks, the torch line, sizes, public names."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "polyhead"
FILES = sorted(SOURCE.rglob("*.py"))

# Who may import whom: a room, or a file of a room, imports those of lower ranks, and files of its own room.
RANKS = {
    "errors": 0,
    "_version": 0,
    "progress": 0,
    "config": 1,
    "files": 1,
    "registry": 1,
    "client": 1,
    "advise": 13,
    "arguments": 2,
    "folders": 2,
    "plugins": 1,
    "lazy": 0,
    "memory": 0,
    "nesting": 0,
    "processor": 2,
    "metrics": 2,
    "trunk": 2,
    "plan": 3,
    "text": 3,
    "project.recipes": 6,
    "seq2seq.data": 4,
    "cost": 5,
    "tasks": 5,
    "strategies": 7,
    "project": 8,
    "bundle": 7,
    "store": 7,
    "store.codecs": 2,
    "seq2seq": 4,
    "seq2seq.configs": 7,
    "nn": 7,
    "seq2seq.model": 8,
    "sharing": 8,
    "model": 9,
    "seq2seq.answer": 9,
    "engine": 9,
    "certify": 10,
    "evaluation": 10,
    "jobs": 10,
    "seq2seq.train": 12,
    "seq2seq.run": 12,
    "train": 12,
    "api": 13,
    "check": 13,
    "importing": 13,
    "quality": 11,
    "report": 13,
    "sample": 13,
    "serve": 13,
    "testing": 13,
    "cli": 14,
}
# Rooms and files of one rank that may import each other one way: the first imports the second.
BESIDE = {
    ("arguments", "errors"),
    ("nesting", "errors"),
    ("engine", "seq2seq.answer"),
    ("engine.backends.torch", "model"),
    ("seq2seq.run", "train"),
    ("seq2seq.train", "train"),
    ("train.run", "seq2seq.run"),
    ("seq2seq.answer", "engine"),
    ("cost", "seq2seq.data"),
}
TORCH_HALF = {"advise", "nn", "sharing", "model", "train", "importing", "seq2seq.model", "seq2seq.train", "seq2seq.run"}
# The one light module that stands on the torch half; it is itself imported inside a function only.
TORCH_BACKEND = "engine/backends/torch.py"
# Rooms that reach the torch half inside functions only.
LAZY = {"api", "cli", "testing", "__init__", "seq2seq.answer"}
# file or file:function -> (limit, reason)
LONGER: dict[str, tuple[int, str]] = {}
FILE_LIMIT, FUNCTION_LIMIT = 400, 60


def module(path: Path) -> str:
    """`engine.session` of src/polyhead/engine/session.py."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def room(name: str) -> str:
    """The longest name of RANKS that this module stands in; of others the first part."""
    parts = name.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((one for one in names if one in RANKS), parts[0])


def is_torch(name: str) -> bool:
    return any(name == half or name.startswith(half + ".") for half in TORCH_HALF)


def imports(tree: ast.AST, *, top_only: bool) -> list[str]:
    looked_at = tree.body if top_only and isinstance(tree, ast.Module) else nodes(tree)
    found = []
    for node in looked_at:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@cache
def parsed() -> list[tuple[Path, ast.Module]]:
    assert len(FILES) >= 30, f"only {len(FILES)} files found under {SOURCE}"
    return [(path, ast.parse(path.read_text())) for path in FILES]


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """All of a tree, gone through once for all tests."""
    return list(ast.walk(tree))


def teardown_module() -> None:
    parsed.cache_clear()
    nodes.cache_clear()


def test_every_room_has_a_rank():
    rooms = {room(module(path)) for path in FILES} - {"__init__", "__main__"}
    assert rooms <= set(RANKS), rooms - set(RANKS)


def test_modules_import_lower_ranks_only():
    looked_at = 0
    for path, tree in parsed():
        own = module(path)
        if own in ("__init__", "__main__"):
            continue
        for name in imports(tree, top_only=False):
            if not name.startswith("polyhead."):
                continue
            other = name.removeprefix("polyhead.")
            mine, theirs = room(own), room(other)
            if theirs not in RANKS or mine.partition(".")[0] == theirs.partition(".")[0]:
                continue
            looked_at += 1
            if any(
                (own + ".").startswith(first + ".") and (other + ".").startswith(second + ".")
                for first, second in BESIDE
            ):
                continue
            assert RANKS[theirs] < RANKS[mine], f"{own} (rank {RANKS[mine]}) imports {other} (rank {RANKS[theirs]})"
    assert looked_at > 60, looked_at


def _imported(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    """The modules that this one names in imports: of `from package import module` the module alone."""
    for node in nodes(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [next((n for n in (f"{node.module}.{name}",) if n[9:] in modules), node.module) for name in names]
        yield from (name[9:] for name in names if name and name[9:] in modules and name.startswith("polyhead."))


def circles(modules: dict[str, ast.Module]) -> list[set[str]]:
    """Sets of modules that import each other, inside functions and for types too (Tarjan 1972)."""
    graph = {name: {other for other in _imported(tree, modules) if other != name} for name, tree in modules.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        waiting.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in waiting:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = waiting.index(name)
            if len(waiting) - at > 1:
                found.append(set(waiting[at:]))
            del waiting[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_no_modules_import_each_other():
    assert circles({module(path): tree for path, tree in parsed()}) == []


def test_a_circle_is_found():
    sources = {
        "a": "from polyhead.b import x",
        "b": "def f():\n    import polyhead.c",
        "c": "import polyhead.a",
        "d": "",
    }
    assert circles({name: ast.parse(text) for name, text in sources.items()}) == [{"a", "b", "c"}]


def literals(tree: ast.Module) -> list[str]:
    """The strings of a module, without docstrings."""
    statements = {node.value for node in nodes(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements
    ]


def test_a_kind_is_named_in_its_own_file_alone():
    """Everything else asks the kind, so that another one is one more file: tests/tasks/test_new_kind.py."""
    from polyhead.tasks.kinds import KINDS

    named = {
        (module(path), text)
        for path, tree in parsed()
        if not module(path).startswith(("tasks.kinds.", "testing."))
        for text in literals(tree)
        if text in KINDS
    }
    assert len(KINDS) >= 7
    assert not named, sorted(named)


def test_a_name_in_a_docstring_or_a_longer_string_is_no_literal():
    tree = ast.parse('"span"\ndef f(x):\n    "regression"\n    return x == "tagging" or f"of span: {x}"')
    assert literals(tree) == ["tagging", "of span: "]


def test_light_half_never_imports_torch():
    looked_at = 0
    for path, tree in parsed():
        name = module(path)
        if is_torch(name) or str(path.relative_to(SOURCE)) == TORCH_BACKEND:
            continue
        names = imports(tree, top_only=room(name) in LAZY)
        looked_at += 1
        for other in names:
            heavy = other.split(".")[0] in ("torch", "transformers") or is_torch(other.removeprefix("polyhead."))
            assert not heavy, f"{name} imports {other}"
    assert looked_at > 25, looked_at


def test_files_and_functions_stay_small():
    functions = 0
    for path, tree in parsed():
        relative = str(path.relative_to(SOURCE))
        lines = len(path.read_text().splitlines())
        assert lines <= LONGER.get(relative, (FILE_LIMIT,))[0], f"{relative} has {lines} lines"
        for node in nodes(tree):
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
        f"polyhead.{module(path)}".removesuffix(".__init__")
        for path in FILES
        if not is_torch(module(path)) and module(path) != "__main__" and str(path.relative_to(SOURCE)) != TORCH_BACKEND
        if module(path) != "api.estimators"  # scikit-learn looks for torch in sys.modules
    ]
    code = (
        "import sys, importlib\n"
        "sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(len(sys.modules))"
    )
    assert len(names) > 20
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def _named(node: ast.AST) -> str:
    """The last name of `a.b.name` or `name`; "" for anything else."""
    return getattr(node, "attr", getattr(node, "id", ""))


def literal_choices(tree: ast.AST, names: Collection[str], subject: str) -> Iterator[str]:
    """Where one of the names is written out in place of a property of what it names.

    Of a name that is also a dtype, a precision or a package, only what stands for the `subject` counts: an argument
    or default called `subject`, an argument of a class of that name, or a comparison with something called `subject`
    or `name`.
    """
    everywhere = set(names) - ALSO
    for node in nodes(tree):
        found: list[ast.AST] = []
        if isinstance(node, ast.Compare) and _named(node.left) in (subject, "name"):
            found = node.comparators
        elif isinstance(node, ast.Call):
            own = subject == _named(node.func).lower()
            found = [k.value for k in node.keywords if k.arg == subject or (own and k.arg == "name")]
        elif isinstance(node, ast.AnnAssign) and _named(node.target) == subject and node.value is not None:
            found = [node.value]
        elif isinstance(node, ast.Dict):
            found = [v for k, v in zip(node.keys, node.values, strict=True) if getattr(k, "value", 0) == subject]
        several = [part for one in found for part in ast.walk(one)]
        yield from (p.value for p in several if isinstance(p, ast.Constant) and p.value in names)
        if isinstance(node, ast.Constant) and node.value in everywhere:
            yield node.value


# Names of codecs and backends that are numpy's dtypes, precisions of the trunk, or packages too.
ALSO = {"float32", "float16", "uint8", "torch", "openvino", "onnxruntime"}


def test_codecs_and_backends_are_named_in_their_own_files_alone():
    """Elsewhere their properties decide. Commands list names in their help; the label of training is its own."""
    homes = {
        "codec": (["float32", "float16", "uint8", "sign"], ("store/codecs/",)),
        "backend": (
            ["torch", "torch-cuda", "openvino", "onnxruntime", "reference"],
            ("engine/backends/", "train/loop/numerics.py"),
        ),
    }
    for subject, (names, home) in homes.items():
        looked_at = 0
        for path, tree in parsed():
            relative = str(path.relative_to(SOURCE))
            if relative.startswith(home):
                continue
            looked_at += 1
            assert not list(literal_choices(tree, names, subject)), f"{relative} names a {subject}"
        assert looked_at > 200
    named = ast.parse('if codec.name == "uint8": f(codec="sign")\nx: str = "float32"\nnp.dtype("float16")')
    assert sorted(literal_choices(named, homes["codec"][0], "codec")) == ["sign", "sign", "uint8"]


def test_only_strategies_tell_strategies_apart():
    """No name and no class of a strategy is asked for outside the strategies' own files, the checks and the CLI."""
    from polyhead.strategies import STRATEGIES

    names, classes = set(STRATEGIES), {strategy.__name__ for strategy in STRATEGIES.values()}
    looked_at = 0
    for path, tree in parsed():
        if room(module(path)) in ("strategies", "testing", "cli"):
            continue
        looked_at += 1
        docstrings = {id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr)}
        for node in nodes(tree):
            if isinstance(node, ast.Constant) and id(node) not in docstrings:
                assert node.value not in names, f"{module(path)}:{node.lineno} names '{node.value}'"
            asked = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = [node.args[1]]
            if isinstance(node, ast.MatchClass):
                asked = [node.cls]
            told = {n.id for one in asked for n in ast.walk(one) if isinstance(n, ast.Name)}
            told |= {n.attr for one in asked for n in ast.walk(one) if isinstance(n, ast.Attribute)}
            assert not told & classes, f"{module(path)}:{node.lineno} asks for {told & classes}"
    assert len(names) == 5 and looked_at > 200, (names, looked_at)
