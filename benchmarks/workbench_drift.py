"""Drift: twenty planted shifts against twenty samples of the same distribution, 500 texts each.

    python -m benchmarks.workbench_drift [--report] [--tune]

Of each of four sets all rows are shuffled; a task with a linear head learns from 800 of them, 512 others are what
it knows, and the rest gives five samples of 500 and five planted shifts: texts of another set, texts in another
language, texts cut to their first third, texts with their words shuffled, and texts without the task's last label.
Alarms are those of `polyhead drift` with its defaults. `--tune` runs the same on four other sets, on which the
statistics were chosen, and writes no results. Texts in other languages are those of Debian's packages fortunes-de,
fortunes-es and fortunes-it, unpacked in runs/languages.
"""

from __future__ import annotations

import numpy as np

from benchmarks.workbench_rows import rows_of, shuffled, trained
from polyhead.bundle.row_profile import MOST as KNOWN
from polyhead.engine.session import Session
from polyhead.evaluate.drift import Summarized, drifts, summarized
from polyhead.evaluate.profile import FileRows
from polyhead.project.strategies import Pooled
from studies.results import Claim, Study
from studies.settings import RUNS, command, parsed, report, say, study_arguments

SETS = {
    "sst2": ("glue_sst2", "tweeteval_irony"),
    "emotion": ("tweeteval_emotion", "tweeteval_hate"),
    "ag_news": ("ag_news", "dbpedia14"),
    "snips": ("snips_intent", "clinc150_domain"),
}
TUNING = {
    "mr": ("mr_rotten_tomatoes", "cr"),
    "offensive": ("tweeteval_offensive", "tweeteval_irony"),
    "subj": ("subj", "glue_sst2"),
    "huffpost": ("huffpost_news", "ag_news"),
}
LANGUAGES = {"de": "de/zitate", "es": "es/refranes.fortunes", "it": "it/italia"}
SHIFTS = ("other set", "other language", "truncated", "shuffled words", "class gone")
SAMPLES, SIZE, ROWS, SEED = 5, 500, 800, 1


def main() -> None:
    parser = study_arguments(__doc__, "workbench_drift.jsonl")
    parser.add_argument("--tune", action="store_true", help="run on other sets, and write no results")
    options = parsed(parser)
    sets = TUNING if options.tune else SETS
    study = Study(RUNS / "workbench_drift_tune.jsonl" if options.tune else options.rows[0])
    for number, name in enumerate(() if options.report else sets):
        kinds = (*SHIFTS, *(f"same {place}" for place in range(1, SAMPLES + 1)))
        if any(not any((row["set"], row["rows"]) == (name, kind) for row in study.rows) for kind in kinds):
            for kind, row in run(name, *sets[name], number).items():
                say(str(study.row(row.copy, set=name, rows=kind)))
    made = claims(study.rows)
    if options.tune:
        for claim in made:
            say(str(claim))
        return
    lacking = [n for n in SETS if sum(row["set"] == n for row in study.rows) < SAMPLES + len(SHIFTS)]
    report("workbench_drift", command=command(), rows=study.rows, claims=made, lacking=lacking)


def run(name: str, folder: str, other: str, number: int) -> dict[str, dict]:
    """What drift says of each sample and each shift."""
    rng = np.random.default_rng(SEED + number)
    rows = shuffled(rows_of(folder, ("train", "validation", "test")), SEED)
    bundle = trained("task", folder, rows[:ROWS], SEED, Pooled(positions="mean", hidden=0))
    session, rest = Session(bundle), list(rows[ROWS:])
    known = summary(session, rest[:KNOWN]).seen
    pool = rest[KNOWN:]
    gone = session.tasks["task"].labels[-1]
    files = {f"same {place + 1}": pool[SIZE * place : SIZE * (place + 1)] for place in range(SAMPLES)}
    first = files["same 1"]
    files |= {
        "other set": shuffled(rows_of(other, ("train", "test")), SEED)[:SIZE],
        "other language": language(list(LANGUAGES)[number % len(LANGUAGES)], rng),
        "truncated": [{"text": truncated(row["text"])} for row in first],
        "shuffled words": [{"text": " ".join(rng.permutation(row["text"].split()))} for row in first],
        "class gone": [row for row in pool if str(row["label"]) != gone][:SIZE],
    }
    outcome = {}
    for kind, texts in files.items():
        assert len(texts) == SIZE, (name, kind, len(texts))
        (drift,) = drifts(session, {"task": summary(session, texts)}, {"task": known}, seed=SEED)
        aspects = {a: {"distance": v.distance, "p": v.p, "differs": v.differs} for a, v in drift.aspects.items()}
        outcome[kind] = {"alarm": drift.differs, "unlike": drift.unlike, "aspects": aspects}
    return outcome


def summary(session: Session, rows: list[dict]) -> Summarized:
    """What the task sees in these texts."""
    numbers = list(range(1, len(rows) + 1))
    inputs = [(row["text"],) for row in rows]
    file = FileRows(inputs=list(inputs), words=None, rows=numbers, targets=None, whole=len(rows))
    return summarized(session, "task", file, None, show=lambda line: None)


def truncated(text: str) -> str:
    words = text.split()
    return " ".join(words[: max(1, len(words) // 3)])


def language(code: str, rng: np.random.Generator) -> list[dict]:
    """Sayings in a language."""
    path = RUNS / "languages" / "usr" / "share" / "games" / "fortunes" / LANGUAGES[code]
    raw = path.read_bytes()
    try:
        whole = raw.decode("utf-8")
    except UnicodeDecodeError:
        whole = raw.decode("latin-1")
    texts = [" ".join(part.split()) for part in whole.split("\n%\n")]
    texts = [text for text in texts if 20 <= len(text) <= 500]
    return [{"text": texts[place]} for place in rng.permutation(len(texts))[:SIZE].tolist()]


def claims(rows: list[dict]) -> list[Claim]:
    """How many shifts are found, and how many samples are called shifted."""
    shifts = [row for row in rows if row["rows"] in SHIFTS]
    same = [row for row in rows if row["rows"] not in SHIFTS]
    missed = [f"{row['set']}, {row['rows']}" for row in shifts if not row["alarm"]]
    alarms = [f"{row['set']}, {row['rows']}" for row in same if row["alarm"]]
    return [
        Claim(
            id="workbench.drift_found",
            text=f"planted shifts that are found, of {len(shifts)}",
            target=18,
            value=len(shifts) - len(missed),
            unit="shifts",
            holds=len(shifts) == 20 and len(shifts) - len(missed) >= 18,
            note=f"Missed: {'; '.join(missed) or 'none'}.",
        ),
        Claim(
            id="workbench.drift_false_alarms",
            text=f"samples of the same distribution that raise an alarm, of {len(same)}",
            target=1,
            value=len(alarms),
            unit="samples",
            holds=len(same) == 20 and len(alarms) <= 1,
            note=f"Alarms: {'; '.join(alarms) or 'none'}.",
        ),
    ]


if __name__ == "__main__":
    main()
