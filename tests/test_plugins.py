"""Commands find what other installed packages register, and import nothing that a file names."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest

from polyhead.codecs import CODECS, register_codec
from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import FeatureColumn, Schema
from support import tiny_project
from support.commands import SOURCE, run, shell

OWN = Path(__file__).parent / "one_file"
LEVELS = ("none", "one", "more")
SHORT = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import pytest
from support import head_search
head_search.shorten(pytest.MonkeyPatch())
"""  # what is learned is not looked at
PROJECT = """
bundle = "bundle"
trunk = { name = "trunk" }
strategy = { kind = "bottleneck", of = 1, size = 3 }
training = { seed = 1, epochs = 2, learning_rate = 3e-3, batch = 8, precision = "float32" }

"""


def install(folder, package, **modules):
    """Puts a package with these plugins into a folder, as pip does; what makes a process find it."""
    entries = "".join(f"{name} = {module}\n" for name, module in modules.items())
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[polyhead.plugins]\n{entries}")
    return {"PYTHONPATH": f"{SOURCE}:{folder}"}


@pytest.fixture
def own(tmp_path):
    """A package with a kind, a strategy, a codec and a backend, a module each."""
    site, names = tmp_path / "site", ("kind", "strategy", "codec", "backend")
    environment = install(site, "own-things", **{name: f"own_{name}" for name in names})
    for name in names:
        shutil.copy(OWN / f"{name}.py", site / f"own_{name}.py")
    with (site / "own_strategy.py").open("a") as file:
        file.write("\n\nfrom polyhead.project.strategies import register_strategy\n\nregister_strategy(Bottleneck)\n")
    return environment


@pytest.mark.slow
def test_commands_know_what_an_installed_package_registers(own, tmp_path):
    rows = [{"text": row["text"], "level": LEVELS[min(len(row["topics"]), 2)]} for row in tiny_project.messages(40)]
    tiny_project.write_jsonl(tmp_path / "rows.jsonl", rows)
    tiny_project.write_trunk(tmp_path / "trunk")
    project, bundle = tmp_path / "polyhead.toml", tmp_path / "bundle"
    words = ["--kind", "ordinal", "--task", "topics", "--label", "level", "--output", tmp_path / "entry.toml"]
    done = shell(["init", tmp_path / "rows.jsonl", *words], env=own)
    assert done.code == 0, done.err
    entry = (tmp_path / "entry.toml").read_text()
    project.write_text(PROJECT + entry[entry.index("[[tasks]]") :])
    done = shell(["train", project], env=own, before=SHORT)
    assert done.code == 0, done.err
    record = json.loads(next(bundle.glob("tasks/topics/*/task.json")).read_text())
    assert record["task"]["kind"] == "ordinal" and record["trained_with"]["strategy"]["kind"] == "bottleneck"
    out = tmp_path / "out.csv"
    done = shell(["score", bundle, tmp_path / "rows.jsonl", out, "--backend", "counting"], env=own)
    assert done.code == 0, done.err
    with out.open(newline="") as file:
        assert {row["topics"] for row in csv.DictReader(file)} <= set(LEVELS)
    done = shell(["score", bundle, tmp_path / "rows.jsonl", tmp_path / "other.csv", "--backend", "reference"])
    missing = ("task.json is whole", "kind 'ordinal' is not registered", "install the package", "'own-things'")
    done.refuses(*missing)
    for words in (["tasks", "verify", bundle], ["inspect", bundle]):
        done = shell(words)
        done.refuses(*missing)
        assert "damaged" not in done.err and "DIFFERS" not in done.out and "restore" not in done.err


def test_all_four_are_registered_and_the_log_names_them(own):
    lists = (
        "import atexit\n"
        "@atexit.register\n"
        "def told():\n"
        "    from polyhead.engine.backends import BACKENDS\n"
        "    from polyhead.codecs import CODECS\n"
        "    from polyhead.project.strategies import STRATEGIES\n"
        "    from polyhead.tasks.kinds import KINDS\n"
        "    print([list(names)[-1] for names in (KINDS, STRATEGIES, CODECS, BACKENDS)])"
    )
    done = shell(["--verbose", "predict", "--help"], env=own, before=lists)
    assert "['ordinal', 'bottleneck', 'upper-half', 'counting']" in done.out, done.err
    assert "reference|counting" in "".join(done.out.split())


def test_a_plugin_that_cannot_be_loaded_is_named_with_its_package(tmp_path):
    environment = install(tmp_path, "half-done", kind="half_done")
    done = shell(["inspect", "bundle"], env=environment)
    done.refuses("plugin 'kind' of the package 'half-done'", "No module named 'half_done'", "pip uninstall half-done")
    (tmp_path / "half_done.py").write_text("raise RuntimeError('not yet')")
    shell(["inspect", "bundle"], env=environment).refuses("RuntimeError: not yet")
    assert shell(["--help"], env=environment).code == 0


@pytest.mark.parametrize("name", ["store", "store.lance"])
def test_a_store_of_a_codec_that_nothing_registers_is_whole(tmp_path, name):
    """It was called damaged, with the advice to delete it."""
    if name.endswith(".lance"):
        pytest.importorskip("lance")
    with CODECS.temporary():
        from one_file.codec import BFloat16

        register_codec(BFloat16())
        column = FeatureColumn(digest="d", layers=1, width=4, codec=Codec(name=BFloat16.name))
        create_corpus(tmp_path / name, Schema(features=(column,)))
    with pytest.raises(StoreError, match="is whole, but its codec 'upper-half' is not registered") as error:
        open_corpus(tmp_path / name)
    assert "install the package that has it, 'one_file'" in str(error.value)
    assert not any(word in str(error.value) for word in ("damaged", "delete", "restore", "did you mean"))


def test_a_plugin_may_not_take_a_name_that_is_taken(own, tmp_path):
    site = tmp_path / "site"
    text = (site / "own_kind.py").read_text().replace('name = "ordinal"', 'name = "single_label"')
    (site / "own_kind.py").write_text(text)
    shell(["inspect", "bundle"], env=own).refuses("plugin 'kind'", "single_label")


def test_nothing_is_imported_because_a_file_names_it(tmp_path, monkeypatch):
    """A module beside the project and the bundle is somebody else's, perhaps."""
    tiny_project.project(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    marker = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    project = tmp_path / "polyhead.toml"
    project.write_text('plugins = ["evil"]\ntrunk = { name = "trunk" }\n')
    run("train", project, cwd=tmp_path).refuses("unknown key 'plugins'")
    project.write_text('trunk = { name = "trunk" }\n[[tasks]]\nname = "mood"\nkind = "evil"\ntrain = "evil.py"\n')
    run("train", project, cwd=tmp_path).refuses("evil")
    assert not marker.exists() and "evil" not in sys.modules
