"""Every registered backend passes every check of `polyhead.testing`."""

from functools import partial

import pytest

from polyhead.engine.backends import BACKENDS, open_backend
from polyhead.testing import BATCHES, CODECS, yield_backend_checks


def make(name, trunk, tasks):
    return open_backend(name, trunk, tasks)


@pytest.mark.parametrize("name", BACKENDS)
def test_backend_passes_every_check(name):
    ran = 0
    for check in yield_backend_checks(name, partial(make, name)):
        try:
            check.run()
        except Exception as error:
            raise AssertionError(f"{check.subject}: {check.name}: {error}") from error
        ran += 1
    assert ran == (len(CODECS) + 1) * len(BATCHES) + 10 + 4


def test_backends_that_are_known_are_all_looked_at():
    assert set(BACKENDS) >= {"torch", "reference"}
