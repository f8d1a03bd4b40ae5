"""A session over all tiny tasks."""

import pytest

from polyhead.engine.session import Session
from support.scoring_files import make_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("scoring") / "bundle")


@pytest.fixture
def session(bundle):
    return Session(bundle, backend="reference")
