"""What holds for every test of the library holds here too."""

from conftest import _one_thread, _own_seed, pytest_report_header  # noqa: F401
