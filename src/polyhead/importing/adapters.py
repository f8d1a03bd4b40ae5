"""Folders of adapters and the encoders that they were trained on, each encoder read once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from polyhead.bundle.owners import owner_named
from polyhead.config import Value
from polyhead.errors import TrunkError, TrunkNotFound
from polyhead.files import read_plain
from polyhead.importing.hugging_face import ForeignHead, adapter_base, read_adapted_head, read_adapter, read_encoder
from polyhead.importing.peft import Lora, is_adapter
from polyhead.importing.scan import ScannedEncoder, scanned, tokenizer_digest
from polyhead.nn.load import find_encoder
from polyhead.text.tokenizer_file import LARGEST


class AdaptedEncoder(Value, eq=False):
    """One folder that PEFT wrote, over its base."""

    lora: Lora
    head: ForeignHead
    scanned: ScannedEncoder  # the base's digests, under the folder's name and with its deltas


class BaseEncoders:
    """The encoders that adapters were trained on: the folders that they name, or else the given one."""

    def __init__(self, given: str | None) -> None:
        self._given = given
        self._read: dict[Path, ScannedEncoder] = {}

    def first(self, folders: Sequence[str]) -> str | None:
        """The given base, else that of the first adapter among the folders; None without adapters."""
        return self._given or next((str(self.folder(folder)) for folder in folders if is_adapter(folder)), None)

    def folder(self, adapter: str) -> Path:
        """The folder of the adapter's base; raises TrunkNotFound if it does not exist and no base is given."""
        named = adapter_base(adapter)
        place = os.path.expanduser(named or "")
        if os.path.isdir(place):
            return Path(place)
        if self._given is None:
            raise TrunkNotFound(
                f"{adapter}: the encoder that the adapter was trained on is no folder here",
                got=named or "no base_model_name_or_path in adapter_config.json",
                do="give it with --base: a folder, a hub id, or 'minilm'",
            )
        return find_encoder(self._given)

    def encoder(self, adapter: str) -> ScannedEncoder:
        """The digests of the adapter's base, under the adapter's name."""
        folder = self.folder(adapter)
        if folder not in self._read:
            self._read[folder] = scanned(read_encoder(folder))
        return msgspec.structs.replace(self._read[folder], name=adapter)

    def adapted(self, adapter: str) -> AdaptedEncoder:
        """The adapter with its base; raises TrunkError, naming the folder, for what cannot be imported."""
        folder, encoder = self.folder(adapter), self.encoder(adapter)
        _check_tokenizer(adapter, encoder)
        lora = read_adapter(adapter, folder, encoder.architecture)
        head = read_adapted_head(adapter, lora)
        pool, node = head.ends(owner_named(adapter))
        return AdaptedEncoder(
            lora=lora,
            head=head,
            scanned=msgspec.structs.replace(
                encoder, pool=pool, head=node, base=str(folder), adapted=lora.nodes(owner_named(adapter))
            ),
        )


def _check_tokenizer(adapter: str, encoder: ScannedEncoder) -> None:
    """Raises TrunkError if the adapter has a tokenizer that differs from its base's."""
    file = Path(adapter).expanduser() / "tokenizer.json"
    if not file.is_file():
        return
    try:
        digest = tokenizer_digest(read_plain(file, limit=LARGEST))
    except Exception as error:  # the library raises a bare Exception for a file that it cannot read
        raise TrunkError(f"{adapter}: its tokenizer.json cannot be understood", got=error) from None
    if digest != encoder.tokenizer:
        raise TrunkError(
            f"{adapter}: its tokenizer is not that of its base",
            got=f"digests {digest[:12]} and {encoder.tokenizer[:12]}",
            do="tokens that were added need embeddings of their own; such a model is a trunk of its own",
        )
