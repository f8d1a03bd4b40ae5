"""`polyhead tasks quantize` and `polyhead tasks agree`: what they say, keep and refuse."""

import json
import re
import shutil

import pytest

from engine.test_quantize import TEXTS
from polyhead.bundle.read import Bundle
from polyhead.engine.scale_files import Int8Change, read_scales
from polyhead.evaluate import int8 as calibrate
from polyhead.tasks.agreement import Agreement
from support.commands import run
from support.precisions import needs_eight_bit_slots

pytest.importorskip("polyhead.engine.backends.openvino", reason="the openvino extra is not installed")

LOOSE = ("--agreement", "0", "--unmeasured")  # tiny tasks answer by a hair's breadth


@pytest.fixture
def bundle(home, tmp_path):
    shutil.copytree(home / "bundle", tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join([*TEXTS[:20], json.dumps({"text": "my lamp", "text_b": "the lamp"}), "", TEXTS[21]]))
    return path


def test_quantize_reports_every_task_and_int8_then_answers(home, bundle, texts, tmp_path):
    words = ("--texts", texts, "--data", home / "polyhead.toml", "--bound", "100", *LOOSE)
    done = run("tasks", "quantize", bundle, *words, "--rows", "8", "--json", tmp_path / "said.json")
    assert done.code == 0, done.err
    said = json.loads((tmp_path / "said.json").read_text())
    assert set(said["tasks"]) == {"mood", "topics", "urgency", "names", "same", "alike"}
    mood = said["tasks"]["mood"]
    assert mood["points"] == pytest.approx(100 * (mood["int8"] - mood["float32"]), abs=1e-3)  # of six digits
    assert "mood" in done.out
    *_, last = done.out.splitlines()
    assert re.match(r"\d+ products in 8 bits, calibrated on 9 texts", last)  # 8 of 15 texts, and the one pair
    assert int(last.split()[0]) >= 12
    answers = run("predict", bundle, "--backend", "openvino", "--precision", "int8", stdin=TEXTS[0]).rows[0]["answers"]
    assert set(answers) == {"mood", "topics", "urgency", "names"}
    scored = run("evaluate", home / "polyhead.toml", "--bundle", bundle, "--tasks", "mood", "--backend", "openvino",
                 "--precision", "int8", "--json", "-")  # fmt: skip
    found = json.loads(scored.out)
    assert found["precision"] == "int8"
    assert found["scores"][0]["scores"][mood["metric"]] == pytest.approx(mood["int8"])


@needs_eight_bit_slots
def test_where_a_task_changes_too_much_poolers_and_heads_stay_in_floating_point(bundle, texts, monkeypatch):
    told = []

    def measured(*arguments, **options):
        scales = arguments[-1]
        told.append(scales.has_slots)
        share = 0.5 if scales.has_slots else 1.0
        agreement = Agreement(rows=10, share=share, difference=0.0)
        return {name: Int8Change(agreement=agreement) for name in Bundle.open(bundle).tasks}

    monkeypatch.setattr(calibrate, "measured", measured)
    done = run("tasks", "quantize", bundle, "--texts", texts, "--rows", "8")
    assert done.code == 0, done.err
    assert told == [True, False]
    assert "layers alone are in 8 bits" in done.out
    assert not read_scales(Bundle.open(bundle))[1].has_slots


def test_texts_of_a_table_are_calibrated_on(bundle, tmp_path):
    """`--texts` refused tables, which every other command takes."""
    (tmp_path / "texts.csv").write_text("message\n" + "\n".join(f'"{text}"' for text in TEXTS[:20]))
    words = ("--texts", tmp_path / "texts.csv", "--text", "message", "--rows", "8", *LOOSE)
    done = run("tasks", "quantize", bundle, *words)
    assert done.code == 0, done.err
    assert "calibrated on 8 texts" in done.out
    run("tasks", "quantize", bundle, *words[:2], "--text", "body", *LOOSE).refuses("body", "texts.csv")


def test_labelled_rows_are_scored_as_those_of_a_project_file(home, bundle, texts, tmp_path):
    said = {}
    words = ("--texts", texts, "--rows", "8", "--bound", "100", *LOOSE)
    rows, array = home / "data" / "messages-test.jsonl", tmp_path / "messages.json"
    array.write_text(json.dumps([json.loads(line) for line in rows.read_text().splitlines()]))
    labelled = {"rows": rows, "array": array}  # the array was read as a project file
    options = {name: [file, "--label", "names=tags"] for name, file in labelled.items()}
    for name, data in {"project": [home / "polyhead.toml"], **options}.items():
        done = run("tasks", "quantize", bundle, *words, "--data", *data, "--json", tmp_path / name)
        assert done.code == 0, done.err
        said[name] = json.loads((tmp_path / name).read_text())["tasks"]
    scored = [name for name, task in said["rows"].items() if task["metric"]]
    assert scored == ["mood", "topics", "urgency", "names"]
    for name in scored:
        for key in ("metric", "float32", "int8"):
            assert said["rows"][name][key] == said["project"][name][key], (name, key)
            assert said["array"][name][key] == said["project"][name][key], (name, key)
    run("tasks", "quantize", bundle, *words, "--data", home / "polyhead.toml", "--label", "mood").refuses(
        "its own columns", code=2
    )


def test_quantize_refuses_whole_where_a_task_changes_too_much(bundle, texts):
    run("tasks", "quantize", bundle, "--texts", texts, "--rows", "4", "--agreement", "100").refuses(
        "int8 changes these tasks too much", "nothing was written", "%", "--agreement"
    )
    assert not (bundle / "cache").exists()
    run("predict", bundle, "--backend", "openvino", "--precision", "int8", stdin=TEXTS[0]).refuses(
        "polyhead tasks quantize"
    )


def test_quantize_refuses_tasks_that_no_text_fits_unless_told_otherwise(bundle, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:12]))
    words = ("--texts", tmp_path / "texts.txt", "--rows", "4", "--agreement", "0")
    run("tasks", "quantize", bundle, *words).refuses(
        "same (no text to measure on fits it)", "nothing was written", "--unmeasured"
    )
    assert not (bundle / "cache").exists()
    done = run("tasks", "quantize", bundle, *words, "--unmeasured")
    assert done.code == 0 and "not measured, as no text to measure on fits: same" in done.out


def test_quantize_refuses_files_that_hold_too_little(bundle, tmp_path):
    (tmp_path / "one.txt").write_text("my lamp\n")
    run("tasks", "quantize", bundle, "--texts", tmp_path / "one.txt").refuses("texts", "two")
    run("tasks", "quantize", bundle, "--texts", tmp_path / "none.txt").refuses("none.txt", code=2)


def test_a_merged_bundle_has_neither_scales_nor_agreements_of_its_sources(bundle, texts, tmp_path):
    """They belong to versions and weights that are read elsewhere: what is merged is measured anew."""
    assert run("tasks", "quantize", bundle, "--texts", texts, "--rows", "4", *LOOSE).code == 0
    assert run("tasks", "agree", bundle, "--backend", "reference").code == 0
    done = run("tasks", "merge", tmp_path / "made", f"{bundle}:mood,topics")
    assert done.code == 0, done.err
    assert not {"cache", "agreements.json"} & {entry.name for entry in (tmp_path / "made").iterdir()}
    assert run("tasks", "verify", bundle).code == 0
    assert run("inspect", bundle, "--verify").code == 0


def test_other_backends_refuse_int8(bundle):
    for backend in ("torch", "reference"):
        done = run("predict", bundle, "--backend", backend, "--precision", "int8", stdin=TEXTS[0])
        done.refuses(f"the {backend} backend cannot run the trunk in int8")


def test_agreement_is_kept_and_shown_by_inspect(bundle):
    done = run("tasks", "agree", bundle, "--backend", "openvino", "--precision", "float32")
    assert done.code == 0, done.err
    assert "openvino in float32" in done.out and "mood" in done.out and "100.0 %" in done.out
    shown = run("inspect", bundle, "--verify")
    assert "Agreement of openvino" in shown.out and "in float32 with answers as trained" in shown.out
    told = json.loads(run("inspect", bundle, "--json", "-").out)
    (one,) = told["agreements"]
    assert one["numerics"]["precision"] == "float32" and one["tasks"]["mood"]["agreement"]["rows"] > 0
