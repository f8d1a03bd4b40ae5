"""The page's reader of cards: what it makes of Markdown, and that long cards take no longer than they are long."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import polyhead.serve

PAGE = Path(polyhead.serve.__file__).parent / "page"
SCRIPT = """
class Node {
  constructor(name) { this.name = name; this.children = []; this.style = {}; }
  setAttribute() {}
  append(...children) { this.children.push(...children); }
  told() { return [this.name, ...this.children.map((child) => (child instanceof Node ? child.told() : child))]; }
}
globalThis.document = { createElement: (name) => new Node(name), createElementNS: (_, name) => new Node(name) };
const fs = await import("node:fs");
const { rendered } = await import(process.argv[1]);
const texts = JSON.parse(fs.readFileSync(0, "utf8"));
const answers = texts.map((text) => {
  const began = process.cpuUsage().user;
  const told = rendered(text, "mood").map((node) => node.told());
  return { told: text.length > 10000 ? null : told, seconds: (process.cpuUsage().user - began) / 1e6 };
});
console.log(JSON.stringify(answers));
"""


def read(*texts):
    """What the page makes of each text: nested lists of an element's name and its children."""
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    command = [node, "--input-type=module", "-e", SCRIPT, (PAGE / "markdown.js").as_uri()]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CASES = {
    "# mood\n\nplain words": [["p", "plain words"]],
    "# Data\n## More": [["h3", "Data"], ["h4", "More"]],
    "a `code *not em*` and ``a ` tick``": [["p", "a ", ["code", "code *not em*"], " and ", ["code", "a ` tick"]]],
    "**strong *inside* it** and *slanted*": [
        ["p", ["strong", "strong ", ["em", "inside"], " it"], " and ", ["em", "slanted"]]
    ],
    "a [name](address) here": [["p", "a ", "name (address)", " here"]],
    "[no](two words) `open **open [open": [["p", "[no](two words) `open **open [open"]],
    "2 * 3 * 4": [["p", "2 * 3 * 4"]],
    "- one\n- two\n\n1. first\n\n> said": [
        ["ul", ["li", "one"], ["li", "two"]],
        ["ol", ["li", "first"]],
        ["p", "said"],
    ],
    "```\ncode **here**\n```\nafter": [["pre", "code **here**"], ["p", "after"]],
    "| a | b |\n|---|---|\n| 1 \\| 2 | *x* |": [
        [
            "div",
            [
                "table",
                ["thead", ["tr", ["th", "a"], ["th", "b"]]],
                ["tbody", ["tr", ["th", "1 | 2"], ["td", ["em", "x"]]]],
            ],
        ]
    ],
}


def test_a_card_is_read_as_its_writer_meant_it():
    for (text, expected), answer in zip(CASES.items(), read(*CASES), strict=True):
        assert answer["told"] == expected, text


@pytest.mark.slow
def test_time_grows_no_faster_than_a_card():
    """Signs without an end, many lines and many spans: eight times the text takes far less than 64 times the time."""
    kinds = ["`", "[a", "**a", "*a ", "[a](", "a ``b` ", "\n", "- a\n", "`a` ", "|a\n", "[", "*", "](", "> a\n\n"]
    small, large = 25_000, 200_000
    texts = [(kind * large)[:size] for kind in kinds for size in (small, large)]
    seconds = [answer["seconds"] for answer in read("warm " * 1000, *texts)[1:]]
    for kind, before, after in zip(kinds, seconds[::2], seconds[1::2], strict=True):
        assert after < 30 * max(before, 0.01), (kind, before, after)
