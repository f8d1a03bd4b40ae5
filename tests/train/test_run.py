"""From a project to a bundle: what is promised of a run of training, on a tiny trunk."""

import errno
import json
import os
import shutil
import signal

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.deep.loop import fit as fitting
from polyhead.deep.recipes.trained_trunk import Lineage, write_lineage
from polyhead.engine.session import Session
from polyhead.errors import BundleError, EmptyData, PolyheadError, StoreError, TrainError, WrongTrunk
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Pooled
from polyhead.project.tables import with_seed
from polyhead.tasks.kinds import kind_of
from polyhead.testing import tiny_trunk
from polyhead.train import job as running
from polyhead.train.candidates import feature_paths
from polyhead.train.data import extract as extraction
from polyhead.train.data import prepared as prepared_tasks
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare, wanted
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import head_search, tiny_project
from support.disk_failures import run_forking
from support.pooled_features import of_torch
from support.split_scores import split_scores
from support.tiers import first_of

ALL = tuple(tiny_project.ENTRIES)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with trunk, data and one bundle of all tasks, trained once."""
    folder = tmp_path_factory.mktemp("home")
    lines = []
    outcome = train_project(tiny_project.project(folder), folder=folder, events=Events(say=lines.append))
    return folder, outcome, lines


@pytest.fixture(scope="module")
def baseline(home, tmp_path_factory):
    """The part of a task as an uninterrupted run over these tasks gives it, trained once for each set of tasks."""
    known = {}

    def part(task, *names):
        if names not in known:
            folder = copied(home, tmp_path_factory.mktemp("baseline"))
            train_project(tiny_project.project(folder, *names), folder=folder)
            known[names] = {name: tiny_project.part_bytes(folder / "bundle", name) for name in names}
        return known[names][task]

    return part


@pytest.fixture
def every_epoch(monkeypatch):
    """A checkpoint after each epoch, however short."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)


def copied(home, tmp_path):
    """A new folder over the same trunk and data."""
    tmp_path.mkdir(exist_ok=True)
    for name in ("trunk", "data"):
        (tmp_path / name).symlink_to(home[0] / name)
    return tmp_path


@pytest.mark.slow
def test_training_leaves_the_trunk_in_memory_and_on_disk_as_it_was(home, tmp_path, monkeypatch):
    """Frozen is frozen: the very module that features were taken from holds the same bytes afterwards."""
    from polyhead.encoder.data import arrays_digest
    from polyhead.train.data.extract import Extractor

    made, make = [], Extractor.__init__

    def kept(self, *arguments, **named):
        make(self, *arguments, **named)
        made.append((self, arrays_digest(self.backend._trunk.to_arrays())))

    monkeypatch.setattr(Extractor, "__init__", kept)
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    ((extractor, before),) = made
    assert arrays_digest(extractor.backend._trunk.to_arrays()) == before
    assert not any(parameter.requires_grad for parameter in extractor.backend._trunk.parameters())
    assert Bundle.open(folder / "bundle").trunk().digest == load_trunk(str(folder / "trunk")).digest


def test_a_checkpoint_of_another_trunk_is_never_resumed(home, tmp_path, monkeypatch):
    """The cache outlives a bundle: the same declaration over a trunk cut shorter must train anew."""
    import msgspec

    folder = copied(home, tmp_path)
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    kept = []
    monkeypatch.setattr(running.shutil, "rmtree", lambda place, **_: kept.append(place))
    project = tiny_project.project(folder, "mood")
    train_project(project, folder=folder)
    shorter = msgspec.structs.replace(
        project, bundle="other", trunk=msgspec.structs.replace(project.trunk, max_tokens=12)
    )
    again = train_project(shorter, folder=folder, cache=folder / "bundle-cache")
    assert len(kept) == 2 and kept[0] != kept[1]
    assert again.extraction.passes > 0 and Bundle.open(folder / "other").scores("mood")["history"]


def test_training_trains_every_task_and_writes_scores_of_whole_splits(home):
    folder, outcome, _ = home
    bundle = Bundle.open(folder / "bundle")
    assert tuple(bundle.tasks) == tuple(outcome.trained) == ALL and outcome.kept == ()
    for name in ALL:
        assert bundle.scores(name)["splits"] == outcome.trained[name]
        assert set(outcome.trained[name]) == {"validation", "test"}
    bundle.verify()


def test_the_loss_of_every_task_falls(home, tmp_path):
    folder = copied(home, tmp_path)
    longer = msgspec.structs.replace(tiny_project.TRAINING, epochs=30, patience=30, learning_rate=2e-2)
    outcome = train_project(tiny_project.project(folder, training=longer), folder=folder)
    bundle = Bundle.open(outcome.bundle)
    for name in ALL:
        losses = [row["loss"] for row in bundle.scores(name)["history"]]
        assert min(losses[-5:]) < 0.7 * losses[0], name


def test_live_evaluation_equals_the_scores_that_training_wrote(home):
    folder, outcome, _ = home
    session = Session(folder / "bundle")
    for split in ("test", "validation"):
        found = split_scores(session, tiny_project.project(folder), folder=folder, split=split)
        assert [score.task for score in found] == list(ALL)
        for score in found:
            assert score.split == split and score.rows == 12
            assert score.scores == pytest.approx(outcome.trained[score.task][split], abs=1e-5)


def test_each_input_is_encoded_once_for_all_tasks(home):
    folder, outcome, _ = home
    texts = {
        (row["text"],)
        for split in ("train", "validation", "test")
        for row in map(json.loads, (folder / "data" / f"messages-{split}.jsonl").read_text().splitlines())
    }
    both = {
        (row["text"], row["text_b"])
        for split in ("train", "validation", "test")
        for row in map(json.loads, (folder / "data" / f"pairs-{split}.jsonl").read_text().splitlines())
    }
    singles = {(text,) for pair in both for text in pair}
    assert outcome.extraction.passes == len(texts | singles | both)


def test_same_seed_gives_the_same_bytes_in_another_folder(home, tmp_path):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder), folder=folder)
    for name in ALL:
        assert tiny_project.part_bytes(folder / "bundle", name) == tiny_project.part_bytes(home[0] / "bundle", name), (
            name
        )


def test_another_seed_gives_another_part(home, tmp_path, baseline):
    folder = copied(home, tmp_path)
    train_project(with_seed(tiny_project.project(folder, "mood"), 2), folder=folder)
    assert tiny_project.part_bytes(folder / "bundle", "mood") != baseline("mood", "mood")


def test_order_of_tasks_in_the_file_changes_no_bit_of_them(home, tmp_path, baseline):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "urgency", "mood"), folder=folder)
    for name in ("mood", "urgency"):
        assert tiny_project.part_bytes(folder / "bundle", name) == baseline(name, "mood", "urgency")


def test_a_second_run_trains_and_encodes_nothing(home):
    folder, _, _ = home
    before = {name: tiny_project.part_bytes(folder / "bundle", name) for name in ALL}
    lines = []
    outcome = train_project(tiny_project.project(folder), folder=folder, events=Events(say=lines.append))
    assert outcome.kept == ALL and not outcome.trained and outcome.extraction.passes == 0
    assert any("nothing to train" in line for line in lines)
    assert before == {name: tiny_project.part_bytes(folder / "bundle", name) for name in ALL}


def test_one_more_task_over_the_same_texts_trains_alone_and_encodes_nothing(home, tmp_path, baseline):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    first = tiny_project.part_bytes(folder / "bundle", "mood")
    outcome = train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder)
    assert tuple(outcome.trained) == ("urgency",) and outcome.kept == ("mood",)
    assert outcome.extraction.passes == 0 and outcome.extraction.reused > 0
    assert tiny_project.part_bytes(folder / "bundle", "mood") == first
    assert tiny_project.part_bytes(folder / "bundle", "urgency") == baseline("urgency", "urgency")


def test_changed_training_numbers_replace_the_task_and_keep_its_old_version(home, tmp_path):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    shorter = msgspec.structs.replace(tiny_project.TRAINING, epochs=1)
    outcome = train_project(tiny_project.project(folder, "mood", training=shorter), folder=folder)
    assert tuple(outcome.trained) == ("mood",)
    assert Bundle.open(folder / "bundle").versions("mood") == ["v0001", "v0002"]


def interrupted_after(monkeypatch, epochs):
    """Ctrl-C right after that many checkpoints."""
    saved, count = fitting.TrainingLoop.save, [0]

    def save(run):
        saved(run)
        count[0] += 1
        if count[0] == epochs:
            raise KeyboardInterrupt

    monkeypatch.setattr(fitting.TrainingLoop, "save", save)


@pytest.mark.parametrize("epochs", [1, 3, 6], ids=["first epoch", "third epoch", "second task"])
def test_interrupted_and_resumed_is_the_uninterrupted_run_byte_for_byte(
    home, tmp_path, monkeypatch, epochs, baseline, every_epoch
):
    folder = copied(home, tmp_path)
    names = ("mood", "names")
    with monkeypatch.context() as patched:
        interrupted_after(patched, epochs)
        with pytest.raises(KeyboardInterrupt):
            train_project(tiny_project.project(folder, *names), folder=folder)
    done = tuple(Bundle.open(folder / "bundle").tasks)
    assert done == (("mood",) if epochs > 4 else ())
    outcome = train_project(tiny_project.project(folder, *names), folder=folder)
    assert outcome.extraction.passes == 0 and outcome.kept == done
    for name in names:
        assert tiny_project.part_bytes(folder / "bundle", name) == baseline(name, *names)


@pytest.mark.slow
def test_interruption_between_tasks_keeps_uint8_constants_of_a_chosen_pooler(home, tmp_path, monkeypatch):
    strategy = msgspec.structs.replace(tiny_project.STRATEGY, codec="uint8")
    auto = msgspec.structs.replace(strategy, positions="auto")
    first = msgspec.structs.replace(strategy, positions="first")

    def asked(folder):
        base = tiny_project.project(folder, "mood", "urgency", strategy=strategy)
        mood, urgency = base.tasks
        less = msgspec.structs.replace(urgency, train="data/messages-validation.jsonl")
        tasks = (msgspec.structs.replace(mood, strategy=auto), msgspec.structs.replace(less, strategy=first))
        return msgspec.structs.replace(base, tasks=tasks)

    whole, cut = copied(home, tmp_path / "whole-run"), copied(home, tmp_path / "cut-run")
    train_project(asked(whole), folder=whole)
    with monkeypatch.context() as patched:
        patched.setattr(running, "task_lines", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_project(asked(cut), folder=cut)
    assert tuple(Bundle.open(cut / "bundle").tasks) == ("mood",)
    outcome = train_project(asked(cut), folder=cut)
    assert outcome.extraction.passes == 0
    assert tiny_project.part_bytes(cut / "bundle", "urgency") == tiny_project.part_bytes(whole / "bundle", "urgency")


# Each line of the last argument trains in a process of its own, which is killed after the second epoch.
KILLED = """
import os, signal, sys
from pathlib import Path
import msgspec, torch, torch._dynamo  # which optimizers import: once, not in each fork
torch.set_num_threads(1)
import conftest, pytest
from support import tiny_project
from support.disk_failures import exit_code
from support.encoding import encode_by_torch
encode_by_torch(pytest.MonkeyPatch())
from polyhead.project.recipes import Joint
from polyhead.deep.loop import fit
from polyhead.train.run import train_project

saved = fit.TrainingLoop.save

def save(run):
    saved(run)
    if run.done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

fit.TrainingLoop.save = save
for seconds, folder, joint in zip((0.0, 60.0, 0.0), map(Path, sys.argv[1:]), (False, False, True), strict=True):
    if os.fork() == 0:
        fit.SAVE_SECONDS = seconds
        project = tiny_project.project(folder, *(("mood", "urgency") if joint else ("mood",)))
        project = msgspec.structs.replace(project, recipe=Joint(micro_batches=2)) if joint else project
        train_project(project, folder=folder)
        os._exit(0)
    print(exit_code())
"""


@pytest.mark.slow
def test_training_killed_outright_and_resumed_is_the_uninterrupted_run(home, tmp_path, baseline):
    """After a checkpoint, before the first one, and of a trunk that learns: that, and every part of it, to the bit."""
    after, before, cut, whole = (copied(home, tmp_path / name) for name in ("after", "before", "cut", "whole"))
    assert run_forking(KILLED, after, before, cut).split() == [str(-signal.SIGKILL)] * 3
    for folder in (after, before):
        assert bool(list(folder.rglob("*.checkpoint"))) == (folder == after)
        outcome = train_project(tiny_project.project(folder, "mood"), folder=folder)
        assert outcome.extraction.passes == 0
        assert tiny_project.part_bytes(folder / "bundle", "mood") == baseline("mood", "mood")
    assert list(cut.rglob("*.checkpoint")) and not (cut / "bundle").exists()
    for folder in (cut, whole):
        train_project(together(folder), folder=folder)
    one, other = Bundle.open(whole / "bundle"), Bundle.open(cut / "bundle")
    assert one.digest == other.digest
    for name in ("mood", "urgency"):
        assert tiny_project.part_bytes(whole / "bundle", name) == tiny_project.part_bytes(cut / "bundle", name)


def together(folder):
    return msgspec.structs.replace(tiny_project.project(folder, "mood", "urgency"), recipe=Joint(micro_batches=2))


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_a_checkpoint_is_a_training_error_and_finished_tasks_stay(
    home, tmp_path, monkeypatch, baseline, every_epoch
):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    with monkeypatch.context() as patched:
        patched.setattr("polyhead.deep.loop.checkpoint._write_tensors", full_disk)
        with pytest.raises(TrainError, match="checkpoint") as caught:
            train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder)
    assert "disk" in caught.value.do and not list(folder.rglob("*.tmp"))
    assert readable(folder) == ("mood",)
    train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder)
    assert tiny_project.part_bytes(folder / "bundle", "urgency") == baseline("urgency", "urgency")


def test_a_full_disk_while_features_are_written_is_a_store_error_and_finished_tasks_stay(home, tmp_path, monkeypatch):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    with monkeypatch.context() as patched:
        patched.setattr("polyhead.store.corpus.plain.write_file", full_disk)
        with pytest.raises(StoreError, match="bytes were needed"):
            train_project(tiny_project.project(folder, "mood", "names"), folder=folder)
    assert readable(folder) == ("mood",)
    train_project(tiny_project.project(folder, "mood", "names"), folder=folder)
    assert readable(folder) == ("mood", "names")


def test_a_full_disk_while_a_task_is_written_is_a_bundle_error_and_finished_tasks_stay(
    home, tmp_path, monkeypatch, baseline
):
    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    with monkeypatch.context() as patched:
        patched.setattr("polyhead.bundle.write.write_file", full_disk)
        with pytest.raises(BundleError, match="disk is full"):
            train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder)
    assert readable(folder) == ("mood",)
    outcome = train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder)
    assert tuple(outcome.trained) == ("urgency",)
    assert tiny_project.part_bytes(folder / "bundle", "urgency") == baseline("urgency", "urgency")


def readable(folder):
    bundle = Bundle.open(folder / "bundle")
    bundle.verify()
    assert Session(bundle).predict(["the lamp is bad"])[0].answers
    return tuple(bundle.tasks)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["max_tokens", "weights"])
def test_a_bundle_of_another_trunk_is_refused(home, tmp_path, change):
    from polyhead.testing import tiny_trunk

    folder = copied(home, tmp_path)
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    before = tiny_project.part_bytes(folder / "bundle", "mood")
    if change == "max_tokens":
        asked = tiny_project.project(folder, "mood", max_tokens=20)
    else:
        (folder / "trunk").unlink()
        tiny_project.write_trunk(folder / "trunk", tiny_trunk(seed=5))
        asked = tiny_project.project(folder, "mood")
    with pytest.raises(WrongTrunk, match="another trunk") as caught:
        train_project(asked, folder=folder)
    assert Bundle.open(folder / "bundle").digest[:16] in str(caught.value)
    assert tiny_project.part_bytes(folder / "bundle", "mood") == before


def test_a_trunk_that_was_learned_is_not_taken_for_what_a_stopped_run_left(home, tmp_path):
    """A frozen project of another trunk with the same bundle removed it, and said nothing."""
    folder = copied(home, tmp_path)
    write_bundle(folder / "bundle", tiny_trunk(seed=5))
    lineage = Lineage(
        trunk="0",
        learned_from={},
        recipe={},
        training={},
        tasks={},
        epochs=1,
        best_epoch=1,
        validation={},
        fingerprint="0",
        polyhead="0",
        numerics={},
    )
    write_lineage(folder / "bundle", lineage)
    before = Bundle.open(folder / "bundle").digest
    with pytest.raises(WrongTrunk, match="another trunk"):
        train_project(tiny_project.project(folder, "mood"), folder=folder)
    assert Bundle.open(folder / "bundle").digest == before
    (folder / "bundle" / "trunk" / "lineage.json").unlink()  # else a stopped run left it
    train_project(tiny_project.project(folder, "mood"), folder=folder)
    assert set(Bundle.open(folder / "bundle").tasks) == {"mood"}


def test_a_run_with_nothing_to_do_writes_nothing(home, tmp_path):
    """The cache of a bundle that is done may be read alone, or be gone."""
    folder = copied(home, tmp_path)
    made = tiny_project.project(folder, "mood")
    train_project(made, folder=folder)
    shutil.rmtree(folder / "bundle-cache")
    assert train_project(made, folder=folder).kept == ("mood",)
    assert not (folder / "bundle-cache").exists()


def test_the_head_is_chosen_on_validation_and_the_run_says_so(home, tmp_path):
    folder, lines = copied(home, tmp_path), []
    strategy = msgspec.structs.replace(tiny_project.STRATEGY, positions="auto")
    asked = tiny_project.project(folder, "mood", "names", strategy=strategy)
    train_project(asked, folder=folder, events=Events(say=lines.append))
    bundle = Bundle.open(folder / "bundle")
    tried = bundle.scores("mood")["tried"]
    assert set(tried) == {"linear, last 2 layers", "linear, last layer", "attention"}  # of a trunk of two layers
    chosen = bundle.scores("mood")["chosen"]
    assert tried[chosen] == bundle.scores("mood")["splits"]["validation"]["accuracy"]
    positions = "attention" if chosen == "attention" else "mean"
    assert bundle.tasks["mood"].path.pool.positions == positions
    assert any(line.startswith("mood: ") and f"; head: {chosen} (of 3 tried)" in line for line in lines)
    assert set(bundle.scores("names")["tried"]) == {"linear, with neighbours", "linear", "hidden layer"}
    assert bundle.tasks["names"].path.pool.positions == "tokens"


def test_rows_that_are_labelled_for_some_tasks_only_are_counted_and_said(home, tmp_path):
    folder, lines = copied(home, tmp_path), []
    (folder / "data").unlink()
    tiny_project.write_data(folder / "data")
    rows = [json.loads(line) for line in (folder / "data/messages-train.jsonl").read_text().splitlines()]
    for row in rows[:5]:
        row["mood"] = None
    for row in rows[3:6]:
        del row["urgency"]
    rows[7]["text"] = "  "
    tiny_project.write_jsonl(folder / "data/messages-train.jsonl", rows)
    train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder, events=Events(say=lines.append))
    said = "\n".join(lines)
    assert "mood, train: of 32 rows: 5 without a label, skipped, 1 with an empty text, skipped" in said
    assert "urgency, train: of 32 rows: 3 without a label, skipped, 1 with an empty text, skipped" in said
    trained_with = Bundle.open(folder / "bundle").tasks["mood"].trained_with
    assert trained_with["data"]["train"]["rows"] == 26


def test_a_task_without_any_row_to_use_is_an_error_before_anything_is_encoded(home, tmp_path):
    folder = copied(home, tmp_path)
    (folder / "data").unlink()
    tiny_project.write_data(folder / "data")
    (folder / "data/messages-train.jsonl").write_text("")
    with pytest.raises((EmptyData, PolyheadError)):
        train_project(tiny_project.project(folder, "mood"), folder=folder)
    assert not (folder / "bundle").exists()


def test_tasks_of_one_run_read_the_trunk_in_one_precision(home, tmp_path):
    folder = copied(home, tmp_path)
    asked = tiny_project.project(folder, "mood", "urgency")
    other = msgspec.structs.replace(tiny_project.TRAINING, precision="bfloat16")
    tasks = (asked.tasks[0], msgspec.structs.replace(asked.tasks[1], training=other))
    with pytest.raises(TrainError, match="one precision"):
        train_project(msgspec.structs.replace(asked, tasks=tasks), folder=folder)


def test_each_task_keeps_its_own_way_of_uint8_constants(home, tmp_path):
    folder = copied(home, tmp_path)
    strategy = msgspec.structs.replace(tiny_project.STRATEGY, codec="uint8")
    base = tiny_project.project(folder, "mood", "urgency", strategy=strategy)
    each = msgspec.structs.replace(strategy, codec_per="dimension")
    tasks = (base.tasks[0], msgspec.structs.replace(base.tasks[1], strategy=each))
    train_project(msgspec.structs.replace(base, tasks=tasks), folder=folder)
    codecs = {name: r.path.pool.codec for name, r in Bundle.open(folder / "bundle").tasks.items()}
    assert len(codecs["mood"].scale) == 1 and len(codecs["urgency"].scale) == 16


@pytest.mark.slow
@pytest.mark.parametrize("codec", first_of(["float16", "uint8", "sign", "pca1", "token1"]))
@pytest.mark.parametrize("before", [False, True], ids=["after the mean", "before the mean"])
def test_live_answers_pass_the_codec_that_training_read(home, tmp_path, monkeypatch, codec, before):
    head_search.shorten(monkeypatch)
    folder = copied(home, tmp_path)
    strategy = Pooled(of=2, heads=2, hidden=8, codec=codec, codec_before_mean=before)
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=1)
    outcome = train_project(
        tiny_project.project(folder, "mood", "names", strategy=strategy, training=training), folder=folder
    )
    found = split_scores(
        Session(folder / "bundle"), tiny_project.project(folder, "mood", "names"), folder=folder, split="test"
    )
    for score in found:
        assert score.scores == pytest.approx(outcome.trained[score.task]["test"], abs=0.01), score.task


@pytest.mark.parametrize("name", ["mood", "names"])
def test_many_states_of_tokens_are_kept_in_a_byte_a_number_and_served_so(home, tmp_path, monkeypatch, name):
    """47,208 rows of 4 MB of text kept 689 MB; mean vectors, of which a text has one, stay in float16."""
    head_search.shorten(monkeypatch)
    monkeypatch.setattr(prepared_tasks, "MANY_TOKENS", 100)
    folder, lines = copied(home, tmp_path), []
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=1)
    project = tiny_project.project(folder, name, strategy=Pooled(of=2, heads=2, hidden=8), training=training)
    outcome = train_project(project, folder=folder, cache=folder / "cache", events=Events(say=lines.append))
    (p,) = prepare(project, folder)
    extractor = Extractor(load_trunk(str(folder / "trunk")), folder=folder / "cache" / "features", precision="float32")
    paths = feature_paths([p], [p], extractor, Bundle.open(folder / "bundle"))[name]
    kept = {path.pool.positions: (path.pool.codec, extractor.store(path)) for path in paths}
    (of_tokens, store), width = kept.pop("tokens" if name == "names" else "attention"), 16
    assert of_tokens.name == "uint8" and len(of_tokens.scale) == width
    tokens = sum(extractor.store(paths[-1]).features(r.keys()).lengths.sum() for r in wanted(p, paths[-1], extractor))
    assert 0 < store.nbytes <= tokens * width  # equal texts are kept once
    assert all(codec.name == "float16" for codec, _ in kept.values())
    assert any(line.endswith("of features kept") for line in lines)
    (found,) = split_scores(Session(folder / "bundle"), project, folder=folder, split="test")
    assert found.scores == pytest.approx(outcome.trained[name]["test"], abs=0.01)


def test_a_named_codec_is_that_of_many_tokens_too_and_test_rows_do_not_count(home, monkeypatch):
    folder = home[0]
    (few,) = prepare(tiny_project.project(folder, "mood", strategy=Pooled()), folder)
    read = [text.encode() for split in (few.train, few.validation) for (text,) in split.examples.inputs]
    tokens = sum(len(text) // 4 for text in read)
    monkeypatch.setattr(prepared_tasks, "MANY_TOKENS", tokens)
    assert not few.has_many_tokens
    before = few.fingerprint()
    monkeypatch.setattr(prepared_tasks, "MANY_TOKENS", tokens - 1)
    assert few.has_many_tokens and few.fingerprint() != before
    (named,) = prepare(tiny_project.project(folder, "mood", strategy=Pooled(codec="float16")), folder)
    assert not named.has_many_tokens and named.fingerprint() == before


def test_events_file_holds_extraction_and_every_task(home, tmp_path):
    folder = copied(home, tmp_path)
    events = Events(file=folder / "events.jsonl")
    train_project(tiny_project.project(folder, "mood", "urgency"), folder=folder, events=events)
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows] == ["extraction", "task", "task"]
    assert [row["loss"] > 0 for row in rows[1]["history"]] == [True] * len(rows[1]["history"])


def test_probes_hold_every_label_and_the_longest_text(home):
    folder, _, _ = home
    probes = Bundle.open(folder / "bundle").probes("mood")
    rows = [json.loads(x) for x in (folder / "data/messages-validation.jsonl").read_text().splitlines()]
    texts = [probe["text"][0] for probe in probes]
    assert texts == [row["text"] for row in rows]  # twelve rows are fewer than the most probes
    assert max(rows, key=lambda row: len(row["text"]))["text"] in texts


def test_extraction_interrupted_loses_only_what_was_not_yet_written(home, tmp_path, monkeypatch):
    """And the run that goes on ends in the very bytes of one that was never interrupted."""
    folder, whole = copied(home, tmp_path / "killed"), copied(home, tmp_path / "whole")
    monkeypatch.setattr(extraction, "TOKEN_BUDGET", 64)
    with monkeypatch.context() as patched:
        patched.setattr(extraction, "FLUSH_BYTES", 1)
        patched.setattr(extraction.Extractor, "features", failing_after(extraction.Extractor.features, 4))
        with pytest.raises(KeyboardInterrupt):
            train_project(tiny_project.project(folder, "mood"), folder=folder)
    outcome = train_project(tiny_project.project(folder, "mood"), folder=folder)
    assert 0 < outcome.extraction.passes < 56
    # Each text has two values: of its words for the head, and their mean for the linear one beside it.
    assert outcome.extraction.passes + outcome.extraction.reused // 2 == 56
    assert outcome.extraction.reused >= 4
    train_project(tiny_project.project(whole, "mood"), folder=whole)
    one, two = (place / "bundle" / "bundle.json" for place in (folder, whole))
    assert one.read_bytes() == two.read_bytes()  # it holds the hash of every file of the task


def failing_after(method, calls):
    count = [0]

    def wrapped(self, *arguments, **named):
        count[0] += 1
        if count[0] > calls:
            raise KeyboardInterrupt
        return method(self, *arguments, **named)

    return wrapped


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_kept_features_are_the_live_ones_bit_for_bit(home, tmp_path, codec):
    """The same texts in the same batches: what the session computes is what the store holds, through the codec."""
    from polyhead.engine.batch import batched, readings_of
    from polyhead.engine.readers import readers_by_type
    from polyhead.train.data.extract import Extractor
    from polyhead.train.data.source import FeatureRequest

    folder = copied(home, tmp_path)
    strategy = msgspec.structs.replace(tiny_project.STRATEGY, positions="mean", codec=codec)
    train_project(tiny_project.project(folder, "mood", strategy=strategy), folder=folder)
    session = Session(folder / "bundle", backend="torch")
    path = session.records["mood"].path
    texts = [(row["text"],) for row in tiny_project.messages(20, seed=7)]
    extractor = Extractor(session.bundle.trunk(), folder=tmp_path / "kept", precision="float32")
    wanted = FeatureRequest(path=path, inputs=texts)
    extractor.fill([wanted])
    kept = extractor.store(path).features(wanted.keys()).take(np.arange(len(texts))).values[:, 0, 0]
    tasks = {"mood": session.records["mood"].task}
    (readings,) = readings_of(texts, readers_by_type(tasks), session.tokenizer, None)
    live = np.zeros_like(kept)
    for batch, tokens in batched(readings, session.tokenizer, deterministic=False, width=session.loaded.width):
        live[batch.entries] = of_torch(session.backend, session.plan(["mood"]), tokens)["mood"]
    assert live.tobytes() == kept.tobytes()


def test_class_weights_are_used_where_they_are_asked_for(home, tmp_path, baseline):
    folder = copied(home, tmp_path)
    training = msgspec.structs.replace(tiny_project.TRAINING, class_weights=True)
    train_project(tiny_project.project(folder, "mood", training=training), folder=folder)
    assert tiny_project.part_bytes(folder / "bundle", "mood") != baseline("mood", "mood")


def test_kind_of_every_trained_task_is_the_declared_one(home):
    records = Bundle.open(home[0] / "bundle").tasks
    assert {name: kind_of(r.task).name for name, r in records.items()} == {
        name: entry.kind for name, entry in tiny_project.ENTRIES.items()
    }


@pytest.mark.parametrize("theirs", ["notes.txt", "tasks/mine.txt", "trunk/mine.txt"])
def test_a_bundle_of_another_trunk_is_not_replaced_where_something_else_lies_in_it(home, tmp_path, theirs):
    """A bundle without tasks was removed with all that people had put into its folder."""
    from polyhead.bundle.create import write_bundle
    from polyhead.errors import WrongTrunk
    from polyhead.testing import tiny_trunk
    from polyhead.train.job import open_or_create

    root = write_bundle(tmp_path / "bundle", tiny_trunk(seed=5)).root
    (root / theirs).parent.mkdir(exist_ok=True)
    (root / theirs).write_text("mine")
    with pytest.raises(WrongTrunk, match="another trunk"):
        open_or_create(root, tiny_trunk().facts, load=tiny_trunk)
    assert (root / theirs).read_text() == "mine"
    (root / theirs).unlink()
    if theirs.startswith("tasks"):
        (root / "tasks").rmdir()
    assert open_or_create(root, tiny_trunk().facts, load=tiny_trunk).digest == tiny_trunk().digest
