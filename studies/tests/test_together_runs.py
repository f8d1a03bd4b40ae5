"""The runs of a study of joint training, with made-up sets and a tiny trunk: rows that the tables read, made once."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.project.recipes import Joint, SearchGrid, Training
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_trunk
from polyhead.train.data.extract import Extractor
from studies.aghajanyan2021 import runs as running
from studies.aghajanyan2021.mixes import Mix
from studies.aghajanyan2021.runs import Runs
from studies.aghajanyan2021.study import gains, gap_closed, missing, rows_of, trunks_of
from studies.aghajanyan2021.tables import compared
from studies.results import Study
from studies.shared import steps
from studies.shared.data import prepared_of
from studies.tests.rows import study as made_up_study
from studies.tests.sets import SETS, learning, texts_of_splits, write_sets

QUICK = Training(epochs=1, patience=1, batch=8, learning_rate=1e-3, precision="float32")
MIX = Mix(name="two", sets=("moods", "things"), recipe=Joint(micro_batches=2), training=QUICK, rows=20)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("data"), train=340, other=16, leaking=True)


@pytest.fixture
def made(data, tmp_path, monkeypatch):
    """A study of one mix of two sets, with the third one held out."""
    monkeypatch.setattr(running, "MIX", SETS[:2])
    monkeypatch.setattr(running, "HELD_OUT", SETS[2:])
    monkeypatch.setattr(running, "HEADS", QUICK)
    monkeypatch.setattr(running, "FULL", QUICK)
    runs = Runs(data, tmp_path, Study(tmp_path / "r.jsonl"))
    runs._plain = tiny_trunk()
    return runs


def prepared(data, strategy, training=QUICK):
    return prepared_of(data, SETS[0], train=20, validation=8, strategy=strategy, training=training)


def test_a_whole_study_is_rows_that_the_tables_read(made, tmp_path):
    one = SETS[2:]
    made.full(1, one)
    made.frozen(1, mix=None, tasks=one, sizes=(10, 1500))
    made.frozen(1, mix=MIX, tasks=one)
    rows, trunks = rows_of(made.study.rows), trunks_of(made.study.rows)
    assert missing(rows) == () and set(gains(rows, "two")) == {"same"}
    assert gap_closed(rows, "two") is not None
    (trunk,) = trunks
    assert trunk.examples.keys() == {"moods", "things"}
    assert trunk.dropped > 0 and sum(trunk.examples.values()) + trunk.dropped == 40
    digest = Bundle.open(next((tmp_path / "trunks").glob("two-*/"))).digest
    assert digest != made.plain.digest
    before = len(made.study.rows)
    made.frozen(1, mix=MIX, tasks=one)
    assert len(made.study.rows) == before


def test_a_trunk_learns_from_no_text_that_a_held_out_task_is_evaluated_on(made):
    """One set alone, so that nothing is dropped for another one of the mix."""
    alone = msgspec.structs.replace(MIX, name="one", sets=("moods",))
    with learning() as seen:
        made.trunk(alone, 1)
    evaluated = texts_of_splits(made.held_out(SETS[2], 1).splits[1:])
    (given,), (used,) = made.mixed(alone, 1), seen["one seed 1"]
    assert texts_of_splits([given.train]) & evaluated
    assert used.train.examples.inputs and not texts_of_splits([used.train]) & evaluated
    assert made.study.rows[-1]["dropped"] > 0


def test_the_trunk_of_a_mix_is_fully_fine_tuned_as_rows_of_its_own(made, monkeypatch):
    trunks, fine_tune = [], running.fine_tune

    def noted(prepared, data):
        trunks.append(data.digest)
        return fine_tune(prepared, data)

    monkeypatch.setattr(running, "fine_tune", noted)
    made.full(1, SETS[2:])
    made.full(1, SETS[2:], mix=MIX)
    assert trunks == [made.plain.digest, Bundle.open(made.trunk(MIX, 1)).digest]
    plain, mixed = [row for row in made.study.rows if row["stage"] == "full"]
    assert "digest" not in plain and list(plain)[:5] == ["stage", "mix", "task", "rows", "seed"]
    assert (mixed["mix"], mixed["digest"]) == ("two", MIX.digest())
    made.frozen(1, mix=None, tasks=SETS[2:])
    (found,) = compared(rows_of(made.study.rows), "two")
    assert found.full.mean == 100 * plain["test"] and found.full_mixed.mean == 100 * mixed["test"]
    made.full(1, SETS[2:], mix=MIX)
    assert len(trunks) == 2


def test_the_study_has_a_job_for_it(monkeypatch):
    from studies.aghajanyan2021 import run as together_quality

    asked = []
    runs = SimpleNamespace(full=lambda seed, mix=None: asked.append((seed, mix and mix.name)))
    assert "full-mixed" in together_quality.JOBS
    for job in together_quality.jobs_of("full-mixed", runs, [1, 2]):
        job()
    assert asked == [(1, "sets-24"), (2, "sets-24")]


def test_ways_are_compared_and_shown_by_three_seeds():
    from studies.aghajanyan2021.claims import claims

    for seeds, holds in (((1, 2, 3), True), ((1, 2), None)):
        found = {claim.id: claim for claim in claims(made_up_study(seeds=seeds))}["together.heterogeneous-batch"]
        assert (found.value, found.seeds, found.holds) == (1.0, len(seeds), holds)


def test_full_fine_tuning_without_a_search_has_the_numbers_of_its_task(data):
    one = prepared(data, Pooled(layers="last", positions="first", codec="float32"))
    plain = steps.fine_tune(one, tiny_trunk(), precision="float32")
    alone = SearchGrid(learning_rates=(1e-3,), epsilons=(1e-8,), dropouts=(0.1,))
    searched = steps.fine_tune(one, tiny_trunk(), search=alone, precision="float32")
    assert "tried" not in plain
    assert {key: plain[key] for key in ("test", "validation", "best_epoch")}.items() <= searched.items()
    assert searched["chosen"] == {"learning_rate": 1e-3, "epsilon": 1e-8, "dropout": 0.1}
    assert msgspec.json.decode(msgspec.json.encode(searched)) == searched
    assert (plain["train_rows"], plain["validation_rows"]) == (20, 8)


@pytest.mark.parametrize("codec", ["float16", "uint8", "sign"])
def test_heads_read_features_through_the_codec_of_their_strategy(data, tmp_path, codec):
    one = prepared(data, Pooled(layers="mean", of=2, positions="attention", codec=codec))
    extractor = Extractor(tiny_trunk(), folder=tmp_path, precision="float32")
    path = steps.frozen_path(one, extractor)
    assert path.pool.codec.name == codec and bool(path.pool.codec.scale) == (codec == "uint8")
    steps.read_once([one], extractor)
    facts = steps.head(one, extractor)
    assert facts["metric"] == "accuracy" and 0 <= facts["test"] <= 1
    kept = extractor.store(path)
    assert len(kept) > 0 and np.isfinite(facts["validation"])
