"""BART-type encoder-decoders through `transformers`: from a folder or hub id to data, and from data to a model.

Its classes are used directly and never subclassed; a bundle stores plain data (`encoder.summarizer`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.bundle.summarizer import json_object, known_config, known_generation
from polyhead.deep.nn.library import quiet, tokenizer_json, transformers_library
from polyhead.encoder.data import TextSettings
from polyhead.encoder.summarizer import Seq2SeqData, SummarySettings
from polyhead.errors import BackendError, ConfigError, TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.files import LARGEST_CONFIG, read_plain
from polyhead.project.weights import first_line
from polyhead.text.batch import batches
from polyhead.text.tokenize import Encoded, Tokenizer
from polyhead.text.tokenizer_file import LARGEST, check_ids, open_tokenizer, tokenizer_facts
from polyhead.values import Value

MOST_TOKENS = 1024  # of a document, unless a limit is declared
TOKEN_BUDGET = 4096  # padded document tokens of a batch, times beams
ZEROS = ("final_logits_bias",)  # checkpoints saved without a head omit it; it is zero then


class GeneratedSummary(Value):
    """One summary and its cost."""

    text: str
    tokens: int  # of the document, read, including special ones
    steps: int  # tokens generated
    cut: int  # tokens of the document beyond the limit
    repaired: int  # lone surrogates that were replaced before reading


def load_seq2seq(name: str, *, max_tokens: int | None = None, summary_tokens: int = 128, beams: int = 1) -> Seq2SeqData:
    """The model in a folder that `save_pretrained` wrote, or under a hub id; HF_HUB_OFFLINE is respected.

    `max_tokens` limits documents; by default it is the model's limit, at most 1024. Raises TrunkNotFound, TrunkError
    for a model that generates no text, WeightsMismatch for weights or a tokenizer that do not fit, ConfigError for
    limits beyond the model's.
    """
    library = transformers_library("a summarization task")
    place = os.path.expanduser(name)
    with quiet(library):
        config_keys = known_config(_opened(name, lambda: _config_json(library, place)), name)
        _try_tokenizer(_opened(name, lambda: _tokenizer_file(library, place)))
        config = _opened(name, lambda: library.AutoConfig.for_model(**config_keys))
        model, loading = _opened(
            name,
            lambda: library.AutoModelForSeq2SeqLM.from_pretrained(
                place,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=True,
            ),
        )
        reader = _opened(name, lambda: library.AutoTokenizer.from_pretrained(place, trust_remote_code=False))
    _check_loaded(name, loading)
    tokenizer = _tokenizer(name, reader)
    check_ids(tokenizer, config_keys["vocab_size"], owner=f"'{name}'")
    limit = config_keys["max_position_embeddings"]
    settings = SummarySettings(
        max_tokens=min(MOST_TOKENS, limit) if max_tokens is None else max_tokens,
        summary_tokens=summary_tokens,
        beams=beams,
    )
    _check_limits(name, settings, limit)
    written = json_object(model.generation_config.to_json_string().encode(), name)
    return Seq2SeqData(
        name=name,
        config=_json(config_keys),
        generation=_json(known_generation(written, name, config_keys["vocab_size"])),
        tokenizer=tokenizer,
        arrays=summarizer_arrays(model),
        settings=settings,
    )


def summarizer_arrays(model: nn.Module) -> dict[str, np.ndarray]:
    """The model's arrays in float32; of tied ones the first in the model's own order."""
    known: set[int] = set()
    arrays: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        if value.data_ptr() in known:
            continue
        known.add(value.data_ptr())
        arrays[name] = value.detach().to("cpu", torch.float32).numpy().copy()
    return arrays


class Seq2Seq(nn.Module):
    """A model of `transformers` with its tokenizer, in evaluation mode.

    `dropout` replaces that of its config in training; `bfloat16` is autocast in the call, never in generation.
    """

    def __init__(self, data: Seq2SeqData, *, dropout: float | None = None, bfloat16: bool = False) -> None:
        super().__init__()
        self._data, self._bfloat16 = data, bfloat16
        self._library = transformers_library("a summarization task")
        self.model = _built(self._library, data, dropout).eval()
        settings = data.settings
        self._documents = Tokenizer(data.tokenizer, TextSettings(max_tokens=settings.max_tokens))
        self._summaries = Tokenizer(data.tokenizer, TextSettings(max_tokens=settings.summary_tokens))
        self._decoder = open_tokenizer(data.tokenizer)
        self.pad_id = int(self.model.config.pad_token_id)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Logits (rows, summary tokens, vocabulary), each from the document and the label's tokens before it.

        `labels` (rows, summary tokens) hold -100 for padding, as in `transformers`.
        """
        decoder_ids = self.model.prepare_decoder_input_ids_from_labels(labels)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bfloat16):
            logits: Tensor = self.model(
                input_ids=ids, attention_mask=mask.long(), decoder_input_ids=decoder_ids, use_cache=False
            ).logits
        return logits.float()

    def documents(self, texts: Sequence[str]) -> list[Encoded]:
        """Documents as tokens, cut to the model's limit."""
        return self._documents.encode([(text,) for text in texts])

    def summaries(self, texts: Sequence[str]) -> list[Encoded]:
        """Summaries as training tokens, cut to `summary_tokens`."""
        return self._summaries.encode([(text,) for text in texts])

    @torch.inference_mode()
    def write(
        self, texts: Sequence[str], *, alone: bool = False, show: Callable[[int], None] | None = None
    ) -> list[GeneratedSummary]:
        """One summary per text, in order; `alone`: one text per batch, so that other texts cannot matter.

        Greedy for one beam, else beam search; never sampled. Everything else follows generation_config.json.
        """
        was_training = self.training
        self.eval()
        encoded = self.documents(texts)
        summaries: dict[int, GeneratedSummary] = {}
        budget = max(1, TOKEN_BUDGET // self._data.settings.beams)
        for batch in batches(encoded, token_budget=1 if alone else budget, pad_id=self.pad_id):
            ids = self._generated(torch.from_numpy(batch.ids), torch.from_numpy(batch.mask).long())
            for row, member in enumerate(batch.members.tolist()):
                summaries[member] = self._written(encoded[member], ids[row, 1:].tolist())
            if show is not None:
                show(len(summaries))
        self.train(was_training)
        return [summaries[index] for index in range(len(encoded))]

    def data(self) -> Seq2SeqData:
        """The same model as data, with its current arrays."""
        return msgspec.structs.replace(self._data, arrays=summarizer_arrays(self.model))

    def _generated(self, ids: Tensor, mask: Tensor) -> Tensor:
        settings = self._data.settings
        generation = copy.deepcopy(self.model.generation_config)
        generation.max_length, generation.max_new_tokens = None, settings.summary_tokens
        generation.num_beams, generation.do_sample = settings.beams, False
        if settings.beams == 1:  # these are about beams, and the library warns of them
            generation.early_stopping, generation.length_penalty = False, 1.0
        with quiet(self._library):
            ids_written: Tensor = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=generation,
                logits_processor=[_checked_scores],
                trust_remote_code=False,
            )
        return ids_written

    def _written(self, document: Encoded, ids: list[int]) -> GeneratedSummary:
        """The summary in `ids`, which begin after the decoder's start token and may end in padding."""
        ends = self.model.generation_config.eos_token_id
        stop = next((i + 1 for i, token in enumerate(ids) if token in _several(ends)), len(ids))
        return GeneratedSummary(
            text=self._decoder.decode(ids[:stop], skip_special_tokens=True).strip(),
            tokens=len(document.ids),
            steps=stop,
            cut=document.cut,
            repaired=document.repaired,
        )


def _checked_scores(_: Tensor, scores: Tensor) -> Tensor:
    """The scores of each next token; BackendError if one is not a number: any token would be an equally good answer."""
    if not bool((scores < torch.inf).all()):  # -inf marks forbidden tokens
        raise BackendError(
            "an encoder-decoder gave scores of tokens that are not finite",
            got="NaN or infinity",
            allowed="finite numbers",
            do="run `polyhead tasks verify`; where all files are whole, train the task again",
        )
    return scores


def _built(library: Any, data: Seq2SeqData, dropout: float | None) -> Any:
    """The model with the arrays; raises WeightsMismatch unless they are exactly the config's, tied ones once."""
    keys = known_config(json_object(data.config, f"config.json of '{data.name}'"), data.name)
    if dropout is not None:
        keys["dropout"] = dropout
    _check_size(data)
    _check_limits(data.name, data.settings, keys["max_position_embeddings"])
    check_ids(data.tokenizer, keys["vocab_size"], owner=f"'{data.name}'")
    writing = known_generation(
        json_object(data.generation, f"generation_config.json of '{data.name}'"), data.name, keys["vocab_size"]
    )
    with quiet(library):
        try:
            config = library.AutoConfig.for_model(**keys)
            model = library.AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
            model.generation_config = library.GenerationConfig.from_dict(writing)
        except (ValueError, TypeError, RuntimeError) as error:
            raise TrunkError(
                f"the encoder-decoder '{data.name}' cannot be made from its config.json",
                got=first_line(error),
                do="give a BART-type model",
            ) from None
    state: dict[str, Tensor] = model.state_dict()
    wanted = {name: tuple(state[name].shape) for name in summarizer_arrays(model)}
    shapes = {name: tuple(array.shape) for name, array in data.arrays.items()}
    if wanted != shapes:
        wrong = sorted(n for n in {*wanted, *shapes} if wanted.get(n) != shapes.get(n))
        raise WeightsMismatch(
            f"the arrays of the encoder-decoder '{data.name}' are not the ones that its config calls for",
            got=wrong[:5],
            do="give the weights and the config.json of one model",
        )
    with torch.no_grad():
        for name, array in data.arrays.items():
            state[name].copy_(torch.from_numpy(np.array(array)))
    return model


def _check_size(data: Seq2SeqData) -> None:
    """Raises WeightsMismatch for a config of a far larger model, before anything of that size is made."""
    shape, numbers = data.shape, data.parameters
    widest = max(shape.vocabulary, shape.positions, shape.encoder_feed_forward, shape.decoder_feed_forward, shape.width)
    if shape.encoder_layers + shape.decoder_layers > len(data.arrays) or widest * shape.width > numbers:
        raise WeightsMismatch(
            f"the config of the encoder-decoder '{data.name}' is of another model than its arrays",
            got=shape,
            allowed=f"what {len(data.arrays)} arrays of {numbers:,} numbers can be",
        )


def _opened(name: str, open_it: Callable[[], Any]) -> Any:
    try:
        return open_it()
    except Exception as error:  # hub, HTTP client, file system and library raise errors of many types
        raise TrunkNotFound(
            f"the encoder-decoder '{name}' cannot be opened",
            got=first_line(error),
            allowed="a folder that `save_pretrained` wrote, its tokenizer too, or a hub id",
            do="check the name and the network",
            name=name,
        ) from error


def _check_loaded(name: str, loading: Mapping[str, Any]) -> None:
    """Raises WeightsMismatch if the library filled arrays in randomly, or dropped some."""
    missing = sorted(set(loading.get("missing_keys", ())) - set(ZEROS))
    wrong = sorted(map(str, loading.get("mismatched_keys", ())))
    if missing or wrong:
        raise WeightsMismatch(
            f"the weights of '{name}' are not the ones that its config calls for",
            got=f"missing {missing[:5] or 'none'}, of another shape {wrong[:5] or 'none'}",
            do="give the weights and the config.json of one model",
        )


def _tokenizer(name: str, reader: Any) -> bytes:
    tokenizer = tokenizer_json(reader)
    if tokenizer is None:
        raise TrunkError(
            f"no tokenizer beside the encoder-decoder '{name}' that `tokenizers` can read",
            got=type(reader).__name__,
            do="save the tokenizer beside the weights with `save_pretrained`",
        )
    return tokenizer


def _check_limits(name: str, settings: SummarySettings, limit: int) -> None:
    for key in ("max_tokens", "summary_tokens"):
        if getattr(settings, key) > limit:
            raise ConfigError(
                f"the encoder-decoder '{name}' has no positions for that many tokens",
                got=f"{key} = {getattr(settings, key)}",
                allowed=f"at most {limit}",
            )


def _config_json(library: Any, place: str) -> dict[str, Any]:
    """The content of config.json, of a folder or a hub id."""
    folder = Path(place)
    if folder.is_dir():
        return json_object(read_plain(folder / "config.json", limit=LARGEST_CONFIG), f"{folder / 'config.json'}")
    return dict(library.PreTrainedConfig.get_config_dict(place, trust_remote_code=False)[0])


def _tokenizer_file(library: Any, place: str) -> Path | None:
    """The tokenizer.json of a folder, or of a hub id; None where there is none."""
    file = Path(place) / "tokenizer.json"
    if not Path(place).is_dir():
        cached = library.utils.cached_file(place, file.name, _raise_exceptions_for_missing_entries=False)
        return Path(cached) if cached else None
    return file if file.is_file() else None


def _try_tokenizer(file: Path | None) -> None:
    """Raises WeightsMismatch for an unsafe tokenizer, before `transformers` opens it."""
    if file is not None:
        tokenizer_facts(read_plain(file.resolve(), limit=LARGEST))  # the hub's cache contains links to its files


def _json(keys: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(keys, order="sorted"), indent=2) + b"\n"


def _several(ends: int | list[int] | None) -> list[int]:
    return ends if isinstance(ends, list) else [] if ends is None else [ends]
