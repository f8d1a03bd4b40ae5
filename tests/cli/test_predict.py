"""`polyhead predict`: what a line may be, streaming, receipts, backends, and lines that cannot be answered."""

import json
import os
import select
import shutil
import subprocess
import sys

import pytest

from polyhead.errors import BadValue, DataError
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from support import tiny_project
from support.cases import cases
from support.commands import environment, run, shell

TEXT = "anna the lamp is broken"
NO_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None"


def predict(home, *words, **options):
    return run("predict", home / "bundle", *words, "--backend", "reference", **options)


def test_every_task_that_fits_answers_with_one_pass(home):
    row = predict(home, stdin=TEXT + "\n").rows[0]
    assert set(row["answers"]) == {"mood", "topics", "urgency", "names"}
    assert set(row["skipped"]) == {"same", "alike"}
    assert row["line"] == 1
    assert row["receipt"]["passes"] == 1
    assert row["receipt"]["layers"] == 2
    assert set(row["receipt"]["added_flops"]) == set(row["answers"])
    assert abs(sum(row["answers"]["mood"]["scores"].values()) - 1) < 1e-5


def test_answers_are_those_of_the_session(home):
    from polyhead import Session

    row = predict(home, stdin=TEXT).rows[0]
    result = Session(home / "bundle", backend="reference").predict([TEXT])[0]
    assert row["answers"] == json.loads(json.dumps(result.answers), parse_float=lambda raw: float(f"{float(raw):.6g}"))


@pytest.mark.parametrize("file", ["part.safetensors", "task.json"])
@pytest.mark.parametrize("fault", ["missing", "changed"])
def test_a_damaged_file_of_another_task_stops_no_task_that_does_not_need_it(home, tmp_path, file, fault):
    """No task was answered. Those that need the file are refused, and so are all where none is named."""
    shutil.copytree(home / "bundle", tmp_path / "bundle")
    damaged = tmp_path / "bundle" / "tasks" / "topics" / "v0001" / file
    raw = damaged.read_bytes()
    damaged.unlink()
    if fault == "changed":
        damaged.write_bytes(raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:])
    whole = predict(home, TEXT, "--tasks", "mood,names").rows[0]
    done = predict(tmp_path, TEXT, "--tasks", "mood,names")
    assert done.code == 0 and done.rows[0]["answers"] == whole["answers"]
    assert str(damaged) in done.err and "No task that is asked needs it" in done.err
    for tasks in ((), ("--tasks", "mood,topics")):
        predict(tmp_path, TEXT, *tasks).refuses("CorruptFile", str(damaged))
    predict(tmp_path, TEXT, "--tasks", "moood").refuses("UnknownTask", "mood")


def test_a_terminal_shows_lines_for_people_and_json_where_it_is_asked(home):
    """It printed one line of 500 characters with the receipt and 17 digits."""
    words = ["-m", "polyhead", "predict", home / "bundle", TEXT, "--backend", "reference", "--tasks", "mood,urgency"]
    shown = []
    for more in ([], ["--json"]):
        ours, theirs = os.openpty()
        done = subprocess.run([sys.executable, *words, *more], stdout=theirs, env=environment(), check=True)
        os.close(theirs)
        shown.append(os.read(ours, 2**16).decode().replace("\r\n", "\n"))
        os.close(ours)
        assert done.returncode == 0
    answers = json.loads(shown[1])["answers"]
    label = answers["mood"]["label"]
    assert shown[0].splitlines()[:3] == [
        TEXT,
        f"  mood     {label} ({answers['mood']['scores'][label]:.2f})",
        f"  urgency  {answers['urgency']['value']:.2f}",
    ]
    assert "1 encoder pass, 2 layers" in shown[0] and len(shown[1].splitlines()) == 1


def test_spans_have_offsets_into_the_given_text(home):
    row = predict(home, "--tasks", "names", stdin=f"  {TEXT}, and a kettle. phone?\n").rows[0]
    text = f"  {TEXT}, and a kettle. phone?"
    for span in row["answers"]["names"]["spans"]:
        assert text[span["start"] : span["end"]] == span["text"]
        assert 0 <= span["score"] <= 1


def test_a_task_that_fails_has_its_reason_in_its_place_and_the_command_says_so(home, monkeypatch):
    tiny_project.fail_heads(monkeypatch, "mood")
    done = predict(home, stdin=f"{TEXT}\ngood\n")
    for row in done.rows:
        assert row["failed"] == {"mood": "ValueError: no such head"} and "late" not in row
        assert set(row["answers"]) == {"topics", "urgency", "names"}
    assert done.code == 1 and "tasks failed on 2 lines" in done.err


def test_lines_on_which_all_tasks_fail_have_the_reason_and_end_nothing(home, monkeypatch):
    """The command ended with the error, and what came after it was not answered."""
    tiny_project.fail_heads(monkeypatch, "mood")
    done = predict(home, "--tasks", "mood", stdin=f"{TEXT}\ngood\n")
    assert [row["failed"] for row in done.rows] == [{"mood": "ValueError: no such head"}] * 2
    assert done.code == 1 and "tasks failed on 2 lines" in done.err


def test_some_tasks_alone_are_answered(home):
    for words in (["--tasks", "mood,urgency"], ["--task", "mood", "--task", "urgency"]):
        assert list(predict(home, *words, stdin=TEXT).rows[0]["answers"]) == ["mood", "urgency"]


def test_json_lines_and_plain_text_are_the_same_input(home):
    lines = [TEXT, json.dumps(TEXT), json.dumps({"text": TEXT}), json.dumps({"text_a": TEXT}), " " + json.dumps(TEXT)]
    rows = predict(home, "--tasks", "mood", stdin="\n".join(lines)).rows
    assert len(rows) == len(lines)
    for row in rows[1:]:
        assert row["answers"]["mood"]["scores"] == pytest.approx(rows[0]["answers"]["mood"]["scores"], abs=1e-5)


def test_a_pair_is_answered_by_the_tasks_over_pairs(home):
    row = predict(home, stdin=json.dumps({"text": "the lamp is good", "text_b": "the box is bad", "id": "p7"})).rows[0]
    assert set(row["answers"]) == {"same", "alike"}
    assert row["id"] == "p7"
    assert row["receipt"]["passes"] == 3  # one joined, two apart


@cases("given", ['"p7"', "7", "1.5", "true", "false", '["x", {"y": [null]}]', '{"a": "b"}', "-1e300", str(2**80), '""'])
def test_an_id_comes_back_as_it_is(home, given):
    """What was neither a string nor an integer was dropped, without a word."""
    row = predict(home, "--tasks", "mood", stdin=f'{{"text": "{TEXT}", "id": {given}}}').rows[0]
    assert repr(row["id"]) == repr(json.loads(given)) and "mood" in row["answers"]


def test_lone_surrogates_within_an_id_are_replaced(home):
    line = '{"text": "good", "id": ["\\ud800", {"\\udfff": 1}]}'
    assert predict(home, "--tasks", "mood", stdin=line).rows[0]["id"] == ["\ufffd", {"\ufffd": 1}]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A folder whose bundle answers questions, of both kinds, and says whether two texts are the same."""
    from polyhead.plan import Pool

    root, trunk = tmp_path_factory.mktemp("asked") / "bundle", tiny_trunk()
    tasks = {task.name: task for task in tiny_tasks() if task.name in ("reply", "where", "who", "same")}
    pool = Pool(positions="mean")
    tiny_bundle(root, trunk, {name: tiny_path(task, trunk, pool=pool) for name, task in tasks.items()})
    return root.parent


def test_a_question_is_answered_by_the_tasks_of_its_form(asked):
    context = "anna was late today. ben is good"
    lines = [
        {"question": "who is good?", "context": context, "id": "a"},
        {"question": "who is good?", "options": ["anna", "ben"], "context": context},
        {"question": "who is good?", "choices": ["anna", "ben", "you"]},
        {"text": "who is good?", "text_b": context},
    ]
    rows = predict(asked, stdin="\n".join(map(json.dumps, lines))).rows
    assert [set(row["answers"]) for row in rows] == [{"where", "who"}, {"reply"}, {"reply"}, {"same", "where", "who"}]
    assert rows[0]["id"] == "a" and rows[0]["answers"]["where"] == rows[3]["answers"]["where"]
    answer = rows[0]["answers"]["where"]
    assert context[answer["start"] : answer["end"]] == answer["text"]
    assert set(rows[0]["answers"]["who"]) == {"text", "start", "end", "score"}
    reply = rows[2]["answers"]["reply"]
    assert reply["option"] == lines[2]["choices"][reply["index"]] and len(reply["scores"]) == 3
    assert [row["receipt"]["passes"] for row in rows] == [1, 2, 3, 1]
    assert rows[0]["skipped"]["reply"] == (
        "this task reads a question with options, a question about a context was given"
    )


@cases(
    ("line", "said"),
    [
        ({"question": "q"}, "a context to be answered from, or options"),
        ({"question": "q", "options": ["a"]}, "a list of two strings or more"),
        ({"question": "q", "options": [1, 2]}, "a list of two strings or more"),
        ({"question": "q", "context": ["c"]}, "the context of a question is a text"),
        ({"question": None, "context": "c"}, '{"question": ..., "context": ...}'),
    ],
)
def test_a_question_that_cannot_be_read_says_what_is_allowed(asked, line, said):
    done = predict(asked, stdin='{"question": "q", "context": "good"}\n' + json.dumps(line))
    done.refuses("1 could not be read", code=1)
    assert "line 2" in done.rows[1]["error"] and said in done.rows[1]["error"]
    assert "answers" in done.rows[0]


def test_tokens_are_tagged_as_given(home):
    row = predict(home, "--tasks", "names", stdin=json.dumps({"tokens": ["the", "lamp"]})).rows[0]
    assert list(row["answers"]) == ["names"]


def test_format_decides_what_a_brace_or_quote_means(home):
    assert predict(home, "--tasks", "mood", "--format", "text", stdin="{good} lamp").code == 0
    predict(home, "--tasks", "mood", stdin="{good} lamp").refuses("1 could not be read", code=1)
    assert predict(home, "--tasks", "mood", stdin='"good" lamp').code == 0
    predict(home, "--tasks", "mood", "--format", "json", stdin='"good" lamp').refuses(code=1)


def test_lines_from_a_slow_pipe_are_answered_as_they_arrive(home):
    words = ["predict", str(home / "bundle"), "--backend", "reference", "--tasks", "mood"]
    process = subprocess.Popen(
        [sys.executable, "-m", "polyhead", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    for number in range(1, 4):
        process.stdin.write(b"the lamp is good\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], 30)
        assert ready, f"no answer to line {number} while the pipe is open"
        assert json.loads(process.stdout.readline())["line"] == number
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    process.stdout.close()


def test_many_lines_come_back_in_order(home, tmp_path):
    file = tmp_path / "many.txt"
    file.write_text("".join(f"the lamp is good {'late ' * (n % 5)}\n" for n in range(600)))
    rows = predict(home, file, "--tasks", "mood").rows
    assert [row["line"] for row in rows] == list(range(1, 601))


def test_mixed_line_ends_and_a_byte_order_mark_make_the_same_lines(home):
    given = b"\xef\xbb\xbfthe lamp is good\r\nthe box is bad\rthe card is late\nthe end"
    rows = predict(home, "--tasks", "mood", stdin=given).rows
    plain = predict(home, "--tasks", "mood", stdin="the lamp is good\nthe box is bad\nthe card is late\nthe end").rows
    assert rows == plain
    assert len(rows) == 4


def test_a_blank_line_between_two_kinds_of_line_end_is_counted(home):
    """CR CR LF ends two lines; it was taken for the end of one, and later numbers were too small."""
    done = predict(home, "--tasks", "mood", stdin=b"one\r\r\ntwo\r\n\r\r\nthree\r\r")
    assert [row["line"] for row in done.rows] == [1, 3, 6]
    assert "4 blank lines skipped" in done.err


def test_a_file_of_lines_is_named_with_the_line_that_cannot_be_read(tmp_path):
    """`polyhead tasks quantize --texts` named no file, and advised an option that it has not."""
    from polyhead.store.jobs.lines import read_lines

    file = tmp_path / "texts.txt"
    file.write_text('the lamp\n\n{"text": "good", "id": 4}\n')
    assert [(line.input, line.id) for line in read_lines(str(file))] == [(("the lamp",), None), (("good",), 4)]
    for content, said in ((b"good\n{bad", "line 2 is not JSON"), (b"\xff", "line 1 is not UTF-8"), (b"[", None)):
        file.write_bytes(content)
        if said is None:
            assert read_lines(str(file))[0].input == ("[",)
            continue
        with pytest.raises(BadValue, match=f"{file}: {said}") as caught:
            read_lines(str(file))
        assert "--" not in str(caught.value)
    with pytest.raises(DataError, match=r"no file at .*none\.txt"):
        read_lines(str(tmp_path / "none.txt"))


def test_blank_lines_are_counted_and_keep_the_numbers_true(home):
    done = predict(home, "--tasks", "mood", stdin="one\n\n  \r\ntwo\n")
    assert done.code == 0
    assert [row["line"] for row in done.rows] == [1, 4]
    assert "2 blank lines skipped" in done.err


@cases("given", [b"", b"\n", b" \r\n\n"])
def test_nothing_to_answer_is_an_error(home, given):
    predict(home, stdin=given).refuses("holds no line")


@cases(
    "line",
    ["{", '{"txt": "a"}', '{"text": 5}', '{"text": null}', '{"text": "a", "text_b": 3}', '{"tokens": [1]}', "{}"]
    + ['{"text": ' + "[" * 5000, '{"n": ' + "9" * 5000 + "}"],
)
def test_a_line_that_cannot_be_read_has_its_reason_in_its_place(home, line):
    done = predict(home, "--tasks", "mood", stdin=f"good\n{line}\nbad\n")
    done.refuses("1 could not be read", code=1)
    assert "line 2" in done.rows[1]["error"]
    assert [row["line"] for row in done.rows] == [1, 2, 3]
    assert "answers" in done.rows[0] and "answers" in done.rows[2]


def test_a_line_that_cannot_be_read_keeps_its_id(home):
    """It had its number alone, which says nothing once lines of several files are joined."""
    lines = [
        '{"id": 5, "text": "good"}',
        '{"id": "a1", "text": null}',
        '{"id": 7, "txt": "good"}',
        '{"text": 5}',
        '{"id": 8, "text": "good"',
    ]
    done = predict(home, "--tasks", "mood", stdin="\n".join(lines))
    assert [row.get("id") for row in done.rows] == [5, "a1", 7, None, None]
    assert ["error" in row for row in done.rows] == [False, True, True, True, True]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl.gz", "out.xlsx"])
def test_answers_of_lines_are_not_written_into_a_file_that_is_named_as_a_table(home, tmp_path, name):
    """JSON Lines stood in `answers.csv`, which nothing reads as that."""
    out = tmp_path / name
    predict(home, "good", "-o", out).refuses("JSON Lines", name, code=2)
    assert not out.exists() and predict(home, "good", "-o", tmp_path / "out.txt").code == 0


def test_answers_of_lines_go_to_one_place(home, tmp_path):
    """With -o, `--json -` printed nothing and said nothing."""
    for more in ([], ["-"], [tmp_path / "more.jsonl"]):
        words = ("-o", tmp_path / "out.jsonl", "--tasks", "mood", "--json", *more)
        predict(home, "good", *words).refuses("--output and --json", code=2)


def test_a_wish_for_familiarity_that_no_task_can_grant_is_refused(home):
    """It was left unread: answers without `none_of_these` looked as if each text was known."""
    for words in (("--familiar",), ("--none-below", "0.5")):
        predict(home, "good", "--tasks", "urgency,same", *words).refuses("can say how familiar a text is")
    assert predict(home, "good", "--tasks", "urgency", "--none-below", "0").code == 0


def test_lines_in_utf_16_are_read_as_those_in_utf_8(home, tmp_path):
    """PowerShell writes them; each line was said to be no UTF-8."""
    content = "caf\u00e9 \U0001f600 is good\n" + '{"text": "bad lamp", "id": 3}\n'
    expected = predict(home, "--tasks", "mood", stdin=content).rows
    assert len(expected) == 2
    (tmp_path / "lines.txt").write_text(content, encoding="utf-16", newline="")
    assert predict(home, tmp_path / "lines.txt", "--tasks", "mood").rows == expected


def test_bytes_that_are_not_utf8_are_said(home):
    done = predict(home, "--tasks", "mood", stdin=b"good\n\xff\xfe\n")
    done.refuses("1 could not be read", code=1)
    assert "UTF-8" in done.rows[1]["error"]


def test_an_empty_text_and_a_text_that_fits_no_task_are_counted(home):
    done = predict(home, "--tasks", "mood", stdin='{"text": ""}\n{"text": "a", "text_b": "b"}\n')
    done.refuses("2 fit no task", code=1)
    assert done.rows[0]["skipped"] == {"mood": "the text is empty"}
    assert "one text" in done.rows[1]["skipped"]["mood"]


def test_lone_surrogates_are_replaced_and_counted(home):
    done = predict(home, stdin='{"text": "the \\ud800 lamp \\udfff", "id": "\\ud800"}\n')
    assert done.code == 0
    assert done.rows[0]["receipt"]["repaired"] == 2
    assert done.rows[0]["id"] == "\ufffd"


@pytest.mark.slow
def test_a_million_characters_are_cut_and_the_receipt_says_so(home):
    done = predict(home, stdin="lamp " * 200_000)
    assert done.code == 0
    assert done.rows[0]["receipt"]["cut"] > 190_000
    assert done.rows[0]["receipt"]["tokens"] == 48


def test_strange_characters_go_through(home):
    done = predict(home, stdin="a\x00b\u202e 👩‍👩‍👧 \U0010ffff\nok\u2028ok\n")
    assert done.code == 0
    assert len(done.rows) == 2


def test_deterministic_answers_have_equal_bits_whatever_the_batch_mates(home):
    alone = run("predict", home / "bundle", "--deterministic", "--tasks", "mood", stdin=TEXT).rows[0]
    mates = run("predict", home / "bundle", "--deterministic", "--tasks", "mood", stdin=f"a\n{TEXT}\nlamp lamp\n").rows[
        1
    ]
    assert alone["answers"] == mates["answers"]


def test_reference_answers_where_torch_is_missing(home):
    done = shell(["predict", home / "bundle", "--backend", "reference"], stdin=TEXT, before=NO_TORCH)
    assert done.code == 0, done.err
    torch = run("predict", home / "bundle", "--backend", "torch", stdin=TEXT).rows[0]["answers"]
    assert done.rows[0]["answers"]["mood"]["scores"] == pytest.approx(torch["mood"]["scores"], abs=1e-4)


def test_answers_need_no_torch(home):
    """Whatever else is installed: one of the backends without it is the default."""
    done = shell(["predict", home / "bundle"], stdin=TEXT, before=NO_TORCH)
    assert done.code == 0 and "mood" in done.rows[0]["answers"], done.err


def test_missing_torch_says_what_to_install_and_what_works_without(home):
    done = shell(["predict", home / "bundle", "--backend", "torch"], stdin=TEXT, before=NO_TORCH)
    done.refuses("pip install 'polyhead[train]'", "--backend reference")
    evaluated = shell(["evaluate", home / "polyhead.toml", "--backend", "torch"], before=NO_TORCH)
    evaluated.refuses("--backend reference")


def test_a_precision_that_the_backend_has_not_is_refused(home):
    predict(home, "--precision", "bfloat16", stdin=TEXT).refuses("float32")


def test_a_task_that_is_not_there_is_named_with_those_that_are(home):
    predict(home, "--tasks", "mod", stdin=TEXT).refuses("UnknownTask", "'mod'", "mood")


def test_missing_files_and_bundles_are_named(home, tmp_path):
    predict(home, tmp_path / "none.txt").refuses("none.txt")
    run("predict", tmp_path / "none", stdin=TEXT).refuses("no bundle")
    assert predict(home, tmp_path).code == 2


def test_output_takes_its_name_when_whole_and_older_answers_survive_a_failure(home, tmp_path):
    out, texts = tmp_path / "answers.jsonl", tmp_path / "texts"
    out.write_text("older\n")
    predict(home, tmp_path / "none", "-o", out).refuses("none")
    assert out.read_text() == "older\n"
    predict(home, "-o", out, stdin="").refuses("no line")
    assert out.read_text() == "older\n"
    assert [p.name for p in tmp_path.iterdir()] == ["answers.jsonl"]
    texts.write_text(TEXT)
    assert predict(home, texts, "-o", out).out == ""
    assert json.loads(out.read_text())["line"] == 1


def test_an_output_that_cannot_be_written_is_refused_before_work(home, tmp_path):
    predict(home, "-o", tmp_path, stdin=TEXT).refuses("cannot write")
    predict(home, "-o", tmp_path / "no" / "x", stdin=TEXT).refuses("cannot write", "no folder")


def test_answers_before_a_full_disk_are_kept_and_named(home, tmp_path):
    import resource

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    out = tmp_path / "answers.jsonl"
    out.write_text("older\n")
    words = ["predict", home / "bundle", "--backend", "reference", "--tasks", "mood", "-o", out]
    done = shell(words, stdin="the lamp is good\n" * 600, preexec=small)
    done.refuses("File too large", "answers.jsonl.partial", "make room")
    assert out.read_text() == "older\n"
    kept = (tmp_path / "answers.jsonl.partial").read_text().splitlines()
    assert len(kept) > 50
    assert json.loads(kept[0])["line"] == 1


def test_a_pipe_can_be_the_output(home, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE)
    done = predict(home, "-o", fifo, stdin=TEXT)
    assert done.code == 0, done.err
    assert json.loads(reader.communicate(timeout=10)[0])["line"] == 1


def test_a_long_line_in_small_pieces_is_one_line():
    from polyhead.store.jobs.lines import pieces

    class Slow:
        def __init__(self, blocks):
            self.blocks = list(blocks)

        def read1(self, size):
            return self.blocks.pop(0) if self.blocks else b""

    found = [piece.lines for piece in pieces(Slow([b"a", b"b", b"c\nd", b"\r", b"\n", b"\n\ne"]))]
    assert found == [[(1, b"abc")], [(2, b"d")], [], [(5, b"e")]]


@pytest.mark.slow
def test_ten_million_bytes_in_one_line_are_one_line():
    from polyhead.store.jobs.lines import pieces

    class Slow:
        left = 10_000

        def read1(self, size):
            self.left -= 1
            return b"x" * 1000 if self.left >= 0 else b""

    (piece,) = pieces(Slow())
    assert len(piece.lines[0][1]) == 10_000_000
