"""The baseline without an encoder, beside scikit-learn's, and what training says of it."""

import numpy as np
import pytest
import torch

from polyhead.bundle.read import Bundle
from polyhead.data.read import Examples, ReadReport
from polyhead.tasks.task import Task
from polyhead.train.heads import search, tf_idf
from polyhead.train.record.lines import warnings_of
from polyhead.train.run import train_project
from support import tiny_project

COLUMNS = 2**12
TASK = Task(name="mood", kind="single_label", labels=("bad", "good", "none"))


@pytest.fixture
def texts():
    return [(row["text"],) for row in tiny_project.messages(90, 1)]


def dense(read, columns=COLUMNS):
    rows = np.zeros((len(read.starts) - 1, columns), np.float32)
    rows[np.repeat(np.arange(len(rows)), np.diff(read.starts)), read.columns] = read.counts
    return rows


def test_weights_of_words_are_scikit_learns(texts):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    read = tf_idf.word_counts([*texts, ("",)], COLUMNS)
    expected = text.TfidfTransformer().fit_transform(dense(read)).toarray()
    values = dense(tf_idf.weighted(read, tf_idf.rarity_of(read, COLUMNS)))
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_words_that_count_are_scikit_learns():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    texts = ["I pulled a plug. Is it B2 or B-2?!", "A b c", "don't... stop\u2014now", "caf\u00e9 42 7"]
    expected = text.CountVectorizer(ngram_range=(1, 2)).fit_transform(texts[:1] + texts[3:]).sum(axis=1)
    read = tf_idf.word_counts([(texts[0],), (texts[3],)], 2**18)
    counted = np.add.reduceat(read.counts, read.starts[:-1])
    np.testing.assert_array_equal(counted, np.asarray(expected).ravel())
    assert tf_idf.word_counts([(texts[1],)], 2**18).counts.size == 0


@pytest.mark.parametrize("most", [0, tf_idf.DENSE], ids=["many", "few"])
@pytest.mark.parametrize("strength", tf_idf.STRENGTHS)
def test_answers_are_those_of_scikit_learns_logistic_regression(texts, monkeypatch, strength, most):
    linear = pytest.importorskip("sklearn.linear_model")
    monkeypatch.setattr(tf_idf, "ITERATIONS", 400)
    monkeypatch.setattr(search, "ITERATIONS", 400)
    monkeypatch.setattr(tf_idf, "DENSE", most)
    targets = np.random.default_rng(0).integers(0, 3, len(texts))
    taught = [np.array(target) for target in targets]
    examples = Examples(
        inputs=texts, targets=taught, words=None, rows=list(range(len(texts))), report=ReadReport(rows=len(texts))
    )
    outputs = np.stack(tf_idf.answers_to(TASK, examples, train=examples)[strength])
    columns = 2 ** int(np.log2(tf_idf.MOST_COLUMNS))
    read = tf_idf.word_counts(texts, columns)
    used = np.unique(read.columns)
    values = dense(tf_idf.weighted(read, tf_idf.rarity_of(read, columns)), columns)[:, used]
    model = linear.LogisticRegression(C=strength, tol=1e-8, max_iter=2000).fit(values, targets)
    shares = torch.softmax(torch.from_numpy(outputs), dim=1).numpy()
    np.testing.assert_allclose(shares, model.predict_proba(values), atol=1e-2)


def test_words_that_were_not_learned_are_left_out_as_in_scikit_learn(texts):
    """Of a text's length too: else new words make what is known of it small."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    columns = 2**20  # no two words share one
    new = ["unheard bad words " + texts[0][0], "nothing known hereabouts", texts[1][0]]
    learned = text.TfidfVectorizer(ngram_range=(1, 2)).fit([each for (each,) in texts])
    rarity = tf_idf.rarity_of(tf_idf.word_counts(texts, columns), columns)
    values = dense(tf_idf.weighted(tf_idf.word_counts([(each,) for each in new], columns), rarity), columns)
    expected = learned.transform(new).toarray()
    np.testing.assert_allclose(np.sort(values)[:, -40:], np.sort(expected)[:, -40:], atol=1e-5)


def test_training_scores_it_for_tasks_of_one_text(tmp_path):
    tiny_project.write_data(tmp_path / "data", train=60, other=40)
    train_project(tiny_project.project(tmp_path, "mood", "names", "same"), folder=tmp_path)
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.baselines("mood", "validation")["tf-idf"]["accuracy"] > 0.4
    assert "validation, tf-idf" in bundle.card("mood")
    assert not any("tf-idf" in bundle.baselines(name, "validation") for name in ("names", "same"))


def test_run_says_in_words_where_a_baseline_wins():
    scores, rows = {"test": {"accuracy": 0.8, "macro_f1": 0.7}}, {"test": 100}
    better = {"tf-idf": {"test": {"accuracy": 0.85}}, "linear": {"test": {"accuracy": 0.8}}}
    (line,) = warnings_of(TASK, scores, better, rows)
    assert "TF-IDF" in line and "0.8500 on test, not 0.8000" in line
    assert not warnings_of(TASK, scores, {"tf-idf": {"test": {"accuracy": 0.8}}}, rows)
    assert not warnings_of(TASK, scores, better, {"test": 5})
