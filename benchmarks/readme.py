"""Writes the generated parts of README and docs: measured numbers, command help, keys of the project file, costs.

    python -m benchmarks.readme            write them
    python -m benchmarks.readme --check    say what is out of date, and end with 1 if anything is

Each part stands between two comments, `<!-- name:start -->` and `<!-- name:end -->`; the rest of a page is
written by hand, and so is the last column of a table of keys.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import click
import msgspec

from benchmarks import api_reference, one_pass_claims, store_scale
from polyhead import errors
from polyhead.cli.main import UNLISTED, VERBS, commands
from polyhead.encoder.shape import Architecture
from polyhead.plan import Embed, Layers, Path, Plan, cost, merge
from polyhead.project import generation
from polyhead.project import recipes as recipe
from polyhead.project import strategies as strategy
from polyhead.project import tables as project
from polyhead.project.encoders import ENCODERS
from polyhead.project.strategies.base import kind_of_strategy
from polyhead.tasks.task import Task, owner_of
from studies.defaults.table import quality_table, setfit_table
from studies.results import Claim, Results, in_order, read_results, tally
from studies.sample.table import count_table, score_table
from studies.sample.texts import sample_rows
from studies.seen import seen_table
from studies.settings import RESULTS, ROOT

STRUCTS = (
    project.Project,
    project.TrunkChoice,
    project.TaskEntry,
    project.DataFile,
    strategy.Pooled,
    strategy.Branch,
    strategy.Prompted,
    strategy.InLayer,
    strategy.OnTop,
    strategy.Adapter,
    project.AllocationRule,
    recipe.Training,
    generation.DecoderChoice,
    recipe.Frozen,
    recipe.Donors,
    recipe.Joint,
    recipe.Sampling,
    recipe.Weighting,
    recipe.Smoothing,
    recipe.LeaveOut,
    recipe.FineTune,
    recipe.SearchGrid,
)
SHAPE = Architecture(layers=6, width=384, heads=12, feed_forward=1536, vocabulary=30522)  # of minilm
TOKENS, MANY = 32, 8  # of the text and tasks whose costs are shown
WAYS: dict[str, strategy.Strategy] = {
    "an attention pooler": strategy.Pooled(),
    "2 private layers": strategy.Branch(layers=2),
    "isolated": strategy.Prompted(isolated=True),
    "joint": strategy.Prompted(),
    "projected attention in all layers": strategy.InLayer(),
    "projected attention in the upper half": strategy.InLayer(adapters=(strategy.Adapter(start=3),)),
    "low rank (50) in all layers": strategy.InLayer(adapters=(strategy.Adapter(delta="low_rank", size=50),)),
    "LoRA (8) in all layers": strategy.InLayer(adapters=(strategy.Adapter(delta="lora"),)),
    "prefixes (8) in all layers": strategy.InLayer(adapters=(strategy.Adapter(delta="prefix"),)),
    "scales in all layers": strategy.InLayer(adapters=(strategy.Adapter(delta="scale"),)),
    "6 narrow layers of attention": strategy.OnTop(),
    "1 narrow feed-forward layer": strategy.OnTop(form="feed_forward"),
    "1 whole layer": strategy.OnTop(form="layer"),
}
# The claims that open the page of measurements, by id, in fewer words.
HEADLINES = {
    "engine.onnxruntime-models": "21 tasks in one pass (8 bits), speed over 21 ONNX Runtime models in 8 bits",
    "engine.adapters-parallel": "the same over the `adapters` library with 21 adapters in parallel",
    "engine.bf16-21-tasks": "21 tasks in one pass (bfloat16), speed over the encoder without tasks",
    "engine.int8-21-tasks": "the same in 8 bits",
    "server.one-text": "one text alone with 21 tasks, time over that of the encoder without tasks",
    "engine.int8-change": "scores in 8 bits beside float32, mean change over eight tasks of tweets",
    "server.memory-50-tasks": "resident memory of 50 tasks over that of one",
    "engine.attach": "one more task beside 50, until its first answer",
    "branches.mixed-quality": "eight tasks in half of the layer evaluations, score over unconverged full fine-tuning",
    "branches.add-one-task": "adding a task to a bundle of 20 with proof that no other answer moves",
    "evidence.whole-mean-gain": "frozen heads on a trunk that learned from 24 sets, gain on 8 tasks held out",
    "together.mean-gain": "the same with 0.7 of the learned weights and 0.3 of the plain ones, not a paper's method",
    "heads.over_64": "no settings, 64 rows a label: score over the best simple baseline, mean of 20 sets",
    "store.bytes": "a store at one bit a dimension, width 384: bytes a token on disk, ids included",
    "store.backfill-speed": "answering a task for 200,000 documents from the store, without starting up, over encoding",
    "store.extract-rate": "filling a store, tokenizing included, speed over the bare encoder's",
    "store.codec-best": "one bit a dimension (token1), points lost to float16, mean of five tasks of tweets",
    "server.beside-onnxruntime": "a server: requests a second, 21 tasks each, over 21 ONNX Runtime models behind HTTP",
    "server.beside-infinity": "the same over Infinity, a model a task",
    "server.rate-int8": "one-text requests a second, 21 tasks each, whose 99th percentile stays within 32 ms",
    "fast.saturation-vnni": "a server at saturation: its requests a second over the engine's in process",
    "first-light.emotion": "emotion, pooled attention over the frozen trunk, macro-F1 on test",
    "first-light.head-training": "speed of training a head over kept features, over fine-tuning the trunk",
    "front-door.snippet": "README's Python snippet, after installation, on two AVX2 cores",
    "front-door.sample-demo": "`polyhead demo` on one thread: eight tasks trained, scored and answered",
}
AREAS = {  # results files and pictures by the first letters of their names
    "First light": ("first_light",),
    "Branches": ("branches",),
    "Training together": ("together", "du2020"),
    "Prompts and adapters": ("conditioning",),
    "Whole training sets": ("whole_sets",),
    "The engine": ("one_pass", "engine", "precision", "kernels", "many_tasks"),
    "The store": ("store",),
    "Right by default": ("right",),
    "Heads": ("heads",),
    "The first minute": ("minute",),
    "Encoders": ("encoders_",),
    "Nothing silently wrong": ("silent",),
    "The server": ("server",),
    "The sample": ("sample",),
    "The front door": ("front_door",),
    "The workbench": ("workbench",),
    "The house": ("house", "rooms"),
}
HELP_WIDTH = 100
NO_MEANING = "(not described yet)"
TABLE = ["| what | measured | target | holds |", "|---|---|---|---|"]
NOTHING = "Nothing was measured yet: `results/` holds no file."


def main() -> int:
    stale = [page for page, text in pages().items() if page.read_text(encoding="utf-8") != text]
    for page in stale:
        print(f"{'out of date' if '--check' in sys.argv else 'written'}: {page.relative_to(ROOT)}")
        if "--check" not in sys.argv:
            page.write_text(pages()[page], encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv)


def pages() -> dict[FilePath, str]:
    """Every page with generated parts, as it should be now."""
    guides, reference, project_pages = (ROOT / "docs" / folder for folder in ("guides", "reference", "project"))
    parts: dict[FilePath, dict[str, Callable[[str], list[str]]]] = {
        ROOT / "README.md": {
            "quality": lambda _: quality_table(read_rows("heads_defaults")),
            "setfit": lambda _: setfit_table(read_rows("heads_setfit")),
        },
        project_pages / "measured.md": {"headlines": lambda _: headlines(), "results": lambda _: measured()},
        project_pages / "sample.md": {
            "counts": lambda _: count_table(sample_rows("messages"), sample_rows("pairs")),
            "scores": lambda _: sample_scores(),
        },
        ROOT / "studies" / "README.md": {"seen": lambda _: seen_table()},
        reference / "cli.md": {"help": lambda _: help_texts()},
        reference / "project-file.md": {
            f"keys {kind.__name__}": functools.partial(key_table, kind) for kind in STRUCTS
        },
        reference / "errors.md": {"errors": error_table},
        reference / "http-api.md": {"routes": lambda _: route_table()},
        reference / "metrics.md": {"metrics": metric_table},
        reference / "python-api.md": {"api": lambda _: list(api_reference.lines())},
        guides / "operations.md": {"limits": limit_table},
        guides / "choosing.md": {"encoders": lambda _: encoder_table()},
        guides / "conditioning.md": {"costs": lambda _: cost_table()},
        project_pages / "billion-documents.md": {"scale": lambda _: store_scale.table()},
    }
    return {page: filled(page, made) for page, made in parts.items()}


def read_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a results file."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def filled(page: FilePath, parts: dict[str, Callable[[str], list[str]]]) -> str:
    """The page with each part made anew; a page without the part's comments is an error."""
    text = page.read_text(encoding="utf-8")
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- {name}:start -->\n)(.*?)(<!-- {name}:end -->)", re.DOTALL)
        block = pattern.search(text)
        if block is None:
            raise SystemExit(f"{page.name} has no comments {name}:start and {name}:end")
        body = "\n".join(make(block[2]))
        text = text[: block.start(2)] + body + "\n" + text[block.end(2) :]
    return text


def headlines(folder: FilePath = RESULTS) -> list[str]:
    """The claims of HEADLINES, and how many there are in all."""
    if not any(folder.glob("*.json")):
        return [NOTHING]
    claims = {claim.id: claim for file in read_results(folder) for claim in file.claims}
    lines = [
        _row(claims[name], text, note=_against(claims[name])) for name, text in HEADLINES.items() if name in claims
    ]
    whole = f"In all {tally(claims.values())}. The others say why not, below."
    return [*TABLE, *lines, "", whole]


def measured(folder: FilePath = RESULTS) -> list[str]:
    """Area by area: pictures, then for every results file where it was measured, and the claims that do not hold."""
    if not any(folder.glob("*.json")):
        return [NOTHING]
    files, pictures, lines = read_results(folder), sorted(folder.glob("*.png")), list[str]()
    for area, names in AREAS.items():
        mine = [file for file in files if file.name.startswith(names)]
        if not mine:
            continue
        lines += [f"## {area}", ""]
        for picture in (picture_file for picture_file in pictures if picture_file.stem.startswith(names)):
            lines += [f"![{picture.stem.replace('_', ' ')}](../../results/{picture.name})", ""]
        for file in mine:
            missed = [_row(claim, claim.text, note=_note(claim)) for _, claim in in_order([file]) if not claim.holds]
            held = f": {tally(file.claims)}" if file.claims else ""
            lines += [_source(file) + held, *(["", *TABLE, *missed] if missed else []), ""]
            if file.name.startswith("one_pass"):
                lines += [*_plain(one_pass_claims.milliseconds(file.rows)), ""]
    return lines[:-1]


def sample_scores(folder: FilePath = RESULTS) -> list[str]:
    """How the packaged sample's tasks score, and where that was measured."""
    measured_files = [file for file in read_results(folder) if file.name == "sample_scores"]
    lines = [line for file in measured_files for line in [*score_table(file.rows), "", _source(file)]]
    return lines or [NOTHING]


def _plain(rows: list[list[str]]) -> list[str]:
    """A table, numbers to the right."""
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|---|" + "---:|" * (len(rows[0]) - 1), *rest]


def _row(claim: Claim, text: str, *, note: str) -> str:
    between = "" if claim.interval is None else f" ({' to '.join(map(_number, claim.interval))})"
    outcome = f"**{claim.outcome}**" if claim.holds is False else claim.outcome
    note = note.removeprefix(f"{outcome}: ")
    cells = (
        text,
        f"{_number(claim.value)} {claim.unit}{between}",
        _number(claim.target),
        f"{outcome}{': ' if note else ''}{note}",
    )
    return "| " + " | ".join(cell.replace("|", "\\|").strip() for cell in cells) + " |"


def _note(claim: Claim) -> str:
    """The claim's note, and which claims it contradicts."""
    return "; ".join(filter(None, (claim.note, _against(claim))))


def _against(claim: Claim) -> str:
    return f"contradicts {', '.join(f'`{id}`' for id in claim.contradicts)}" if claim.contradicts else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _source(file: Results, *, up: str = "../../") -> str:
    torch = f", torch {file.versions['torch']}" if "torch" in file.versions else ""
    path = f"results/{file.name}.json"
    return f"[`{path}`]({up}{path}): `{file.command}`, {file.date}, {file.hardware}{torch}"


def help_texts() -> list[str]:
    """The help of the command, of every verb, and of the commands inside a verb."""
    lines = _help(commands, "polyhead")
    for verb in (*VERBS, *UNLISTED):
        command = commands.get_command(click.Context(commands), verb)
        assert command is not None
        lines += _helps(command, f"polyhead {verb}")
    return lines


def _helps(command: click.Command, name: str) -> Iterator[str]:
    yield from ["", *_help(command, name)]
    inner = command.commands if isinstance(command, click.Group) else {}
    for verb, subcommand in inner.items():
        yield from _helps(subcommand, f"{name} {verb}")


def _help(command: click.Command, name: str) -> list[str]:
    command._help_option = None  # click keeps that of its first use, which may have been by itself, without -h
    context = click.Context(command, info_name=name, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH)
    context.help_option_names = ["-h", "--help"]
    return [f"## {name}", "", "```text", *command.get_help(context).splitlines(), "```"]


def encoder_table() -> list[str]:
    """The encoders that have a short name."""
    lines = [
        "| name | encoder | layers, width | languages | work for a text | beside `minilm` |",
        "|---|---|---|---|---|---|",
    ]
    for each in ENCODERS.values():
        place = f"[{each.hub.split('/')[1]}](https://huggingface.co/{each.hub})"
        shape = f"{each.shape.layers}, {each.shape.width}"
        lines.append(f"| `{each.name}` | {place} | {shape} | {each.languages} | {each.work:.0f} | {each.about} |")
    return lines


def cost_table() -> list[str]:
    """What one task and eight tasks of each strategy cost, counted from shapes."""
    lines = [
        f"| strategy | parameters of a task | MFLOP that a task adds | layers run: 1 and {MANY} tasks "
        f"| {MANY} tasks over a plain pass |",
        "|---|---|---|---|---|",
    ]
    tasks = [Task(name=f"t{i}", kind="single_label", labels=("no", "yes")) for i in range(MANY)]
    plain = Path(nodes=(Embed(trunk=""), Layers(start=0, stop=SHAPE.layers)))
    base = cost.flops(merge({"": plain}), SHAPE, TOKENS)
    for title, way in WAYS.items():
        single, many = (_plan(several, way) for several in (tasks[:1], tasks))
        added = cost.added(single, tasks[0].name, SHAPE, TOKENS, folded=True)
        cells = (
            f"`{kind_of_strategy(type(way))}`, {title}",
            f"{added.parameters:,}",
            f"{added.flops / 1e6:,.1f}",
            f"{cost.layer_evaluations(single)}, {cost.layer_evaluations(many)}",
            f"{cost.flops(many, SHAPE, TOKENS, folded=True) / base:.2f} times",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"A plain pass of the trunk: {base / 1e6:.1f} MFLOP, {SHAPE.layers} layers."]


def _plan(tasks: Sequence[Task], way: strategy.Strategy) -> Plan:
    group = [owner_of(task) for task in tasks]
    return merge({task.name: way.path(task, trunk="", shape=SHAPE, group=group) for task in tasks})


def key_table(kind: type[msgspec.Struct], old: str) -> list[str]:
    """Key, type and default of every field, required ones first; meanings are those of the table as it stands."""
    known = dict(re.findall(r"^\| `(\w+)` \|(?:(?:[^|]|\\\|)*\|){2} (.*?) \|$", old, re.MULTILINE))
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    hints = typing.get_type_hints(kind)
    if kind.__struct_config__.tag is not None:
        key, tag = kind.__struct_config__.tag_field, kind.__struct_config__.tag
        lines.append(f'| `{key}` | `"{tag}"` | required | {known.get(str(key), NO_MEANING)} |')
    for field in sorted(msgspec.structs.fields(kind), key=lambda field: not field.required):
        cells = (f"`{field.name}`", _type(hints[field.name]), _default(field), known.get(field.name, NO_MEANING))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def error_table(old: str) -> list[str]:
    """Every error; what it means and what helps are taken over from the table as it stands."""
    known = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", old, re.MULTILINE))
    names = [n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PolyheadError)]
    rows = [f"| `{name}` | {known.get(name, f'{NO_MEANING} | ')} |" for name in names]
    return ["| error | when | what helps |", "|---|---|---|", *rows]


def route_table() -> list[str]:
    """Every route that the formats describe, format by format."""
    from polyhead.serve.formats import FORMATS

    lines = []
    for wire_format in FORMATS.values():
        listed = [each for each in wire_format.operations() if each.is_listed]
        rows = [f"| `{each.method} {each.path}` | {each.summary} | {each.access} |" for each in listed]
        if rows:
            lines += [f"## {wire_format.name}", "", "| route | does | key |", "|---|---|---|", *rows, ""]
    return lines[:-1]


def metric_table(old: str) -> list[str]:
    """Every count of a server; labels and meanings are taken over from the table as it stands."""
    from polyhead.engine.session import Session
    from polyhead.serve.exposition import families_of
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings
    from polyhead.testing import tiny_trunk
    from polyhead.testing.strategies import tiny_bundle, tiny_paths

    known = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", old, re.MULTILINE))
    trunk = tiny_trunk()
    with tempfile.TemporaryDirectory() as folder:
        root = tiny_bundle(FilePath(folder) / "bundle", trunk, tiny_paths(strategy.Pooled(), trunk))
        service = Service(Session(root, backend="reference"), ServeSettings(cache_bytes=1000))
        names = [f"{f.name}_total" if f.type == "counter" else f.name for f in families_of(service)]
        service.queue.close()
    rows = [f"| `{n}` | {known.get(n, f' | {NO_MEANING} | ')} |" for n in ("polyhead_info", *names) if n != "polyhead"]
    return ["| name | labels | says | elsewhere |", "|---|---|---|---|", *rows]


def limit_table(old: str) -> list[str]:
    """Limits of the server as they stand, with today's default of each that is an option."""
    from polyhead.cli.serve import command

    defaults = {option.opts[0]: option.default for option in command.params if isinstance(option, click.Option)}
    lines = old.splitlines()
    for number, line in enumerate(lines):
        option = re.match(r"^\| [^|]* \| `(--[\w-]+)` \| ([\d,]+)", line)
        if option is not None:
            start, stop = option.span(2)
            lines[number] = f"{line[:start]}{defaults[option[1]]:,.0f}{line[stop:]}"
    return lines


def _type(hint: object) -> str:
    plain = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if hint in plain:
        return plain[hint]
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f'`"{choice}"`' for choice in inside)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(option) for option in inside if option is not types.NoneType))
    if origin is dict:
        return f"table of {_type(inside[1])}"
    if origin is tuple:
        count = "" if inside[-1] is Ellipsis else f"{len(inside)} "
        several = "" if typing.get_origin(inside[0]) is typing.Literal else "s"
        return f"list of {count}{_type(inside[0])}{several}"
    names = {"Strategy": "a strategy table"}
    names |= {"DataFile": "a file table", "Training": "a training table", "Adapter": "adapter table"}
    names |= {"TrunkChoice": "a trunk table", "TaskEntry": "task"}
    names |= {"AllocationRule": "an allocation table", "DecoderChoice": "a generation table"}
    names |= {"Frozen": "a recipe table", "Joint": "a recipe table", "Sampling": "a sampling table"}
    names |= {"Weighting": "a weighting table", "Smoothing": "a smoothing table"}
    names |= dict.fromkeys(("Donors", "LeaveOut", "FineTune", "TrunkOnly"), "a recipe table")
    names |= {"SearchGrid": "a search table"}
    return names[typing.cast(type, hint).__name__]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is msgspec.NODEFAULT:
        return "required" if field.default_factory is msgspec.NODEFAULT else "empty"
    value = field.default
    if value is None:
        return "not set"
    inside = value if isinstance(value, tuple) else (value,)
    if any(isinstance(option, msgspec.Struct) for option in inside):
        return "its own defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`" if value else "empty"
    return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main())
