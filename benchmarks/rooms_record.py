"""What people see of polyhead and what it computes, by public names alone, so that two source trees can run it.

    PYTHONPATH=TREE/src:. python -m benchmarks.rooms_record FILE PART...

Parts: `help` (of every command), `errors` (commands with wrong input), `http` (every route of a server), `answers` (in
deterministic mode, on every backend), `arrays` (of bundles of every strategy), `demo` (arrays of the demo's bundle).
Folders in texts become `<folder>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rooms_made import PROJECTS, write_all
from polyhead.engine.inputs import AnyInput

BACKENDS = ("reference", "openvino", "onnxruntime", "torch")
TEXTS = ("the lamp is broken today", "my kettle is happy order bill", "anna please refund", "", "late " * 60)
PAIRS = (("the lamp is good", "the lamp is bad"), ("my bill", "please refund my order today"))
CHOSEN: dict[str, Any] = {"question": "is the lamp good?", "options": ["good", "bad", "late"]}
PASSAGE = {"question": "where is it?", "context": "anna was sad. the kettle is late today."}


def run(words: Sequence[str], folder: Path, given: bytes = b"") -> tuple[int, str, str]:
    """`polyhead words...` in this process and that folder: exit code, standard output and error."""
    from polyhead.cli.main import main

    kept, home = (sys.stdin, sys.stdout, sys.stderr), os.getcwd()
    streams = [io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (given, b"", b"")]
    sys.stdin, sys.stdout, sys.stderr = streams
    code = 0
    os.chdir(folder)
    try:
        main(list(words))
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept
        os.chdir(home)
    out, err = (_written(stream) for stream in streams[1:])
    return code, out.replace(str(folder), "<folder>"), err.replace(str(folder), "<folder>")


def record_help() -> dict[str, str]:
    """The help of every command, found by following the lists of commands."""
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        left: list[tuple[str, ...]] = [()]
        while left:
            words = left.pop()
            code, text, _ = run([*words, "--help"], Path(folder))
            assert code == 0, words
            texts[" ".join(("polyhead", *words))] = text
            left += [(*words, name) for name in _commands_in(text)]
    return texts


def record_errors(folder: Path, cases: dict[str, tuple[list[str], str]]) -> dict[str, dict[str, Any]]:
    """Commands that are refused: exit code and what they print; each in a folder that it leaves as it was."""
    found = {}
    for name, (words, given) in cases.items():
        code, out, err = run(words, folder, given.encode())
        found[name] = {"code": code, "out": out, "err": err}
    return found


def record_http(bundle: Path, requests: dict[str, tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    """Each request's status, type and body from a server of the bundle, with admins, in deterministic mode."""
    with _server(bundle) as address:
        return {name: _answer(address, *request) for name, request in requests.items()}


def record_answers(folder: Path) -> dict[str, Any]:
    """Strategy by strategy and backend by backend: all tasks' answers, and those of a `Model`; floats in full."""
    import polyhead

    found: dict[str, Any] = {}
    chosen = polyhead.Question(text=CHOSEN["question"], options=tuple(CHOSEN["options"]))
    inputs: list[AnyInput | str] = [*TEXTS, *PAIRS, chosen, polyhead.Passage(**PASSAGE)]
    for name in PROJECTS:
        bundle = folder / f"{name}-bundle"
        for backend in BACKENDS:
            for alone in (False, True):
                session = polyhead.Session(bundle, backend=backend, deterministic=True)
                given = [[each] for each in inputs] if alone else [inputs]
                results = [result for batch in given for result in session.predict(batch)]
                found[f"{name}, {backend}, {'alone' if alone else 'together'}"] = [each.answers for each in results]
        model = polyhead.Model.load(bundle, backend="reference", deterministic=True)
        found[f"{name}, model"] = [model.predict(list(TEXTS)), model.predict_proba(list(TEXTS), task="mood").tolist()]
        code, out, err = run(["predict", str(bundle), "--deterministic"], folder, "\n".join(TEXTS).encode())
        assert code == 0, err
        found[f"{name}, command line"] = out
        words = [
            "score",
            str(bundle),
            "data/messages-test.jsonl",
            f"{name}.jsonl",
            "--prefix",
            "answer_",
            "--deterministic",
        ]
        code, _, err = run([*words, "--backend", "reference"], folder)
        assert code == 0, err
        found[f"{name}, scored"] = (folder / f"{name}.jsonl").read_text()
    return found


def record_arrays(folder: Path) -> list[str]:
    """Every array in files of safetensors below the folder: its name, type, shape and digest."""
    from safetensors import safe_open

    found = []
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                array = file.get_tensor(name)
                digest = hashlib.sha256(array.tobytes()).hexdigest()
                found.append(f"{name} {array.dtype} {array.shape} {digest}")
    return sorted(found)


def train_all(folder: Path) -> None:
    """Trains every project of the folder, silently."""
    import polyhead

    for name in PROJECTS:
        with contextlib.redirect_stderr(io.StringIO()):
            polyhead.train_project(polyhead.read_project(folder / f"{name}.toml"), folder=folder)


def _written(stream: io.TextIOWrapper[io.BytesIO]) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()


def _commands_in(text: str) -> list[str]:
    """The names below `Commands:` or the titles of groups of commands, two spaces in."""
    lists = re.split(r"\n(?=[A-Z][\w ]*:\n)", text)
    commands = [part for part in lists if not part.startswith(("Options:", "Usage:"))]
    return [name for part in commands for name in re.findall(r"\n  ([a-z][a-z-]*)  ", part)]


@contextlib.contextmanager
def _server(bundle: Path) -> Iterator[str]:
    words = ["serve", str(bundle), "--port", "0", "--admin", "--no-keys", "--deterministic", "--backend", "reference"]
    own = subprocess.Popen([sys.executable, "-m", "polyhead", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        said = b""
        assert own.stderr is not None
        while not (found := re.search(rb"http://127\.0\.0\.1:\d+", said)):
            line = own.stderr.readline()
            assert line, said
            said += line
        yield found[0].decode()
    finally:
        own.terminate()
        own.communicate(timeout=60)


def _answer(address: str, method: str, path: str, body: Any) -> dict[str, Any]:
    content = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, content, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, headers, got = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, headers, got = error.code, error.headers, error.read()
    kind = headers.get("content-type", "")
    text = got.decode("utf-8", "replace").replace(address, "<address>")
    return {"status": status, "type": kind, "body": json.loads(text) if kind == "application/json" else text}


def main(file: str, *parts: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from benchmarks.rooms_cases import ERRORS, REQUESTS, write_faults

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept).resolve()
        if set(parts) & {"errors", "http", "answers", "arrays"}:
            write_all(folder)
            train_all(folder)
        if "arrays" in parts:
            found["arrays"] = {name: record_arrays(folder / f"{name}-bundle") for name in PROJECTS}
        if "help" in parts:
            found["help"] = record_help()
        if "answers" in parts:
            found["answers"] = record_answers(folder)
        if "errors" in parts:
            write_faults(folder, folder / "pooled-bundle")
            found["errors"] = record_errors(folder, ERRORS)
        if "http" in parts:
            found["http"] = record_http(folder / "pooled-bundle", REQUESTS)
        if "demo" in parts:
            with contextlib.redirect_stderr(io.StringIO()):
                assert run(["demo", "--folder", str(folder / "demo")], folder)[0] == 0
            found["demo"] = record_arrays(folder / "demo")
    Path(file).write_text(json.dumps(found, indent=1, sort_keys=True, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
