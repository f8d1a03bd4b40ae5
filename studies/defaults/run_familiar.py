"""How well answers tell a task's own texts from others: by `familiar`, and by its probabilities.

    python -m studies defaults run-familiar [--sets trec6,clinc150] [--report]

Five sets, three draws of 1,500 training rows, each trained by default. A row has areas under the ROC curve, for its own
test rows (at most 250) against as many texts of each other set, and for clinc150 against its out-of-scope questions,
which training never sees: of `familiar`, of the largest probability, of the entropy of the probabilities, and of the
energy of the outputs. Beside them the share of own test rows that `familiar` puts below some limits, the bytes that the
bundle keeps for it, and its time per text once the mean vector is there. Goes on where it stopped: rows are in
runs/heads_familiar.jsonl, or else in the results.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.format import SEEN
from polyhead.engine.familiar import KnownRows
from polyhead.engine.session import Session
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.defaults.claims import DRAWS
from studies.defaults.run import MAX_TOKENS, Set, labels_of, read
from studies.evidence import estimate, judged, most
from studies.results import Claim
from studies.settings import RUNS, checked_names, command, parsed, report, resumed, rows_of, say, study_arguments

NAME = "heads_familiar"
SETS = ("ag_news", "trec6", "banking77", "clinc150", "tweeteval_emotion")
OUTSIDE = "oos"  # clinc150's label of questions that none of the others fits
ROWS, TEXTS = 1500, 250  # training rows; texts of each side
LIMITS = (0.02, 0.1, 0.5)
FAMILIAR, LARGEST = "familiar", "largest probability"
GOAL, SLACK = 0.05, 2.0  # areas ahead; held-out rows below a limit, in multiples of it


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(SETS))
    options = parsed(parser)
    if not options.report:
        study, sets = resumed(options.rows[0], NAME), checked_names(options.sets, SETS, "set")
        for draw, name in ((draw, name) for draw in DRAWS for name in sets):
            say(str(study.row(partial(run, name, draw), set=name, draw=draw)))
        return
    rows = rows_of(options.rows) if all(map(Path.exists, options.rows)) else resumed(options.rows[0], NAME).rows
    lacking = [f"{name}: {count} of {len(DRAWS)} draws" for name in SETS if (count := draws(rows, name)) < len(DRAWS)]
    report(NAME, command=command(), rows=rows, claims=list(claims(rows)), lacking=lacking)


def run(name: str, draw: int) -> dict[str, object]:
    """The areas of one set and one draw."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = trained(name, draw, Path(folder))
        session = Session(bundle)
        own, others = scores(session, test_texts(name, draw)), {}
        for other in (*SETS, OUTSIDE):
            if other != name and (other != OUTSIDE or name == "clinc150"):
                others[other] = scores(session, test_texts(other, draw))
        rows = session.loaded.known["task"].rows
        assert rows is not None
        return {
            "areas": {
                score: {other: round(area(own[score], found[score]), 4) for other, found in others.items()}
                for score in own
            },
            "below": {str(limit): round(float(np.mean(own[FAMILIAR] < limit)), 4) for limit in LIMITS},
            "bytes": sum(file.stat().st_size for file in Path(bundle).glob(f"tasks/task/*/{SEEN}")),
            "microseconds": round(1e6 * seconds(rows) / TEXTS, 1),
        }


def trained(name: str, draw: int, folder: Path) -> Path:
    """A bundle of the set's task, learned by default from the rows of a draw, none of them out of scope."""
    rows = [row for row in read(Set(name), "train") if row["label"] != OUTSIDE]
    order = np.random.default_rng(draw).permutation(len(rows))[:ROWS]
    (folder / "train.jsonl").write_bytes(b"".join(msgspec.json.encode(rows[index]) + b"\n" for index in order))
    labels = tuple(label for label in labels_of(Set(name)) if label != OUTSIDE)
    task = TaskEntry(name="task", kind="single_label", train="train.jsonl", labels=labels)
    project = Project(tasks=(task,), trunk=TrunkChoice(max_tokens=MAX_TOKENS), training=Training(seed=draw))
    return Path(train_project(project, folder=folder, cache=RUNS / "right-cache", events=Events(say=say)).bundle)


@cache
def test_texts(name: str, draw: int) -> list[str]:
    """Some test texts of a set that belong to its labels, or clinc150's that do not."""
    folder = "clinc150" if name == OUTSIDE else name
    texts = [row["text"] for row in read(Set(folder), "test") if (row["label"] == OUTSIDE) == (name == OUTSIDE)]
    return [texts[index] for index in np.random.default_rng(draw).permutation(len(texts))[:TEXTS]]


def scores(session: Session, texts: list[str]) -> dict[str, np.ndarray]:
    """By name, a number for each text: the higher, the more it belongs."""
    column = session.columns(texts, familiar=True)["task"]
    outputs = np.stack([np.asarray(output).reshape(-1) for output in column.outputs]).astype(np.float64)
    assert column.scores is not None
    chances = np.maximum(column.scores.astype(np.float64), 1e-12)
    return {
        FAMILIAR: column.familiar,
        LARGEST: chances.max(axis=1),
        "entropy": (chances * np.log(chances)).sum(axis=1),
        "energy": np.logaddexp.reduce(outputs, axis=1),
    }


def area(own: np.ndarray, others: np.ndarray) -> float:
    """Under the ROC curve: how often one of its own has the higher score, ties counting half."""
    least, most = (np.searchsorted(np.sort(others), own, side=side) for side in ("left", "right"))
    return float((least + most).mean() / 2 / len(others))


def seconds(rows: KnownRows) -> float:
    """The median time of comparing TEXTS vectors."""
    vectors, taken = np.random.default_rng(0).normal(size=(TEXTS, rows.near.shape[1])).astype(np.float32), []
    for _ in range(5):
        began = time.perf_counter()
        rows.familiar(vectors)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def draws(rows: list[dict[str, Any]], name: str) -> int:
    return sum(row["set"] == name for row in rows)


def means(rows: list[dict[str, Any]], draw: int | None = None, *, outside: bool = False) -> dict[str, float]:
    """By score, the mean over sets of its mean area against the other sets, or against the out-of-scope questions."""
    kept = [row for row in rows if draw in (None, row["draw"]) and (row["set"] == "clinc150" or not outside)]
    found: dict[str, float] = {}
    for score in kept[0]["areas"] if kept else ():
        by_set: dict[str, list[float]] = {}
        for row in kept:
            areas = [area for other, area in row["areas"][score].items() if (other == OUTSIDE) == outside]
            by_set.setdefault(row["set"], []).extend(areas)
        found[score] = statistics.mean(statistics.mean(areas) for areas in by_set.values())
    return found


def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """That `familiar` is ahead of the largest probability, and that it is a share of rows like a task's own."""
    few = [name for name in SETS if draws(rows, name) < len(DRAWS)]
    lacks = f"fewer than {len(DRAWS)} draws of {', '.join(few)}" if few else ""
    for outside, against in ((False, "texts of the other sets, mean of five sets"), (True, "clinc150's out-of-scope")):
        by_score, name = means(rows, outside=outside), "outside" if outside else "area"
        if not by_score:
            continue
        ahead = [
            each[FAMILIAR] - each[LARGEST] for each in (means(rows, draw, outside=outside) for draw in DRAWS) if each
        ]
        yield judged(
            f"heads.familiar_{name}",
            f"area under the curve of `familiar` less the largest probability's, against {against}",
            estimate(ahead),
            target=0 if outside else GOAL,
            unit="area",
            digits=3,
            note=", ".join(f"{score} {mean:.3f}" for score, mean in by_score.items()),
            lacking=lacks,
        )
    below = {limit: by_draw_of(rows, limit) for limit in map(str, LIMITS)}
    if all(below.values()):
        yield judged(
            "heads.familiar_share",
            "own test rows that `familiar` puts below a limit, in multiples of it, the most of three limits",
            most(estimate(share / float(limit) for share in shares) for limit, shares in below.items()),
            target=SLACK,
            side="most",
            unit="times",
            note=", ".join(f"below {limit}: {statistics.mean(below[limit]):.3f}" for limit in below),
            lacking=lacks,
        )


def by_draw_of(rows: list[dict[str, Any]], limit: str) -> list[float]:
    """The mean over sets of the share of own rows below a limit, by draw."""
    shares = {draw: [row["below"][limit] for row in rows if row["draw"] == draw] for draw in DRAWS}
    return [statistics.mean(several) for several in shares.values() if several]


if __name__ == "__main__":
    main()
