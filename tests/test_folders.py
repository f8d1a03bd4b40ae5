"""Nothing is written through a link, and nothing is removed but what was written."""

import errno
import os

import pytest

from polyhead.bundle.atomic import remove_workspace
from polyhead.cli.output import writing_file
from polyhead.deep.loop.checkpoint import read_checkpoint, write_checkpoint
from polyhead.deep.recipes.trained_trunk import building_of, remove_checkpoint, writing_alone
from polyhead.errors import PolyheadError, StoreError, TrainError
from polyhead.files import (
    is_temporary,
    make_folder,
    open_plain,
    refuse_links,
    remove_files,
    remove_leftovers,
    replace_file,
    replacing,
    temporary_name,
    write_file,
)
from polyhead.plan import Codec
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.features import FeatureStore
from polyhead.train.data.extract import Journal
from polyhead.train.runs import cache_folder
from studies.results import Results, write_results
from support.disk_failures import fsync
from support.outside_files import PLANTS, listed, make_others, plant, untouched

LINKS = PLANTS[:3]


def test_names_of_what_is_being_written_are_never_alike():
    names = {temporary_name("x" * n) for n in (1, 150, 250) for _ in range(50)}
    assert len(names) == 150 and all(map(is_temporary, names)) and max(map(len, names)) < 255
    assert all(is_temporary(temporary_name(name), of=name) for name in ("x", "x" * 250, "a-b", "ü" * 120))
    assert not any(map(is_temporary, (".new-x", "x", ".new-0123456789ABCDEF-x", ".new-0123456789abcdef-", ".newer")))


def results(folder, name):
    there = Results(name=name.removesuffix(".json"), date="", hardware="", versions={}, command="", rows=[], claims=[])
    write_results(folder, there)


def said(folder, name):
    with writing_file(str(folder / name)) as file:
        file.write(b"said")


def journalled(folder, name):
    journal = Journal(folder, ["digest"])
    journal._file = folder / name
    journal.begin([("a",)], [("a",)])


WRITERS = {
    "replace_file": lambda folder, name: replace_file(folder / name, b"new"),
    "write_file": lambda folder, name: write_file(folder / name, [b"new"]),
    "results": results,
    "checkpoint": lambda folder, name: write_checkpoint(folder / name, {"step": 1}),
    "journal": journalled,
    "writing": said,
}


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("place", ["{}", ".new-{}", "{}.tmp", "{}.partial", "{}.{process}.tmp"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_of_a_file_follows_what_is_planted(tmp_path, monkeypatch, writer, place, kind):
    monkeypatch.setattr("os.fsync", fsync)
    if (writer, place, kind) == ("writing", "{}", "pipe"):
        pytest.skip("pipes that people name are written to")
    folder, others, name = tmp_path / "here", make_others(tmp_path), "x.json"
    plant(folder / place.format(name, process=os.getpid()), kind, others)
    if writer == "writing" and place == "{}" and "link" in kind:
        return  # people who name a link mean the file that it leads to; see tests/cli/test_output.py
    with untouched(tmp_path, but=[folder / name]):
        try:
            WRITERS[writer](folder, name)
        except (OSError, PolyheadError):
            assert place == "{}"
    assert place == "{}" or (folder / name).is_file()


def test_a_partial_file_of_somebody_elses_is_never_written_into(tmp_path, capsys):
    """It was cut to nothing as soon as the command began."""
    (tmp_path / "x.partial").write_text("mine")
    for number in (2, 3):
        with pytest.raises(RuntimeError), writing_file(str(tmp_path / "x")) as file:
            file.write(b"half")
            raise RuntimeError
        assert f"x.{number}.partial" in capsys.readouterr().err
        assert (tmp_path / f"x.{number}.partial").read_text() == "half"
    assert (tmp_path / "x.partial").read_text() == "mine" and not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("steps", [("a",), ("a", "b"), ("a", "b", "c")], ids=["first", "second", "last"])
def test_no_step_below_the_root_is_followed(tmp_path, steps, kind):
    root, others = tmp_path / "root", make_others(tmp_path, "b", "c", "x", "file")
    root.mkdir()
    kind = "link to folders" if kind == "link to a folder" else kind
    plant(root.joinpath(*steps), kind, others)
    folder = root / "a" / "b" / "c"
    with untouched(tmp_path):
        for do in (
            lambda: make_folder(folder, root=root),
            lambda: refuse_links(folder, root=root),
            lambda: open_plain(folder / "file", root=root),
        ):
            with pytest.raises(OSError, match="link") as refused:
                do()
            assert refused.value.errno == errno.ELOOP and refused.value.filename == str(root.joinpath(*steps))


def test_a_root_that_is_a_link_is_the_users_own(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    make_folder(tmp_path / "root" / "a", root=tmp_path / "root")
    replace_file(tmp_path / "root" / "a" / "x", b"new")
    assert (tmp_path / "disk" / "a" / "x").read_bytes() == b"new"
    with open_plain(tmp_path / "root" / "a" / "x", root=tmp_path / "root") as file:
        assert file.read() == b"new"


def test_files_are_removed_by_name_and_a_folder_only_when_it_is_empty(tmp_path):
    for name in ("ours", "mine.txt"):
        (tmp_path / "a" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_text("")
    (tmp_path / "a" / "link").symlink_to("mine.txt")
    remove_files(tmp_path / "a", ["ours", "link", "nothing"])
    assert listed(tmp_path).keys() == {"a", "a/mine.txt"}
    (tmp_path / "b").symlink_to("a")
    remove_files(tmp_path / "b", ["mine.txt"])
    assert (tmp_path / "a" / "mine.txt").exists()
    remove_files(tmp_path / "a", ["mine.txt"])
    assert listed(tmp_path).keys() == {"b"}


def test_leftovers_are_plain_files_and_folders_that_nobody_writes(tmp_path):
    others = make_others(tmp_path)
    here, left = tmp_path / "here", [temporary_name(name) for name in ("x", "x", "y")]
    for name, kind in zip([temporary_name("x") for _ in LINKS], LINKS, strict=True):
        plant(here / name, kind, others)
    (here / left[0]).write_text("")
    (here / left[1]).mkdir()
    (here / left[1] / "half").symlink_to(others / "files")
    (here / left[2]).write_text("")
    with untouched(others), replacing(here / "x") as file:
        file.write(b"half")
        assert not remove_leftovers(here, of="x")  # somebody is writing it
        assert {name for name in os.listdir(here) if (here / name).is_file()} >= {left[2]}
        assert not (here / left[0]).exists() and not (here / left[1]).exists()
    assert (here / "x").read_bytes() == b"half" and remove_leftovers(here)
    assert not (here / left[2]).exists() and sum((here / name).is_symlink() for name in os.listdir(here)) == 3


# caches of training

STORED = (
    "d",
    "d/store.json",
    "d/versions",
    "d/versions/00000001.json",
    "d/versions/00000002.json",
    "d/fragments",
    "d/results",
    "d/results/topics",
)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "there"])
@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("name", STORED)
def test_a_store_is_not_written_through_what_is_planted(tmp_path, monkeypatch, name, kind, is_new):
    import numpy as np

    monkeypatch.setattr("os.fsync", fsync)
    root, others = tmp_path / "store", make_others(tmp_path, "versions", "fragments", "results", "topics")

    def kept(key):
        store = FeatureStore.open(root, digest="d", layers=1, width=4, codec=Codec(name="float32"))
        store.append([document_id((key,))], [np.ones((2, 1, 4), np.float32)])
        corpus = PlainStore.open(str(root / "d"))
        for fragment in corpus.fragments:
            corpus.put_results(fragment.name, "topics", {"label": np.zeros(fragment.rows)})
        corpus.compact(rows=100)
        corpus.sweep(age=0)

    if not is_new:
        kept("first")
    plant(root / name, "link to folders" if kind == "link to a folder" else kind, others)
    with untouched(others):
        try:
            kept("second")
        except PolyheadError as error:
            assert isinstance(error, StoreError)


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/tag"])
def test_a_cache_is_not_written_through_a_link(tmp_path, name, kind):
    cache, others = tmp_path / "cache", make_others(tmp_path)
    plant(cache / name, kind, others)
    with untouched(tmp_path), pytest.raises(TrainError, match="nothing can be kept in.*link.*Allowed.*remove it"):
        cache_folder(cache, "checkpoints", "tag")


def test_a_cache_that_is_a_link_is_the_users_own(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    file = cache_folder(tmp_path / "cache", "joint") / "x.checkpoint"
    write_checkpoint(file, {"step": 3})
    assert read_checkpoint(file) == {"step": 3} and (tmp_path / "disk" / "joint" / "x.checkpoint").is_file()


def test_what_a_killed_run_left_of_a_checkpoint_goes_with_it(tmp_path):
    place, root = tmp_path / "joint" / "a.checkpoint", tmp_path / "learned"
    write_checkpoint(place, {"step": 1})
    for name in ("a.checkpoint", "a-probe.checkpoint"):
        (place.parent / temporary_name(name)).write_text("half")
    (place.parent / "b.checkpoint").write_text("another run's")
    (tmp_path / ".learned.learning").mkdir()
    (tmp_path / ".learned.learning" / "mine.txt").write_text("mine")
    remove_workspace(building_of(root))
    remove_checkpoint(place)
    assert listed(tmp_path / "joint").keys() == {"b.checkpoint"}
    assert (tmp_path / ".learned.learning" / "mine.txt").exists()


def test_the_lock_of_a_training_is_not_removed_where_it_is_somebodys_file(tmp_path):
    (tmp_path / ".out.training").write_text("mine")
    with untouched(tmp_path), writing_alone(tmp_path / "out"):
        pass
    with writing_alone(tmp_path / "other"):
        assert (tmp_path / ".other.training").exists()
    assert not (tmp_path / ".other.training").exists()
