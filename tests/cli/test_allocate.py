"""`polyhead allocate`: what is printed is what `polyhead.plan.cost.allocate` chooses, and wrong files are named."""

import json
import re
from pathlib import Path

import pytest

from polyhead.encoder.shape import Architecture
from polyhead.plan.cost.allocate import allocation_of, best_under, by_rule, frontier, greedy, price_of
from polyhead.values import to_json
from studies.wei2021.published import DEPTHS, TASKS, published_options
from support.cases import cases
from support.commands import run, shell

BERT = Architecture(layers=12, width=768, heads=12, feed_forward=3072, vocabulary=30522)


@pytest.fixture
def options(tmp_path):
    """The paper's options with the trunk's shape and the scores of full fine-tuning."""
    return write(tmp_path, trunk=BERT, full=dict(zip(TASKS, DEPTHS[12], strict=True)))


def write(folder, **more):
    path = folder / "options.json"
    path.write_bytes(to_json({"options": published_options(), **more}))
    return path


def told(*words):
    done = run("allocate", *words, "--json", "-")
    assert done.code == 0, done.err
    return json.loads(done.out)


def as_json(chosen):
    return json.loads(to_json(chosen))


@cases(
    ("words", "choose"),
    [
        ([], lambda o: by_rule(o, 1.0)),
        (["--rule", "marginal"], lambda o: by_rule(o, 1.0)),
        (["--c", "2"], lambda o: by_rule(o, 2.0)),
        (["--rule", "greedy"], lambda o: greedy(o, 1.0)),
        (["--budget", "24"], lambda o: best_under(o, 24, price_of("layers", BERT)).chosen),
        (["--budget", "24.0"], lambda o: best_under(o, 24, price_of("layers", BERT)).chosen),
        (["--budget", "1e9"], lambda o: best_under(o, 10**9, price_of("layers", BERT)).chosen),
        (
            ["--budget", "1.2e10", "--unit", "flops", "--tokens", "40"],
            lambda o: best_under(o, 12 * 10**9, price_of("flops", BERT, 40)).chosen,
        ),
        (["--budget", "8e8", "--unit", "bytes"], lambda o: best_under(o, 8 * 10**8, price_of("bytes", BERT)).chosen),
    ],
    ids=["default", "marginal", "c", "greedy", "layers", "whole", "plenty", "flops", "bytes"],
)
def test_the_choice_is_the_librarys(words, choose, options):
    found = told(options, *words)
    chosen = choose(published_options())
    assert found["chosen"] == as_json(chosen)
    assert found["score"] == allocation_of(chosen, price_of("layers", BERT)).score
    tokens = 40 if "40" in words else 32
    for unit in ("layers", "flops", "bytes"):
        assert found["costs"][unit] == allocation_of(chosen, price_of(unit, BERT, tokens)).cost


def test_the_frontier_is_printed_with_the_choice_marked(options):
    points = frontier(published_options(), price_of("layers", BERT))
    assert told(options)["frontier"] == as_json(points)
    lines = run("allocate", options).out.splitlines()
    assert "layers   33: 7 of the encoder and 26 private, 34.4 % of 96 for one whole encoder a task" in lines
    assert any("82.47, the mean of 8 tasks, 99.65 % of full fine-tuning's 82.76" in line for line in lines)
    first = lines.index("What no choice beats in layers and score; * as chosen") + 3
    shown = [line.removeprefix("*").split() for line in lines[first:]]
    assert [(int(cells[0]), cells[-8:]) for cells in shown] == [
        (point.layers, [f"{o.tap}+{o.layers}" for o in point.chosen.values()]) for point in points
    ]
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["33"]


def test_a_rule_that_is_beaten_at_its_own_cost_says_by_how_much(options):
    assert "better   81.89 would be the best within the same layers" in run("allocate", options, "--rule", "greedy").out
    assert "better" not in run("allocate", options).out


def test_the_example_of_the_docs_chooses_what_the_page_says(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "branches.md").read_text(encoding="utf-8")
    path = tmp_path / "options.json"
    path.write_text(re.search(r"^```json options.json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
    rule, best = told(path, "--c", "1"), told(path, "--budget", "9")
    assert rule["chosen"]["sst2"]["name"] == "branch-1"
    assert rule["costs"]["layers"] == best["costs"]["layers"] == 9
    assert [round(found["score"], 2) for found in (best, rule)] == [65.63, 65.27]
    assert "a better mean: 65.63 against 65.27" in page
    assert {task: option["name"] for task, option in best["chosen"].items()} == {
        "rte": "branch-3",
        "cola": "student-2",
        "sst2": "student-1",
    }


def test_without_the_trunks_shape_layers_are_counted_and_nothing_else(tmp_path):
    path = write(tmp_path)
    found = told(path, "--budget", "24")
    assert found["costs"] == {"layers": 24}
    assert "FLOP" not in run("allocate", path).out
    run("allocate", path, "--unit", "bytes").refuses("trunk's shape", "--bundle")


@pytest.mark.slow
def test_the_trunks_shape_may_come_from_a_bundle(home, tmp_path):
    """The tiny trunk has two layers, so the options are of that size."""
    path = tmp_path / "options.json"
    path.write_bytes(to_json({"options": [{"task": "a", "name": "x", "tap": 1, "layers": 1, "score": 50.0}]}))
    bundle = home / "bundle"
    shape = told(path, "--bundle", bundle, "--unit", "flops")
    assert shape["costs"]["flops"] == shape["prices"]["flops"]["private"] * 2
    path.write_bytes(path.read_bytes().replace(b'"tap": 1', b'"tap": 3'))
    run("allocate", path, "--bundle", bundle).refuses("reads deeper than the trunk")


def test_a_budget_and_a_rule_together_are_a_wrong_command_line(options):
    run("allocate", options, "--budget", "24", "--c", "1").refuses("one of them chooses", code=2)
    run("allocate", options, "--budget", "24", "--rule", "greedy").refuses(code=2)
    run("allocate", options, "--budget", "-1").refuses(code=2)
    run("allocate", options, "--rule", "best").refuses("marginal", code=2)


@cases("unit", ["layers", "flops", "bytes"])
def test_a_budget_that_is_no_cost_is_a_wrong_command_line(options, unit):
    for budget in ("inf", "nan"):
        run("allocate", options, "--budget", budget, "--unit", unit).refuses("--budget", budget, code=2)
    parts = run("allocate", options, "--budget", "20.9", "--unit", unit)
    if unit == "layers":
        parts.refuses("20.9", "whole", code=2)
    else:
        parts.refuses("or more")


def test_a_file_of_options_that_is_not_there_is_a_wrong_command_line(options):
    run("allocate", options.with_name("none.json")).refuses("none.json", code=2)


@cases(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b'{"options": []}', "no option"),
        (b'{"options": [{"task": "a"}]}', "options.json"),
        (b'{"options": [], "trunks": 1}', "did you mean 'trunk'"),
        (b'{"options": [{"task": "a", "name": "x", "tap": -1, "layers": 1, "score": 1.0}]}', "tap"),
    ],
    ids=["no-json", "none", "no-fields", "unknown-key", "bad-tap"],
)
def test_files_that_hold_no_options_are_refused(content, words, tmp_path):
    path = tmp_path / "options.json"
    path.write_bytes(content)
    run("allocate", path).refuses(words)


def test_a_budget_that_is_too_small_names_the_cheapest_cost(options):
    run("allocate", options, "--budget", "3").refuses("15 or more")


def test_the_frontier_is_drawn(options, tmp_path):
    pytest.importorskip("matplotlib")
    done = run("allocate", options, "--plot", tmp_path / "f.svg")
    assert done.code == 0, done.err
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    run("allocate", options, "--plot", tmp_path / "f.nonsense").refuses(".svg", code=2)
    run("allocate", options, "--plot", tmp_path / "no" / "f.svg").refuses("cannot write")


def test_drawing_without_matplotlib_says_what_to_install(options, tmp_path):
    words = ["allocate", options, "--plot", tmp_path / "f.svg"]
    shell(words, before="import sys; sys.modules['matplotlib'] = None").refuses("pip install 'polyhead[plots]'")
