"""The command line itself: help, exit codes, streams that are closed, full or strange."""

import importlib
import os
import signal
import subprocess
import sys

import pytest

from polyhead.cli.main import MOVED, UNLISTED, VERBS, module_of
from support.cases import cases
from support.commands import environment, interruptible, run, shell


def test_help_names_every_verb():
    done = run("--help")
    assert done.code == 0
    for verb, said in VERBS.items():
        assert verb in done.out
        assert said.split()[0] in done.out


def test_help_fits_a_screen():
    """It had 26 commands, half of them over two lines."""
    lines = run("--help").out.splitlines()
    assert len(VERBS) <= 18 and len(lines) <= 45 and max(map(len, lines)) < 80


@cases("old", MOVED)
def test_a_word_of_an_earlier_version_works_and_names_its_new_place(old):
    done = run(old, "--help")
    assert done.code == 0 and f"`polyhead {MOVED[old]}` now" in done.err and old not in VERBS
    place = MOVED[old].split()
    command = importlib.import_module(module_of(place[0])).command
    before = importlib.import_module(module_of(old)).command
    if place[0] == "tasks":
        assert command.commands[place[1]] is before
    if old == "migrate":
        assert before.commands.items() <= command.commands.items()


@cases("verb", [*VERBS, *UNLISTED])
def test_every_verb_explains_every_option(verb):
    done = run(verb, "--help")
    assert done.code == 0
    options = [line for line in done.out.splitlines() if line.lstrip().startswith("--")]
    for line in options:
        assert len(line.split("  ")) > 1 or len(line) > 20, line


def test_help_needs_no_heavy_library():
    code = (
        "import sys\n"
        "from polyhead.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stderr.strip() == "[]"


@cases(
    "words",
    [
        ["nonsense"],
        ["predict"],
        ["predict", "x", "--backend", "nonsense"],
        ["inspect", "x", "--tokens", "0"],
        ["inspect", "x", "--tokens", "many"],
        ["init"],
        ["init", "x.csv", "--kind", "essay"],
        ["train", "--nonsense"],
        ["train", "--effort", "quick", "--effort=best"],
        ["predict", "x", "--tasks", " , "],
        [],
    ],
)
def test_wrong_command_line_ends_with_2(words, home):
    words = [str(home / "bundle") if word == "x" else word for word in words]
    done = run(*words)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "Usage" in done.err


def test_an_option_of_one_value_is_given_once(tmp_path):
    """The last of two values counted, without a word about the first."""
    run("train", "--effort", "quick", "--effort=best").refuses("--effort is given 2 times", code=2)
    done = run("train", "--retrain", "a", "--retrain", "b", "--if-better", "--if-better", cwd=tmp_path)
    done.refuses("no project file")


def test_a_folder_in_place_of_a_file_is_a_wrong_command_line(tmp_path):
    assert run("train", tmp_path).code == 2
    run("init", tmp_path, "--kind", "regression").refuses("give a file, or the folder above the classes")


def test_a_file_in_place_of_a_folder_is_a_wrong_command_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    assert run("inspect", file).code == 2
    assert run("predict", file).code == 2


def test_a_fault_of_ours_has_no_traceback_unless_asked(monkeypatch, tmp_path):
    def broken(root):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("polyhead.bundle.read.Bundle.open", broken)
    done = run("inspect", tmp_path)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "ZeroDivisionError" in done.err
    assert "--verbose" in done.err


def test_no_memory_is_said(monkeypatch, tmp_path):
    def broken(root):
        raise MemoryError

    monkeypatch.setattr("polyhead.bundle.read.Bundle.open", broken)
    run("inspect", tmp_path).refuses("not enough memory")


def test_verbose_shows_where_it_failed(tmp_path):
    done = shell(["--verbose", "inspect", tmp_path])
    assert done.code == 1
    assert "Traceback" in done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_standard_output_is_said_once(home):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "polyhead", "inspect", str(home / "bundle")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr


def test_pipe_closed_by_its_reader_gives_no_traceback(home):
    python = f"{sys.executable} -m polyhead"
    lines = "printf 'the lamp is good\\n%.0s' $(seq 2000)"
    for command in (
        f"{lines} | {python} predict {home / 'bundle'} --backend reference --tasks mood | head -1",
        f"{python} inspect {home / 'bundle'} --json - | head -1",
    ):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment())
        assert len(done.stdout.splitlines()) == 1
        assert done.stderr == ""


@pytest.mark.slow
def test_closed_standard_streams_are_said(home):
    python = f"{sys.executable} -m polyhead"
    bundle = home / "bundle"
    for command, said in (
        (f"{python} predict {bundle} --backend reference <&-", "standard input is closed"),
        (f"echo hi | {python} predict {bundle} --backend reference >&-", "standard output is closed"),
    ):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment())
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_closed_standard_error_does_no_harm(home):
    command = f"echo hi | {sys.executable} -m polyhead predict {home / 'bundle'} --backend reference 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment())
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_a_terminal_without_unicode_still_gets_the_tree(home):
    done = shell(["inspect", home / "bundle"], env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0
    assert "mood" in done.out


def test_control_c_ends_with_130_and_one_line(home):
    process = interruptible(["predict", home / "bundle", "--backend", "reference"], stdin=subprocess.PIPE)
    process.stdin.write(b"the lamp is good\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith(b"{")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.decode().strip().splitlines() == ["polyhead: stopped; what was finished is kept"]
    assert out == b""


def test_progress_is_for_terminals_only(home):
    done = shell(["predict", home / "bundle", "--backend", "reference"], stdin="the lamp is good\n")
    assert done.code == 0
    assert done.err == ""


def test_python_m_polyhead_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "polyhead", "--version"], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.startswith("polyhead, version")
