"""Names of a trunk's arrays in Hugging Face checkpoints and in Polyhead, by the tables of the families."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from polyhead.encoder.families import FAMILIES, EncoderFamily
from polyhead.encoder.shape import WORD_VECTORS, Architecture, trunk_arrays
from polyhead.errors import WeightsMismatch
from polyhead.values import Value

# Present in a file of the bare encoder, but not one of its arrays: the pooler, and buffers of older versions.
_IGNORED = r"pooler\..*|.*\bposition_ids|.*\btoken_type_ids|.*\binv_freq"
_OLD_LEAVES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_LEAVES = (".weight", ".bias")
_LAST, _LAYER = "{last}", re.compile(r"layers\.(\d+)\.")
_NUMBER = r"(0|[1-9]\d*)"


class ArrayRows(Value):
    """An array of a trunk in a checkpoint: of the rows of an array there, share `part` of `of` equal ones."""

    name: str
    part: int = 0
    of: int = 1

    def bounds(self, rows: int) -> tuple[int, int]:
        """First row and the one behind the last; raises WeightsMismatch where rows cannot be shared out equally."""
        if rows % self.of:
            raise WeightsMismatch(f"array '{self.name}' has no {self.of} equal parts", got=f"{rows} rows")
        return self.part * rows // self.of, (self.part + 1) * rows // self.of


def trunk_names(names: Iterable[str], family: str) -> dict[str, ArrayRows]:
    """Our name -> its place in the checkpoint, for every array of the trunk in it, with or without heads.

    The encoder is found by its word vectors, whatever their prefix ('bert.', 'roberta.', ...). If there is a prefix,
    everything without it is a head and is omitted, as are poolers and index buffers. The old names gamma and beta of
    LayerNorm are understood. Any other name in the encoder raises WeightsMismatch.
    """
    names = list(names)
    prefix, others = _prefix(names, family)
    ignored = re.compile("|".join(filter(None, (_IGNORED, FAMILIES.named(family).ignored))))
    known: dict[str, ArrayRows] = {}
    unknown: list[str] = []
    for name in names:
        bare = name.removeprefix(prefix)
        if not name.startswith(prefix) or bare in others or ignored.fullmatch(bare):
            continue
        ours = our_names(bare, family)
        if not ours or not known.keys().isdisjoint(ours):
            unknown.append(name)
        else:
            known |= {our_name: ArrayRows(name=name, part=part, of=len(ours)) for part, our_name in enumerate(ours)}
    if unknown:
        raise WeightsMismatch(
            f"the checkpoint holds arrays that a {family} encoder does not have",
            got=sorted(unknown)[:5],
            do="check that config.json names the model_type these weights belong to",
        )
    last = max((int(match[1]) for our_name in known if (match := _LAYER.match(our_name))), default=0)
    return {our_name.replace(_LAST, str(last)): place for our_name, place in known.items()}


def pooler_names(names: Iterable[str], family: str) -> dict[str, str]:
    """`weight` and `bias` -> their names of the encoder's own pooler; empty where the checkpoint has none."""
    names, module = list(names), FAMILIES.named(family).pooler
    prefix, _ = _prefix(names, family)
    names_by_leaf = {leaf: f"{prefix}{module}.{leaf}" for leaf in ("weight", "bias")}
    return names_by_leaf if set(names_by_leaf.values()) <= set(names) else {}


def decoder_names(names: Iterable[str], family: str) -> dict[str, str]:
    """Our name -> the checkpoint's, for every array of the decoder; empty if it has none.

    The decoder's word vectors are the trunk's, and are omitted. Any other name in the decoder raises WeightsMismatch.
    """
    form, names = FAMILIES.named(family).decoder, list(names)
    if form is None:
        return {}
    prefix, words = _prefix(names, family)[0], word_names(names, family)
    table = [(_pattern(theirs), ours[0]) for theirs, ours in _leaves(form.table)]
    known, unknown = dict[str, str](), list[str]()
    for name in names:
        bare = name.removeprefix(prefix)
        ours = next((_numbered(our, match) for theirs, our in table if (match := theirs.fullmatch(bare))), None)
        if ours is not None:
            known[ours] = name
        elif name.startswith(f"{prefix}decoder.") and name not in words:
            unknown.append(name)
    if unknown:
        raise WeightsMismatch(
            f"the checkpoint holds arrays that a decoder beside a {family} encoder does not have",
            got=sorted(unknown)[:5],
            do="start the decoder at random, or give a checkpoint of this family as it was saved",
        )
    return known


def word_names(names: Iterable[str], family: str) -> list[str]:
    """The checkpoint's names of its word vectors: the encoder's, then those of a decoder that are the same."""
    names, form = list(names), FAMILIES.named(family).decoder
    prefix, others = _prefix(names, family)
    tied = () if form is None else form.tied
    again = {*others, *tied, *(prefix + name for name in (*others, *tied))}
    first = next(place.name for our_name, place in trunk_names(names, family).items() if our_name == WORD_VECTORS)
    return [first, *(name for name in names if name in again and name != first)]


def our_names(name: str, family: str) -> tuple[str, ...]:
    """Our names of an array of the bare encoder; a fused array has several, an unknown array none."""
    for old, new in _OLD_LEAVES.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    for pattern, ours in _reading(FAMILIES.named(family)):
        if match := pattern.fullmatch(name):
            return tuple(_numbered(our_name, match) for our_name in ours)
    return ()


def check_names(names: Mapping[str, ArrayRows], shape: Architecture) -> None:
    """Raises WeightsMismatch that names the missing and surplus arrays, by their names in the checkpoint."""
    expected = {name for name, _ in trunk_arrays(shape)}
    missing = dict.fromkeys(place.name for place in places_of(sorted(expected - set(names)), shape.family).values())
    extra = [names[name].name for name in sorted(set(names) - expected)]
    if missing or extra:
        raise WeightsMismatch(
            "the checkpoint's arrays are not those that its config.json calls for",
            got=f"missing {list(missing)[:5] or 'none'}, extra {extra[:5] or 'none'}",
            do="give the weights and the config.json of one model",
        )


def _prefix(names: Sequence[str], family: str) -> tuple[str, list[str]]:
    """The prefix of the encoder's names, and second names of its word vectors."""
    words = [theirs for theirs, ours in _leaves(FAMILIES.named(family).table) if ours == (WORD_VECTORS,)]
    names_by_word = {word: [name for name in names if name == word or name.endswith(f".{word}")] for word in words}
    word = next((word for word in words if names_by_word[word]), words[0])
    if len(names_by_word[word]) != 1:
        raise WeightsMismatch(
            f"the checkpoint does not hold one {family} encoder",
            got=f"{len(names_by_word[word])} arrays named '...{word}'",
            allowed=1,
            do="give a checkpoint of one encoder, saved by `transformers`",
        )
    return names_by_word[word][0].removesuffix(word), [other for other in words if other != word]


def places_of(names: Iterable[str], family: str) -> dict[str, ArrayRows]:
    """Our name -> its place in a checkpoint; raises WeightsMismatch for names that no trunk of the family has."""
    places = {name: next(_rows(name, family), None) for name in names}
    unknown = sorted(name for name, place in places.items() if place is None)
    if unknown:
        raise WeightsMismatch(f"these are no arrays of a {family} trunk", got=unknown[:5])
    return {name: place for name, place in places.items() if place is not None}


def their_names(name: str, family: str) -> tuple[str, ...]:
    """The names that our array, or the one it is fused in, has in checkpoints; first the one that is written."""
    return tuple(place.name for place in _rows(name, family))


def _rows(name: str, family: str) -> Iterator[ArrayRows]:
    for pattern, theirs, part, of in _writing(FAMILIES.named(family)):
        if match := pattern.fullmatch(name):
            yield ArrayRows(name=_numbered(theirs, match), part=part, of=of)


def _leaves(table: Sequence[tuple[str, str | tuple[str, ...]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(their name, our names) of every array."""
    for theirs, ours in table:
        parts = (ours,) if isinstance(ours, str) else ours
        if parts[0].endswith(_LEAVES):
            yield theirs, parts
        else:
            yield from ((theirs + leaf, tuple(part + leaf for part in parts)) for leaf in _LEAVES)


@lru_cache
def _reading(family: EncoderFamily) -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
    """Their name as an expression, and our names."""
    return tuple((_pattern(theirs), ours) for theirs, ours in _leaves(family.table))


@lru_cache
def _writing(family: EncoderFamily) -> tuple[tuple[re.Pattern[str], str, int, int], ...]:
    """Our name as an expression, their name, and which share of how many it has."""
    table = ((theirs, ours, part) for theirs, ours in _leaves(family.table) for part in range(len(ours)))
    return tuple((_pattern(ours[part]), theirs, part, len(ours)) for theirs, ours, part in table)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{\}", _NUMBER).replace(re.escape(_LAST), r"\d+"))


def _numbered(name: str, match: re.Match[str]) -> str:
    """The name with the layer's index that another name has."""
    return name.replace("{}", match[1]) if match.re.groups else name
