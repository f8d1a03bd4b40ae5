"""Linear heads are searched for shortly, but where the search is looked at."""

import pytest

import search

SEARCHES = {"test_heads.py", "test_linear.py", "test_baseline.py"}


@pytest.fixture(autouse=True)
def _short_search(request, monkeypatch):
    if request.path.name not in SEARCHES:
        search.shorten(monkeypatch)
