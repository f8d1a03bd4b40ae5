"""Every results file: its claims keep the rules of evidence, and its command is one that runs."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from studies import contradictions
from studies.__main__ import RUNS
from studies.results import broken, is_quality, read_results
from support.cases import cases

ROOT = Path(__file__).resolve().parents[2]
FILES = read_results(ROOT / "results")
CLAIMS = {claim.id: claim for file in FILES for claim in file.claims}


def test_no_claim_breaks_a_rule():
    """Three seeds, an interval beside the target, and a side that is behind only where it had learned."""
    assert len(CLAIMS) > 200 and sum(map(is_quality, CLAIMS.values())) > 80
    assert [found for claim in CLAIMS.values() if (found := broken(claim))] == []


def test_what_is_above_full_fine_tuning_says_that_it_had_converged():
    """A claim whose words compare with fine-tuning, and that holds, tells how far it had learned."""
    above = re.compile(r"(over|less|against|minus) (that of |of )?(full |single-task )?fine-tun|over a trunk a task")
    compared = [claim for claim in CLAIMS.values() if above.search(claim.text) and is_quality(claim)]
    assert len(compared) > 8
    assert [claim.id for claim in compared if claim.holds and claim.loser != "converged"] == []


def test_claims_that_are_not_shown_say_why():
    assert [claim.id for claim in CLAIMS.values() if claim.holds is None and "not shown: " not in claim.note] == []


def test_claims_that_contradict_each_other_name_each_other():
    assert [id for pair in contradictions.PAIRS for id in pair if id not in CLAIMS] == []
    named = {(claim.id, other) for claim in CLAIMS.values() for other in claim.contradicts}
    assert named == {pair for one, other in contradictions.PAIRS for pair in ((one, other), (other, one))}


def test_no_two_files_have_a_claim_of_one_name():
    assert len(CLAIMS) == sum(len(file.claims) for file in FILES)


def parts(command):
    """The commands that are typed one after the other, as words, without settings of the environment and remarks."""
    for part in command.split("; "):
        words = shlex.split(part, comments=True)
        while "=" in words[0]:
            words.pop(0)
        yield words


@cache
def text_of(module):
    """The source of a module of studies or benchmarks, of those that it takes options from too."""
    source = (ROOT / module).read_text(encoding="utf-8")
    beside = re.findall(r"^from (benchmarks\.\w+|studies\.settings) import .*arguments", source, re.MULTILINE)
    return source + "".join((ROOT / f"{other.replace('.', '/')}.py").read_text(encoding="utf-8") for other in beside)


def module_of(words):
    """The file of `python -m ...`, and the words after it."""
    if words[2] == "studies":
        paper, name = words[3], words[4].replace("-", "_")
        assert f"{paper}.{name}" in RUNS, f"no command {paper} {words[4]}"
        return f"studies/{paper}/{name}.py", words[5:]
    return f"{words[2].replace('.', '/')}.py", words[3:]


def scripts():
    """Each command of ours once: its words, and those after the module."""
    return sorted({tuple(words) for file in FILES for words in parts(file.command) if words[0] == "python"})


@cases("file", FILES, ids=lambda file: file.name)
def test_the_command_is_one_that_there_is(file):
    """Eight named scripts that had been moved."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in parts(file.command):
        assert words[0] in ("python", "make", "coverage"), file.command
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
        if words[0] == "python" and words[2] != "pytest":
            assert words[1] == "-m"
            module, rest = module_of(words)
            options = [word.partition("=")[0] for word in rest if word.startswith("--")]
            known = text_of(module)
            assert [option for option in options if f'"{option}"' not in known and not _is_shared(option, known)] == []


def _is_shared(option, text):
    """Whether `study_arguments` adds the option, which it names by a keyword."""
    return "study_arguments" in text and (option[2:] in ("rows", "threads", "report") or f"{option[2:]}=" in text)


def modules():
    """What is started with `--help`: modules, and commands of studies."""
    started = (words for words in scripts() if words[2] != "pytest")
    return sorted({" ".join(words[1 : 5 if words[2] == "studies" else 3]) for words in started})


@pytest.mark.slow
@pytest.mark.parametrize("module", modules())
def test_the_command_tells_its_help(module):
    """A script that took no notice of its arguments would measure for an hour."""
    done = subprocess.run(
        [sys.executable, *module.split(), "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "usage: " in done.stdout, done.stderr
