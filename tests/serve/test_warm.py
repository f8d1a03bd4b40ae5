"""What a server answers before it is ready: every shape that a few texts can have."""

import numpy as np
import pytest

from polyhead.engine.compile.layout import RowLayout, Shape
from polyhead.engine.compile.program import Graph
from polyhead.engine.session import Session
from polyhead.serve.trial import every_head, every_shape
from polyhead.testing import tiny_batch, tiny_trunk
from polyhead.text.batch import LINE, LINES
from polyhead.text.tokenize import Tokenizer
from support.admin_server import TRUNK, make
from support.numpy_graphs import NumpyRuntime


def rows_and_positions(trunk, lengths):
    return RowLayout(tiny_batch(trunk, tuple(lengths)), Shape(first_position=0, segments=2, width=384)).ids.shape


@pytest.mark.parametrize("most", [24, 64, 128])
def test_every_row_of_a_few_texts_has_been_seen(most):
    trunk = tiny_trunk(max_tokens=most)
    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    seen = set()
    for texts in every_shape(tokenizer):
        lengths = tokenizer.encodings([(text,) for text in texts]).lengths
        assert lengths.max() <= most
        seen.add(rows_and_positions(trunk, lengths.tolist()))
    reachable = {size for size in LINES if size <= 2 * most}
    assert {(1, size) for size in reachable} <= seen


def test_rows_of_a_few_texts_that_callers_ask_have_a_shape_that_was_prepared(tmp_path, monkeypatch):
    """Shapes that layers see, of a server that became ready and of one to four texts after that."""
    session = Session(make(tmp_path / "b", "mood", "topics"), backend=NumpyRuntime())
    shapes, original = set(), Graph.__call__

    def call(self, inputs):
        if "ids" in inputs:
            shapes.add(inputs["ids"].shape)
        return original(self, inputs)

    monkeypatch.setattr(Graph, "__call__", call)
    for texts in every_shape(session.tokenizer):
        session.columns(texts)
    before, rng = frozenset(shapes), np.random.default_rng(0)
    for _ in range(60):
        session.columns([" ".join(["good"] * rng.integers(1, 20)) for _ in range(rng.integers(1, 5))])
    assert before and shapes == before


def test_the_shorter_list_is_one_of_single_texts_and_few_batches():
    tokenizer = Tokenizer(TRUNK.tokenizer, TRUNK.settings)
    sizes = [len(texts) for texts in every_head(tokenizer)]
    assert sizes.count(1) == 7 and max(sizes) == 5 and LINES[-1] == LINE and np.all(np.diff(LINES) > 0)
