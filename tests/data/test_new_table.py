"""A format of tables from outside the package, in one file: read for training, guessed, scored and written."""

import importlib.util
from pathlib import Path

import pytest

from polyhead.data.columns import Columns, Source
from polyhead.data.guess_columns import layout_of, table_of
from polyhead.data.read import read
from polyhead.data.rows import Rows
from polyhead.data.tables import TABLES, file_endings
from polyhead.errors import BadValue, DataError
from polyhead.tasks.task import Task

MODULE = Path(__file__).parents[1] / "one_file" / "table.py"
YES_NO = Task(name="mood", kind="single_label", labels=("no", "yes"))
ROWS = [{"text": f"text {number}", "label": ("no", "yes")[number % 2]} for number in range(6)]


@pytest.fixture
def cards(tmp_path):
    """A file of the new format, which is registered as long as the test runs."""
    with TABLES.temporary():
        spec = importlib.util.spec_from_file_location("own_table", MODULE)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        path = tmp_path / "rows.cards"
        path.write_text("\n".join("".join(f"{k}: {v}\n" for k, v in row.items()) for row in ROWS))
        yield str(path)
    with pytest.raises(DataError, match="not known by its name"):
        list(Rows(str(path)))


def test_its_rows_are_read_and_their_columns_guessed(cards):
    examples = read(Source(path=cards), YES_NO)
    assert examples.inputs == [(row["text"],) for row in ROWS]
    assert [int(target) for target in examples.targets] == [0, 1] * 3
    layout = layout_of(table_of(cards), Columns())
    assert (layout.text, layout.label) == ("text", "label")


def test_a_row_that_cannot_be_read_is_named(cards):
    Path(cards).write_text("text: a\nlabel: no\n\ntext\n\ntext: b\nlabel: yes\n")
    first, second, third = Rows(cards).each()
    assert isinstance(second, BadValue) and second.row == 2 and third.values["text"] == "b"
    with pytest.raises(BadValue, match=r"rows.cards row 2: the row has a line without a colon"):
        read(Source(path=cards), YES_NO)


def test_it_is_read_in_chunks_and_written(cards):
    rows = Rows(cards)
    assert rows.survey().rows == 6 and rows.survey().columns == {"text": "text", "label": "text"}
    chunks = list(rows.chunks(("text", "label"), start=4, size=1))
    assert [chunk.kept(("label",)) for chunk in chunks] == [[{"label": "no"}], [{"label": "yes"}]]
    assert ".cards" in file_endings() and ".cards" in file_endings(written=True)
    writer = TABLES["cards"].writer(("text",), ())
    whole = b"".join(writer.whole(writer.piece(chunk, [()]) for chunk in chunks))
    assert whole.decode() == "text: text 4\n\ntext: text 5\n\n"
