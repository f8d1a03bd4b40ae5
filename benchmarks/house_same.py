"""The same bundles trained by two checkouts: every array and every answer in deterministic mode, byte by byte.

    python -m benchmarks.house_same make CHECKOUT FOLDER     trains with the code of a checkout
    python -m benchmarks.house_same compare FOLDER FOLDER    before and after

Each project declares the packaged sample's tasks with one strategy or recipe, on 60 messages, one seed, two epochs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from studies.settings import say

BACKENDS = ("reference", "torch", "onnxruntime", "openvino")
LOW = ("bfloat16", "int8")  # precisions of openvino that are answered too
ROWS, TEXTS = 60, 12
SPLITS = "\n".join(
    f'{key} = {{{{ path = "{{file}}", where = {{{{ split = "{split}" }}}} }}}}'
    for key, split in (("train", "train"), ("validation", "validation"))
)
TASKS = {
    "topics": 'kind = "multi_label"\nlabel = "topics"\n'
    'labels = ["delivery", "refund", "defect", "billing", "account", "product_info", "praise"]',
    "sentiment": 'kind = "single_label"\nlabels = ["negative", "neutral", "positive"]\nlabel = "sentiment"',
    "urgency": 'kind = "regression"\nrange = [0.0, 1.0]\nlabel = "urgency"',
    "details": 'kind = "tagging"\nlabels = ["O", "B-product", "I-product", "B-order_number", "I-order_number", '
    '"B-date", "I-date", "B-person", "I-person"]\nspans = "spans"',
    "same_request": 'kind = "single_label"\nlabels = ["no", "yes"]\nlabel = "same_request"\n'
    'text = "text_a"\ntext_b = "text_b"',
}
TRAINING = "[training]\nseed = 5\nepochs = 2\nbatch = 16\n"
ALONE, TOGETHER = ("topics", "sentiment", "urgency", "details", "same_request"), ("topics", "sentiment", "urgency")
# name -> strategy, recipe, tasks
PROJECTS = {
    "default": ("", "", ALONE),
    "last-mean-sign": ('[strategy]\nkind = "pooled"\nlayers = "last"\npositions = "mean"\ncodec = "sign"\n', "", ALONE),
    "branch": ('[strategy]\nkind = "branch"\nlayers = 2\n', "", ALONE),
    "prompted": ('[strategy]\nkind = "prompted"\n', "", ("sentiment",)),
    "on_top": ('[strategy]\nkind = "on_top"\n', "", TOGETHER),
    "in_layer": ('[strategy]\nkind = "in_layer"\n', "", TOGETHER),
    "joint": ("", '[recipe]\nkind = "joint"\n', TOGETHER),
}


def main() -> None:
    match sys.argv[1:]:
        case ["make", checkout, folder]:
            make(Path(checkout).resolve(), Path(folder).resolve())
        case ["compare", before, after]:
            for row in compare(Path(before), Path(after)):
                say(json.dumps(row))
        case _:
            raise SystemExit(__doc__)


def make(checkout: Path, folder: Path) -> None:
    """Bundles and answers of every project, in `folder`; what is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    command(checkout, folder, "demo", "--folder", str(folder / "demo-bundle"))
    answer(checkout, folder, folder / "demo-bundle")
    for name, (strategy, recipe, tasks) in PROJECTS.items():
        home = folder / name
        home.mkdir(exist_ok=True)
        write_rows(home)
        (home / "polyhead.toml").write_text(project(strategy, recipe, tasks), encoding="utf-8")
        command(checkout, home, "train", "polyhead.toml")
        answer(checkout, home, home / "bundle")
        say(f"{name}: trained and asked")


def project(strategy: str, recipe: str, tasks: tuple[str, ...]) -> str:
    parts = ['[trunk]\nname = "minilm"\nmax_tokens = 64\n', TRAINING, strategy, recipe]
    for name in tasks:
        file = "pairs.jsonl" if name == "same_request" else "messages.jsonl"
        parts.append(f'[[tasks]]\nname = "{name}"\n{TASKS[name]}\n{SPLITS.format(file=file)}\n')
    return "\n".join(part for part in parts if part)


def write_rows(home: Path) -> None:
    """The first rows of the packaged sample, two thirds to train on."""
    sample = Path(__file__).parents[1] / "src" / "polyhead" / "sample"
    for name in ("messages.jsonl", "pairs.jsonl"):
        rows = [json.loads(line) for line in (sample / name).read_text(encoding="utf-8").splitlines()[:ROWS]]
        for number, row in enumerate(rows):
            row["split"] = "validation" if number % 3 == 2 else "train"
        (home / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def answer(checkout: Path, home: Path, bundle: Path) -> None:
    """Answers in deterministic mode without receipts, a file a backend in float32, and a file a lower precision."""
    lines = "".join(json.dumps(text) + "\n" for text in texts(bundle))
    runs = {f"answers-{backend}.jsonl": (backend, "float32") for backend in BACKENDS}
    runs |= {f"answers-openvino-{precision}.jsonl": ("openvino", precision) for precision in LOW}
    for name, (backend, precision) in runs.items():
        if (home / name).exists():
            continue
        if precision == "int8":
            (home / "texts.jsonl").write_text(lines, encoding="utf-8")
            words = ("--texts", str(home / "texts.jsonl"), "--agreement", "0", "--unmeasured")
            command(checkout, home, "quantize", str(bundle), *words)
        words = ("--backend", backend, "--deterministic", "--precision", precision)
        output = command(checkout, home, "predict", str(bundle), *words, typed=lines)
        answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        rows = "".join(json.dumps(stripped(row), sort_keys=True) + "\n" for row in answers)
        (home / name).write_text(rows, encoding="utf-8")


def stripped(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "receipt"}


def texts(bundle: Path) -> list[object]:
    """Messages of the sample, and pairs where a task of the bundle compares two."""
    sample = Path(__file__).parents[1] / "src" / "polyhead" / "sample"
    single = [json.loads(line)["text"] for line in (sample / "messages.jsonl").read_text("utf-8").splitlines()[-TEXTS:]]
    if not (bundle / "tasks" / "same_request").exists():
        return list(single)
    pairs = [json.loads(line) for line in (sample / "pairs.jsonl").read_text("utf-8").splitlines()[-TEXTS:]]
    return [*single, *({"text": row["text_a"], "text_b": row["text_b"]} for row in pairs)]


def command(checkout: Path, folder: Path, *words: str, typed: str = "") -> str:
    """Runs `polyhead WORDS` with the code of this checkout; the standard output."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "polyhead", *words],
        cwd=folder, env=environment, input=typed, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"polyhead {' '.join(words)} in {folder}: {done.stderr}")
    return done.stdout


def compare(before: Path, after: Path) -> list[dict[str, object]]:
    """A row a bundle: files of arrays, and files of answers, that there are, and those that differ."""
    rows = []
    for home in sorted({path.parent for path in before.rglob("answers-*.jsonl")}):
        other = after / home.relative_to(before)
        arrays = sorted(path.relative_to(home) for path in home.rglob("*.safetensors") if in_bundle(path))
        answers = sorted(path.name for path in home.glob("answers-*.jsonl"))
        rows.append(
            {
                "bundle": str(home.relative_to(before)) if home != before else "demo",
                "arrays": len(arrays),
                "arrays_differ": sum(digest(home / path) != digest(other / path) for path in arrays),
                "answers": len(answers),
                "answers_differ": sum(digest(home / name) != digest(other / name) for name in answers),
            }
        )
    return rows


def in_bundle(path: Path) -> bool:
    """True for arrays of a bundle, False for files of a cache."""
    return any(part == "tasks" or part == "families" or part == "trunk" for part in path.parts)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "not there"


if __name__ == "__main__":
    main()
