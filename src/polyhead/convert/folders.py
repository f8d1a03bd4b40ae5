"""Folders of checkpoints and adapters: each is read once and compared with the others; only its digests are kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from polyhead.bundle.owners import owner_named
from polyhead.convert.hugging_face import ForeignHead, read_adapted_head, read_base, read_encoder, read_head
from polyhead.convert.peft import Lora, adapter_line, base_named, is_adapter, read_lora
from polyhead.convert.scan import (
    Group,
    ScannedEncoder,
    ScanTotals,
    SharedLayers,
    groups_of_models,
    over,
    pairs,
    scanned,
    separate_cost,
    shared,
    together,
    tokenizer_digest,
)
from polyhead.encoder.data import TrunkData
from polyhead.errors import ConfigError, TrunkError, TrunkNotFound, WrongTrunk
from polyhead.files import read_plain
from polyhead.progress import Show
from polyhead.project.pretrained import find_encoder
from polyhead.text.tokenizer_file import LARGEST
from polyhead.values import Value

LOW = 8  # a delta is of low rank up to min(rows, columns) / LOW
_FLOAT32, _BFLOAT16, _FLOAT16 = 2.0**-23, 2.0**-7, 2.0**-10  # spacing of the numbers around 1


class FoundFolder(Value):
    """One folder: its encoder's digests, its class and labels, and its difference from the base."""

    scanned: ScannedEncoder
    model_class: str = ""
    labels: tuple[str, ...] = ()
    refused: str = ""  # why it cannot be imported
    adapter: str = ""  # the base of its low-rank matrices; "" for a whole model
    is_compared: bool = True  # False for a refused adapter: only its base could be compared
    with_base: SharedLayers | None = None
    difference: EncoderDifference | None = None  # None without a base, or for another shape

    def facts(self) -> dict[str, object]:
        """The fields of a report on it."""
        scanned, names = self.scanned, ("labels", "refused", "with_base", "difference", "adapter")
        return {name: getattr(self, name) for name in names} | {
            "folder": scanned.name,
            "class": self.model_class,
            "kind": scanned.head.kind if scanned.head is not None else None,
            "layers": len(scanned.layers),
            "digests": {name: getattr(scanned, name) for name in ("tokenizer", "embeddings", "layers")},
        }


class Scan(Value):
    """The layers that folders share, and the savings of merging them on one text of `tokens` tokens."""

    models: tuple[FoundFolder, ...]
    pairs: tuple[SharedLayers, ...]
    groups: tuple[Group, ...]
    tokens: int
    apart: ScanTotals
    merged: ScanTotals
    base: ScannedEncoder | None = None

    @property
    def encoders(self) -> dict[str, ScannedEncoder]:
        """The compared encoders by name."""
        return {folder.scanned.name: folder.scanned for folder in self.models if folder.is_compared}

    @property
    def short_names(self) -> dict[str, str]:
        """The last part of each folder if no two are equal; else the folders as the user wrote them."""
        folders = [model.scanned.name for model in self.models]
        last = [Path(name).name for name in folders]
        return dict(zip(folders, last if len(set(last)) == len(last) and all(last) else folders, strict=True))

    def nearest(self, name: str) -> SharedLayers | None:
        """The layers shared with the model that shares the most; None if no model shares any."""
        sharing = [pair for pair in self.pairs if name in (pair.one, pair.other) and pair.layers is not None]
        return max(sharing, key=lambda pair: pair.layers or 0, default=None)

    def facts(self) -> dict[str, object]:
        """The fields of a report on it."""
        facts = {"models": [model.facts() for model in self.models], "base": self.base and self.base.name}
        return facts | {name: getattr(self, name) for name in ("pairs", "groups", "tokens", "apart", "merged")}


def scan_folders(
    folders: Sequence[str], *, base: str | None = None, tokens: int = 32, show: Show = lambda text: None
) -> Scan:
    """Compares folders written by `save_pretrained` with each other, and with `base` (a name for `load_trunk`).

    Without a base, that of the first adapter among them is used. Memory holds one encoder at a time, and the base.
    Raises an error that names the folder it cannot read.
    """
    check_distinct(folders)
    bases = BaseEncoders(base)
    base = bases.first(folders)
    if base is not None:
        show(f"reading {base}")
    origin = read_base(base) if base is not None else None
    against = scanned(origin) if origin is not None else None
    models = []
    for i, folder in enumerate(folders):
        show(f"reading {folder} ({i + 1} of {len(folders)})")
        if against is not None and is_adapter(folder):
            models.append(_found_adapter(folder, against, bases))
        else:
            models.append(_read_folder(folder, origin, against, show))
    show("")
    encoders = [model.scanned for model in models if model.is_compared]
    by_name = {encoder.name: encoder for encoder in encoders}
    grouped = groups_of_models(encoders, against)
    return Scan(
        models=tuple(models),
        pairs=tuple(pairs(encoders)),
        groups=tuple(grouped),
        tokens=tokens,
        apart=separate_cost(encoders, tokens),
        merged=together(grouped, by_name, tokens),
        base=against,
    )


class AdaptedEncoder(Value, eq=False):
    """One folder that PEFT wrote, with its base."""

    lora: Lora
    head: ForeignHead
    scanned: ScannedEncoder  # the base's digests, under the folder's name and with its deltas


class BaseEncoders:
    """The encoders that adapters were trained on: the folders that they name, or else the given one."""

    def __init__(self, base: str | None) -> None:
        self._base = base
        self._read: dict[Path, ScannedEncoder] = {}

    def first(self, folders: Sequence[str]) -> str | None:
        """The given base, else that of the first adapter among the folders; None without adapters."""
        return self._base or next((str(self.folder(folder)) for folder in folders if is_adapter(folder)), None)

    def folder(self, adapter: str) -> Path:
        """The folder of the adapter's base; raises TrunkNotFound if it does not exist and no base is given."""
        named = base_named(adapter)
        place = os.path.expanduser(named or "")
        if os.path.isdir(place):
            return Path(place)
        if self._base is None:
            raise TrunkNotFound(
                f"{adapter}: the encoder that the adapter was trained on is no folder here",
                got=named or "no base_model_name_or_path in adapter_config.json",
                do="give it with --base: a folder, a hub id, or a name such as 'minilm'",
            )
        return find_encoder(self._base)

    def encoder(self, adapter: str) -> ScannedEncoder:
        """The digests of the adapter's base, under the adapter's name."""
        folder = self.folder(adapter)
        if folder not in self._read:
            self._read[folder] = scanned(read_encoder(folder))
        return msgspec.structs.replace(self._read[folder], name=adapter)

    def adapted(self, adapter: str) -> AdaptedEncoder:
        """The adapter with its base; raises TrunkError, naming the folder, if it cannot be imported."""
        folder, encoder, owner = self.folder(adapter), self.encoder(adapter), owner_named(adapter)
        _check_tokenizer(adapter, encoder)
        lora = read_lora(adapter, folder, encoder.architecture)
        head = read_adapted_head(adapter, lora)
        pool, node = head.ends(owner)
        adapted = msgspec.structs.replace(encoder, pool=pool, head=node, base=str(folder), adapted=lora.nodes(owner))
        return AdaptedEncoder(lora=lora, head=head, scanned=adapted)


def check_distinct(folders: Sequence[str]) -> None:
    """Raises ConfigError for a folder that is named twice."""
    places = [Path(folder).expanduser().resolve() for folder in folders]
    twice = [folder for i, folder in enumerate(folders) if places[i] in places[:i]]
    if twice:
        raise ConfigError("a folder is named twice", got=twice, do="name each folder once")


def scanned_with(data: TrunkData, head: ForeignHead | None) -> ScannedEncoder:
    """An encoder's digests with the end of its path."""
    return scanned(data) if head is None else scanned(data, head.ends(owner_named(data.name)))


def _read_folder(folder: str, origin: TrunkData | None, base: ScannedEncoder | None, show: Show) -> FoundFolder:
    data = read_encoder(folder)
    head, refused = None, ""
    try:
        head = read_head(folder)
    except TrunkError as error:
        refused = str(error)
    encoder = scanned_with(data, head)
    with_base = shared(base, encoder) if base is not None else None
    comparable = origin is not None and with_base is not None and not with_base.differs.startswith("the shape")
    if comparable:
        show(f"comparing {folder} with the base")
    return FoundFolder(
        scanned=encoder,
        model_class=head.model_class if head is not None else "",
        labels=head.labels if head is not None else (),
        refused=refused,
        with_base=with_base,
        difference=encoder_difference(data, origin) if comparable and origin is not None else None,
    )


def _found_adapter(folder: str, base: ScannedEncoder, bases: BaseEncoders) -> FoundFolder:
    try:
        adapted = bases.adapted(folder)
        over(base, [adapted.scanned])
    except (TrunkError, WrongTrunk) as error:
        return FoundFolder(scanned=bases.encoder(folder), refused=str(error), is_compared=False)
    return FoundFolder(
        scanned=adapted.scanned,
        model_class=adapted.head.model_class,
        labels=adapted.head.labels,
        adapter=adapter_line(adapted.scanned.adapted),
        with_base=shared(base, adapted.scanned),
    )


def _check_tokenizer(adapter: str, encoder: ScannedEncoder) -> None:
    """Raises TrunkError if the adapter has another tokenizer than its base."""
    file = Path(adapter).expanduser() / "tokenizer.json"
    if not file.is_file():
        return
    try:
        digest = tokenizer_digest(read_plain(file, limit=LARGEST))
    except Exception as error:  # the library raises a bare Exception for an unreadable file
        raise TrunkError(f"{adapter}: its tokenizer.json cannot be understood", got=error) from None
    if digest != encoder.tokenizer:
        raise TrunkError(
            f"{adapter}: its tokenizer is not that of its base",
            got=f"digests {digest[:12]} and {encoder.tokenizer[:12]}",
            do="tokens that were added need embeddings of their own; such a model is a trunk of its own",
        )


class EncoderDifference(Value):
    """The arrays of an encoder that differ from the base, and the rank of W - W0 over its matrices.

    A singular value counts if it exceeds the effect of rounding: the spacing of the stored precision times the root
    mean square of W times (sqrt(rows) + sqrt(columns)). The search ends at the first matrix that is not of low rank.
    """

    matrices: tuple[str, ...]  # names of the differing arrays
    vectors: tuple[str, ...]
    rank: int  # the largest found
    largest: str  # the matrix with that rank, "" for none
    allowed: int  # the largest rank that is low for that matrix
    is_low_rank: bool  # at least one matrix differs, and all that do are of low rank


def encoder_difference(data: TrunkData, base: TrunkData) -> EncoderDifference:
    """The difference of the layers and embeddings that both encoders have."""
    common = [name for name in data.arrays if name in base.arrays]
    changed = [name for name in common if not np.array_equal(data.arrays[name], base.arrays[name])]
    matrices = [name for name in changed if data.arrays[name].ndim == 2]
    vectors = tuple(name for name in changed if data.arrays[name].ndim != 2)
    rank, largest, allowed = 0, "", 0
    for name in sorted(matrices, key=lambda name: data.arrays[name].size):
        own_rank, limit = rank_of(data.arrays[name], base.arrays[name]), low_rank(data.arrays[name].shape)
        if own_rank > rank or own_rank > limit:
            rank, largest, allowed = own_rank, name, limit
        if own_rank > limit:
            break
    return EncoderDifference(
        matrices=tuple(matrices),
        vectors=vectors,
        rank=rank,
        largest=largest,
        allowed=allowed,
        is_low_rank=bool(matrices) and rank <= allowed,
    )


def low_rank(shape: tuple[int, ...]) -> int:
    """The largest rank that counts as low for a matrix of this shape."""
    return max(1, min(shape) // LOW)


def rank_of(matrix: np.ndarray, base: np.ndarray) -> int:
    """The numerical rank of matrix - base; see `EncoderDifference` for the tolerance."""
    delta = np.asarray(matrix, np.float64) - base
    if delta.shape[0] > delta.shape[1]:
        delta = delta.T
    if delta.shape[1] > 2 * delta.shape[0]:  # the word vectors: a triangle has the same singular values
        delta = np.linalg.qr(delta.T, mode="r")
    size = np.sqrt(np.mean(np.square(np.maximum(np.abs(matrix), np.abs(base)), dtype=np.float64)))
    noise = max(spacing(matrix), spacing(base)) * size * sum(np.sqrt(matrix.shape))
    return int(np.sum(np.linalg.svd(delta, compute_uv=False) > noise))


def spacing(array: np.ndarray) -> float:
    """Spacing around 1 of the precision in which float32 numbers were stored, judged by bits that are never set."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    if not np.any(bits & 0xFFFF):
        return _BFLOAT16
    return _FLOAT32 if np.any(bits & 0x1FFF) else _FLOAT16
