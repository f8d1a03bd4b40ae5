"""Folders written by PEFT: low-rank matrices for an encoder's dense maps, and the arrays saved with them.

Unknown settings of adapter_config.json are refused, since they might change answers.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
import numpy as np

from polyhead.convert.patterns import Matcher
from polyhead.encoder.families import FAMILIES
from polyhead.encoder.names import our_names, their_names
from polyhead.encoder.shape import Architecture
from polyhead.errors import TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.files import LARGEST_CONFIG, read_plain
from polyhead.plan import Delta, Dense, Layers
from polyhead.project.weights import open_weights
from polyhead.values import Value

_LOG = logging.getLogger(__name__)
CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MERGE = "merge it into its base with PEFT's `merge_and_unload`, save that with `save_pretrained` and import it instead"
TASKS: Mapping[str, str] = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
"""PEFT's `task_type` -> how the model's class ends."""

_DENSE: tuple[Dense, ...] = get_args(Dense)
_ARRAY = re.compile(r"base_model\.model\.(.+)")
_LOW_RANK = re.compile(r"(.+)\.lora_([AB])\.weight")
MOST_NAMES = 10_000  # in a list of adapter_config.json
_WEIGHT = re.compile(r"layers\.(\d+)\.(.+)\.weight")
_NUMBER = re.compile(r"\.(\d+)\.")
# Settings with the values that leave `W x + scale B A x` and the base unchanged.
_ONLY: Mapping[str, tuple[object, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
# Settings of training and bookkeeping: any value is accepted.
_ANY = {
    *("peft_version", "inference_mode", "revision", "modules_to_save", "lora_dropout", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config"),
    *("megatron_core", "qalora_group_size"),
}
Setting = TypeVar("Setting", int, float)


class LowRank(Value, eq=False):
    """The update of one dense map `W x`: `alpha / rank * B A x` (Hu et al. 2022)."""

    a: np.ndarray  # (rank, inputs)
    b: np.ndarray  # (outputs, rank)
    alpha: float

    @property
    def rank(self) -> int:
        """Rows of A and columns of B."""
        return len(self.a)

    def merged(self, weight: np.ndarray) -> np.ndarray:
        """W + alpha / rank * B A, computed in float64, as float32."""
        added = self.b.astype(np.float64) @ self.a.astype(np.float64)
        return (weight + self.alpha / self.rank * added).astype(np.float32)


class Lora(Value, eq=False):
    """An adapter over the encoder in the folder `base`, by the module names in `transformers`."""

    base: Path
    model_class: str  # the class, or the end of its name
    maps: Mapping[str, LowRank]  # by module
    saved: Mapping[str, np.ndarray]  # other arrays, by name
    modules: tuple[str, ...]  # those of `maps` in the encoder's layers
    layers: tuple[Mapping[Dense, LowRank], ...]  # the same by layer and dense map

    def nodes(self, owner: str) -> tuple[Layers, ...]:
        """The trunk's layers with the owner's delta: one node for neighbours of one rank, scale and set of maps."""
        deltas = [_delta(maps, owner) for maps in self.layers]
        nodes = []
        for delta, run in itertools.groupby(range(len(deltas)), key=deltas.__getitem__):
            indices = list(run)
            nodes.append(Layers(start=indices[0], stop=indices[-1] + 1, delta=delta))
        return tuple(nodes)

    def arrays(self) -> dict[str, np.ndarray]:
        """The matrices in the layers, in the form of a part: A is the encoder, B the decoder."""
        arrays = {}
        for index, maps in enumerate(self.layers):
            for target, low in maps.items():
                arrays[f"delta.{index}.{target}.encoder.weight"] = low.a
                arrays[f"delta.{index}.{target}.decoder.weight"] = low.b
        return arrays


class _Settings(msgspec.Struct):
    """The keys of adapter_config.json that are read."""

    peft_type: str
    r: int
    lora_alpha: float
    base_model_name_or_path: str | None = None
    task_type: str | None = None
    auto_mapping: dict[str, str | None] | None = None
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None


def is_adapter(folder: Path | str) -> bool:
    """Whether PEFT wrote the folder."""
    return (Path(folder).expanduser() / CONFIG).is_file()


@contextmanager
def naming(folder: Path | str) -> Iterator[None]:
    """A context in which every TrunkError names the folder."""
    try:
        yield
    except TrunkError as error:
        problem = error.what if str(folder) in error.what else f"{folder}: {error.what}"
        raise type(error)(problem, got=error.got, allowed=error.allowed, do=error.do, **error.facts) from error


def base_named(folder: Path | str) -> str | None:
    """The encoder that the adapter was trained on, as its config names it: a folder, or a hub id."""
    with naming(folder):
        named = _decoded(Path(folder).expanduser()).get("base_model_name_or_path")
    return named if isinstance(named, str) and named else None


def read_lora(folder: Path | str, base: Path, shape: Architecture) -> Lora:
    """The adapter in a folder written by PEFT, over the encoder of this shape in the folder `base`.

    Raises TrunkError for settings beyond low-rank matrices on dense maps, or several ranks or scales inside one layer;
    WeightsMismatch for matrices that do not fit; TrunkNotFound without a safetensors file. Errors name the folder.
    """
    with naming(folder):
        return _lora(Path(folder).expanduser(), base, shape)


def _lora(folder: Path, base: Path, shape: Architecture) -> Lora:
    raw = _decoded(folder)
    _check_settings(raw)
    settings = _settings(raw)
    model_class = _model_class(settings)
    matcher = Matcher(CONFIG)
    maps, saved = _read(folder, settings, matcher)
    places = {module: placed for module in maps if (placed := _places(module, shape))}
    by_place: dict[tuple[int, Dense], LowRank] = {}
    for module, placed in places.items():
        low = maps[module]
        inputs = shape.layer(0).ends(placed[0][1])[0]
        check_ends(module, low, (inputs, sum(shape.layer(0).ends(target)[1] for _, target in placed)))
        parts = np.split(low.b, len(placed))
        by_place |= {place: LowRank(a=low.a, b=b, alpha=low.alpha) for place, b in zip(placed, parts, strict=True)}
    _tell_lacking(folder, set(by_place), settings, shape, matcher)
    layers: list[dict[Dense, LowRank]] = []
    for index in range(shape.layers):
        layers.append({name: by_place[index, name] for name in _DENSE if (index, name) in by_place})
        _check_uniform(index, layers[index])
    return Lora(base=base, model_class=model_class, maps=maps, saved=saved, modules=tuple(places), layers=tuple(layers))


def check_ends(module: str, low: LowRank, ends: tuple[int, ...]) -> None:
    """Raises WeightsMismatch unless the matrices have the map's inputs and outputs."""
    if (low.a.shape[1], len(low.b)) != ends:
        raise WeightsMismatch(
            f"its matrices for '{module}' do not fit the base's map",
            got=f"A {low.a.shape}, B {low.b.shape}",
            allowed=f"{ends[0]} inputs and {ends[1]} outputs",
            do="give the base that it was trained on",
        )


def adapter_line(nodes: tuple[Layers, ...]) -> str:
    """Ranks, maps and layers of an adapter in a few words; layers are numbered from 1."""
    descriptions = []
    for node in nodes:
        if node.delta is not None:
            is_single = node.stop - node.start == 1
            layers = f"layer {node.stop}" if is_single else f"layers {node.start + 1} to {node.stop}"
            targets = node.delta.targets
            maps = "all dense maps" if set(targets) >= set(_DENSE) - {"feed_forward.gate"} else ", ".join(targets)
            descriptions.append(f"rank {node.delta.size} on {maps} of {layers}")
    return "LoRA, " + ("; ".join(descriptions) or "none in the layers")


def _delta(maps: Mapping[Dense, LowRank], owner: str) -> Delta | None:
    if not maps:
        return None
    any_of_them = next(iter(maps.values()))
    return Delta(kind="lora", part=owner, size=any_of_them.rank, alpha=any_of_them.alpha, targets=tuple(maps))


def _decoded(folder: Path) -> dict[str, object]:
    try:
        raw = read_plain(folder / CONFIG, limit=LARGEST_CONFIG)
        return msgspec.json.decode(raw, type=dict[str, object])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _not_understood(error) from None


def _settings(raw: Mapping[str, object]) -> _Settings:
    try:
        settings = msgspec.convert(raw, _Settings)
    except msgspec.ValidationError as error:
        raise _not_understood(error) from None
    name_lists = (settings.target_modules, settings.exclude_modules, settings.rank_pattern, settings.alpha_pattern)
    longest = max((len(names) for names in name_lists if isinstance(names, list | dict)), default=0)
    if longest > MOST_NAMES:
        raise TrunkError(f"{CONFIG} lists too many modules", got=longest, allowed=f"at most {MOST_NAMES:,}", do=MERGE)
    return settings


def _not_understood(error: Exception) -> TrunkError:
    return TrunkError(
        f"{CONFIG} cannot be understood", got=error, do="give the file as PEFT's `save_pretrained` wrote it"
    )


def _check_settings(raw: Mapping[str, object]) -> None:
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise TrunkError("it is no low-rank adapter", got=f"peft_type {kind}", allowed="LORA", do=MERGE)
    for name, value in raw.items():
        is_known = name in _Settings.__struct_fields__ or name in _ANY
        if not (is_known or (value in _ONLY[name] if name in _ONLY else not value)):
            allowed = " or ".join(map(str, _ONLY[name])) if name in _ONLY else "nothing"
            raise TrunkError(
                f"its setting '{name}' means more than low-rank matrices on dense maps",
                got=msgspec.json.encode(value).decode(),
                allowed=f"{allowed} (plain LoRA)",
                do=MERGE,
            )


def _model_class(settings: _Settings) -> str:
    if settings.task_type is None:
        named = (settings.auto_mapping or {}).get("base_model_class")
        if named:
            return named
    elif settings.task_type in TASKS:
        return TASKS[settings.task_type]
    raise TrunkError("its task_type is none that can be read", got=settings.task_type or "none", allowed=list(TASKS))


def _read(folder: Path, settings: _Settings, matcher: Matcher) -> tuple[dict[str, LowRank], dict[str, np.ndarray]]:
    """The matrices by module, and all other arrays by name, float32."""
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / PICKLED).is_file()
        raise TrunkNotFound(
            f"no {WEIGHTS} beside {CONFIG}",
            got=f"{PICKLED}, a pickle" if pickled else None,
            allowed=WEIGHTS,
            do="save it again with PEFT's `save_pretrained(..., safe_serialization=True)`",
        )
    checkpoint = open_weights(folder / WEIGHTS)
    arrays = {}
    for name, array in checkpoint.read({name: name for name in checkpoint.files}).items():
        bare = _ARRAY.fullmatch(name)
        arrays[bare[1] if bare else name] = array
    maps: dict[str, LowRank] = {}
    for name in list(arrays):
        match = _LOW_RANK.fullmatch(name)
        if match and match[2] == "A" and f"{match[1]}.lora_B.weight" in arrays:
            a, b = arrays.pop(name), arrays.pop(f"{match[1]}.lora_B.weight")
            maps[match[1]] = _low_rank(match[1], a, b, settings, matcher)
    return maps, arrays


def _low_rank(module: str, a: np.ndarray, b: np.ndarray, settings: _Settings, matcher: Matcher) -> LowRank:
    rank = _patterned(settings.rank_pattern, module, settings.r, matcher)
    alpha = _patterned(settings.alpha_pattern, module, settings.lora_alpha, matcher)
    if not _is_target(module, settings, matcher):
        raise WeightsMismatch(
            f"it holds matrices for '{module}', which its config does not target",
            got=f"target_modules {settings.target_modules}",
            do="give the config and the arrays of one adapter",
        )
    if rank < 1 or a.ndim != 2 or b.ndim != 2 or not len(a) == b.shape[1] == rank:
        raise WeightsMismatch(
            f"its matrices for '{module}' are not of the rank that its config says",
            got=f"A {a.shape}, B {b.shape}",
            allowed=f"rank {rank}",
            do="give the config and the arrays of one adapter",
        )
    if not (alpha > 0 and math.isfinite(alpha)):
        raise TrunkError(f"its alpha for '{module}' is no positive number", got=alpha)
    # use_rslora: alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski 2023).
    return LowRank(a=a, b=b, alpha=alpha * math.sqrt(rank) if settings.use_rslora else alpha)


def _patterned(patterns: Mapping[str, Setting] | None, module: str, default: Setting, matcher: Matcher) -> Setting:
    """The value of the first pattern that the module's name ends in, as in PEFT: `(.*\\.)?(pattern)$`."""
    for pattern, value in (patterns or {}).items():
        if any(len(module) in matcher.ends(pattern, module, start) for start in _starts(module)):
            return value
    return default


def _is_target(module: str, settings: _Settings, matcher: Matcher) -> bool:
    """Whether PEFT would put matrices there, as in its `check_target_module_exists`."""
    if _matches(settings.exclude_modules, module, matcher):
        return False
    if settings.target_modules in (None, "all-linear"):
        return True
    is_named = isinstance(settings.target_modules, list) and module in settings.target_modules
    if is_named or isinstance(settings.target_modules, str) or settings.layers_to_transform in (None, []):
        return _matches(settings.target_modules, module, matcher)
    wanted, patterns = settings.layers_to_transform, settings.layers_pattern or r"[^.]*"
    layer_patterns = [patterns] if isinstance(patterns, str) else patterns
    numbers = [number for pattern in layer_patterns if (number := _layer_number(pattern, module, matcher))]
    among = map(str, [wanted] if isinstance(wanted, int) else wanted or [])
    return bool(numbers) and numbers[0] in among and _matches(settings.target_modules, module, matcher)


def _layer_number(pattern: str, module: str, matcher: Matcher) -> str | None:
    """The number after the match of the pattern, as in PEFT: `(^|.*?\\.)pattern\\.(number)\\.`."""
    for start in _starts(module):
        for end in reversed(matcher.ends(pattern, module, start)):
            if match := _NUMBER.match(module, end):
                return match[1]
    return None


def _starts(module: str) -> list[int]:
    """The start of the name, and the positions after each of its dots."""
    return [0, *(match.end() for match in re.finditer(r"\.", module))]


def _matches(names: list[str] | str | None, module: str, matcher: Matcher) -> bool:
    """Whether the whole name matches the expression, or equals or ends in one of the names."""
    if isinstance(names, str):
        return matcher.fits(names, module)
    return any(module == name or module.endswith(f".{name}") for name in names or ())


def _places(module: str, shape: Architecture) -> tuple[tuple[int, Dense], ...]:
    """Layers and dense maps that the module is, several for a fused one; () for modules outside the layers."""
    prefix = f"{FAMILIES[shape.family].prefix or shape.family}."
    if not module.startswith(prefix):
        return ()
    matches = [_WEIGHT.fullmatch(ours) for ours in our_names(f"{module.removeprefix(prefix)}.weight", shape.family)]
    places = [(int(match[1]), target) for match in matches if match for target in _DENSE if target == match[2]]
    return tuple(place for place in places if place[0] < shape.layers)


def _tell_lacking(
    folder: Path, present: Collection[tuple[int, Dense]], settings: _Settings, shape: Architecture, matcher: Matcher
) -> None:
    """Logs the targeted maps without matrices; PEFT treats these as zeros."""
    if settings.target_modules is None:
        return
    prefix = FAMILIES[shape.family].prefix or shape.family
    places = ((i, target) for i in range(shape.layers) for target in _DENSE if target in shape.layer(i).maps)
    lacking = {
        f"{prefix}.{name.removesuffix('.weight')}": None
        for index, target in places
        if (index, target) not in present
        for name in their_names(f"layers.{index}.{target}.weight", shape.family)
        if _is_target(f"{prefix}.{name.removesuffix('.weight')}", settings, matcher)
    }
    if lacking:
        _LOG.warning(
            "%s has no matrices for %d maps that its config targets, such as %s: they stay the base's, as with PEFT",
            folder,
            len(lacking),
            ", ".join(list(lacking)[:3]),
        )


def _check_uniform(index: int, maps: Mapping[Dense, LowRank]) -> None:
    if len({(low.rank, low.alpha) for low in maps.values()}) > 1:
        descriptions = [f"{target}: rank {low.rank}, scale {low.alpha / low.rank:g}" for target, low in maps.items()]
        raise TrunkError(
            f"its maps in layer {index + 1} have several ranks or scales",
            got=descriptions,
            allowed="one rank and one scale in each layer",
            do=f"use rank_pattern and alpha_pattern for whole layers; or {MERGE}",
        )
