"""How many source files a reader crosses to follow one request, one prediction, one training and one backfill.

    python -m benchmarks.rooms_files --before TREE [--after TREE]

TREE is a checkout with `src/polyhead`; `--after` is this one by default. Each of four things is done through public
surfaces in a process that imports that tree, on a trunk of two layers that this script writes, with calls traced
(`sys.setprofile`, in every thread):

- `http`: `POST /v1/predict` to `polyhead serve`, from the request's first byte to the answer's last, once it is warm.
  It is traced several times, and what every trace has counts, so that the server's clocks do not;
- `predict`: `Model.load(bundle).predict(texts)`, once it is warm;
- `train`: `train_project(project, folder=...)` with one single-label task of 60 rows;
- `backfill`: `polyhead backfill`, over the store of 40 texts that `polyhead features extract` made.

What counts of `src/polyhead`:

- **on the way**, of `http` and `predict`: in each thread the longest chain of files of which each calls the next, all
  on the stack at one time. This is what a reader follows from the request to where it is answered. What every task
  shares and a reader takes as known ends a chain: files of the package's root, the rooms `plan`, `text` and `tasks`,
  and what computes the encoder (`engine/backends`, `engine/compile`, and other rooms' backends);
- **crossed**, of `train` and `backfill`: a file with a function that calls one of another file, so that the reader has
  to go on from there;
- **entered**: every file with a function that was called, for comparison.

The command line's own files are not counted, nor is what runs while a module is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m benchmarks.rooms_files --before TREE"
WHAT = ("train", "predict", "http", "backfill")
KNOWN = ("plan/", "cost/", "text/", "tasks/", "engine/compile/", "engine/graph/")
MOST = 7  # files that a request and a prediction may cross
TRACES = 5
KIND = {"train": "crossed", "predict": "way", "http": "way", "backfill": "crossed"}
TEXT = {
    "http": "source files on the way from an HTTP request to its answer",
    "predict": "source files on the way of Model.predict",
    "train": "source files that train_project crosses",
    "backfill": "source files that polyhead backfill crosses",
}
Files = dict[str, set[str]]
WORDS = ("the", "order", "bill", "card", "is", "good", "happy", "bad", "sad", "late", "my", "please", "today", "lamp")
TEXTS = [f"{WORDS[n % 14]} {WORDS[(3 * n + 1) % 14]} is {'good' if n % 2 else 'late'}" for n in range(60)]
PROJECT = """
[trunk]
name = "{work}/trunk"
[[tasks]]
name = "mood"
kind = "single_label"
labels = ["bad", "good"]
train = "{work}/mood.jsonl"
validation = "{work}/mood.jsonl"
test = "{work}/mood.jsonl"
label = "mood"
"""


class Trace:
    """The calls between files of one tree, in every thread that begins after it was made."""

    def __init__(self, source: Path) -> None:
        self._root, self._is_on = f"{source}{os.sep}", False
        self.entered: set[str] = set()
        self.crossed: set[str] = set()
        self._longest: dict[str, list[str]] = {}  # by thread
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def start(self) -> None:
        """Forgets what was traced, and begins."""
        self.entered, self.crossed, self._longest, self._is_on = set(), set(), {}, True

    def stop(self) -> Files:
        """Traces no more; gives the files that were found."""
        self._is_on = False
        way = {file for chain in self._longest.values() for file in chain}
        return {"way": way, "crossed": self.crossed, "entered": self.entered}

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if not self._is_on or event != "call" or (name := self._file(frame)) is None:
            return
        stack = list[str]()
        outer: FrameType | None = frame
        while outer is not None:
            if (file := self._file(outer)) is not None:
                if outer.f_code.co_name == "<module>":
                    return
                stack.append(file)
            outer = outer.f_back
        self.entered.add(name)
        if len(stack) > 1 and stack[1] != name:
            self.crossed.add(stack[1])
        chain = list(dict.fromkeys(file for file in reversed(stack) if not is_known(file)))
        thread = threading.current_thread().name
        if len(chain) > len(self._longest.get(thread, ())):
            self._longest[thread] = chain

    def _file(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        name = path.removeprefix(self._root)
        return None if name == path or name.startswith("cli") else name


def is_known(file: str) -> bool:
    """True for files that every reader knows: the ground, plan, text, tasks and backends."""
    return "/" not in file or file.startswith(KNOWN) or "backend" in file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the checkout to compare with")
    parser.add_argument("--after", type=Path, default=ROOT)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(traced(options.child, options.after / "src" / "polyhead", options.work)), flush=True)
        os._exit(0)  # whatever threads still run
    trees = {"before": options.before, "after": options.after}
    report_of({name: files_of(tree.resolve()) for name, tree in trees.items() if tree is not None})


def files_of(tree: Path) -> dict[str, dict[str, list[str]]]:
    """Files crossed and entered in a source tree, by call."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_material(work)
        return {what: _child(tree, what, work) for what in WHAT}


def _child(tree: Path, what: str, work: Path) -> dict[str, list[str]]:
    command = [sys.executable, __file__, "--child", what, "--after", str(tree), "--work", str(work)]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what} of {tree} failed:\n{done.stderr[-4000:]}")
    found: dict[str, list[str]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def write_material(work: Path) -> None:
    """A trunk, rows, texts and a project."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    (work / "trunk").mkdir()
    tokenizer.save(str(work / "trunk" / "tokenizer.json"))
    config = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    config |= {"intermediate_size": 32, "vocab_size": len(pieces), "max_position_embeddings": 48, "type_vocab_size": 2}
    (work / "trunk" / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu", "layer_norm_eps": 1e-12}))
    draw = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(pieces), 16),
        "embeddings.position_embeddings.weight": (48, 16),
        "embeddings.token_type_embeddings.weight": (2, 16),
        **_norm("embeddings.LayerNorm"),
    }
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{layer}.{name}.weight": (16, 16), f"{layer}.{name}.bias": (16,)}
        shapes |= {f"{layer}.intermediate.dense.weight": (32, 16), f"{layer}.intermediate.dense.bias": (32,)}
        shapes |= {f"{layer}.output.dense.weight": (16, 32), f"{layer}.output.dense.bias": (16,)}
        shapes |= _norm(f"{layer}.attention.output.LayerNorm") | _norm(f"{layer}.output.LayerNorm")
    arrays = {name: np.asarray(draw.normal(0.0, 0.3, shape), np.float32) for name, shape in shapes.items()}
    save_file(arrays, work / "trunk" / "model.safetensors")
    rows = [{"text": f"{text} {n}", "mood": "good" if n % 2 else "bad"} for n, text in enumerate(TEXTS)]
    (work / "mood.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows[:40]))
    (work / "polyhead.toml").write_text(PROJECT.format(work=work))


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (16,), f"{name}.bias": (16,)}


def traced(what: str, source: Path, work: Path) -> dict[str, list[str]]:
    """Does one thing with the tree that this process imports."""
    sys.path.pop(0)  # the folder of this script
    trace = Trace(source)
    import polyhead

    assert Path(polyhead.__file__).parent == source, polyhead.__file__
    do = {"train": _train, "predict": _predict, "http": _http, "backfill": _backfill}[what]
    return {name: sorted(files) for name, files in do(trace, work).items()}


def _train(trace: Trace, work: Path) -> Files:
    from polyhead import read_project, train_project

    project = read_project(work / "polyhead.toml")
    trace.start()
    train_project(project, folder=work)
    return trace.stop()


def _predict(trace: Trace, work: Path) -> Files:
    from polyhead import Model

    model = Model.load(_bundle(work), verbose=False)
    for _ in range(2):
        model.predict(TEXTS[:2])
    trace.start()
    model.predict(TEXTS[:2])
    return trace.stop()


def _http(trace: Trace, work: Path) -> Files:
    found = list[Files]()
    port = 18000 + os.getpid() % 2000
    body = json.dumps({"inputs": TEXTS[:2]}).encode()

    def ask() -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/predict", body)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def client() -> None:
        while True:
            try:
                ask()
                break
            except OSError:
                time.sleep(0.2)
        for _ in range(1 + TRACES):
            time.sleep(0.3)
            trace.start()
            ask()
            found.append(trace.stop())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=client, daemon=True).start()
    _command("serve", str(_bundle(work)), "--port", str(port), "--watch-seconds", "0")
    return {name: set.intersection(*(each[name] for each in found[1:])) for name in found[0]}


def _backfill(trace: Trace, work: Path) -> Files:
    _command(
        "features", "extract", str(_bundle(work)), str(work / "texts.jsonl"), str(work / "store"), "--task", "mood"
    )
    trace.start()
    _command("backfill", str(_bundle(work)), "--features", str(work / "store"), "--executor", "inline")
    return trace.stop()


def _bundle(work: Path) -> Path:
    return next(path.parent for path in work.glob("*/bundle.json"))


def _command(*arguments: str) -> None:
    from importlib.metadata import entry_points

    (script,) = (each for each in entry_points(group="console_scripts") if each.name == "polyhead")
    output, sys.argv, sys.stdout = sys.stdout, ["polyhead", *arguments], sys.stderr
    try:
        code: Any = script.load()()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdout = output
    if code:
        raise SystemExit(code)


def report_of(found: dict[str, dict[str, dict[str, list[str]]]]) -> None:
    """Prints the counts, and writes `results/rooms_files.json`."""
    from studies.results import Claim
    from studies.settings import report

    rows: list[dict[str, object]] = []
    for tree, of_tree in found.items():
        for what, files in of_tree.items():
            counts = {kind: len(names) for kind, names in files.items()}
            rows.append({"tree": tree, "what": what, **counts, "files": files[KIND[what]]})
    claims = list[Claim]()
    for what, text in TEXT.items():
        of = {tree: len(of_tree[what][KIND[what]]) for tree, of_tree in found.items()}
        before = of.get("before")
        target = MOST if KIND[what] == "way" else (before or 0) / 2
        words = text if before is None else f"{text}; before: {before}"
        claims.append(_claim(Claim, what, words, target, of["after"]))
    report("rooms_files", command=COMMAND, rows=rows, claims=claims, lacking=[])


def _claim(kind: Any, what: str, text: str, target: float, value: int) -> Any:
    return kind(id=f"rooms.files_{what}", text=text, target=target, value=value, unit="files", holds=value <= target)


if __name__ == "__main__":
    main()
