"""Folders written by `transformers` or PEFT: their encoder, and the classifier with its labels and kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from polyhead.convert.peft import MERGE, WEIGHTS, Lora, check_ends, is_adapter, naming
from polyhead.encoder.data import TrunkData, check_arrays
from polyhead.encoder.families import FAMILIES, ClassifierForm, EncoderConfig, family_of
from polyhead.encoder.shape import linear, norm_shapes
from polyhead.errors import TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.files import LARGEST_CONFIG, read_plain
from polyhead.plan import Head, Pool
from polyhead.project.pretrained import load_trunk
from polyhead.project.weights import WeightFiles, open_checkpoint
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.base import spelled
from polyhead.tasks.kinds.multiple_choice import MultipleChoice
from polyhead.tasks.kinds.regression import Regression
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.tasks.kinds.span import Span
from polyhead.tasks.task import Kind
from polyhead.values import Value

OUTPUTS: Mapping[str, int] = {Span.name: 2, MultipleChoice.name: 1}
"""The number of outputs of kinds whose classes in `transformers` have always as many, whatever the config says."""


class ForeignHead(Value, eq=False):
    """A classifier under our names: `head.hidden.*`, if there is a dense layer, and `head.output.*`, float32.

    With `head.norm.*` if a layer norm stands between them.
    """

    model_class: str
    kind: str
    labels: tuple[str, ...]  # label i is output i; () for a kind without labels
    form: ClassifierForm  # as its config.json says
    arrays: Mapping[str, np.ndarray]

    @property
    def outputs(self) -> int:
        """Number of outputs, of each word or option where the kind answers these."""
        return len(self.arrays["head.output.weight"])

    @property
    def hidden(self) -> int:
        """Width of the dense layer before the output layer, 0 for none."""
        return len(self.arrays.get("head.hidden.weight", ()))

    def ends(self, owner: str) -> tuple[Pool, Head]:
        """The end of its path: the last layer's first position, mean, or first sub-tokens, and the head."""
        form = self.form
        head = Head(
            kind=self.kind,
            width=self.outputs,
            part=owner,
            hidden=self.hidden,
            activation=form.activation,
            norm_epsilon=msgspec.UNSET if form.norm is None else form.epsilon,
        )
        return Pool(positions="tokens" if KINDS[self.kind].per_word else form.positions), head


def classifiers() -> dict[str, ClassifierForm]:
    """The classes of `transformers` that `read_head` reads: they classify, answer questions or choose among options."""
    return {name: form for family in FAMILIES.values() for name, form in family.classifiers.items()}


class _Config(msgspec.Struct):
    """The keys of config.json that describe a classifier's answers."""

    model_type: str | None = None
    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    whole: dict[str, object] = {}  # all keys


def read_encoder(folder: Path | str, *, max_tokens: int | None = None) -> TrunkData:
    """The encoder of a folder written by `save_pretrained`; every error names the folder. See `load_trunk`."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise TrunkNotFound("there is no such folder", got=folder, do="give a folder saved by `save_pretrained`")
    with naming(folder):
        return msgspec.structs.replace(load_trunk(str(path.resolve()), max_tokens=max_tokens), name=str(folder))


def read_base(name: str, *, max_tokens: int | None = None) -> TrunkData:
    """The encoder that `load_trunk` reads under this name; every error names it."""
    with naming(f"base {name}"):
        return load_trunk(name, max_tokens=max_tokens)


def read_head(folder: Path | str) -> ForeignHead:
    """The classifier of a folder written by `save_pretrained`, without its encoder.

    Raises TrunkError for an unsupported class or problem type, WeightsMismatch for labels and arrays that do not match;
    every error names the folder.
    """
    path = Path(folder).expanduser()
    with naming(folder):
        config = _config(path)
        _, form = _form(config)
        return _head(config, _arrays(open_checkpoint(path), form.names))


def read_adapted_head(folder: Path | str, lora: Lora) -> ForeignHead:
    """The classifier of an adapter: the saved arrays, else the base's, with low-rank matrices merged into both.

    Labels and kind come from a config.json in the folder, else from a base of the same class and with as many outputs,
    else there are none. Raises TrunkError, naming the folder, for arrays that are neither the head's nor low-rank
    matrices in layers.
    """
    path = Path(folder).expanduser()
    with naming(folder):
        base = _config(lora.base)
        named, form = _form(_with_class(base, lora.model_class))
        _check_whole(lora, form)
        arrays = _adapted(lora, form)
        outputs = len(arrays["head.output.weight"])
        config = _Config(num_labels=outputs)
        if (path / "config.json").is_file():
            config = _config(path)
        elif named in (base.architectures or ()) and _outputs(base) == outputs:
            config = base
        config = msgspec.structs.replace(config, model_type=config.model_type or base.model_type, architectures=[named])
        return _head(config, arrays)


def _head(config: _Config, arrays: Mapping[str, np.ndarray]) -> ForeignHead:
    """The classifier with these arrays; the config determines its class, labels and kind."""
    model_class, form = _form(config)
    kind = _kind(config, model_class, _outputs(config))
    sizes = {name: len(arrays[f"{name.removesuffix('.bias')}.weight"]) for name in form.without}
    arrays = {**arrays, **{name: np.zeros(size, np.float32) for name, size in sizes.items()}}
    _check_head(arrays, _outputs(config), fixed=OUTPUTS.get(kind))
    return ForeignHead(
        model_class=model_class,
        kind=kind,
        labels=_labels(config) if "labels" in KINDS[kind].uses else (),
        form=form,
        arrays=arrays,
    )


def weights_digests(folder: Path | str) -> dict[str, str]:
    """SHA-256, in hex, of each file that holds the folder's weights, by its name."""
    digests, path = {}, Path(folder).expanduser()
    files = {path / WEIGHTS} if is_adapter(path) else set(open_checkpoint(path).files.values())
    for file in sorted(files):
        with file.open("rb") as opened:
            digests[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return digests


def _config(path: Path) -> _Config:
    try:
        whole = msgspec.json.decode(read_plain(path / "config.json", limit=LARGEST_CONFIG), type=dict[str, object])
        return msgspec.structs.replace(msgspec.convert(whole, _Config), whole=whole)
    except OSError as error:
        raise TrunkNotFound(
            "no config.json", got=error.strerror, do="give a folder saved by `save_pretrained`"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TrunkError(
            "config.json cannot be understood", got=error, do="give the file as `save_pretrained` wrote it"
        ) from None


def _form(config: _Config) -> tuple[str, ClassifierForm]:
    named = next(iter(config.architectures or ()), None)
    form = classifiers().get(named or "")
    if named is None or form is None:
        raise _no_form(config, named)
    if config.model_type != form.model_type:
        raise TrunkError(
            f"config.json names the class {named} and another model type",
            got=config.model_type,
            allowed=form.model_type,
            do="give the config.json that belongs to the weights",
        )
    return named, msgspec.structs.replace(form, **form.settings(EncoderConfig(config.whole, "config.json")))


def _no_form(config: _Config, named: str | None) -> TrunkError:
    """The error for a class whose head is not read: what of its family is, and why its own is not."""
    family = family_of(config.model_type)
    why = family.unread_head if family is not None and named is not None else ""
    return TrunkError(
        "its model class has no head that can be read" + (f": {why}" if why else ""),
        got=named or "no 'architectures' in config.json",
        allowed=(sorted(family.classifiers) or None)
        if family is not None
        else sorted(set(map(_ending, classifiers()))),
        do="give trunk.name = FOLDER, and train the task anew over its encoder"
        if why
        else "give a folder that one of these classes saved with `save_pretrained`",
    )


def _ending(name: str) -> str:
    return "..." + name[name.rindex("For") :]


def _outputs(config: _Config) -> int:
    """The number of labels in config.json; 2 by default, as in `transformers`."""
    if config.id2label is not None:
        return len(config.id2label)
    return 2 if config.num_labels is None else config.num_labels


def _labels(config: _Config) -> tuple[str, ...]:
    """Labels in the order of the outputs; LABEL_0, LABEL_1, ... if none are named, as in `transformers`."""
    if config.id2label is None:
        return tuple(f"LABEL_{i}" for i in range(_outputs(config)))
    names = {index: spelled(name) for index, name in config.id2label.items()}
    missing = [str(i) for i in range(len(names)) if names.get(str(i)) is None]
    if missing:
        raise TrunkError(
            "the labels in config.json are not numbered from 0",
            got=f"id2label has {sorted(names)[:10]}",
            allowed=f"0 to {len(names) - 1}",
            do="name the label of every output in id2label",
        )
    return tuple(str(names[str(i)]) for i in range(len(names)))


def _kind(config: _Config, model_class: str, outputs: int) -> str:
    for kind in KINDS.values():
        if kind.model_class != Kind.model_class and model_class.endswith(kind.model_class):
            return kind.name
    kinds = {kind.problem_type: kind for kind in KINDS.values() if kind.problem_type is not None}
    if config.problem_type is not None and config.problem_type not in kinds:
        raise TrunkError("its problem_type is not known", got=config.problem_type, allowed=sorted(kinds))
    # As in `transformers` if the config does not name the problem type.
    kind = kinds[config.problem_type or (Regression if outputs == 1 else SingleLabel).problem_type]
    has_labels = "labels" in kind.uses
    if not (outputs >= kind.least_labels if has_labels else outputs == 1):
        raise TrunkError(
            f"a head with problem_type '{config.problem_type}' cannot have this number of outputs",
            got=outputs,
            allowed=f"{kind.least_labels} or more" if has_labels else "1",
            do="name another problem_type in config.json, such as 'regression' for a number"
            if has_labels
            else "train several numbers as several models",
        )
    return kind.name


def _arrays(checkpoint: WeightFiles, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Arrays of a head by our names, from those in the checkpoint."""
    missing = sorted(set(names.values()) - set(checkpoint.files))
    if missing:
        raise WeightsMismatch(
            "the checkpoint lacks arrays of its head",
            got=f"no {', '.join(missing)}",
            do="give a folder that was saved after training",
        )
    return checkpoint.read(names)


def _with_class(config: _Config, ending: str) -> _Config:
    """The config of a classifier of its model type, with this class name or suffix."""
    named = (n for n, form in classifiers().items() if form.model_type == config.model_type and n.endswith(ending))
    return msgspec.structs.replace(config, architectures=[next(named, ending)])


def _check_whole(lora: Lora, form: ClassifierForm) -> None:
    """Raises TrunkError for arrays other than the head's and matrices in the encoder's layers."""
    heads = {name.rpartition(".")[0] for name in form.names.values()}
    foreign = sorted(set(lora.saved) - set(form.names.values()))
    foreign += sorted(set(lora.maps) - set(lora.modules) - heads)
    if foreign:
        raise TrunkError(
            "it changes more than the dense maps of the encoder's layers and the head",
            got=foreign[:5],
            allowed="low-rank matrices on dense maps in layers, and the classifier with the layer before it",
            do=f"train it without these; or {MERGE}",
        )


def _adapted(lora: Lora, form: ClassifierForm) -> dict[str, np.ndarray]:
    """The head's arrays: the saved ones, else the base's, with the low-rank matrices of its maps merged."""
    base, from_base = open_checkpoint(lora.base), {}
    for ours, theirs in form.names.items():
        if theirs not in lora.saved:  # in a bare encoder the pooler has no prefix
            from_base[ours] = theirs if theirs in base.files else theirs.partition(".")[2]
    missing = [form.names[ours] for ours, theirs in from_base.items() if theirs not in base.files]
    if missing:
        modules = sorted({"pooler" if ".pooler." in name else name.split(".")[0] for name in missing})
        raise WeightsMismatch(
            "arrays of its head are neither saved with it nor in its base",
            got=f"no {', '.join(missing)}",
            do=f"train it with modules_to_save = {modules}",
        )
    arrays = base.read(from_base)
    arrays |= {ours: lora.saved[theirs] for ours, theirs in form.names.items() if theirs in lora.saved}
    for ours, theirs in form.names.items():
        module, _, leaf = theirs.rpartition(".")
        if module in lora.maps and leaf == "weight":
            check_ends(module, lora.maps[module], arrays[ours].shape[::-1])
            arrays[ours] = lora.maps[module].merged(arrays[ours])
    return arrays


def _check_head(arrays: Mapping[str, np.ndarray], labels: int, *, fixed: int | None) -> None:
    """Raises WeightsMismatch for arrays that do not match each other, the labels or the `fixed` number of outputs."""
    rows, hidden = arrays["head.output.bias"].size, arrays.get("head.hidden.bias", np.zeros(0)).size
    outputs = labels if fixed is None else fixed
    if rows != outputs and fixed is not None:
        raise WeightsMismatch("the head has another number of outputs than its class", got=rows, allowed=fixed)
    if rows != outputs:
        raise WeightsMismatch(
            "config.json and the classifier differ in the number of labels",
            got=f"{outputs} labels (id2label, or 2 where it is missing), {rows} outputs",
            do="give the config.json of these weights, with all labels in id2label",
        )
    width = arrays["head.hidden.weight" if hidden else "head.output.weight"].size // max(1, hidden or rows)
    expected = dict(linear("head.output", hidden or width, outputs))
    expected |= dict(linear("head.hidden", width, hidden)) if hidden else {}
    expected |= dict(norm_shapes("head.norm", hidden)) if "head.norm.weight" in arrays else {}
    check_arrays(arrays, expected, owner="its head")
