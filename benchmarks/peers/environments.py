"""Makes the environments that the rivals run in, one for each file of requirements/, in .venvs here.

    python benchmarks/peers/environments.py [NAME ...]        all of them, or those named; 1 to 2 GB each

An environment is made again when its requirements change. Nothing of them is installed beside Polyhead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

from rivals import ENVIRONMENTS, HERE, python_of

REQUIREMENTS = {file.stem: file for file in sorted((HERE / "requirements").glob("*.txt"))}


def main() -> None:
    for name in sys.argv[1:] or REQUIREMENTS:
        began = time.perf_counter()
        done = "made" if made(name) else "is there"
        print(f"{name}: {done}, {time.perf_counter() - began:.0f} s", flush=True)


def made(name: str) -> bool:
    """Makes the environment unless it is there as its requirements say."""
    wanted, stamp = REQUIREMENTS[name].read_text(), ENVIRONMENTS / name / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    shutil.rmtree(ENVIRONMENTS / name, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENTS / name)], check=True)
    pip = [str(python_of(name)), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS[name])], check=True)
    stamp.write_text(wanted)
    return True


if __name__ == "__main__":
    main()
