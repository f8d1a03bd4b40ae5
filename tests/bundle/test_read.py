import msgspec
import numpy as np
import pytest

from formats.write_v1 import golden_trunk, write
from polyhead.bundle.read import Bundle
from polyhead.errors import BundleError, CorruptFile, UnknownTask


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "bundle").root


FILES = [
    "trunk/trunk.json",
    "trunk/weights.safetensors",
    "trunk/tokenizer.json",
    "tasks/mood/v0001/task.json",
    "tasks/mood/v0001/part.safetensors",
    "tasks/mood/v0001/scores.json",
    "tasks/mood/v0001/probes.jsonl",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["bit", "longer", "truncated", "missing"])
def test_verify_names_a_touched_file(root, name, damage):
    path = root / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        new = {"bit": content, "longer": path.read_bytes() + b" ", "truncated": path.read_bytes()[:-2]}[damage]
        path.write_bytes(new)
    if name == "trunk/trunk.json" and damage == "longer":
        return  # white space after a JSON value; trunk.json is held by the values in it
    with pytest.raises(CorruptFile, match=path.name.replace(".", r"\.")):
        Bundle.open(root).verify()


def test_every_file_of_a_bundle_is_looked_at_by_the_test_above(root):
    there = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert there - set(FILES) == {"bundle.json", ".lock", "tasks/mood/v0001/README.md"}


def test_card_may_be_edited(root):
    (root / "tasks/mood/v0001/README.md").write_text("# better words\n")
    bundle = Bundle.open(root)
    bundle.verify()
    assert bundle.card("mood") == "# better words\n"


def test_open_reads_no_arrays(root):
    (root / "trunk/weights.safetensors").unlink()
    (root / "tasks/mood/v0001/part.safetensors").unlink()
    bundle = Bundle.open(root)
    assert list(bundle.tasks) == ["mood"] and bundle.architecture == golden_trunk().architecture
    for read in (bundle.trunk, lambda: bundle.part("mood")):
        with pytest.raises(CorruptFile, match="cannot be read"):
            read()


def test_open_without_verify_finds_damage_when_it_reads_it(root):
    (root / "tasks/mood/v0001/task.json").write_text("{}")
    bundle = Bundle.open(root, verify=False)
    with pytest.raises(CorruptFile, match=r"task\.json was changed"):
        assert bundle.tasks


@pytest.mark.parametrize("file", ["weights", "part"])
def test_changed_array_is_found_when_it_is_read(root, file):
    path = root / {"weights": "trunk/weights.safetensors", "part": "tasks/mood/v0001/part.safetensors"}[file]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    bundle = Bundle.open(root)
    with pytest.raises(CorruptFile, match=path.name):
        bundle.trunk() if file == "weights" else bundle.part("mood")


def test_trunk_of_another_tokenizer_or_settings_is_found_on_opening(root):
    path = root / "trunk/trunk.json"
    path.write_bytes(path.read_bytes().replace(b'"max_tokens": 8', b'"max_tokens": 7'))
    with pytest.raises(CorruptFile, match="trunk digest"):
        Bundle.open(root)


def test_task_that_is_not_there_is_named_with_those_that_are(root):
    bundle = Bundle.open(root)
    for ask in (bundle.part, bundle.scores, bundle.probes, bundle.card, bundle.version, bundle.versions):
        with pytest.raises(UnknownTask, match="mood"):
            ask("moood")


def test_headline_is_the_tasks_metric_on_test_else_on_the_last_split(root):
    bundle = Bundle.open(root)
    assert bundle.headline("mood") == ("accuracy", 0.5)
    for name, scores, expected in (
        ("a", {"splits": {"train": {"accuracy": 0.9}, "validation": {"accuracy": 0.25}}}, 0.25),
        ("b", {"splits": {}}, None),
        ("c", {}, None),
    ):
        record, arrays = bundle.tasks["mood"], bundle.part("mood")
        task = msgspec.structs.replace(record.task, name=name)
        head = msgspec.structs.replace(record.path.head, part=f"task:{name}")
        path = msgspec.structs.replace(record.path, nodes=(*record.path.nodes[:-1], head))
        new = msgspec.structs.replace(record, task=task, path=path, owner="", prefix="", arrays="")
        bundle.add_task(new, arrays, scores=scores, probes=[], card="")
        assert Bundle.open(root).headline(name) == ("accuracy", expected)


def test_folder_without_a_bundle_is_named(tmp_path):
    with pytest.raises(BundleError, match="no bundle"):
        Bundle.open(tmp_path)
    with pytest.raises(BundleError, match="no bundle"):
        Bundle.open(tmp_path / "absent")


def test_trunk_is_read_once_and_given_as_it_was_written(root):
    bundle = Bundle.open(root)
    assert bundle.trunk() is bundle.trunk()
    for name, array in golden_trunk().arrays.items():
        np.testing.assert_array_equal(bundle.trunk().arrays[name], array)


def test_the_known_digest_of_a_trunk_is_that_of_its_content(root):
    trunk = Bundle.open(root).trunk()
    assert trunk.known_digest == trunk.digest
    others = [
        msgspec.structs.replace(trunk, arrays={**trunk.arrays, name: trunk.arrays[name] + 1}) for name in trunk.arrays
    ]
    others.append(msgspec.structs.replace(trunk, settings=msgspec.structs.replace(trunk.settings, max_tokens=3)))
    assert [other.known_digest for other in others] == [other.digest for other in others]
    assert len({trunk.digest, *(other.known_digest for other in others)}) == len(others) + 1
