"""What training keeps of the rows that a task was validated on: what it is, what it costs, and where there is none."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import RowProfile, stored_profile
from polyhead.data.read import Examples, ReadReport, read
from polyhead.engine.familiar import KnownRows, directions
from polyhead.engine.session import Session
from polyhead.evaluate.profile import as_texts, asked, profile_rows
from polyhead.plan import Codec
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Branch, Pooled, Prompted
from polyhead.train import job
from polyhead.train.record.held_out import with_centres
from polyhead.train.run import train_project
from support import tiny_project
from support.commands import run
from support.stores import make_store, stored_path

TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2, patience=2)
WAYS = {
    "pooled": {},
    "branch": {"strategy": Branch(layers=1, hidden=8)},
    "prompts": {"strategy": Prompted(hidden=6)},
    "joint": {"recipe": Joint()},
}


@pytest.fixture
def home(tmp_path):
    tiny_project.write_data(tmp_path / "data", train=24, other=40)
    return tmp_path


def project(home, *names, strategy=tiny_project.STRATEGY, recipe=None, **changes):
    made = tiny_project.project(home, *names, strategy=strategy, training=TRAINING, **changes)
    return made if recipe is None else msgspec.structs.replace(made, recipe=recipe)


def validated(home, made, name):
    """What the bundle itself says of the validation rows."""
    session = Session(home / "bundle", backend="reference", precision="float32")
    entry = next(entry for entry in made.tasks if entry.name == name)
    examples = read(entry.source(entry.validation, home), session.tasks[name])
    answers = asked(session, name, examples.inputs, examples.words)
    return profile_rows(session.tasks[name], examples.inputs, answers)


def without_summary(monkeypatch):
    monkeypatch.setattr(job, "with_profile", lambda draft, held, source, prepared: draft)
    monkeypatch.setattr(job, "vectors_wanted", lambda prepared, source: [])


def test_every_kind_keeps_what_its_validation_rows_look_like(home):
    made = project(home)
    train_project(made, folder=home)
    bundle, names = Bundle.open(home / "bundle"), [entry.name for entry in made.tasks]
    assert len(names) == 6
    for name in names:
        assert_same(stored_profile(bundle, name), validated(home, made, name))
        assert "## What its rows looked like\n\n- 40 rows" in bundle.card(name)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_training_keeps_it(home, way):
    made = project(home, "mood", **WAYS[way])
    train_project(made, folder=home)
    assert_same(stored_profile(Bundle.open(home / "bundle"), "mood"), validated(home, made, "mood"))


def assert_same(kept, expected):
    """Vectors and scores are kept in half precision."""
    assert kept.scores.shape == expected.scores.shape
    np.testing.assert_array_equal(kept.lengths, expected.lengths)
    np.testing.assert_allclose(kept.vectors, expected.vectors, atol=2e-3)
    np.testing.assert_allclose(kept.scores, expected.scores, atol=2e-3)


@pytest.mark.slow
def test_arrays_scores_and_passes_are_those_without_it(home, monkeypatch):
    """The texts are read anyway: of tasks over one text no pass is added."""
    names = ("mood", "topics", "urgency", "names")
    made = project(home, *names, strategy=Pooled())
    first = train_project(made, folder=home)
    without_summary(monkeypatch)
    second = train_project(msgspec.structs.replace(made, bundle="other"), folder=home)
    assert first.extraction.passes == second.extraction.passes > 0
    assert first.trained == second.trained
    kept, bare = Bundle.open(home / "bundle"), Bundle.open(home / "other")
    for name in names:
        assert tiny_project.part_bytes(home / "bundle", name) == tiny_project.part_bytes(home / "other", name)
        assert kept.scores(name) == bare.scores(name) and kept.probes(name) == bare.probes(name)
        assert stored_profile(kept, name) is not None and stored_profile(bare, name) is None


def test_rows_of_folds_are_kept_without_scores(home):
    made = project(home, "mood", validation=0.2)
    train_project(made, folder=home)
    bundle = Bundle.open(home / "bundle")
    assert bundle.scores("mood")["folds"] > 1 and stored_profile(bundle, "mood") is None  # 24 rows are too few
    tiny_project.write_data(home / "data", train=40, other=40)
    train_project(msgspec.structs.replace(made, bundle="more"), folder=home)
    seen = stored_profile(Bundle.open(home / "more"), "mood")
    rows = [json.loads(line) for line in (home / "data" / "messages-train.jsonl").read_text().splitlines()]
    assert sorted(seen.lengths.tolist()) == sorted(len(row["text"]) for row in rows)
    assert seen.scores.shape == (40, 0)


@pytest.mark.slow
def test_drift_works_at_once_after_train(tmp_path):
    tiny_project.write_data(tmp_path / "data", train=24, other=120)
    path = tmp_path / "polyhead.toml"
    path.write_text(tiny_project.to_toml(project(tmp_path, "mood", "topics")))
    assert run("train", path).code == 0
    same = tmp_path / "data" / "messages-test.jsonl"
    done = run("drift", tmp_path / "bundle", same, "--fail")
    assert done.code == 0, done.out
    assert done.out.count("as known") == 2
    others = [{"text": f"der Kessel ist kaputt und {number} Tage zu spät"} for number in range(120)]
    done = run("drift", tmp_path / "bundle", tiny_project.write_jsonl(tmp_path / "other.jsonl", others), "--fail")
    assert done.code == 1 and done.out.count("other texts") == 2


def test_too_few_rows_keep_nothing_and_drift_says_what_to_do(tmp_path):
    path = tmp_path / "polyhead.toml"
    path.write_text(tiny_project.to_toml(tiny_project.project(tmp_path, "mood")))
    done = run("train", path)
    assert done.code == 0 and "drift" not in done.out + done.err
    assert stored_profile(Bundle.open(tmp_path / "bundle"), "mood") is None
    data = tmp_path / "data" / "messages-test.jsonl"
    run("drift", tmp_path / "bundle", data).refuses("BundleError", "mood", "30 rows", "--keep", "--known")


def test_a_store_gives_mean_vectors_where_it_keeps_them_or_every_token_finely(home):
    trunk = load_trunk(str(tiny_project.write_trunk(home / "trunk")))
    texts = [
        (json.loads(line)["text"],)
        for split in ("train", "validation", "test")
        for line in (home / "data" / f"messages-{split}.jsonl").read_text().splitlines()
    ]
    found = {}
    for codec, positions in (("float16", "mean"), ("sign", "mean"), ("float16", "all"), ("sign", "all")):
        name = f"{codec}-{positions}"
        path = stored_path(trunk, codec=Codec(name=codec), layers="last", of=1, positions=positions)
        make_store(str(home / f"store-{name}"), texts, path, trunk=trunk)
        made = project(
            home, "mood", strategy=Pooled(layers="last", positions="mean" if positions == "mean" else "auto")
        )
        made = msgspec.structs.replace(made, bundle=f"bundle-{name}")
        train_project(made, folder=home, features=home / f"store-{name}")
        found[name] = stored_profile(Bundle.open(home / f"bundle-{name}"), "mood")
    assert found["sign-mean"] is None and found["sign-all"] is None
    mean, tokens = found["float16-mean"], found["float16-all"]  # which keeps every token
    assert len(mean.lengths) == len(tokens.lengths) == 40
    np.testing.assert_allclose(mean.vectors, tokens.vectors, atol=2e-3)
    np.testing.assert_allclose(mean.centres, tokens.centres, atol=2e-3)


def test_several_texts_of_a_row_are_read_as_one(home):
    made = project(home, "same")
    train_project(made, folder=home)
    rows = [json.loads(line) for line in (home / "data" / "pairs-validation.jsonl").read_text().splitlines()]
    kept = stored_profile(Bundle.open(home / "bundle"), "same")
    assert kept.lengths.tolist() == [len(text) for (text,) in as_texts([(r["text"], r["text_b"]) for r in rows])]


def test_one_label_a_text_keeps_the_centres_of_its_training_rows(home):
    """Beside scikit-learn's nearest centroids; other kinds keep none."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    made = project(home, "mood", "urgency", "topics", "same")
    train_project(made, folder=home)
    bundle = Bundle.open(home / "bundle")
    assert [
        name for name in ("mood", "urgency", "topics", "same") if stored_profile(bundle, name).centres is not None
    ] == ["mood"]
    kept, session = stored_profile(bundle, "mood"), Session(home / "bundle", backend="reference", precision="float32")
    entry = next(entry for entry in made.tasks if entry.name == "mood")
    rows = read(entry.source(entry.train, home), session.tasks["mood"])
    vectors = asked(session, "mood", rows.inputs).vectors
    model = neighbors.NearestCentroid().fit(vectors, np.array(rows.targets))
    np.testing.assert_allclose(kept.centres, directions(model.centroids_), atol=2e-3)
    far = np.linalg.norm(kept.vectors[:, None] - kept.centres[None], axis=2).min(axis=1)
    np.testing.assert_allclose(kept.far, far, atol=5e-3)


def test_training_row_is_left_out_of_the_centre_that_it_is_compared_with():
    rng, count = np.random.default_rng(0), 12
    vectors = directions(rng.normal(size=(count, 6)).astype(np.float32))
    label = np.array([0, 1, 2] * 4)
    label[label == 2] = [2, 0, 0, 0]  # one label with a row of its own
    examples = Examples(
        inputs=[("a",)] * count, targets=list(label), words=None, rows=list(range(count)), report=ReadReport()
    )
    scores = np.zeros((count, 0), np.float32)
    seen = RowProfile(vectors=vectors, lengths=np.ones(count, np.float32), scores=scores)
    kept = with_centres(seen, examples, vectors, examples)
    for row in range(count):
        rest = np.arange(count) != row
        means = [vectors[rest & (label == each)].mean(axis=0) for each in set(label[rest].tolist())]
        expected = min(np.linalg.norm(vectors[row] - directions(mean)) for mean in means)
        assert kept.far[row] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("is_folded", [True, False], ids=["the rows themselves", "rows held out"])
def test_new_texts_are_as_familiar_as_the_rows_that_are_kept(is_folded):
    """Shares of rows drawn alike are about uniform, also where the rows that are kept were learned from."""
    rng, each, labels = np.random.default_rng(0), 40, 6
    middles = rng.normal(size=(labels, 16))

    def drawn():
        noise = rng.normal(size=(labels * each, 16))
        return directions((np.repeat(middles, each, axis=0) + noise).astype(np.float32))

    shares = []
    for _ in range(20):
        learned, new, count = drawn(), drawn(), labels * each
        rows = Examples(
            inputs=[("a",)] * count,
            targets=np.repeat(range(labels), each).tolist(),
            words=None,
            rows=list(range(count)),
            report=ReadReport(),
        )
        kept, scores = learned if is_folded else drawn(), np.zeros((count, 0), np.float32)
        seen = RowProfile(vectors=kept, lengths=np.ones(count, np.float32), scores=scores)
        own = with_centres(seen, rows if is_folded else None, learned, rows)
        shares.append(KnownRows.of(own).familiar(new))
    found = np.quantile(np.concatenate(shares), (0.02, 0.1, 0.5, 0.9))
    np.testing.assert_allclose(found, (0.02, 0.1, 0.5, 0.9), atol=0.03)
