"""`polyhead evaluate` beyond scores: details, slices, another version, the report; `predict --explain`."""

import json
import re
import shutil

import pytest

from polyhead import Session
from polyhead.bundle.read import Bundle
from support import tiny_project
from support.commands import run
from support.two_versions import two_versions

CHOSEN = ("--backend", "reference")


def told(*words, **options):
    done = run(*words, *CHOSEN, "--json", "-", **options)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture
def file(tmp_path):
    rows = [
        {**row, "channel": ("mail", "chat")[number % 2]} for number, row in enumerate(tiny_project.messages(40, seed=9))
    ]
    return tiny_project.write_jsonl(tmp_path / "new.jsonl", rows)


def test_details_are_printed_and_written_for_every_kind(home, tmp_path):
    found = told("evaluate", home / "polyhead.toml", "--details")["details"]
    assert [each["score"]["task"] for each in found] == ["mood", "topics", "urgency", "names", "same", "alike"]
    for each in found:
        score = each["score"]
        assert each["intervals"].keys() == score["scores"].keys()
        for name, interval in each["intervals"].items():
            assert interval["low"] <= score["scores"][name] + 1e-9 and score["scores"][name] <= interval["high"] + 1e-9
        is_number = score["task"] in ("urgency", "alike")
        assert (each["reliability"] is None) == is_number and (each["differences"] is None) == (not is_number)
        counted = sum(cell["count"] for cell in each["confusion"]["cells"])
        if each["confusion"]["of"] == "rows":
            assert counted == score["rows"] * (len(tiny_project.TOPICS) if score["task"] == "topics" else 1)
        assert len(each["mistakes"]) == min(20, score["wrong"])
    lines = run("evaluate", home / "polyhead.toml", "--details", "--task", "mood", *CHOSEN).out
    mood = found[0]
    assert f"{mood['intervals']['accuracy']['low']:.4f} to {mood['intervals']['accuracy']['high']:.4f}" in lines
    assert f"expected calibration error {mood['reliability']['calibration_error']:.4f}" in lines


def test_slices_are_printed_and_written(home, file):
    found = told("evaluate", home / "bundle", "--data", file, "--task", "mood", "--slice", "channel")
    (details,) = found["details"]
    (by_channel,) = details["slices"]
    assert [(each["value"], each["rows"]) for each in by_channel["slices"]] == [("mail", 20), ("chat", 20)]
    mean = sum(each["score"] for each in by_channel["slices"]) / 2
    assert mean == pytest.approx(details["score"]["scores"]["accuracy"])
    out = run("evaluate", home / "bundle", "--data", file, "--task", "mood", "--slice", "channel", *CHOSEN).out
    assert "mood: by channel" in out and f"{by_channel['slices'][0]['score']:.4f}" in out
    run("evaluate", home / "bundle", "--data", file, "--slice", "chanel").refuses("MissingColumn", "'channel'?")


def test_another_version_is_compared_row_by_row(home, file, tmp_path):
    root = two_versions(home, tmp_path, "mood", "urgency")
    texts = [json.loads(line) for line in file.read_text().splitlines()]
    answers = []
    for folder in (home / "bundle", root):  # v0001 and v0002
        results = Session(folder, backend="reference").predict([row["text"] for row in texts], tasks=["mood"])
        answers.append([result.answers["mood"]["label"] for result in results])
    before, after = answers
    truth = [row["mood"] for row in texts]
    found = told("evaluate", root, "--data", file, "--task", "mood,urgency", "--against", "v0001")["comparisons"]
    mood, urgency = found
    changed = {number for number, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b}
    assert changed and {change["row"] for change in mood["changes"]} == changed and mood["changed"] == len(changed)
    sides = list(zip(truth, before, after, strict=True))
    assert mood["got_right"] == sum(t == b != a for t, a, b in sides)
    assert mood["got_wrong"] == sum(t == a != b for t, a, b in sides)
    for change in mood["changes"]:
        place = change["row"] - 1
        assert (change["truth"], change["before"], change["after"]) == sides[place]
        assert change["texts"] == [texts[place]["text"]]
    assert mood["difference"] == pytest.approx((mood["got_right"] - mood["got_wrong"]) / 40)
    assert mood["interval"]["low"] <= mood["difference"] <= mood["interval"]["high"]
    assert 0 <= mood["probability"] <= 1 and urgency["probability"] is None
    assert urgency["changed"] == 40 and urgency["got_right"] + urgency["got_wrong"] <= 40
    shown = run("evaluate", root, "--data", file, "--task", "mood", "--against", "v0001", *CHOSEN).out
    assert f"p = {mood['probability']:.4g} (McNemar, exact)" in shown
    assert Bundle.open(root).lines["mood"].version == "v0002"  # nothing was rolled back


def test_another_bundle_is_compared_and_the_same_has_no_change(home, file, tmp_path):
    same = shutil.copytree(home / "bundle", tmp_path / "same")
    for each in told("evaluate", home / "bundle", "--data", file, "--against", same)["comparisons"]:
        assert each["changed"] == each["got_right"] == each["got_wrong"] == 0 and each["difference"] == 0
        assert each["interval"] in ({"low": 0, "high": 0}, {"low": pytest.approx(0), "high": pytest.approx(0)})
        assert each["probability"] in (1.0, None)
    run("evaluate", home / "bundle", "--data", file, "--against", "v0009", *CHOSEN).refuses(
        "no task is compared with v0009", "has no version v0009"
    )


def test_a_report_and_a_table_show_slices_without_a_score(home, file, tmp_path):
    """Numbers of one value have no correlation, and 0.0000 stood there."""
    page, rows = tmp_path / "report.html", [json.loads(line) for line in file.read_text().splitlines()]
    made = [{**row, "part": "one", "urgency": 0.5} if n % 2 else {**row, "part": "all"} for n, row in enumerate(rows)]
    same = tiny_project.write_jsonl(tmp_path / "same.jsonl", made)
    words = ("evaluate", home / "bundle", "--data", same, "--task", "urgency", "--slice", "part")
    out = run(*words, "--report", page, *CHOSEN).out
    assert re.search(r"\bone +20 +- +-\n", out) and re.search(r"one</[a-z]+></td><td>20</td><td>-<", page.read_text())
    assert {part["value"]: part["score"] for part in told(*words)["details"][0]["slices"][0]["slices"]}["one"] is None


def test_a_report_is_one_file_with_the_numbers_of_the_json(home, file, tmp_path):
    root, page = two_versions(home, tmp_path, "mood"), tmp_path / "report.html"
    words = ("evaluate", root, "--data", file, "--slice", "channel", "--against", "v0001", "--report", page)
    found = told(*words)
    html = page.read_text()
    for each in found["details"]:
        numbers = [*each["score"]["scores"].values()]
        numbers += [end for interval in each["intervals"].values() for end in interval.values()]
        numbers += [each["reliability"]["calibration_error"]] if each["reliability"] else []
        numbers += [part["score"] for by in each["slices"] for part in by["slices"]]
        for value in numbers:
            assert f"{value:.4f}" in html
        for mistake in each["mistakes"]:
            assert f"row {mistake['row']:,}<" in html
        explained = [mistake for mistake in each["mistakes"] if mistake["explanation"]]
        assert len(explained) == min(5, len(each["mistakes"]))
    assert f"p = {found['comparisons'][0]['probability']:.4g}" in html
    run(*words[:-1], tmp_path / "report.txt").refuses("it ends in .html", code=2)
    run(*words[:-1], root / "report.html").refuses("it would be a file of the bundle")


def test_predict_explains_in_words_and_in_json(home, tmp_path):
    out = tmp_path / "why.json"
    words = ("predict", home / "bundle", "the lamp is broken", "--task", "mood", "--explain", *CHOSEN)
    done = run(*words, "--json", out)
    assert done.code == 0, done.err
    (row,) = json.loads(out.read_text())
    (said,) = row["explained"]["mood"]["said"]
    assert done.out.splitlines()[:2] == ["the lamp is broken", f"  mood: {said['says']} {said['support']:.4f}"]
    for part in said["parts"]:
        assert f"{part['text']} {part['effect']:+.3g}" in done.out
    assert {word["text"] for word in row["explained"]["mood"]["attention"]["words"]} == {"the", "lamp", "is", "broken"}


def test_lines_are_explained_one_by_one_and_what_cannot_be_is_told(home):
    lines = [json.dumps({"text": f"my box {number} is late", "id": number}) for number in range(20)]
    done = run(
        "predict", home / "bundle", "--task", "mood", "--explain", "--json", "-", *CHOSEN, stdin="\n".join(lines)
    )
    assert [row["id"] for row in json.loads(done.out)] == list(range(20))
    done = run("predict", home / "bundle", "--task", "same", "--explain", *CHOSEN, stdin='one text\n{"text": 1}\n')
    assert done.code == 1 and "line 1: no task answers it" in done.out and "line 2: " in done.out


def test_what_does_not_go_with_an_explanation_is_told(home, file):
    run("predict", home / "bundle", "a", "--json", "x.json", "-o", "y.json").refuses("--json", code=2)
    run("predict", home / "bundle", file, "--text", "text", "-o", "x.csv", "--explain").refuses("--output", code=2)
    run("predict", "--server", "http://127.0.0.1:1", "a", "--explain").refuses("--server", code=2)
