"""Tokenizing ahead, in a thread or in other processes."""

import os
import signal

import numpy as np
import pytest

from polyhead.encoder.data import TextSettings
from polyhead.testing import tiny_tokenizer
from polyhead.text.processes import TokenizerInput, TokenizerPool
from polyhead.text.tokenize import Tokenizer, Windows

SETTINGS = TextSettings(max_tokens=12)


def pieces():
    texts = [(" ".join(["order", "box", "lamp"][: 1 + row % 3] * (1 + row % 9)) + f" {row}",) for row in range(60)]
    for start in range(0, 60, 10):
        yield TokenizerInput(
            inputs=texts[start : start + 10], windows=Windows(size=12, stride=3) if start % 20 else None
        )


@pytest.mark.parametrize("processes", [0, 2])
def test_encodings_are_those_of_the_tokenizer_in_order(processes):
    tokenizer = Tokenizer(tiny_tokenizer(), SETTINGS)
    with TokenizerPool(tiny_tokenizer(), SETTINGS, processes=processes) as pool:
        results = list(pool.tokenized(pieces()))
    assert len(results) == 6
    for (piece, encodings), wanted in zip(results, pieces(), strict=True):
        assert piece.inputs == wanted.inputs
        direct = tokenizer.encodings(wanted.inputs, windows=wanted.windows)
        for name in ("row", "window", "starts", "ids", "segments", "cut"):
            np.testing.assert_array_equal(getattr(encodings, name), getattr(direct, name))


def test_a_killed_process_costs_no_text(caplog):
    with TokenizerPool(tiny_tokenizer(), SETTINGS, processes=1) as pool:
        results = []
        for number, result in enumerate(pool.tokenized(pieces())):
            results.append(result)
            if number == 0:
                os.kill(next(iter(pool._executor._processes)), signal.SIGKILL)
    tokenizer = Tokenizer(tiny_tokenizer(), SETTINGS)
    for piece, encodings in results:
        direct = tokenizer.encodings(piece.inputs, windows=piece.windows)
        np.testing.assert_array_equal(encodings.ids, direct.ids)
    assert len(results) == 6
    assert "was ended" in caplog.text
