"""The bundle whose server is measured: the packaged sample's six tasks over `minilm`."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

SAMPLE = ("polyhead.toml", "messages.jsonl", "pairs.jsonl")


def sample_bundle(folder: Path) -> Path:
    """The bundle below this folder, trained where it is not there yet: about a minute."""
    from polyhead.project.tables import read_project
    from polyhead.train.run import train_project

    folder.mkdir(parents=True, exist_ok=True)
    for name in SAMPLE:
        shutil.copy(str(files("polyhead.sample") / name), folder / name)
    project = read_project(folder / "polyhead.toml")
    train_project(project, folder=folder)
    return folder / str(project.bundle)
