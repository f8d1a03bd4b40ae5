"""The rivals, and how one is started, asked for a run, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from polyhead.values import Value

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".venvs"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "TRANSFORMERS_VERBOSITY": "error",
}


class Rival(Value):
    """A program to compare with: its name in tables, its script here, and the environment that it runs in."""

    name: str
    script: str
    environment: str

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [str(python_of(self.environment)), str(HERE / self.script)]


RIVALS = (
    Rival(name="ONNX Runtime int8, a model a task", script="onnxruntime_models.py", environment="onnxruntime"),
    Rival(name="adapters, parallel", script="adapters_parallel.py", environment="adapters"),
    Rival(name="adapters, heads only", script="adapters_heads.py", environment="adapters"),
    Rival(name="transformers, a pipeline a task", script="transformers_pipelines.py", environment="transformers"),
    Rival(name="spaCy, one transformer", script="spacy_textcats.py", environment="spacy"),
    Rival(name="Infinity, a model a task", script="infinity_classify.py", environment="infinity"),
)


def python_of(environment: str) -> Path:
    """The interpreter of an environment, which need not be there."""
    return ENVIRONMENTS / environment / "bin" / "python"


class Worker:
    """A process that holds a loaded program and waits to be asked for a run; `loaded` is what it said when ready.

    Raises RuntimeError where the process ends instead of answering; its own words are in the `log`.
    """

    def __init__(
        self,
        command: Sequence[str],
        job: Mapping[str, object],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        threads = {f"{name}_NUM_THREADS": str(job["threads"]) for name in ("OMP", "MKL", "RAYON")}
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | OFFLINE | threads | dict(environment or {}),
            )
        try:
            self.loaded = self._reply(job)
        except RuntimeError:
            self.close()
            raise

    def run(self, how: str, texts: int) -> dict[str, Any]:
        """One run over the first so many texts; see `protocol.RUNS`."""
        return self._reply({"how": how, "texts": texts})

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reply(self, line: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: there is no answer either
            print(json.dumps(line), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args!r} ended without an answer, see {self._log}")
        return json.loads(answer)
