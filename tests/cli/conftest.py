"""A tiny bundle that the commands trained, and folders to work in."""

import pytest

from support import head_search
from support.commands import run, write_project
from support.encoding import encode_by_torch
from support.shared import made_once


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder with trunk, data, polyhead.toml and its trained bundle; tests leave it as it is."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            head_search.shorten(patch)
            encode_by_torch(patch)  # also where no test of a module ran before
            done = run("train", write_project(folder))
        assert done.code == 0, done.err

    return made_once(tmp_path_factory, "commands", make)


@pytest.fixture
def work(tmp_path, home):
    """A folder of the test's own with the tiny trunk and data, but no project and no bundle."""
    (tmp_path / "trunk").symlink_to(home / "trunk")
    (tmp_path / "data").symlink_to(home / "data")
    return tmp_path
