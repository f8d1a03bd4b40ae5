"""The commands, run in this process or in one of their own, as a shell would."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from polyhead.cli.main import main
from support import tiny_project
from support.tiny_project import to_toml

SOURCE = Path(__file__).parents[2] / "src"


class Done(msgspec.Struct):
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def rows(self):
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    def refuses(self, *words, code=1):
        """Asserts one clear message with these words, no traceback, and the exit code."""
        said = self.out + self.err
        assert "Traceback" not in said, said
        assert "a fault of polyhead" not in said, said
        assert self.code == code, (self.code, said)
        for word in words:
            assert word in self.err, (word, self.err)
        return self


def run(*words, stdin=b"", cwd=None, main=main):
    """`polyhead words...` in this process."""
    kept = sys.stdin, sys.stdout, sys.stderr, os.getcwd()
    given = stdin.encode() if isinstance(stdin, str) else stdin
    streams = [io.TextIOWrapper(io.BytesIO(b), encoding="utf-8") for b in (given, b"", b"")]
    sys.stdin, sys.stdout, sys.stderr = streams
    os.chdir(cwd or kept[3])
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept[:3]
        os.chdir(kept[3])
    said = []
    for stream in streams[1:]:
        stream.flush()
        said.append(stream.buffer.getvalue().decode("utf-8"))
    return Done(code=code, out=said[0], err=said[1])


def shell(words, *, stdin=b"", timeout=120, preexec=None, before="", env=None, module="polyhead.cli.main"):
    """`python -m polyhead words...` in a process of its own; `before` is Python that runs first."""
    code = f"{before}\nimport sys\nfrom {module} import main\nmain(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=timeout,
        preexec_fn=preexec,
        env={**environment(), **(env or {})},
    )
    return Done(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def interruptible(words, *, env=None, **streams):
    """`polyhead words...` as a process that Control-C stops, also where those who started the tests ignore it."""
    return subprocess.Popen(
        [sys.executable, "-m", "polyhead", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**environment(), **(env or {})},
        **streams,
    )


def environment():
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def write_project(folder, *names, **changes):
    """polyhead.toml over the tiny tasks, with trunk and data beside it."""
    project = tiny_project.project(folder, *names, **changes)
    path = folder / "polyhead.toml"
    path.write_text(to_toml(project))
    return path
