"""Models of `transformers` with their own forward pass: opened, changed by an adapter's arrays, and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from polyhead.deep.nn.library import quiet, transformers_library
from polyhead.errors import TrunkError
from polyhead.project.weights import first_line


def open_foreign(folder: str, path: str, *, model_class: str, own: Mapping[str, Any]) -> tuple[Any, Any]:
    """Tokenizer and float32 model of the folder at `path`, by the end of its class's name, as `Kind.model_class`.

    Raises TrunkError, which names `folder`, if `transformers` cannot open it.
    """
    library = transformers_library("proving an imported task's answers")
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet(library):  # it would warn that an adapter's base has no head
            tokenizer = library.AutoTokenizer.from_pretrained(path, **local)
            auto = getattr(library, f"AutoModelFor{model_class}")
            model = auto.from_pretrained(path, dtype=torch.float32, **local, **own)
    except Exception as error:  # the library raises errors of many types if it cannot open the folder
        raise TrunkError(
            f"{folder}: transformers itself cannot open it",
            got=first_line(error),
            do="give the whole folder that `save_pretrained` wrote, tokenizer files too",
        ) from error
    return tokenizer, model.eval()


def foreign_logits(model: Any, tokens: Mapping[str, Any], *, are_options: bool = False) -> Any:
    """The model's logits, without gradients: (rows, outputs) or (rows, tokens, outputs).

    `are_options`: the rows are the options of one question. The two outputs of an answer's beginning and end come last.
    """
    with torch.inference_mode():
        if are_options:
            return model(**{name: value[None] for name, value in tokens.items()}).logits[0][:, None]
        output = model(**tokens)
        return output.logits if "logits" in output else torch.stack([output.start_logits, output.end_logits], dim=-1)


def add_adapter(model: Any, saved: Mapping[str, np.ndarray], maps: Mapping[str, Any]) -> None:
    """Loads an adapter's arrays into the model, by their common names; `maps` gives each weight with its delta."""
    arrays = model.state_dict()
    arrays |= {name: torch.from_numpy(array) for name, array in saved.items()}
    for module, low in maps.items():
        arrays[f"{module}.weight"] = torch.from_numpy(low.merged(arrays[f"{module}.weight"].numpy()))
    model.load_state_dict(arrays)
