"""The default beside the simplest baselines: twenty sets, four sizes, three draws, one row a run.

    python -m studies defaults run [--sets trec6,cr] [--sizes 8,64,1500,all] [--part 1/2] [--baselines] [--report]

Writes results/heads_defaults.json; results/right_defaults.json are the rows of the same study before heads read words.

The default is a project that names nothing but its files, columns and labels. Baselines are scikit-learn's, on vectors
of the same trunk and the same labelled rows: logistic regression on mean vectors of the last layer, and on TF-IDF of
words and pairs of words; for pairs on `[u, v, |u - v|, u * v]` and on the cosine alone; for words on each word's
vector, and without the trunk on the words around it; for numbers ridge regression, and the cosine as it is. Where each
label has three rows, three folds choose the penalty of logistic regression on TF-IDF; on mean vectors and the cosine
there is one with scikit-learn's penalty and one with a searched one; over words it is fixed. Goes on where it stopped:
rows are in runs/heads_defaults.jsonl, or else in the results. With `--baselines` the baselines of rows that are there
are learned anew, and nothing else.
"""

from __future__ import annotations

import functools
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.deep.nn.runtime import precision_of
from polyhead.plan import Codec
from polyhead.project.encoders import MINILM
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks import metrics
from polyhead.text.question import texts_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.prepare import prepare, wanted
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.defaults.claims import DRAWS, SIZES, claims
from studies.results import Study
from studies.settings import (
    DATA,
    RUNS,
    checked_names,
    command,
    parsed,
    part_of,
    report,
    results_rows,
    resumed,
    say,
    study_arguments,
)

MAX_TOKENS = 128
WORDS = 60_000  # of which a baseline over words learns at most
NAME, BEFORE = "heads_defaults", "right_defaults"


@dataclass(frozen=True)
class Set:
    """One set of the study: its folder, kind, and what else its task declares."""

    folder: str
    kind: str = "single_label"
    test: str = "test"
    rare: tuple[str, float] | None = None  # the label that is made so rare, and its share
    declared: dict[str, Any] = field(default_factory=dict[str, Any])  # `range` or `pair` of the task


SETS = {
    "ag_news": Set("ag_news"),
    "banking77": Set("banking77"),
    "trec6": Set("trec6"),
    "emotion": Set("tweeteval_emotion"),
    "clinc150": Set("clinc150"),
    "stsb": Set("glue_stsb", "regression", declared={"range": (0.0, 5.0)}),
    "sick_relatedness": Set("sick_relatedness", "regression", declared={"range": (1.0, 5.0)}),
    "wnut17": Set("wnut17", "tagging"),
    "restaurant8k_slots": Set("restaurant8k_slots", "tagging"),
    "hate_rare": Set("tweeteval_hate", rare=("hate", 0.05)),
    "irony": Set("tweeteval_irony"),
    "cr": Set("cr"),
    "sst5": Set("sst5"),
    "subj": Set("subj"),
    "trec50": Set("trec50"),
    "mrpc": Set("glue_mrpc", declared={"pair": True}),
    "rte": Set("glue_rte", test="validation", declared={"pair": True}),
    "sick_nli": Set("sick_nli", declared={"pair": True}),
    "snips_slots": Set("snips_slots", "tagging"),
    "mit_movie": Set("mit_movie_trivia_slots", "tagging"),
}


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--part", default="1/1", help="i/n: every n-th run, from the i-th on")
    parser.add_argument("--baselines", action="store_true", help="learn only the baselines of rows that are there anew")
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, SETS, "set"), checked_names(options.sizes, SIZES, "size")
        jobs = [(name, size, draw) for size in sizes for draw in DRAWS for name in sets]
        for name, size, draw in part_of(jobs, options.part):
            if options.baselines:
                for row in study.replaced(lambda row: row | {"baselines": again(row)}, set=name, size=size, draw=draw):
                    say(str(row))
                continue
            say(str(study.row(functools.partial(run, name, size, draw), set=name, size=size, draw=draw)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    lacking = [
        f"{name}, {size}: {count} of {len(DRAWS)} draws"
        for size in SIZES
        for name in SETS
        if (count := draws(rows, name, size)) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=claims(rows, results_rows(BEFORE)), lacking=lacking)


def run(name: str, size: str, draw: int, trunk: str = MINILM) -> dict[str, object]:
    """The default's test score, and those of all baselines, on the same labelled rows and over the same trunk."""
    with tempfile.TemporaryDirectory() as folder:
        project = project_of(name, size, draw, Path(folder), trunk=trunk)
        row = {"rows": sum(1 for _ in (Path(folder) / "train.jsonl").open()), **learned(project, Path(folder))}
        ready = prepare(project, Path(folder))[0]
        return {**row, "baselines": baselines(ready, str(row["metric"]), draw, opened(trunk))}


def again(row: Mapping[str, Any]) -> dict[str, float]:
    """The test scores of the baselines of a row, learned anew from the same labelled rows."""
    with tempfile.TemporaryDirectory() as folder:
        ready = prepare(project_of(row["set"], row["size"], row["draw"], Path(folder)), Path(folder))[0]
        return baselines(ready, row["metric"], row["draw"], opened(MINILM))


def project_of(name: str, size: str, draw: int, folder: Path, *, trunk: str = MINILM) -> Project:
    """A project over these labelled rows and the whole test split, which are written into the folder."""
    source = SETS[name]
    entry = written(source, labelled(source, size, draw), folder, labels_of(source))
    chosen = TrunkChoice(name=trunk, max_tokens=MAX_TOKENS)
    return Project(tasks=(entry,), trunk=chosen, training=Training(seed=draw))


def learned(project: Project, folder: Path) -> dict[str, object]:
    """The test score of the project's task, its metric, the heads that were tried, and seconds without encoding."""
    began = time.perf_counter()
    outcome = train_project(project, folder=folder, cache=RUNS / "right-cache", events=Events(say=say))
    seconds = time.perf_counter() - began
    assert outcome.extraction is not None
    metric = prepare(project, folder)[0].task.metric
    metric = metric or {"regression": "pearson", "tagging": "span_f1"}.get(project.tasks[0].kind, "accuracy")
    scores = json.loads(next(Path(outcome.bundle).glob("tasks/task/*/scores.json")).read_text(encoding="utf-8"))
    return {
        "metric": metric,
        "default": outcome.trained["task"]["test"][metric],
        "chosen": scores.get("chosen"),
        "tried": scores.get("tried"),
        "seconds": round(seconds - outcome.extraction.seconds, 1),
    }


def labelled(source: Set, size: str, draw: int) -> list[dict[str, Any]]:
    """The training rows of a draw: so many of each label (of tagging: sentences for each name), so many, or all."""
    rows = read(source, "train")
    generator = np.random.default_rng(draw)
    if source.rare is not None:
        label, share = source.rare
        common = [row for row in rows if row["label"] != label]
        rare = [row for row in rows if row["label"] == label]
        rows = common + rare[: round(len(common) * share / (1 - share))]
    order = [rows[index] for index in generator.permutation(len(rows))]
    if size == "all":
        return order
    if int(size) >= 1000:
        return order[: int(size)]
    if source.kind == "regression":
        return order[: 2 * int(size)]
    if source.kind == "tagging":
        names = {tag[2:] for row in rows for tag in row["tags"] if tag != "O"}
        return order[: int(size) * len(names)]
    if source.rare is not None:  # labels as rare as they are
        return order[: 20 * int(size)]
    counts: dict[str, int] = {}
    chosen = []
    for row in order:
        counts[row["label"]] = counts.get(row["label"], 0) + 1
        if counts[row["label"]] <= int(size):
            chosen.append(row)
    return chosen


def read(source: Set, split: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / source.folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def labels_of(source: Set) -> tuple[str, ...]:
    labels = json.loads((DATA / source.folder / "meta.json").read_text(encoding="utf-8"))["labels"]
    return tuple(map(str, labels or ()))


def written(source: Set, rows: list[dict[str, Any]], folder: Path, labels: tuple[str, ...]) -> TaskEntry:
    """A project's task as somebody with these files would declare it."""
    test = read(source, source.test)
    if source.rare is not None:
        label, share = source.rare
        common = [row for row in test if row["label"] != label]
        test = common + [row for row in test if row["label"] == label][: round(len(common) * share / (1 - share))]
    for name, several in (("train", rows), ("test", test)):
        (folder / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in several))
    settings = {key: value for key, value in source.declared.items() if key != "pair"}
    if source.kind == "regression" or "pair" in source.declared:
        settings |= {"text": "text_a", "text_b": "text_b"}
    if source.kind == "tagging":
        settings |= {"tokens": "tokens", "tags": "tags"}
    if source.kind != "regression":
        settings["labels"] = labels
    return TaskEntry(name="task", kind=source.kind, train="train.jsonl", test="test.jsonl", **settings)


SCORERS = {"accuracy": "accuracy", "macro_f1": "f1_macro", "matthews": "matthews_corrcoef"}  # scikit-learn's names
SEARCHED = ", searched"  # of the name of a baseline
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # C, for vectors with mean square 1 and for one cosine
SCORES = {"accuracy": metrics.accuracy, "macro_f1": metrics.macro_f1, "matthews": metrics.matthews}
Vectors = tuple[np.ndarray, np.ndarray, np.ndarray]  # values, targets, example of each row


def baselines(ready: Prepared, metric: str, draw: int, extractor: Extractor) -> dict[str, float]:
    """Test scores of scikit-learn's models on vectors of the last layer, learned from all labelled rows."""
    whole = Split(name="train", examples=labelled_rows(ready))
    kind = ready.task.kind
    train, test = (vectors(ready, split, extractor) for split in (whole, test_split(ready)))
    values, targets = (train[0], train[1]), (test[0], test[1])
    if kind == "tagging":
        return of_words(ready, train, test, draw)
    if kind == "regression":
        return of_numbers(values, targets, metric)
    return of_labels(ready, values, targets, metric) | of_texts(ready, train, test, metric)


def labelled_rows(ready: Prepared) -> Examples:
    assert ready.whole is not None
    return ready.whole


def test_split(ready: Prepared) -> Split:
    assert ready.test is not None
    return ready.test


def of_labels(
    ready: Prepared, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], metric: str
) -> dict[str, float]:
    scored = dict[str, float]()
    score = SCORES[metric]
    balances = (None,) if metric == "accuracy" else (None, "balanced")
    sides = {"mean vectors": (train[0], test[0])}
    if ready.task.pair == "separate":
        sides["cosine"] = (cosine(train[0])[:, None], cosine(test[0])[:, None])
    for side, (learned, held) in sides.items():
        for balance in balances:
            name, model = side + (", balanced" if balance else ""), logistic(balance)
            scored[name] = score(test[1], model.fit(learned, train[1]).predict(held))
            model = searched(logistic(balance), train[1], metric, C=PENALTIES)
            scored[f"{name}{SEARCHED}"] = score(test[1], model.fit(learned, train[1]).predict(held))
    scored["constant"] = constant(train[1], test[1], score)
    return scored


def of_texts(ready: Prepared, train: Vectors, test: Vectors, metric: str) -> dict[str, float]:
    """The score of TF-IDF with logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(words, logistic(None).set_params(C=10.0))
    model = searched(model, train[1], metric, logisticregression__C=[1.0, 10.0, 100.0])
    learned, held = (
        [" ".join(texts_of(examples.inputs[member])) for member in members]
        for examples, members in ((labelled_rows(ready), train[2]), (test_split(ready).examples, test[2]))
    )
    return {"TF-IDF": SCORES[metric](test[1], model.fit(learned, train[1]).predict(held))}


def searched(model: Any, targets: np.ndarray, metric: str, **settings: Sequence[float]) -> Any:
    """The model with the settings that three folds choose; as it is where a label has fewer than three rows."""
    from sklearn.model_selection import GridSearchCV

    if np.bincount(targets)[np.unique(targets)].min() < 3:
        return model
    return GridSearchCV(model, settings, scoring=SCORERS[metric], cv=3)


def constant(train: np.ndarray, test: np.ndarray, score: Callable[..., float]) -> float:
    """The score of the most frequent label; the mean of several that are equally frequent."""
    counts = np.bincount(train)
    return statistics.mean(score(test, np.full(len(test), most)) for most in np.flatnonzero(counts == counts.max()))


def of_numbers(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], metric: str
) -> dict[str, float]:
    from sklearn.linear_model import Ridge

    score = {"pearson": metrics.pearson, "spearman": metrics.spearman}[metric]
    ridge = Ridge(alpha=1.0).fit(train[0], train[1])
    return {"cosine": score(test[1], cosine(test[0])), "ridge": score(test[1], ridge.predict(test[0]))}


def of_words(ready: Prepared, train: Vectors, test: Vectors, draw: int) -> dict[str, float]:
    """Span F1 of logistic regression on each word's vector, and on the words around it alone."""
    chosen = np.random.default_rng(draw).permutation(len(train[0]))[:WORDS]
    model = logistic(None).fit(train[0][chosen], train[1][chosen])
    return {
        "word vectors": tagged(ready, model.predict(test[0]), test[2], "span_f1"),
        "words around": words_around(ready, draw, "span_f1"),
    }


def words_around(ready: Prepared, draw: int, metric: str) -> float:
    """The score of logistic regression on the words around each word, without an encoder."""
    from sklearn.feature_extraction import DictVectorizer

    facts, targets = DictVectorizer(), np.concatenate(labelled_rows(ready).targets)
    chosen = np.random.default_rng(draw).permutation(len(targets))[:WORDS]
    around = facts.fit_transform(facts_of_words(labelled_rows(ready)))
    model = logistic(None).set_params(C=10.0).fit(around[chosen], targets[chosen])
    predicted = model.predict(facts.transform(facts_of_words(test_split(ready).examples)))
    lengths = [len(target) for target in test_split(ready).examples.targets]
    return tagged(ready, predicted, np.repeat(np.arange(len(lengths)), lengths), metric)


def facts_of_words(examples: Examples) -> list[dict[str, object]]:
    """Of each word in order: itself, its neighbours, how it begins and ends, and its letters' case."""
    assert examples.words is not None
    rows = []
    for value, offsets in zip(examples.inputs, examples.words, strict=True):
        (text,) = texts_of(value)
        words = [text[first:last] for first, last in offsets]
        for index, word in enumerate(words):
            near = {
                f"{step:+d}": words[index + step].lower() for step in (-2, -1, 1, 2) if 0 <= index + step < len(words)
            }
            ends = {
                f"{size} {side}": part for size in (2, 3) for side, part in (("<", word[:size]), (">", word[-size:]))
            }
            case = {"capital": word[:1].isupper(), "upper": word.isupper(), "digit": any(map(str.isdigit, word))}
            rows.append({"word": word.lower(), **near, **ends, **case})
    return rows


def tagged(ready: Prepared, predicted: np.ndarray, members: np.ndarray, metric: str) -> float:
    """The score of the labels predicted for the words of all examples."""
    outputs, width = [], len(ready.task.labels)
    for index, target in enumerate(test_split(ready).examples.targets):
        answered = np.zeros((len(target), width), np.float32)
        own = predicted[members == index]
        answered[np.arange(len(own)), own] = 1
        outputs.append(answered)
    return float(test_split(ready).examples.scores(ready.task, outputs)[metric])


def logistic(balance: str | None) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=300, class_weight=balance)


def cosine(compared: np.ndarray) -> np.ndarray:
    """The cosine of u and v, from `[u, v, |u - v|, u * v]`, where both have the length sqrt(width)."""
    products = compared[:, compared.shape[1] * 3 // 4 :]
    return np.asarray(products.mean(axis=1))


def vectors(ready: Prepared, split: Split, extractor: Extractor) -> Vectors:
    """The inputs of a linear head over the last layer for a split: texts, pairs compared, or words."""
    from polyhead.tasks.kinds import kind_of
    from polyhead.train.heads.inputs import inputs_of

    strategy = Pooled(layers="last", positions="mean", hidden=0)
    path = strategy.path(
        ready.task, trunk=extractor.facts.digest, shape=extractor.data.architecture, codec=Codec(name="float16")
    )
    own = msgspec.structs.replace(ready, train=split, validation=split, test=None)
    extractor.fill(wanted(own, path, extractor)[:4])
    read = inputs_of(
        path, examples_of(own, split, path, extractor), loss=kind_of(ready.task).loss, outputs=path.head.width
    )
    return read.values, read.targets, read.members


@functools.cache
def opened(trunk: str) -> Extractor:
    """What reads texts with this trunk, its features kept."""
    data = load_trunk(trunk, max_tokens=MAX_TOKENS)
    return Extractor(data, folder=RUNS / "right-cache" / "features", precision=precision_of(Training()))


def draws(rows: list[dict[str, Any]], name: str, size: str) -> int:
    return sum(row["set"] == name and row["size"] == size for row in rows)


if __name__ == "__main__":
    main()
