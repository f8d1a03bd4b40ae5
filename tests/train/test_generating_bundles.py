"""Bundles of tasks that write: what training scored is what a session writes, versions compete, trunks learn."""

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.certify.certificate import Ledger
from polyhead.deep.recipes.trained_trunk import lineage_of
from polyhead.engine.session import Session
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import FineTune, Frozen, Joint, SearchGrid, Smoothing
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Prompted
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import summarizers, tiny_project, writing

pytest.importorskip("rouge_score")

STRATEGIES = {
    "pooled": None,
    "branch": Branch(layers=1),
    "in_layer": InLayer(adapters=(Adapter(delta="low_rank", size=4, init="normal"),)),
    "on_top": OnTop(form="layer"),
    "prompted": Prompted(rows=3),
}
LEARNS = msgspec.structs.replace(writing.LEARNS, epochs=12, patience=12, batch=4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_session_writes_what_training_scored(tmp_path, name):
    made = writing.project(tmp_path, count=10, strategy=STRATEGIES[name], training=LEARNS, beams=2)
    outcome = train_project(made, folder=tmp_path)
    (p,) = prepare(made, tmp_path)
    written = Session(tmp_path / "bundle", backend="torch").outputs("brief", p.validation.examples.inputs)
    found = p.validation.examples.scores(p.task, written)
    assert found == pytest.approx(outcome.trained["brief"]["validation"])
    assert len({str(text) for text in written}) > 2


def test_one_pass_writes_a_summary_and_answers_the_others(tmp_path):
    made = writing.project(tmp_path, writing.mood(tmp_path), count=8, training=writing.QUICK)
    train_project(made, folder=tmp_path)
    text = summarizers.documents(1)[0][0]
    (result,) = Session(tmp_path / "bundle").predict([text], tasks=["mood", "brief"])
    assert result.receipt.passes == 1 and set(result.answers) == {"mood", "brief"}


def test_a_worse_version_stays_away_and_a_better_one_is_proven(tmp_path):
    """A classification's answers are the same bits before and after."""
    first = writing.project(tmp_path, writing.mood(tmp_path), count=10, training=writing.QUICK)
    train_project(first, folder=tmp_path)
    worse = msgspec.structs.replace(writing.QUICK, learning_rate=1e-9, seed=2)
    lines = []
    told = Events(say=lines.append)
    lost = train_project(
        writing.project(tmp_path, writing.mood(tmp_path), training=worse), folder=tmp_path, if_better=True, events=told
    )
    assert set(lost.left) == {"brief"} and Bundle.open(tmp_path / "bundle").version("brief") == "v0001", lines
    better = writing.project(tmp_path, writing.mood(tmp_path), training=LEARNS)
    won = train_project(better, folder=tmp_path, if_better=True)
    assert won.compared["brief"].is_better and Bundle.open(tmp_path / "bundle").version("brief") == "v0002"
    proof = next(Ledger(tmp_path / "bundle").sound())
    assert "mood" in proof.proven


def test_the_joint_recipe_makes_a_bundle_whose_decoder_reads_the_learned_encoder(tmp_path):
    recipe = Joint(micro_batches=2, smoothing=Smoothing(size=0.01))
    training = msgspec.structs.replace(LEARNS, epochs=3, patience=3, learning_rate=2e-3)
    entries = writing.project(tmp_path, writing.mood(tmp_path, training=training), count=10, training=training)
    made = msgspec.structs.replace(entries, recipe=recipe)
    outcome = train_project(made, folder=tmp_path)
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.digest == outcome.trunk != load_trunk(str(summarizers.folder()), max_tokens=40).digest
    assert set(bundle.tasks) == {"mood", "brief"} and lineage_of(tmp_path / "bundle").tasks["brief"]["kind"]
    p = next(p for p in prepare(made, tmp_path) if p.task.name == "brief")
    written = Session(tmp_path / "bundle", backend="torch").outputs("brief", p.validation.examples.inputs)
    assert p.validation.examples.scores(p.task, written) == pytest.approx(outcome.scores["brief"]["validation"])
    again = train_project(made, folder=tmp_path)
    assert set(again.kept) == {"mood", "brief"} and not again.trained


def test_a_trunk_is_fine_tuned_for_summaries_alone(tmp_path):
    """The second stage of paper 003, from a decoder of a checkpoint."""
    search = SearchGrid(learning_rates=(1e-3, 1e-9), dropouts=(0.0,), epsilons=(1e-8,))
    training = msgspec.structs.replace(tiny_project.SEARCHED, epochs=2)
    made = msgspec.structs.replace(
        writing.project(tmp_path, count=10, training=training), recipe=FineTune(search=search)
    )
    outcome = train_project(made, folder=tmp_path).bundles["brief"]
    assert len(outcome.tried) == 2 and outcome.trunk != outcome.learned_from
    bundle = Bundle.open(tmp_path / "bundle" / "brief")
    assert bundle.tasks["brief"].path.head.decoder.layers == 1 and isinstance(made.recipe, FineTune)


def test_a_task_that_writes_comes_to_a_bundle_of_others(tmp_path):
    """The trunk's folder is the same, so the bundle is, and nothing else changes."""
    writing.entry(tmp_path, count=10)
    only = writing.project(tmp_path, training=writing.QUICK)
    mood = writing.mood(tmp_path)
    train_project(msgspec.structs.replace(only, tasks=(mood,)), folder=tmp_path)
    before = Bundle.open(tmp_path / "bundle").part("mood")
    outcome = train_project(msgspec.structs.replace(only, tasks=(mood, *only.tasks)), folder=tmp_path)
    after = Bundle.open(tmp_path / "bundle").part("mood")
    assert outcome.kept == ("mood",) and set(outcome.trained) == {"brief"} and isinstance(only.recipe, Frozen)
    assert all(np.array_equal(before[name], after[name]) for name in before)
