"""`polyhead check`: planted faults, clean sets, 100,000 rows, and labels that were flipped.

    python -m benchmarks.workbench_check [--jobs planted,clean,time,flips] [--seeds 1,2,3] [--report]

Clean sets are six public sets, pooled, cleaned by other means than those of the check (exact likeness of all pairs by
scikit-learn's counts, patterns of its own) and split anew at random. A fault of each kind is planted into one of them,
and must be found in at least nine tenths of its rows. For flips, 5 % of the training labels (of 5,000 random rows at
most) get another label at random; all rows are ranked by the doubt of heads that did not learn from them. Three sets
decide, others stand beside.
"""

from __future__ import annotations

import copy
import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.check.label_errors import all_labelled_rows, doubts, neighbours
from polyhead.check.run import findings_in, read_splits
from polyhead.check.split_rows import Finding
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.kinds.base import softmax
from studies.evidence import estimate, judged, least
from studies.results import Claim, Study
from studies.settings import DATA, RUNS, command, parsed, report, resumed, say, study_arguments

CLEAN = ("trec6", "subj", "snips_intent", "cr", "banking77", "mr_rotten_tomatoes")
FLIP_SETS = ("ag_news", "subj", "banking77", "trec6", "cr", "tweeteval_emotion", "snips_intent")
JOBS, SEEDS = ("planted", "clean", "time", "flips"), (1, 2, 3)
MOST = 4000  # rows of a clean set
SHARE = 0.03  # of rows that get a fault
FLIPPED, FIRST, FLIP_ROWS = 0.05, 0.1, 5000
LIMIT = 512
ROWS, SECONDS = 100_000, 10.0

Rows = list[dict]
Splits = dict[str, Rows]


@dataclass
class Planted:
    """Splits with a fault, the rows that have it by split (from 1; empty: no row has it), and what else is declared."""

    splits: Splits
    rows: set[tuple[str, int]] = field(default_factory=set)
    labels: tuple[str, ...] | None = None
    text: str = "text"


def read(name: str) -> Rows:
    rows = []
    for split in ("train", "validation", "test"):
        path = DATA / name / f"{split}.jsonl.gz"
        if path.exists():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                rows += [json.loads(line) for line in file]
    return [{"text": row["text"], "label": str(row["label"])} for row in rows]


def cleaned(name: str, seed: int) -> Splits:
    """Splits of one's own to change."""
    return copy.deepcopy(_cleaned(name, seed))


@cache
def _cleaned(name: str, seed: int) -> Splits:
    """A random part of the set without equal or near texts, rare labels and odd characters, in three random splits."""
    from sklearn.feature_extraction.text import CountVectorizer

    generator = np.random.default_rng(seed)
    rows = read(name)
    rows = [rows[i] for i in generator.permutation(len(rows))]
    odd = re.compile("[^\\x20-\\x7e]|<[a-z/]|&[a-z#]")
    kept, seen = [], set()
    for row in rows:
        key = re.sub("[^a-z0-9]", "", row["text"].lower())
        if key and key not in seen and not odd.search(row["text"]) and len(row["text"]) < 1000:
            seen.add(key)
            kept.append(row)
    kept = kept[:MOST]
    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", binary=True)
    values = counts.fit_transform([row["text"] for row in kept]).astype(np.float32)
    sizes = np.asarray(values.sum(axis=1)).ravel()
    shared = (values @ values.T).tocoo()
    likeness = shared.data / (sizes[shared.row] + sizes[shared.col] - shared.data)
    near = {int(j) for i, j, s in zip(shared.row, shared.col, likeness, strict=True) if i < j and s >= 0.7}
    kept = [row for index, row in enumerate(kept) if index not in near]
    classes: dict[str, Rows] = {}
    for row in kept:
        classes.setdefault(row["label"], []).append(row)
    splits: Splits = {"train": [], "validation": [], "test": []}
    for several in classes.values():
        if len(several) < 20:
            continue
        first, second = int(0.7 * len(several)), int(0.85 * len(several))
        splits["train"] += several[:first]
        splits["validation"] += several[first:second]
        splits["test"] += several[second:]
    return {split: [rows[i] for i in generator.permutation(len(rows))] for split, rows in splits.items()}


def checked(
    splits: Splits, folder: Path, *, labels: tuple[str, ...] | None = None, text: str = "text"
) -> list[Finding]:
    names = labels or tuple(sorted({row["label"] for row in splits["train"] if isinstance(row, dict) and row["label"]}))
    for split, rows in splits.items():
        lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    entry = TaskEntry(
        name="task",
        kind="single_label",
        labels=names,
        text=text,
        train="train.jsonl",
        validation="validation.jsonl",
        test="test.jsonl",
    )
    parts, unread = read_splits([entry], folder)
    return [*unread, *findings_in(parts, limit=LIMIT)]


# Faults. Each takes clean splits and a generator, and gives splits with the fault.


def chosen(rows: Rows, generator: np.random.Generator, share: float = SHARE) -> list[int]:
    return sorted(generator.choice(len(rows), max(4, round(share * len(rows))), replace=False).tolist())


def changed(split: str, change: Callable[[dict, np.random.Generator], Any], **options: Any) -> Callable[..., Planted]:
    def plant(splits: Splits, generator: np.random.Generator) -> Planted:
        labels = tuple(sorted({row["label"] for row in splits["train"]}))
        indices = chosen(splits[split], generator)
        for index in indices:
            splits[split][index] = change(splits[split][index], generator)
        return Planted(splits, {(split, index + 1) for index in indices}, labels=labels, **options)

    return plant


def appended(
    source: str, target: str, change: Callable[[dict, np.random.Generator, list[str]], dict]
) -> Callable[..., Planted]:
    def plant(splits: Splits, generator: np.random.Generator) -> Planted:
        labels = sorted({row["label"] for row in splits["train"]})
        rows = [row for row in splits[source] if len(row["text"].split()) >= 12]
        most = min(len(rows), max(4, round(SHARE * len(splits[source]))), max(4, len(splits[target]) // 10))
        picked = [rows[i] for i in generator.choice(len(rows), most, replace=False)]
        start = len(splits[target])
        splits[target] = splits[target] + [change(row, generator, labels) for row in picked]
        return Planted(splits, {(target, start + 1 + i) for i in range(len(picked))}, labels=tuple(labels))

    return plant


def other(label: str, labels: list[str], generator: np.random.Generator) -> str:
    return str(generator.choice([name for name in labels if name != label]))


def misread(row: dict, _: np.random.Generator) -> dict:
    words = row["text"].split()
    words.insert(len(words) // 2, "café – naïve “señor”")
    return row | {"text": " ".join(words).encode().decode("cp1252", errors="replace").replace("\ufffd", "")}


def reworded(row: dict, generator: np.random.Generator, _: list[str]) -> dict:
    """One word in twelve or more is another one, and the case differs."""
    words = row["text"].split()
    words[int(generator.integers(len(words) - 1)) if len(words) < 20 else 5] = "xyzzy"
    return row | {"text": " ".join(words[:-1] + [words[-1].title()])}


def without_class(splits: Splits, generator: np.random.Generator) -> Planted:
    labels = sorted({row["label"] for row in splits["train"]})
    sizes = {label: sum(row["label"] == label for row in splits["train"]) for label in labels}
    gone = max(sizes, key=sizes.__getitem__)
    splits["test"] = [row for row in splits["test"] if row["label"] != gone]
    return Planted(splits, labels=tuple(labels))


def never_in_train(splits: Splits, generator: np.random.Generator) -> Planted:
    labels = sorted({row["label"] for row in splits["train"]})
    gone = str(generator.choice(labels))
    splits["train"] = [row for row in splits["train"] if row["label"] != gone]
    return Planted(splits, labels=tuple(labels))


def tiny(splits: Splits, generator: np.random.Generator) -> Planted:
    labels = sorted({row["label"] for row in splits["train"]})
    indices = sorted(generator.choice(len(splits["train"]), 2, replace=False).tolist())
    for index in indices:
        splits["train"][index] = splits["train"][index] | {"label": "something else"}
    return Planted(splits, {("train", i + 1) for i in indices}, labels=(*labels, "something else"))


def in_both_cases(splits: Splits, generator: np.random.Generator) -> Planted:
    """No label is declared that is not in the rows; a third of one label's rows write it in capitals and a space."""
    labels = sorted({row["label"] for row in splits["train"]})
    label = max(labels, key=lambda name: sum(row["label"] == name for row in splits["train"]))
    rows = [i for i, row in enumerate(splits["train"]) if row["label"] == label][::3]
    for index in rows:
        splits["train"][index] = splits["train"][index] | {
            "label": f"{label.upper()} " if label.upper() != label else f"{label} "
        }
    names = (*labels, splits["train"][rows[0]]["label"])
    return Planted(splits, {("train", i + 1) for i in rows}, labels=names)


def column(make: Callable[[dict, int, list[str]], object]) -> Callable[..., Planted]:
    def plant(splits: Splits, generator: np.random.Generator) -> Planted:
        labels = sorted({row["label"] for row in splits["train"]})
        for split, rows in splits.items():
            splits[split] = [row | {"extra": make(row, i, labels)} for i, row in enumerate(rows)]
        return Planted(splits, labels=tuple(labels))

    return plant


def given_away(splits: Splits, generator: np.random.Generator) -> Planted:
    labels = sorted({row["label"] for row in splits["train"]})
    places = set()
    for split, rows in splits.items():
        splits[split] = [row | {"text": f"[c{labels.index(row['label'])}x] {row['text']}"} for row in rows]
        places |= {(split, i + 1) for i in range(len(rows))} if split == "train" else set()
    return Planted(splits, places, labels=tuple(labels))


def skewed(splits: Splits, generator: np.random.Generator) -> Planted:
    labels = sorted({row["label"] for row in splits["train"]})
    half = set(labels[: max(1, len(labels) // 2)])
    rows = splits["test"]
    splits["test"] = [row for i, row in enumerate(rows) if row["label"] not in half or i % 10 == 0]
    return Planted(splits, labels=tuple(labels))


def all_test(change: Callable[[str], str]) -> Callable[..., Planted]:
    def plant(splits: Splits, generator: np.random.Generator) -> Planted:
        labels = tuple(sorted({row["label"] for row in splits["train"]}))
        splits["test"] = [row | {"text": change(row["text"])} for row in splits["test"]]
        return Planted(splits, labels=labels)

    return plant


def cut(splits: Splits, generator: np.random.Generator) -> Planted:
    """As a column of so many characters would: every longer text of train ends there."""
    labels = tuple(sorted({row["label"] for row in splits["train"]}))
    long = [row["text"] for row in splits["train"]]
    splits["train"] = [
        row | {"text": (row["text"] + " " + long[i - 1] + " " + long[i - 2])} for i, row in enumerate(splits["train"])
    ]
    most = int(np.quantile([len(row["text"]) for row in splits["train"]], 0.9))
    places = {("train", i + 1) for i, row in enumerate(splits["train"]) if len(row["text"]) >= most}
    splits["train"] = [row | {"text": row["text"][:most]} for row in splits["train"]]
    return Planted(splits, places, labels=labels)


def wrong_column(splits: Splits, generator: np.random.Generator) -> Planted:
    return Planted(splits, labels=tuple(sorted({row["label"] for row in splits["train"]})), text="body")


FAULTS: dict[str, Callable[[Splits, np.random.Generator], Planted]] = {
    "duplicate": appended("train", "train", lambda row, g, labels: row | {"text": row["text"].upper() + " !"}),
    "near_duplicate": appended("train", "train", reworded),
    "leak": appended("train", "test", lambda row, g, labels: row | {"text": row["text"].lower()}),
    "near_leak": appended("train", "test", reworded),
    "conflict": appended("train", "train", lambda row, g, labels: row | {"label": other(row["label"], labels, g)}),
    "tiny_class": tiny,
    "absent_label": without_class,
    "absent_label (train)": never_in_train,
    "empty_text": changed("train", lambda row, g: row | {"text": " \t"}),
    "unlabelled": changed("train", lambda row, g: row | {"label": None}),
    "over_long": changed("train", lambda row, g: row | {"text": " ".join([row["text"]] * 700)}),
    "mojibake": changed("train", misread),
    "invisible": changed("train", lambda row, g: row | {"text": row["text"].replace(" ", "\u200b ", 1)}),
    "markup": changed("train", lambda row, g: row | {"text": f"<p>{row['text']}</p>&nbsp;"}),
    "cut_off": cut,
    "unreadable": changed("train", lambda row, g: json.dumps(row)[:-3]),
    "unknown_label": changed("train", lambda row, g: row | {"label": "zebra"}),
    "label_variant": changed("train", lambda row, g: row | {"label": f" {row['label'].swapcase()}"}),
    "label_variant (declared)": in_both_cases,
    "undeclared_label": column(lambda row, i, labels: f"topic {i * i % 7}"),
    "telling_column": column(lambda row, i, labels: f"code {labels.index(row['label'])}"),
    "constant_column": column(lambda row, i, labels: "v2"),
    "label_in_text": given_away,
    "label_shift": skewed,
    "text_shift": all_test(str.upper),
    "text_shift (words)": all_test(lambda text: " ".join(word[::-1] for word in text.split())),
    "missing_column": wrong_column,
}


def planted(name: str, source: str, seed: int) -> dict[str, object]:
    """Whether the fault is found, and in what share of its rows."""
    kind = name.partition(" ")[0]
    generator = np.random.default_rng([seed, sorted(FAULTS).index(name)])
    fault = FAULTS[name](cleaned(source, seed), generator)
    with tempfile.TemporaryDirectory() as folder:
        findings = checked(fault.splits, Path(folder), labels=fault.labels, text=fault.text)
    own = [finding for finding in findings if finding.kind == kind]
    places = {(place.split, place.row) for finding in own for place in finding.places}
    share = len(places & fault.rows) / len(fault.rows) if fault.rows else 1.0
    wrong = len(places - fault.rows) if fault.rows else 0
    others = sorted({finding.kind for finding in findings} - {kind})
    is_found = bool(own) and share >= 0.9
    return {"found": is_found, "rows": len(fault.rows), "share": round(share, 3), "wrong": wrong, "others": others}


def clean(source: str, seed: int) -> dict[str, object]:
    splits = cleaned(source, seed)
    with tempfile.TemporaryDirectory() as folder:
        findings = checked(splits, Path(folder))
    return {
        "rows": sum(map(len, splits.values())),
        "alarms": [f"{finding.level} {finding.kind}: {finding.what}" for finding in findings],
    }


def timed(seed: int) -> dict[str, object]:
    """Seconds of the whole command, process included, over 90,000 rows of train and 10,000 of test."""
    rows = []
    for name in ("tweeteval_sentiment", "glue_sst2", "ag_news"):
        with gzip.open(DATA / name / "train.jsonl.gz", "rt", encoding="utf-8") as file:
            rows += [json.loads(line) for line in file]
    generator = np.random.default_rng(seed)
    rows = [rows[i] for i in generator.permutation(len(rows))[:ROWS]]
    with tempfile.TemporaryDirectory() as folder:
        for split, several in (("train", rows[:90_000]), ("test", rows[90_000:])):
            lines = b"".join(
                msgspec.json.encode({"text": row["text"], "label": str(row["label"])}) + b"\n" for row in several
            )
            Path(folder, f"{split}.jsonl").write_bytes(lines)
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "polyhead", "check", "train.jsonl", "test.jsonl", "--json", "found.json"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode in (0, 1), done.stderr
        outcome = json.loads(Path(folder, "found.json").read_bytes())
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "rows": outcome["rows"],
        "seconds": round(seconds, 2),
        "processor": round(used, 2),
        "characters": sum(len(row["text"]) for row in rows),
    }


def flips(name: str, seed: int) -> dict[str, object]:
    """How many of the flipped labels stand in the first tenth of all rows, by each ranking."""
    from polyhead.train.events import Events
    from polyhead.train.heads.held_out import features_for, held_out, whole_of

    with gzip.open(DATA / name / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:FLIP_ROWS]]
    labels = sorted({str(row["label"]) for row in rows})
    generator = np.random.default_rng(seed)
    flipped = np.zeros(len(rows), bool)
    flipped[generator.choice(len(rows), round(FLIPPED * len(rows)), replace=False)] = True
    for index in np.flatnonzero(flipped):
        rows[index] = rows[index] | {"label": other(str(rows[index]["label"]), labels, generator)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.jsonl")
        path.write_bytes(
            b"".join(msgspec.json.encode({"text": r["text"], "label": str(r["label"])}) + b"\n" for r in rows)
        )
        entry = TaskEntry(name="task", kind="single_label", labels=tuple(labels), train="train.jsonl")
        project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=128))
        parts, _ = read_splits(project.tasks, Path(folder))
        whole = all_labelled_rows(parts)
        source = features_for(project, Path(folder), cache=RUNS / "right-cache")
        began = time.perf_counter()
        answered = held_out(whole_of(project, entry, parts[0].task, whole.examples), source, Events())
        seconds = time.perf_counter() - began
    truth = flipped[np.array(whole.examples.rows) - 1][answered.rows]
    probabilities, given = softmax(answered.outputs), whole.labels[answered.rows]
    doubted, near = doubts(probabilities, given), neighbours(answered.vectors, given)
    first = round(FIRST * len(truth))
    own = probabilities[np.arange(len(given)), given]
    rest = probabilities.copy()
    rest[np.arange(len(given)), given] = -np.inf
    ranked = {
        "self_confidence": doubted.order,  # the list of the command
        "margin": np.argsort(own - rest.max(axis=1), kind="stable"),
        "neighbours": np.argsort(near.agreeing - near.count + own, kind="stable"),
        "both": np.argsort(own - rest.max(axis=1) + (near.agreeing - near.count) / max(1, near.of), kind="stable"),
    }
    told = doubted.doubted
    shares = {key: round(float(truth[order[:first]].sum() / truth.sum()), 4) for key, order in ranked.items()}
    listed = {"listed": len(told), "listed_flipped": int(truth[told].sum())}
    return {"rows": len(truth), "flipped": int(truth.sum()), **shares, **listed, "seconds": round(seconds, 1)}


def main() -> None:
    parser = study_arguments(__doc__, "workbench_check.jsonl", jobs=JOBS, seeds=SEEDS)
    options = parsed(parser)
    jobs, seeds = options.jobs.split(","), [int(seed) for seed in options.seeds.split(",")]
    if not options.report:
        study = resumed(options.rows[0], "workbench_check")
        for job, name, source, seed in runs(jobs, seeds):
            make = {
                "planted": lambda a=(name, source, seed): planted(*a),
                "clean": lambda a=(source, seed): clean(*a),
                "time": lambda a=(seed,): timed(*a),
                "flips": lambda a=(source, seed): flips(*a),
            }[job]
            say(str(study.row(make, job=job, fault=name, set=source, seed=seed)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    wanted = len(SEEDS) * (len(FAULTS) + len(CLEAN) + 1 + len(FLIP_SETS))
    lacking = [f"{wanted - len(rows)} of {wanted} runs"] if len(rows) < wanted else []
    report("workbench_check", command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def runs(jobs: list[str], seeds: list[int]) -> Iterator[tuple[str, str, str, int]]:
    for seed in seeds:
        for number, name in enumerate(FAULTS if "planted" in jobs else ()):
            yield "planted", name, CLEAN[(number + seed) % len(CLEAN)], seed
        for source in CLEAN if "clean" in jobs else ():
            yield "clean", "", source, seed
        if "time" in jobs:
            yield "time", "", "", seed
        for source in FLIP_SETS if "flips" in jobs else ():
            yield "flips", "", source, seed


def claims(rows: list[dict]) -> list[Claim]:
    several = []
    by_job = {job: [row for row in rows if row["job"] == job] for job in JOBS}
    if faults := by_job["planted"]:
        missed = [f"{row['fault']} in {row['set']}" for row in faults if not row["found"]]
        kinds = len({row["fault"].partition(" ")[0] for row in faults})
        several.append(
            Claim(
                id="workbench.check_found",
                text=f"planted faults that `check` finds in nine tenths of their rows or more, of {kinds} kinds",
                target=len(faults),
                value=len(faults) - len(missed),
                unit="faults",
                holds=not missed and kinds >= 12,
                note=f"{len(FAULTS)} ways, three seeds, six sets."
                + (f" Missed: {', '.join(missed)}." if missed else ""),
            )
        )
    if sets := by_job["clean"]:
        alarms = [f"{row['set']}: {alarm}" for row in sets for alarm in row["alarms"]]
        several.append(
            Claim(
                id="workbench.check_alarms",
                text="findings of `check` on six clean sets, hints included, three random splits of each",
                target=0,
                value=len(alarms),
                unit="findings",
                holds=not alarms,
                note="; ".join(alarms) or ", ".join(CLEAN),
            )
        )
    if times := by_job["time"]:
        slowest = max(row["seconds"] for row in times)
        several.append(
            Claim(
                id="workbench.check_seconds",
                text="`polyhead check` on 100,000 rows of train and test, process included, slowest of three",
                target=SECONDS,
                value=slowest,
                unit="seconds",
                holds=slowest < SECONDS,
                note=f"{times[0]['characters']:,} characters, beside other work; processor time "
                f"{min(t['processor'] for t in times):.1f} to {max(t['processor'] for t in times):.1f} s.",
            )
        )
    if flipped := by_job["flips"]:
        shares = {
            name: estimate(100 * row["self_confidence"] for row in flipped if row["set"] == name)
            for name in FLIP_SETS
            if any(row["set"] == name for row in flipped)
        }
        several.append(
            judged(
                "workbench.check_flips",
                "of 5 % flipped labels, those in the first tenth of all rows by doubt: "
                f"the least of {len(shares)} sets",
                least(shares.values()),
                target=70,
                unit="%",
                digits=1,
                note=", ".join(f"{name} {one.mean:.1f}" for name, one in shares.items()),
            )
        )
    return several


if __name__ == "__main__":
    main()
