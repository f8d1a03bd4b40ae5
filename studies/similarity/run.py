"""Answers by similarity on five sets that no task of the bundle knows, beside chance and the most frequent label.

    python -m studies similarity run [--report]

The bundle is that of the packaged sample, over `minilm`: the server's temperature is fitted on its tasks alone. Each
set is one question about each text of its whole test split, with descriptions of its options and with their names
alone.
Rows are in runs/server_similarity.jsonl, or else in the results; those that are there are not measured again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from polyhead.engine.session import Session
from polyhead.errors import PolyheadError
from polyhead.serve.questions import DecisionQuestion
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.serve.similarity import words_read
from polyhead.tasks.metrics import accuracy, macro_f1
from studies.evidence import Estimate, estimate, judged, proportion
from studies.results import Claim, Study
from studies.settings import DATA, RUNS, command, parsed, report, resumed, say, study_arguments
from studies.settings import rows_of as rows_in
from studies.similarity.bundle import sample_bundle
from studies.similarity.sets import SETS, TRIED, Questioned, named, rows_of

NAME = "server_similarity"
BATCH = 512  # texts of one call
BINS = 10  # of the calibration error
OPTIONS = {"described": True, "names": False}
SHARPNESS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # 1 / temperature, tried on training rows


def main() -> None:
    options = parsed(study_arguments(__doc__, f"{NAME}.jsonl"))
    if not options.report:
        study = resumed(options.rows[0], NAME)
        service = Service(Session(sample_bundle(RUNS / "similarity")), ServeSettings(unknown="similarity"))
        asyncio.run(measure(service, study))
    rows = rows_in(options.rows)
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking(rows))


async def measure(service: Service, study: Study) -> None:
    """A row for each set and form of its options."""
    await service.start()
    try:
        for questioned in SETS:
            asked = named(questioned, labels_of(questioned.folder))
            forms = [form for form, described in OPTIONS.items() if any(asked.options.values()) or not described]
            for form in forms:
                key = {"set": asked.folder, "options": form}
                if not any(all(row.get(name) == value for name, value in key.items()) for row in study.rows):
                    found = await scored(service, asked, described=OPTIONS[form])
                    study.row(partial(dict, found), **key)
                    say(str(study.rows[-1]))
    finally:
        await service.stop()


async def scored(service: Service, questioned: Questioned, *, described: bool) -> dict[str, Any]:
    """Scores on the whole test split, those of the baselines, and the temperature that training rows would choose."""
    asked, labels = questioned.asked(described=described), list(questioned.options)
    train, test = rows_of(DATA, questioned.folder, "train"), rows_of(DATA, questioned.folder, "test")
    shares = await answered(service, asked, test.texts)
    gold = np.array([labels.index(label) for label in test.labels])
    counts = Counter(train.labels)
    most = max(labels, key=lambda label: counts[label])
    priors = np.array([counts[label] for label in labels], np.float64) / len(train.labels)
    tried = rows_of(DATA, questioned.folder, "train", most=TRIED)
    trained = await answered(service, asked, tried.texts)
    chance = 1 / len(labels)
    assert service.similarity is not None
    fitted = service.similarity.fitted
    return {
        "question": asked.form,
        "labels": len(labels),
        "rows": len(gold),
        "metric": questioned.metric,
        **metrics(gold, shares),
        "majority": metrics(gold, np.tile(np.eye(len(labels))[labels.index(most)], (len(gold), 1)), is_sure=True),
        "priors_log_loss": log_loss(gold, np.tile(priors, (len(gold), 1))),
        "chance": chance,
        "uniform_log_loss": float(np.log(len(labels))),
        "temperature": fitted.temperature,
        **({"centre": fitted.centre} if len(words_read(asked)) == 1 else {}),
        "fitted_on": list(fitted.tasks),
        "best_temperature": best_temperature(
            np.array([labels.index(label) for label in tried.labels]), trained, fitted.temperature
        ),
        "precision": service.session.backend.precision,
        "backend": service.session.backend.name,
    }


async def answered(service: Service, asked: DecisionQuestion, texts: Sequence[str]) -> np.ndarray:
    """Probabilities float64 (texts, options), as the server gives them."""
    similarity, words = service.similarity, words_read(asked)
    assert similarity is not None
    options, unread = similarity.known(words)
    if unread:
        read = await service.ask([(each,) for each in unread], [service.vectors])
        for text, option in similarity.learned(unread, read).items():
            if isinstance(option, PolyheadError):
                raise option
            options[text] = option
    shares = []
    for start in range(0, len(texts), BATCH):
        ticket = await service.ask([(text,) for text in texts[start : start + BATCH]], [service.vectors], deadline=600)
        vectors = [outputs[service.vectors] for outputs in ticket.outputs]
        shares += [similarity.probabilities(asked, vector, options) for vector in vectors]
    return np.array(shares)


def metrics(gold: np.ndarray, shares: np.ndarray, *, is_sure: bool = False) -> dict[str, float]:
    """Accuracy, macro-F1 and, of probabilities, the log loss and the calibration error in ten bins."""
    answers = shares.argmax(axis=1)
    scores = {"accuracy": accuracy(gold, answers), "macro_f1": macro_f1(gold, answers)}
    if is_sure:
        return scores
    sure, right = shares.max(axis=1), answers == gold
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    error = sum(abs(sure[bins == each].sum() - right[bins == each].sum()) for each in range(BINS)) / len(gold)
    return {**scores, "log_loss": log_loss(gold, shares), "calibration_error": float(error)}


def log_loss(gold: np.ndarray, shares: np.ndarray) -> float:
    return float(-np.log(np.maximum(shares[np.arange(len(gold)), gold], 1e-12)).mean())


def best_temperature(gold: np.ndarray, shares: np.ndarray, temperature: float) -> float:
    """The temperature of those tried with the lowest log loss, from probabilities at another one."""
    logits = np.log(np.maximum(shares, 1e-30)) * temperature
    return 1 / min(SHARPNESS, key=lambda sharpness: log_loss(gold, normalized(logits * sharpness)))


def normalized(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def labels_of(folder: str) -> list[str]:
    return list(msgspec.json.decode((DATA / folder / "meta.json").read_bytes())["labels"])


def asked_row(rows: list[dict[str, Any]], questioned: Questioned) -> dict[str, Any] | None:
    """The row that claims rest on: with descriptions, where the set has any."""
    form = "described" if questioned.options else "names"
    return next((row for row in rows if (row["set"], row["options"]) == (questioned.folder, form)), None)


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Each set's own metric, and accuracy, against the better of chance and the most frequent label."""
    made = []
    for questioned in SETS:
        row = asked_row(rows, questioned)
        if row is None:
            continue
        for metric in dict.fromkeys((questioned.metric, "accuracy")):
            baseline = max(row["majority"][metric], row["chance"] if metric == "accuracy" else 0.0)
            name = questioned.folder.replace("_", "-") + ("" if metric == questioned.metric else f"-{metric}")
            made.append(
                judged(
                    f"server.similarity-{name}",
                    f"{questioned.folder}, a {row['question']} without a task, over chance and the majority label",
                    of_texts(row[metric], row["rows"] if metric == "accuracy" else 1),
                    target=round(baseline, 4),
                    side="above",
                    unit=metric.replace("_", "-"),
                    digits=4,
                    note=f"{row['labels']} labels, {row['rows']:,} test rows, nothing was trained for it, so that "
                    + ("test texts are the draws" if metric == "accuracy" else "there are no seeds"),
                )
            )
    return made


def of_texts(share: float, texts: int) -> Estimate:
    """A share of texts that are answered rightly, each a draw; one number alone has no interval."""
    return proportion(round(share * texts), texts) if texts > 1 else estimate([share])


def lacking(rows: list[dict[str, Any]]) -> list[str]:
    return [questioned.folder for questioned in SETS if asked_row(rows, questioned) is None]


if __name__ == "__main__":
    main()
