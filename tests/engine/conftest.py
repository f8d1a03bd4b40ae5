"""Bundles whose tasks change, and a folder of compiled graphs, for the tests that prove or store something."""

import pytest


@pytest.fixture
def root(tmp_path):
    """Three tasks of different kinds."""
    from engine.test_isolation import make

    return make(tmp_path / "bundle", "mood", "names", "alike")


@pytest.fixture
def other(tmp_path):
    """A bundle of the same trunk: a task that is new, and one that is not."""
    from engine.test_isolation import make

    return make(tmp_path / "other", "topics", "mood", seed=50)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which compiled graphs and states of probes are kept."""
    from polyhead.engine.compile.compiled import COMPILED

    monkeypatch.setattr(COMPILED, "path", tmp_path / "compiled")
    return tmp_path / "compiled"
