"""A tiny trunk, tiny tasks, and the checks that every backend and every strategy must pass.

For Polyhead's own tests, and for authors of a backend or a strategy:

    for check in yield_backend_checks("mine", make):
        check.run()

Nothing is downloaded and nothing needs a network. torch is imported inside functions only.
"""

from polyhead.testing.backends import BATCHES, yield_backend_checks
from polyhead.testing.deterministic import yield_deterministic_checks
from polyhead.testing.strategies import yield_strategy_checks
from polyhead.testing.tiny import (
    CODECS,
    PIECES,
    WORDS,
    Check,
    tiny_batch,
    tiny_conditioned,
    tiny_loaded,
    tiny_owned,
    tiny_part,
    tiny_path,
    tiny_tasks,
    tiny_tokenizer,
    tiny_trunk,
)
from polyhead.testing.writing import tiny_writing

__all__ = [
    "BATCHES",
    "CODECS",
    "PIECES",
    "WORDS",
    "Check",
    "tiny_batch",
    "tiny_conditioned",
    "tiny_loaded",
    "tiny_owned",
    "tiny_part",
    "tiny_path",
    "tiny_tasks",
    "tiny_tokenizer",
    "tiny_trunk",
    "tiny_writing",
    "yield_backend_checks",
    "yield_deterministic_checks",
    "yield_strategy_checks",
]
