"""Reading by foreign libraries: arrays that torch pickled, and models that `transformers` opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyhead.errors import MissingExtra, WeightsMismatch


def unpickled(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a state dict, floats as float32; raises WeightsMismatch for anything else."""
    # The only torch.load: a foreign file. weights_only reads tensors and plain containers and runs no code.
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise WeightsMismatch(f"{file.name} holds no state dict", got=type(loaded).__name__)
    return {
        name: (value.float() if value.is_floating_point() else value).detach().numpy()
        for name, value in loaded.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def built_tokenizer(folder: Path) -> bytes | None:
    """The tokenizer that `transformers` builds from the vocabulary files of a folder; None without one."""
    library = transformers_library("reading a tokenizer other than tokenizer.json")
    return tokenizer_json(
        library.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    )


def transformers_library(purpose: str) -> Any:
    """`transformers`, imported on its first use; raises MissingExtra that names the purpose."""
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "train", purpose) from None
    return transformers


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Switches off the progress bars of `transformers`, and its warnings about settings made here."""
    log = library.utils.logging
    was_shown, level = log.is_progress_bar_enabled(), log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if was_shown:
            log.enable_progress_bar()


def tokenizer_json(opened: Any) -> bytes | None:
    """The file of a tokenizer that `transformers` opened; None without a fast one or without a vocabulary."""
    inner = getattr(opened, "backend_tokenizer", None)
    # transformers 5 builds a tokenizer of special tokens only if it finds no vocabulary.
    if inner is None or not set(opened.get_vocab()) - set(opened.all_special_tokens):
        return None
    return str(inner.to_str()).encode()
