"""What comes from files is text to a terminal, never a command: controls and signs that turn the order are escaped."""

import json
import shutil
import sys
import unicodedata

import pytest

from polyhead.cli.output import Printer, json_shown, note, shown, text_table
from support.cases import cases
from support.commands import run, shell

TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # Unicode's signs of explicit direction
MARKS = ("LEFT-TO-RIGHT MARK", "RIGHT-TO-LEFT MARK", "ARABIC LETTER MARK")
EVIL = "\x1b[2J\x1b]0;gone\x07\x9b31m\u202etxt.exe\u2066\r\nok\x7f"


def is_command(letter):
    kinds, name = ("Cc", "Zl", "Zp"), unicodedata.name(letter, "")
    return unicodedata.category(letter) in kinds or unicodedata.bidirectional(letter) in TURNS or name in MARKS


COMMANDS = [chr(code) for code in range(sys.maxunicode + 1) if is_command(chr(code))]


def assert_plain(said):
    """One line after another, and nothing else that moves or turns."""
    assert not [letter for letter in said if letter != "\n" and is_command(letter)], said.encode("unicode_escape")


def test_all_that_unicode_calls_a_control_or_a_turn_is_escaped_and_no_letter_else():
    others = [chr(code) for code in range(sys.maxunicode + 1) if not is_command(chr(code))]
    assert len(COMMANDS) == 65 + 2 + len(TURNS) + len(MARKS)
    assert shown("".join(others)) == "".join(others)
    assert_plain(shown("".join(COMMANDS)))
    assert shown(EVIL).encode("ascii").decode("unicode_escape") == EVIL  # nothing is lost


@cases("letter", COMMANDS, ids=ascii)
def test_whatever_prints_escapes(letter, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    text, printer = f"a{letter}b", Printer()
    printer.line(text)
    printer.lines([text, *text_table([["task", "n"], [text, 1]])])
    note(text)
    printer.show(text)
    printer.show("")
    out, err = capsys.readouterr()
    assert_plain(out)
    assert_plain(err.replace("\r", ""))  # by which the progress line begins anew
    assert len(out.splitlines()) == 4 and shown(letter) in err
    assert len({len(line) for line in out.splitlines()[2:]}) == 1  # columns stay aligned
    Printer("-").json({"name": text})
    said = capsys.readouterr().out
    assert_plain(said)
    assert json.loads(said) == {"name": text}


def test_json_stays_the_same_json():
    content = {"".join(COMMANDS): ["é", "日本", "\u200d", "👍🏽", {"a": EVIL}]}
    for ascii_only in (True, False):
        raw = json.dumps(content, indent=2, ensure_ascii=ascii_only).encode()
        assert json.loads(json_shown(raw)) == content
        assert_plain(json_shown(raw).decode())
    assert json_shown('{"a": "é"}'.encode()) == '{"a": "é"}'.encode()


def test_labels_of_a_data_file_are_shown_escaped(tmp_path):
    rows = [{"text": f"a{i}", "label": [EVIL, "b"][i % 2]} for i in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("init", "a.jsonl", "--kind", "single_label", cwd=tmp_path)
    assert done.code == 0 and r"\x1b[2J" in done.out
    assert_plain(done.out + done.err)


def test_a_card_that_somebody_edited_is_shown_escaped(home, tmp_path):
    root = tmp_path / "b"
    shutil.copytree(home / "bundle", root)
    card = next((root / "tasks" / "mood").glob("v*/README.md"))
    card.write_text(f"# mood\n\n{EVIL}\n", newline="")
    done = run("inspect", root, "--task", "mood")
    assert done.code == 0 and r"\x1b[2J" in done.out and len(done.out.splitlines()) == 4
    assert_plain(done.out + done.err)
    said = run("inspect", root, "--task", "mood", "--json", "-").out
    assert_plain(said)
    assert EVIL in json.loads(said)["card"]


def test_names_of_files_and_words_of_the_command_line_are_shown_escaped(tmp_path):
    folder = tmp_path / "a\x1b[31m\u202eb"
    folder.mkdir()
    for words in (
        ("inspect", folder),
        ("train", folder / "no.toml"),
        ("inspect", folder, "--\x1b[31m\u202e"),
        ("\x1b[31m\u202e",),
        ("predict", folder, "no\x9b1m.txt"),
    ):
        done = run(*words)
        assert done.code in (1, 2) and (r"\x1b[31m" in done.err or r"\x9b" in done.err), done.err
        assert_plain(done.out + done.err)


def test_answers_in_which_a_text_stands_are_shown_escaped(home):
    line = json.dumps({"text": "good", "id": EVIL})
    done = run("predict", home / "bundle", "-", "--tasks", "mood", stdin=line + "\n")
    assert done.code == 0
    assert_plain(done.out)
    assert done.rows[0]["id"] == EVIL


@pytest.mark.slow
def test_the_log_is_shown_escaped():
    script = f"import atexit, logging; atexit.register(logging.warning, {EVIL!r})"
    done = shell(["inspect", "nowhere"], before=script)
    assert r"root: \x1b[2J" in done.err
    assert_plain(done.err)
