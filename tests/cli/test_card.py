"""Commands that are to compute on a graphics card: where there is none, and where the processor stands in for one."""

import json

import pytest

pytest.importorskip("torch")

import torch

from polyhead.deep import backend
from support.backfills import make_bundle, texts
from support.commands import run

CARD = ("--backend", "torch-cuda")


@pytest.fixture
def folder(tmp_path):
    make_bundle(tmp_path / "bundle")
    rows = [{"text": text} for (text,) in texts(range(6))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics processor")
@pytest.mark.parametrize(
    "words",
    [
        ("serve", "bundle", "--port", "0"),
        ("features", "extract", "bundle", "texts.jsonl", "store", "--tap", "mean2"),
        ("predict", "bundle", "good lamp"),
    ],
    ids=lambda words: words[0],
)
def test_without_a_card_a_command_says_so_and_what_to_do(folder, words):
    done = run(*words, *CARD, cwd=folder)
    done.refuses("needs a graphics processor")
    assert "--backend torch" in done.err and "Traceback" not in done.err


def test_features_are_extracted_and_answered_by_the_backend_of_a_card(folder, monkeypatch):
    monkeypatch.setattr(backend, "_device", lambda device: torch.device("cpu"))
    for name in ("torch", "torch-cuda"):
        chosen = ("--backend", name, "--precision", "float32")
        done = run("features", "extract", "bundle", "texts.jsonl", name, "--tap", "mean2", *chosen, cwd=folder)
        assert done.code == 0, done.err
        assert "6 added now" in done.out
    both = [
        run("predict", "bundle", "good lamp", "--json", "-", "--backend", name, cwd=folder)
        for name in ("torch", "torch-cuda")
    ]
    assert all(done.code == 0 for done in both) and both[0].out == both[1].out
