"""Freed blocks are used again instead of being given back."""

import subprocess
import sys

import pytest

from support.commands import environment

TAKEN_AGAIN = """
import resource
import numpy as np
from polyhead.deep.loop.optimizer import keep_freed

def new_pages():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(1 << 20) for _ in range(6)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = new_pages()
keep_freed()
new_pages()
print(first, new_pages())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is asked")
def test_blocks_that_were_freed_are_taken_again_without_new_pages():
    """Of 48 MiB; pages may be huge ones."""
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_AGAIN], env=environment(), capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert after < 20 < 50 < before
