"""The folders show the architecture, and these tests hold it: rooms, the torch line, sizes, names."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "polyhead"
FILES = sorted(SOURCE.rglob("*.py"))

# Rooms, lowest first: a room imports rooms that stand before it, and its own files.
GROUND = "_version errors lazy nesting progress arguments values registry plugins files folders machine"  # files
ABOVE = """encoder codecs plan text tasks data project bundle engine store certify check evaluate train deep
advise convert api client sample testing serve cli"""
ROOMS = (*GROUND.split(), *ABOVE.split())
# Statements against that order that are still there; the list only shrinks.
STILL = set[tuple[str, str]]()
TORCH_HALF = {"advise", "convert", "deep"}  # rooms whose files may import `deep` where they begin
# Of others some import it inside functions.
LAZY = {"api", "cli", "testing", "__init__"}
# file or file:function -> (limit, reason)
LONGER: dict[str, tuple[int, str]] = {}
FILE_LIMIT, FUNCTION_LIMIT = 400, 60


def module(path: Path) -> str:
    """`engine.session` of src/polyhead/engine/session.py."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def room(name: str) -> str:
    """`engine` of engine.session."""
    return name.partition(".")[0]


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


def test_the_rooms_are_those_of_the_order():
    assert {room(module(path)) for path in FILES} - {"__init__", "__main__"} == set(ROOMS)


def climbs(modules: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Imports of a module of a later room, inside functions too."""
    found = set()
    for name, tree in modules.items():
        for other in _imported(tree, modules):
            if room(name) in ROOMS and ROOMS.index(room(other)) > ROOMS.index(room(name)):
                found.add((name, other))
    return found


def test_a_room_imports_rooms_before_it_alone():
    modules = {module(path): tree for path, tree in parsed()}
    assert sum(1 for name, tree in modules.items() for other in _imported(tree, modules)) > 1000
    found = climbs({name: tree for name, tree in modules.items() if name not in ("__init__", "__main__")})
    assert found - STILL == set()
    assert STILL - found == set()  # what was mended is taken off the list


def test_a_climb_is_found_inside_a_function():
    sources = {
        "plan.tree": "def f():\n    from polyhead.engine import session",
        "engine.session": "import polyhead.plan.tree",
    }
    assert climbs({name: ast.parse(text) for name, text in sources.items()}) == {("plan.tree", "engine.session")}


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
        if is_torch(name):
            continue
        names = imports(tree, top_only=room(name) in LAZY or name in LAZY)
        looked_at += 1
        for other in names:
            heavy = other.split(".")[0] in ("torch", "transformers") or is_torch(other.removeprefix("polyhead."))
            assert not heavy, f"{name} imports {other}"
    assert looked_at > 25, looked_at


# Names that several modules define, and why.
SEVERAL = {
    "command": "each file of the command line has one, which main finds by this name",
    "train_project": "the package's own reads rows in memory and shows progress, then calls that of train",
}


def test_a_public_name_is_defined_once():
    homes: dict[str, list[str]] = {}
    for path, tree in parsed():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                homes.setdefault(node.name, []).append(module(path))
    assert len(homes) > 2000
    several = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert several.keys() == SEVERAL.keys(), {n: m for n, m in several.items() if n not in SEVERAL}


def test_torch_lives_in_one_room():
    """Inside functions too; `deep` is reached by its own names."""
    looked_at = 0
    for path, tree in parsed():
        heavy = {name.split(".")[0] for name in imports(tree, top_only=False)} & {"torch", "transformers"}
        looked_at += bool(heavy)
        assert not heavy or room(module(path)) == "deep", f"{module(path)} imports {heavy}"
    assert looked_at > 20, looked_at


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
        if not is_torch(module(path)) and module(path) != "__main__"
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
        "codec": (["float32", "float16", "uint8", "sign"], ("codecs/",)),
        "backend": (["torch", "torch-cuda", "openvino", "onnxruntime", "reference"], ("engine/backends/", "deep/")),
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
    from polyhead.project.strategies import STRATEGIES

    names, classes = set(STRATEGIES), {strategy.__name__ for strategy in STRATEGIES.values()}
    looked_at = 0
    for path, tree in parsed():
        if module(path).startswith(("project.strategies", "testing.", "cli.")):
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
