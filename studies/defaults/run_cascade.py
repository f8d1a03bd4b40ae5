"""Cascades of two trunks on three tasks: what is lost, and what of the deep trunk's work is left.

    python -m studies defaults run-cascade [--mpnet FOLDER] [--pairs static,mpnet] [--sets trec6,subj] [--report]

Pairs: `static`, a table of word vectors below minilm, and `mpnet`, minilm below MPNet; FOLDER holds all-mpnet-base-v2
as `save_pretrained` writes it. Both trunks of a pair learn the default from the same 1,500 labelled rows; the threshold
is the cheapest that loses at most half a point on up to 1,000 further rows (`polyhead evaluate --cascade`), and the
whole test split is answered once by it. The table is minilm's own, by the recipe of Tulkens and van Dongen (2024): each
piece of its vocabulary is encoded alone, the vectors are reduced to 256 dimensions and weighted by the logarithm of
their rank. Three draws. Writes results/encoders_cascade.json; rows are in runs/encoders_cascade.jsonl, or else there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
import tokenizers

from polyhead.data.read import Examples
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.session import Session
from polyhead.evaluate.cascade import CascadePoint, cascade_of
from polyhead.plan import Embed, Head, Pool, shared_layers
from polyhead.plan import Path as PlanPath
from polyhead.project.encoders import MINILM
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.defaults.claims import DRAWS, lacking_draws, listed
from studies.defaults.run import MAX_TOKENS, SETS, labelled, labels_of, written
from studies.evidence import by_draw, judged
from studies.results import Claim
from studies.settings import RUNS, checked_names, command, parsed, report, resumed, rows_of, say, study_arguments

NAME = "encoders_cascade"
NAMES = ("trec6", "subj", "emotion")  # the first three of run_encoders
PAIRS = {"static": "a table of word vectors below minilm", "mpnet": "minilm below MPNet"}
TRAINED, CHOSEN_ON = 1500, 1000  # rows
DIMENSIONS, PIECES = 256, 512  # of the table; pieces that are encoded at once
LOST, LEFT = 0.5, 0.5  # targets: points, and the share of the deep trunk's work


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(NAMES))
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--mpnet", metavar="FOLDER", help="with all-mpnet-base-v2; without it its pair is not run")
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, pairs = checked_names(options.sets, NAMES, "set"), checked_names(options.pairs, PAIRS, "pair")
        trunks = {"static": (str(table()), MINILM), "mpnet": (MINILM, options.mpnet)}
        for draw, pair, name in ((draw, pair, name) for draw in DRAWS for pair in pairs for name in sets):
            if all(trunks[pair]):
                say(str(study.row(partial(run, name, draw, *trunks[pair]), set=name, draw=draw, pair=pair)))
        return
    rows = rows_of(options.rows)
    lacking = [
        f"{pair}, {name}: {count} of {len(DRAWS)} draws"
        for pair in PAIRS
        for name in NAMES
        if (count := sum((row["pair"], row["set"]) == (pair, name) for row in rows)) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=list(claims(rows)), lacking=lacking)


def run(name: str, draw: int, cheap: str, deep: str) -> dict[str, object]:
    """Test scores of both trunks and of their cascade, and its work beside the deep trunk's."""
    source = SETS[name]
    rows = labelled(source, "all", draw)
    train, choose = rows[:TRAINED], rows[TRAINED : TRAINED + CHOSEN_ON]
    sessions = list[Session]()
    with tempfile.TemporaryDirectory() as place:
        for number, trunk in enumerate((cheap, deep)):
            folder = Path(place) / str(number)
            folder.mkdir()
            entry = written(source, train, folder, labels_of(source))
            (folder / "choose.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in choose))
            project = project_of(entry, trunk, draw)
            outcome = train_project(project, folder=folder, cache=RUNS / "right-cache", events=Events(say=say))
            sessions.append(Session(outcome.bundle))
        held, test = (
            examples(project_of(msgspec.structs.replace(entry, test=file), deep, draw), folder)
            for file in ("choose.jsonl", entry.test)
        )
        first, second = sessions
        choice = cascade_of(first, second, "task", held, points_lost=LOST)
        tested = cascade_of(first, second, "task", test, thresholds=[choice.chosen.threshold, 0.0])
    alone, cascade, cheapest = tested.points
    return {
        "rows": len(train),
        "chosen_on": len(choose),
        "metric": tested.metric,
        "threshold": choice.chosen.threshold,
        "share": cascade.share,
        **{key: point.score for key, point in (("deep", alone), ("cascade", cascade), ("cheap", cheapest))},
        "lost": 100 * (alone.score - cascade.score),
        "lost_where_chosen": 100 * (choice.points[0].score - choice.chosen.score),
        **left_of(cascade, alone),
    }


def left_of(cascade: CascadePoint, alone: CascadePoint) -> dict[str, float]:
    """What is left of the layer evaluations and of the FLOPs of the deep trunk alone."""
    return {"layers": cascade.layers / alone.layers, "work": cascade.work / alone.work}


def project_of(entry: TaskEntry, trunk: str, draw: int) -> Project:
    chosen = TrunkChoice(name=trunk, max_tokens=MAX_TOKENS)
    return Project(tasks=(entry,), trunk=chosen, training=Training(seed=draw))


def examples(project: Project, folder: Path) -> Examples:
    """The rows of the project's test file."""
    split = prepare(project, folder)[0].test
    assert split is not None
    return split.examples


def table() -> Path:
    """The folder of minilm's table, in model2vec's format; it is made where there is none yet."""
    folder = RUNS / "static-minilm"
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        data = load_trunk(MINILM, max_tokens=MAX_TOKENS)
        safetensors.numpy.save_file({"embeddings": reduced(piece_vectors(data))}, folder / "model.safetensors")
        (folder / "tokenizer.json").write_bytes(data.tokenizer)
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}), encoding="utf-8")
    return folder


def piece_vectors(data: TrunkData) -> np.ndarray:
    """The mean of the last states of each piece of the vocabulary alone, between the special tokens."""
    tokenizer = tokenizers.Tokenizer.from_str(data.tokenizer.decode())
    tokenizer.no_padding()
    begin, end = tokenizer.encode("").ids
    layers, head = shared_layers(data.architecture.layers), Head(kind="single_label", part="task:x", width=2)
    path = PlanPath(nodes=(Embed(trunk=data.digest), *layers, Pool(positions="mean"), head))
    backend, found = open_backend("openvino", data, {}, precision="float32"), []
    for start in range(0, data.architecture.vocabulary, PIECES):
        pieces = np.arange(start, min(start + PIECES, data.architecture.vocabulary))
        ids = np.stack([np.full_like(pieces, begin), pieces, np.full_like(pieces, end)], axis=1)
        none = np.full((len(ids), 1), -1)
        batch = TokenBatch(ids=ids, mask=np.ones(ids.shape, bool), segments=np.zeros_like(ids), words=none)
        (values,) = backend.features([path], batch)
        found.append(values.reshape(len(ids), -1))
    return np.concatenate(found)


def reduced(vectors: np.ndarray) -> np.ndarray:
    """Their main directions, each row weighted by the logarithm of its rank: frequent pieces come first."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    main = centred @ directions[:, ::-1][:, :DIMENSIONS]
    return np.ascontiguousarray(main * np.log(1 + np.arange(1, len(main) + 1))[:, None], np.float32)


def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """For each pair the points that are lost, and what is left of layers, or of FLOPs for trunks of two widths."""
    for pair, text in PAIRS.items():
        mine = [row for row in rows if row["pair"] == pair]
        if not mine:
            continue
        unit = "layers" if pair == "static" else "work"
        lost, left = by_set(mine, "lost"), by_set(mine, unit)
        absent = [name for name in NAMES if name not in lost]
        lacks = ", ".join([*([f"without {', '.join(absent)}"] if absent else []), lacking_draws(lost)]).strip(", ")
        slug = "" if pair == "static" else f"_{pair}"
        what = "layer evaluations" if pair == "static" else "FLOPs"
        shares = ", ".join(f"{name} {np.mean(list(each.values())):.2f}" for name, each in left.items())
        yield judged(
            f"encoders.cascade{slug}",
            f"points of the test score that a cascade loses, {text}, mean of {len(lost)} tasks",
            by_draw(lost),
            target=LOST,
            side="most",
            note=listed(lost),
            lacking=lacks,
        )
        yield judged(
            f"encoders.cascade{slug}_{unit}",
            f"{what} of a cascade over those of its deep trunk alone, {text}, mean of {len(left)} tasks",
            by_draw(left),
            target=LEFT,
            side="most",
            unit="ratio",
            note=shares,
            lacking=lacks,
        )


def by_set(rows: list[dict[str, Any]], key: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["set"], {})[row["draw"]] = float(row[key])
    return found


if __name__ == "__main__":
    main()
