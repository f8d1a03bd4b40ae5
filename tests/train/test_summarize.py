"""Summarizers: their loss, their training, and a project that has one beside tasks that read the trunk."""

import json
import math
import shutil
import sys

import msgspec
import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from polyhead.bundle.models import read_model
from polyhead.bundle.read import Bundle
from polyhead.certify import checked
from polyhead.certify.certificate import Ledger
from polyhead.deep import summaries as summarize
from polyhead.deep import summaries as summarize_run
from polyhead.deep.loop import fit
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.summaries import SummaryExamples, smoothed_loss, train_summarizer
from polyhead.deep.summarizer import Seq2Seq, load_seq2seq
from polyhead.encoder.summarizer import Summarizer
from polyhead.engine.session import Session
from polyhead.errors import BadName, MissingExtra, TrunkError, UnknownTask
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TaskEntry, TrunkChoice, read_project
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import summarizers, tiny_project
from support.commands import run
from support.split_scores import split_scores
from support.tiny_project import to_toml

pytest.importorskip("rouge_score")

TRAINING = Training(epochs=30, patience=30, batch=10, learning_rate=5e-3, dropout=0.0, warmup=0.1, precision="float32")


def declared(folder, *, count=50, training=TRAINING, name="brief", **model):
    """A task that learns `count` documents by heart: they are its validation and its test too."""
    if not (folder / "news.jsonl").exists():
        rows = [{"text": text, "label": label} for text, label in summarizers.documents(count)]
        tiny_project.write_jsonl(folder / "news.jsonl", rows)
    settings = {"name": str(summarizers.folder()), "summary_tokens": 16, "smoothing": 0.0} | model
    return TaskEntry(
        name=name,
        kind="summarization",
        train="news.jsonl",
        validation="news.jsonl",
        test="news.jsonl",
        model=Summarizer(**settings),
        training=training,
    )


def project(folder, *names, **changes):
    """The task alone, or beside tasks that read the trunk."""
    others = tiny_project.project(folder, *(names or ("mood",)))
    entries = (*(others.tasks if names else ()), declared(folder, **changes))
    return msgspec.structs.replace(others, tasks=entries)


def one_epoch(**changes):
    return msgspec.structs.replace(TRAINING, epochs=1, **changes)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A bundle with a summarizer that knows its 50 documents."""
    folder = tmp_path_factory.mktemp("summaries")
    lines = []
    outcome = train_project(project(folder), folder=folder, events=Events(say=lines.append))
    return folder, outcome, lines


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A bundle with a task that reads the trunk and a summarizer, barely trained."""
    folder = tmp_path_factory.mktemp("both")
    whole = project(folder, "mood", training=one_epoch(), count=8)
    train_project(whole, folder=folder)
    (folder / "polyhead.toml").write_text(to_toml(whole))
    return folder, whole


@pytest.fixture
def batch():
    place = summarizers.taught()
    model, library = summarizers.theirs(place)
    ours = Seq2Seq(load_seq2seq(str(place), summary_tokens=20))
    return ours, model, summarizers.batch(library, summarizers.documents(6, seed=5))


def test_the_loss_is_transformers_own(batch):
    ours, theirs, given = batch
    outputs = ours(given["input_ids"], given["attention_mask"], given["labels"])
    found = smoothed_loss(0.0)(outputs, given["labels"], None)
    assert found.item() == pytest.approx(theirs(**given).loss.item(), abs=1e-6)
    assert (given["labels"] == -100).any()


def test_the_smoothed_loss_is_that_of_label_smoother(batch):
    ours, theirs, given = batch
    outputs = ours(given["input_ids"], given["attention_mask"], given["labels"])
    found = smoothed_loss(0.1)(outputs, given["labels"], None)
    wanted = LabelSmoother(epsilon=0.1)(theirs(**given), given["labels"])
    assert found.item() == pytest.approx(wanted.item(), abs=1e-6)
    assert abs(found.item() - theirs(**given).loss.item()) > 0.01


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_uniform_guess_has_a_scaled_loss_of_one(smoothing):
    labels = torch.tensor([[3, 4, -100], [1, -100, -100]])
    guess = torch.zeros(2, 3, 50)
    assert smoothed_loss(smoothing)(guess, labels, None).item() == pytest.approx(math.log(50))
    assert smoothed_loss(smoothing, vocabulary=50)(guess, labels, None).item() == pytest.approx(1.0)


def test_the_loss_that_the_kind_names_is_there():
    outputs, targets = torch.randn(2, 3, 7), torch.tensor([[1, 2, -100], [6, 0, 3]])
    assert LOSSES["token_cross_entropy"](outputs, targets, None) == smoothed_loss(0.0)(outputs, targets, None)


def test_batches_hold_what_transformers_would_be_given(tmp_path):
    (p,) = prepare(project(tmp_path, count=12), tmp_path)
    model = Seq2Seq(load_seq2seq(str(summarizers.folder()), summary_tokens=16))
    examples = SummaryExamples(model, p.train.examples)
    library = summarizers.theirs(summarizers.folder())[1]
    members = []
    for piece in map(examples.batch, examples.drawn(5, np.random.default_rng(0))):
        pairs = [(p.train.examples.inputs[i][0], str(p.train.examples.targets[i][0])) for i in piece.members]
        wanted = summarizers.batch(library, pairs)
        ids, mask, labels = piece.arguments
        assert torch.equal(ids, wanted["input_ids"]) and torch.equal(mask.long(), wanted["attention_mask"])
        assert torch.equal(labels, wanted["labels"]) and torch.equal(piece.targets, labels)
        members += piece.members.tolist()
    assert sorted(members) == list(range(12))


@pytest.mark.slow
def test_fifty_documents_are_learned_by_heart(home):
    folder, outcome, lines = home
    scores = outcome.trained["brief"]
    assert scores["validation"]["rouge_l"] > 0.9
    assert scores["test"] == scores["validation"]
    assert any("35,032 parameters" in line for line in lines)
    assert any(line.startswith("brief: validation rouge_l ") for line in lines), lines
    text, summary = summarizers.documents(50)[2]
    (result,) = Session(folder / "bundle").predict([text])
    assert result.answers == {"brief": {"summary": summary}}


@pytest.mark.slow
def test_live_answers_score_what_training_said(home):
    folder, outcome, _ = home
    (found,) = split_scores(Session(folder / "bundle"), project(folder), folder=folder)
    assert found.rows == 50 and found.metric == "rouge_l"
    assert found.scores == outcome.trained["brief"]["test"]


@pytest.mark.slow
def test_the_bundle_s_model_is_one_that_transformers_can_run(home):
    """Its folder opens there; greedy writing gives the answers of the session."""
    folder, _, _ = home
    there = Bundle.open(folder / "bundle")
    theirs, _ = summarizers.theirs(folder / "bundle" / "tasks" / "brief" / there.lines["brief"].version)
    library = summarizers.theirs(summarizers.folder())[1]
    texts = [text for text, _ in summarizers.documents(6, seed=4)]
    session = Session(folder / "bundle", deterministic=True)
    for text, result in zip(texts, session.predict(texts), strict=True):
        given = library(text, return_tensors="pt")
        made = theirs.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            num_beams=1,
            do_sample=False,
            max_new_tokens=16,
        )
        wanted = library.decode(made[0], skip_special_tokens=True).strip()
        assert result.answers["brief"]["summary"] == wanted


def test_what_is_trained_is_kept_and_another_way_trains_again(home, tmp_path):
    folder = shutil.copytree(home[0], tmp_path / "copy")
    whole = project(folder)
    outcome = train_project(whole, folder=folder)
    assert outcome.kept == ("brief",) and not outcome.trained
    other = project(folder, training=one_epoch(seed=2))
    before = read_model(Bundle.open(folder / "bundle"), "brief")
    assert list(train_project(other, folder=folder).trained) == ["brief"]
    assert Bundle.open(folder / "bundle").version("brief") == "v0002"
    assert read_model(Bundle.open(folder / "bundle"), "brief").digest != before.digest


def test_a_model_that_was_trained_on_another_machine_stays(tmp_path, monkeypatch):
    """Where `auto` is another precision it was trained anew, for hours, and replaced."""
    whole = project(tmp_path, count=6, training=one_epoch(precision="auto"))
    for here, kept in (("float32", ()), ("bfloat16", ("brief",)), ("float32", ("brief",))):
        monkeypatch.setattr(summarize_run, "precision_of", lambda training, here=here: here)
        assert train_project(whole, folder=tmp_path).kept == kept


def test_a_name_that_a_task_of_the_trunk_has_is_refused_before_training(tmp_path, monkeypatch):
    made = tiny_project.project(tmp_path, "mood")
    train_project(msgspec.structs.replace(made, bundle="bundle"), folder=tmp_path)
    whole = project(tmp_path, count=6, training=one_epoch())
    named = msgspec.structs.replace(whole.tasks[0], name="Mood")
    monkeypatch.setattr(summarize_run, "train_summarizer", lambda *_, **__: pytest.fail("it is trained"))
    with pytest.raises(BadName, match="in case alone"):
        train_project(msgspec.structs.replace(whole, tasks=(named,), bundle="bundle"), folder=tmp_path)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_a_stopped_run_goes_on(tmp_path, monkeypatch):
    """Stopped in its third epoch, with a checkpoint after each."""
    training = msgspec.structs.replace(TRAINING, epochs=4, dropout=0.1)
    (p,) = prepare(project(tmp_path, count=12, training=training), tmp_path)
    data = load_seq2seq(str(summarizers.folder()), summary_tokens=16)
    whole = train_summarizer(p, data, smoothing=0.1)
    assert train_summarizer(p, data, smoothing=0.1).data.digest == whole.data.digest
    scored, evaluate = [], summarize.evaluate

    def stopping(*arguments):
        scored.append(1)
        if len(scored) == 3:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(fit, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(summarize, "evaluate", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_summarizer(p, data, smoothing=0.1, checkpoint=tmp_path / "state.checkpoint")
    resumed = train_summarizer(p, data, smoothing=0.1, checkpoint=tmp_path / "state.checkpoint")
    assert resumed.data.digest == whole.data.digest and whole.data.digest != data.digest
    untimed = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in one.fitted.history] for one in (resumed, whole)
    ]
    assert untimed[0] == untimed[1] and len(untimed[0]) == 4


def test_bfloat16_is_for_training_alone(tmp_path):
    """Weights stay float32; what is written does not depend on it."""
    plain = load_seq2seq(str(summarizers.taught()), summary_tokens=16)
    texts = [text for text, _ in summarizers.documents(3)]
    half = Seq2Seq(plain, bfloat16=True)
    assert half.write(texts) == Seq2Seq(plain).write(texts)
    given = summarizers.batch(summarizers.theirs(summarizers.taught())[1], summarizers.documents(3))
    arguments = (given["input_ids"], given["attention_mask"], given["labels"])
    assert not torch.equal(half(*arguments), Seq2Seq(plain)(*arguments))
    (p,) = prepare(project(tmp_path, count=6, training=one_epoch(precision="bfloat16")), tmp_path)
    found = train_summarizer(p, plain, smoothing=0.0)
    assert all(array.dtype == np.float32 for array in found.data.arrays.values())


def test_cut_documents_and_summaries_are_counted(tmp_path):
    lines = []
    entry = project(tmp_path, count=6, training=one_epoch(), max_tokens=6, summary_tokens=4)
    train_project(entry, folder=tmp_path, events=Events(say=lines.append))
    assert any("18 documents cut, 6 summaries cut" in line for line in lines), lines
    card = Bundle.open(tmp_path / "bundle").card("brief")
    assert "18 of those above" in card and "over 6 tokens are cut" in card
    (result,) = Session(tmp_path / "bundle").predict([summarizers.documents(1)[0][0]])
    assert result.receipt.tokens == 6 and result.receipt.cut > 0


def test_a_missing_package_is_told_before_training(tmp_path, monkeypatch):
    (p,) = prepare(project(tmp_path, count=6), tmp_path)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    monkeypatch.setattr(summarize, "Course", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[summarization\]"):
        train_summarizer(p, load_seq2seq(str(summarizers.folder()), summary_tokens=16), smoothing=0.0)


def test_an_encoder_is_refused_as_a_summarizer(tmp_path):
    tiny_project.project(tmp_path, "mood")
    entry = msgspec.structs.replace(declared(tmp_path, count=6), model="trunk")  # a folder beside the project file
    wrong = Project(tasks=(entry,), trunk=TrunkChoice(name=str(tmp_path / "trunk")))
    with pytest.raises(TrunkError, match="no encoder-decoder"):
        train_project(wrong, folder=tmp_path)


def test_one_project_has_both_and_one_session_answers_both(both):
    folder, _ = both
    session = Session(folder / "bundle")
    assert set(session.tasks) == {"mood", "brief"}
    text = "the lamp is broken today"
    (result,) = session.predict([text])
    (mood,) = session.predict([text], tasks=["mood"])
    (brief,) = session.predict([text], tasks=["brief"])
    assert result.answers == mood.answers | brief.answers and len(result.answers) == 2
    for field in ("passes", "layers", "tokens", "cut"):
        there = [getattr(one.receipt, field) for one in (result, mood, brief)]
        assert there[0] == there[1] + there[2], field
    assert result.receipt.added_flops["brief"] > 0
    pair, blank = session.predict([("one", "two"), " "])
    assert "a pair was given" in pair.skipped["brief"] and blank.skipped["brief"] == "the text is empty"
    with pytest.raises(UnknownTask, match="brief"):
        session.predict([text], tasks=["nothing"])


def test_a_summarizer_changes_nothing_of_the_tasks_that_read_the_trunk(both, tmp_path):
    folder, whole = shutil.copytree(both[0], tmp_path / "copy"), both[1]
    root = folder / "bundle"
    assert not checked(root).findings
    before = Bundle.open(root).lines["mood"]
    entries = (whole.tasks[0], msgspec.structs.replace(whole.tasks[1], training=one_epoch(seed=3)))
    train_project(msgspec.structs.replace(whole, tasks=entries), folder=folder, only=("brief",))
    assert Bundle.open(root).lines["mood"] == before and Bundle.open(root).version("brief") == "v0002"
    last = next(Ledger(root).sound())
    assert (last.operation, last.changed, last.proven) == ("train", {"brief": ("v0001", "v0002")}, ("mood",))
    assert not checked(root).findings and Bundle.open(root).readers.keys() == {"mood"}


def test_without_torch_the_others_are_answered(both, monkeypatch):
    folder, _ = both
    monkeypatch.setattr("polyhead.engine.summaries.NEEDED", ("no_such_package",))
    session = Session(folder / "bundle", backend="reference")
    (result,) = session.predict(["the lamp is broken"])
    assert set(result.answers) == {"mood"} and "no_such_package" in result.skipped["brief"]
    with pytest.raises(MissingExtra, match="no_such_package"):
        session.predict(["the lamp is broken"], tasks=["brief"])


def test_the_commands_know_summarizers(both):
    folder, _ = both
    done = run("predict", folder / "bundle", "--tasks", "brief,mood", stdin="the red lamp\n", cwd=folder)
    assert done.code == 0 and set(done.rows[0]["answers"]) == {"brief", "mood"}, done.err
    assert isinstance(done.rows[0]["answers"]["brief"]["summary"], str)
    shown = run("inspect", folder / "bundle", "--verify")
    assert "brief" in shown.out and "share nothing with the encoder" in shown.out
    assert "A `summarization` task" in run("inspect", folder / "bundle", "--task", "brief").out
    assert "summarization" in run("tasks", "list", folder / "bundle").out
    scored = run("evaluate", folder / "polyhead.toml", "--json", folder / "scores.json")
    assert scored.code == 0, scored.err
    rows = json.loads((folder / "scores.json").read_text())["scores"]
    assert {row["task"]: row["metric"] for row in rows} == {"mood": "accuracy", "brief": "rouge_l"}
    assert read_project(folder / "polyhead.toml").tasks[1].model.summary_tokens == 16


def test_a_touched_model_is_found_and_a_model_can_be_removed(both, tmp_path):
    root = shutil.copytree(both[0] / "bundle", tmp_path / "bundle")
    assert not checked(root).findings
    version = Bundle.open(root).version("brief")
    config = root / "tasks" / "brief" / version / "config.json"
    whole = config.read_bytes()
    config.write_bytes(whole + b" ")
    found = checked(root)
    assert [(one.task, one.file) for one in found.findings] == [("brief", f"tasks/brief/{version}/config.json")]
    assert found.probes > 0  # of the other task, which is proven all the same
    config.write_bytes(whole)
    assert run("tasks", "remove", root, "brief").out.startswith("removed brief")
    assert set(Session(root).tasks) == {"mood"} and not checked(root).findings


@pytest.mark.slow
def test_a_summarizer_that_was_rolled_back_or_removed_stays_so(tmp_path):
    """As tasks that read the trunk; and its old and new summaries are compared."""
    lines = []

    def train(seed, **asked):
        lines.clear()
        training = msgspec.structs.replace(TRAINING, epochs=4 if seed == 2 else 1, seed=seed)
        made = project(tmp_path, training=training, count=8)
        return train_project(made, folder=tmp_path, events=Events(say=lines.append), **asked)

    train(1)
    outcome = train(2)
    found = outcome.compared["brief"]
    assert (found.rows, found.held_out) == (8, True) and found.changed
    assert any(f"brief: rouge_l {found.live:.4f} -> {found.new:.4f} on 8 validation rows" in x for x in lines)
    assert found.new == outcome.trained["brief"]["validation"]["rouge_l"]
    Bundle.open(outcome.bundle).set_version("brief", "v0001")
    before = (tmp_path / "bundle" / "bundle.json").read_bytes()
    assert "v0001 is pinned" in train(2).left["brief"] and not train(2).trained
    assert (tmp_path / "bundle" / "bundle.json").read_bytes() == before
    assert train(1).kept == ("brief",)
    tried = train(3, retrain=("brief",), if_better=True)
    assert bool(tried.trained) == tried.compared["brief"].is_better
    Bundle.open(outcome.bundle).remove_task("brief")
    assert "removed" in train(1).left["brief"] and Bundle.open(outcome.bundle).removed == ("brief",)
    assert set(train(1, retrain=("brief",)).trained) == {"brief"} and not Bundle.open(outcome.bundle).removed


def test_other_test_documents_alone_train_no_summarizer_again(tmp_path):
    made = project(tmp_path, training=one_epoch(), count=8)
    tiny_project.write_jsonl(tmp_path / "fewer.jsonl", [{"text": "a lamp", "label": "lamp"}])
    again = msgspec.structs.replace(made, bundle="again")
    train_project(again, folder=tmp_path)
    tasks = (msgspec.structs.replace(again.tasks[0], test="fewer.jsonl"),)
    assert train_project(msgspec.structs.replace(again, tasks=tasks), folder=tmp_path).kept == ("brief",)
