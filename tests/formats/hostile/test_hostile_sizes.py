"""Files that are no files, files of holes, lists without end, JSON of other types: refused at once, unread."""

import hashlib
import json
import os
import time

import pytest

from formats.write_v1 import write
from polyhead.bundle import manifest
from polyhead.bundle.read import Bundle
from polyhead.convert.peft import base_named
from polyhead.data.rows import Rows
from polyhead.deep.recipes.trained_trunk import lineage_of
from polyhead.errors import BundleError, ConfigError, CorruptFile, DataError, PolyheadError, StoreError
from polyhead.files import open_plain
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool, merge
from polyhead.plan.cost import added, added_each
from polyhead.project.pretrained import load_trunk
from polyhead.project.tables import Project
from polyhead.store.features import FeatureStore
from polyhead.testing import tiny_trunk
from polyhead.values import read_toml
from support.commands import run
from support.tiny_project import write_trunk

PLAIN = Codec(name="float32")


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "bundle").root


@pytest.fixture(autouse=True)
def quick():
    """No case takes more than 10 seconds of the processor."""
    begun = time.process_time()
    yield
    assert time.process_time() - begun < 10


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def hole(path, size):
    """A file of so many bytes, none of them on the disk, behind what it held."""
    with path.open("ab") as file:
        file.truncate(size)
    if path.stat().st_blocks * 512 > size // 1000:
        pytest.skip("this system has no files of holes")


FILES = [
    "trunk/weights.safetensors",
    "trunk/tokenizer.json",
    "trunk/trunk.json",
    "tasks/mood/v0001/part.safetensors",
    "tasks/mood/v0001/scores.json",
    "tasks/mood/v0001/probes.jsonl",
    "tasks/mood/v0001/task.json",
    "bundle.json",
]


@pytest.mark.parametrize("size", [10**11, 10**12])
@pytest.mark.parametrize("file", FILES)
def test_a_file_of_holes_is_refused_before_it_is_hashed(root, file, size):
    """100 GB of zeros took minutes, and 1 TB hours."""
    hole(root / file, size)
    with pytest.raises(CorruptFile, match="holes|large"):
        Bundle.open(root).verify()


def test_a_file_of_holes_with_a_header_that_fits_is_refused(root):
    size = 10**11
    header = json.dumps({"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    path = root / "tasks/mood/v0001/part.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    hole(path, 8 + len(header) + size)
    with pytest.raises(CorruptFile, match="holes"):
        Bundle.open(root).part("mood")


def test_weights_of_holes_are_refused(tmp_path):
    folder = write_trunk(tmp_path / "trunk")
    hole(folder / "model.safetensors", 10**12)
    with pytest.raises(PolyheadError):
        load_trunk(str(folder))


def test_a_small_file_and_a_file_that_is_on_the_disk_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    os.truncate(path, 10**6)  # too small to hurt
    with open_plain(path) as file:
        assert file.read(2) == b"x\0"


@pytest.mark.parametrize("file", FILES)
def test_a_pipe_in_a_bundle_is_refused_unread(root, file):
    pipe(root / file)
    with pytest.raises(BundleError):
        Bundle.open(root).verify()


def test_a_pipe_in_the_place_of_other_files_is_refused_unread(tmp_path, root):
    folder = write_trunk(tmp_path / "encoder")
    reads = {
        folder / "config.json": lambda: load_trunk(str(folder)),
        folder / "adapter_config.json": lambda: base_named(folder),
        tmp_path / "polyhead.toml": lambda: read_toml(tmp_path / "polyhead.toml", Project),
        root / "trunk/lineage.json": lambda: lineage_of(root),
        **{
            tmp_path / name: lambda name=name: list(Rows(str(tmp_path / name), ("text",)))
            for name in ("a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.tsv", "a.parquet")
        },
    }
    for path, read in reads.items():
        pipe(path)
        with pytest.raises(PolyheadError):
            read()


@pytest.mark.parametrize("folder", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_in_the_place_of_a_file_of_an_encoder_is_refused(tmp_path, folder):
    place = write_trunk(tmp_path / "encoder")
    (place / folder).unlink()
    (place / folder).mkdir()
    with pytest.raises(PolyheadError):
        load_trunk(str(place))


STORED = ["store.json", "versions/00000001.json"] + [
    f"fragments/*/{name}" for name in ("ids.bin", "index.bin", "ab.lengths.bin", "ab.data.bin")
]


@pytest.fixture
def store(tmp_path):
    import numpy as np

    made = FeatureStore.open(tmp_path / "store", digest="ab", layers=1, width=4, codec=PLAIN)
    made.append([b"k" * 16], [np.ones((3, 1, 4), np.float32)])
    return tmp_path / "store"


def opened(store):
    return FeatureStore.open(store, digest="ab", layers=1, width=4, codec=PLAIN)


@pytest.mark.parametrize("file", STORED)
def test_a_pipe_in_a_store_is_refused_unread(store, file):
    """The manifest was waited for, for ever."""
    assert len(opened(store)) == 1
    (path,) = (store / "ab").glob(file)
    pipe(path)
    with pytest.raises(StoreError):
        opened(store).verify()


@pytest.mark.parametrize("file", STORED)
def test_a_file_of_holes_in_a_store_is_refused(store, file):
    (path,) = (store / "ab").glob(file)
    hole(path, 10**11)
    with pytest.raises(StoreError):
        opened(store).verify()


# --- lists


@pytest.mark.parametrize("count", [10_001, 100_000])
def test_a_bundle_of_too_many_tasks_is_refused_at_once(root, count):
    content = json.loads((root / "bundle.json").read_bytes())
    content["tasks"] = {f"t{number}": content["tasks"]["mood"] for number in range(count)}
    (root / "bundle.json").write_text(json.dumps(content))
    with pytest.raises(CorruptFile, match="too many tasks"):
        Bundle.open(root)


def test_what_thousands_of_tasks_add_is_counted_in_the_time_of_one_pass():
    """Each task's own cost looked at every step of all: 10,000 tasks took minutes."""
    trunk = tiny_trunk()
    paths = {
        f"t{number}": Path(
            nodes=(
                Embed(trunk="0" * 64),
                Layers(start=0, stop=2),
                Pool(positions="mean"),
                Head(kind="single_label", width=2 + number % 5, part=f"task:t{number}"),
            )
        )
        for number in range(2000)
    }
    plan = merge(paths)
    found = added_each(plan, list(paths), trunk.architecture, 32)
    assert len(found) == 2000
    for name in ("t0", "t7", "t1999"):
        assert found[name] == added(plan, name, trunk.architecture, 32)


# --- JSON of other types

TYPES = [None, True, 7, 1.5, "x", [], [1], ["accuracy"], [[]]]
SCORES = (
    [*TYPES]
    + [{"splits": value} for value in TYPES]
    + [{"splits": {"test": value}} for value in TYPES]
    + [{"splits": {"test": {"accuracy": value}}} for value in (None, "x", [], {}, True, [0.5], {"mean": 0.5})]
)


def with_scores(root, scores):
    """The bundle with other scores, their digests computed anew."""
    raw, folder = json.dumps(scores).encode(), root / "tasks/mood/v0001"
    (folder / "scores.json").write_bytes(raw)
    task, bundle = (json.loads((folder / "task.json").read_bytes()), json.loads((root / "bundle.json").read_bytes()))
    task["files"]["scores.json"] = hashlib.sha256(raw).hexdigest()
    (folder / "task.json").write_text(json.dumps(task))
    bundle["tasks"]["mood"]["record"] = hashlib.sha256((folder / "task.json").read_bytes()).hexdigest()
    (root / "bundle.json").write_text(json.dumps(bundle))
    return root


@pytest.mark.parametrize("scores", SCORES, ids=str)
def test_scores_of_other_types_are_refused(root, scores):
    bundle = Bundle.open(with_scores(root, scores))
    for read in (bundle.scores, bundle.headline, bundle.split_scores):
        with pytest.raises(CorruptFile, match=r"scores\.json"):
            read("mood")


@pytest.mark.parametrize("command", [["inspect"], ["tasks", "list"]])
@pytest.mark.parametrize("scores", [SCORES[3], {"splits": 7}, {"splits": {"test": {"accuracy": "x"}}}], ids=str)
def test_commands_that_show_scores_of_other_types_say_so(root, command, scores):
    run(*command, str(with_scores(root, scores))).refuses("scores.json")


@pytest.mark.parametrize("scores", [{}, {"splits": {}}, {"splits": {"test": {}}, "note": [1, {"a": None}]}])
def test_scores_without_any_value_are_fine(root, scores):
    bundle = Bundle.open(with_scores(root, scores))
    assert bundle.scores("mood") == scores and bundle.headline("mood")[1] is None


@pytest.mark.parametrize("line", ["7", "[]", "null", '"x"', "{", "\xff", "[" * 100_000])
def test_probes_of_other_types_are_refused(root, line):
    folder = root / "tasks/mood/v0001"
    raw = line.encode("latin-1") + b"\n"
    (folder / "probes.jsonl").write_bytes(raw)
    task, bundle = (json.loads((folder / "task.json").read_bytes()), json.loads((root / "bundle.json").read_bytes()))
    task["files"]["probes.jsonl"] = hashlib.sha256(raw).hexdigest()
    (folder / "task.json").write_text(json.dumps(task))
    bundle["tasks"]["mood"]["record"] = hashlib.sha256((folder / "task.json").read_bytes()).hexdigest()
    (root / "bundle.json").write_text(json.dumps(bundle))
    with pytest.raises(CorruptFile, match=r"probes\.jsonl"):
        Bundle.open(root).probes("mood")


def test_a_project_that_is_a_pipe_and_a_number_that_is_none_are_named(tmp_path):
    with pytest.raises(ConfigError, match="plain file"):
        read_toml(pipe(tmp_path / "polyhead.toml"), Project)
    with pytest.raises(DataError):
        list(Rows(str(pipe(tmp_path / "a.csv")), ("text",)))
    assert manifest.MOST_TASKS == 10_000
