"""Sets of the `datasets` library, and frames, as tables: classes and columns by their names, one split at a time."""

import pytest

from polyhead.api.containers import frame_of, texts_of_rows
from polyhead.api.rows import LabelledTexts
from polyhead.errors import BadValue, MissingColumn


class Feature:
    def __init__(self, **values):
        self.__dict__.update(values)


class Columns:
    """What a `datasets.Dataset` has of a table."""

    column_names = ("text", "label", "tags")

    @property
    def features(self):
        label = Feature(names=["neg", "pos"])
        return {"text": Feature(dtype="string"), "label": label, "tags": Feature(feature=label)}

    def __getitem__(self, name):
        return {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}[name]


class Streamed:
    """What a `datasets.IterableDataset` has, where its columns are not known."""

    column_names = None
    features = None


def test_classes_of_a_set_have_their_names():
    table = frame_of(Columns())
    assert table.column("label") == ["pos", "neg", None]
    assert table.column("tags") == [["neg", "pos"], [], ["pos"]]
    rows = LabelledTexts.of(Columns(), "label", text="text", text_b=None, subject="train")
    assert (rows.inputs, rows.labels) == (["a", "b", "c"], ["pos", "neg", None])


def test_a_set_of_splits_is_refused_with_the_split_to_give():
    with pytest.raises(BadValue, match=r"dataset\['train'\]"):
        texts_of_rows({"train": Columns(), "test": Columns()})


def test_a_set_that_is_read_as_it_comes_is_refused_with_the_way_out():
    with pytest.raises(BadValue, match="Dataset.from_list"):
        frame_of(Streamed())


def test_columns_that_pandas_numbers_are_named_by_their_digits():
    """A frame without names of columns was a bare TypeError."""
    frame = pytest.importorskip("pandas").DataFrame(["where is my parcel?", None])
    with pytest.raises(MissingColumn, match="no column 'text'.*Allowed: 0"):
        texts_of_rows(frame)
    rows, table = texts_of_rows(frame, text="0")
    assert rows == ["where is my parcel?", None]
    assert table.answered({"mood": ["good", "bad"]})["mood"].tolist() == ["good", "bad"]
