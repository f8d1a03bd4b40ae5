"""A short search for linear heads, where the search is not what is looked at."""

from functools import partial


def shorten(monkeypatch):
    """Linear heads are tried with three penalties in place of ten, in two folds in place of five, in few steps each."""
    from polyhead.train.heads import linear, select

    monkeypatch.setattr(select, "FOLDS", 2)
    monkeypatch.setattr(linear, "ITERATIONS", 8)
    monkeypatch.setattr(select, "solutions", partial(linear.solutions, penalties=linear.PENALTIES[2:8:2]))
