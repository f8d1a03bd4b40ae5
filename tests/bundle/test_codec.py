"""The arrays of a codec lie beside the part of every task that reads through it."""

import pytest

from polyhead.bundle.merge import copy_tasks
from polyhead.bundle.read import Bundle
from polyhead.codecs import pca, tables, token
from polyhead.engine.session import Session
from polyhead.errors import CorruptFile
from polyhead.plan import Pool
from polyhead.testing import CODECS, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle

TEXTS = [("the lamp is broken",), ("please refund my bill today",)]


@pytest.fixture
def forget(monkeypatch):
    """Makes this process one that knows no tables."""

    def forget():
        monkeypatch.setattr(tables, "_TABLES", {})
        pca._code_of.cache_clear()
        token._code_of.cache_clear()

    yield forget
    forget()


@pytest.fixture
def trunk():
    return tiny_trunk()


@pytest.fixture(params=["pca1", "token1"])
def bundle(tmp_path, trunk, request):
    """Two tasks that read through the codec, and one that does not."""
    coded = Pool(layers="mean", of=2, positions="attention", part="task:x", codec=CODECS[request.param])
    pools = {"mood": coded, "topics": coded, "urgency": Pool(positions="mean")}
    tasks = {task.name: task for task in tiny_tasks()}
    paths = {name: tiny_path(tasks[name], trunk, pool=pool) for name, pool in pools.items()}
    return tiny_bundle(tmp_path / "bundle", trunk, paths)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("codec.safetensors"))


def test_a_fresh_process_answers_as_the_one_that_wrote(bundle, forget):
    assert files(bundle.root) == [f"tasks/{name}/v0001/codec.safetensors" for name in ("mood", "topics")]
    wanted = Session(bundle.root, backend="reference").predict(TEXTS)
    forget()
    assert Session(bundle.root, backend="reference").predict(TEXTS) == wanted


def test_copied_tasks_bring_their_arrays(bundle, tmp_path, trunk, forget):
    other = tiny_bundle(tmp_path / "other", trunk, {})
    forget()
    copy_tasks(Bundle.open(bundle.root), ["mood"], other)
    forget()
    (file,) = files(other.root)
    copy_tasks(Bundle.open(bundle.root), ["topics"], other)
    assert (other.root / file).samefile(other.root / "tasks/topics/v0001/codec.safetensors")
    assert (other.root / file).read_bytes() == (bundle.root / "tasks/mood/v0001/codec.safetensors").read_bytes()
    found = Session(other.root, backend="reference").outputs("mood", TEXTS)
    wanted = Session(bundle.root, backend="reference").outputs("mood", TEXTS)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]


@pytest.mark.parametrize("damage", ["absent", "changed"])
def test_damaged_arrays_are_named(bundle, forget, damage):
    file = bundle.root / "tasks/mood/v0001/codec.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.unlink()  # its bytes are those of the other task's file too
    if damage == "changed":
        file.write_bytes(raw)
    assert [str(file) in str(error) for error in Bundle.open(bundle.root).touched()] == [True]
    forget()
    with pytest.raises(CorruptFile, match="mood.*codec.safetensors"):
        Bundle.open(bundle.root)


def test_the_same_arrays_lie_on_the_disk_once_and_stay_when_a_task_goes(bundle, forget):
    mood, topics = (bundle.root / f"tasks/{name}/v0001/codec.safetensors" for name in ("mood", "topics"))
    assert mood.samefile(topics) and mood.stat().st_nlink == 2
    wanted = Session(bundle.root, backend="reference").outputs("topics", TEXTS)
    bundle.remove_task("mood")
    forget()
    found = Session(bundle.root, backend="reference").outputs("topics", TEXTS)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]


def test_a_file_system_without_links_gets_copies(tmp_path, trunk, monkeypatch):
    def link(*_, **__):
        raise OSError("no links here")

    monkeypatch.setattr("polyhead.bundle.files.os.link", link)
    pool = Pool(layers="mean", of=2, positions="attention", part="task:x", codec=CODECS["token1"])
    tasks = {task.name: task for task in tiny_tasks()}
    paths = {name: tiny_path(tasks[name], trunk, pool=pool) for name in ("mood", "topics")}
    root = tiny_bundle(tmp_path / "bundle", trunk, paths).root
    first, second = (root / file for file in files(root))
    assert first.read_bytes() == second.read_bytes() and not first.samefile(second)


def test_tasks_without_such_a_codec_have_no_such_file(bundle):
    assert not (bundle.root / "tasks/urgency/v0001/codec.safetensors").exists()
