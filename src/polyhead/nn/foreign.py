"""Folders that `transformers` trained: their encoder, and the classifier on it with its labels and kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from polyhead.architecture import linear
from polyhead.config import Value
from polyhead.errors import TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.nn.checkpoint import open_checkpoint
from polyhead.nn.load import load_trunk
from polyhead.plan import Activation, Head, Pool
from polyhead.tasks.kinds.base import spelled
from polyhead.tasks.task import KindName
from polyhead.trunk_data import TrunkData, check_arrays


class ForeignHead(Value, eq=False):
    """A classifier under our names: `head.hidden.*`, where there is a dense layer, and `head.output.*`, float32."""

    model_class: str
    kind: KindName
    labels: tuple[str, ...]  # label i is output i; () for regression
    activation: Activation  # after the dense layer
    arrays: Mapping[str, np.ndarray]

    @property
    def outputs(self) -> int:
        """How many numbers it gives, of each word for tagging."""
        return len(self.arrays["head.output.weight"])

    @property
    def hidden(self) -> int:
        """Width of the dense layer before the output layer, 0 for none."""
        return len(self.arrays.get("head.hidden.weight", ()))

    def ends(self, owner: str) -> tuple[Pool, Head]:
        """The end of its path: the last layer's first position, or first sub-tokens, and the head."""
        head = Head(
            kind=self.kind,
            width=self.outputs,
            part=owner,
            hidden=self.hidden,
            activation=self.activation,
        )
        return Pool(positions="tokens" if self.kind == "tagging" else "first"), head


class _Form(Value):
    """Where a class keeps its head: the names of its dense maps, and what stands between them."""

    model_type: str
    output: str
    hidden: str | None = None
    activation: Activation = "tanh"

    @property
    def names(self) -> dict[str, str]:
        """Our name -> the checkpoint's."""
        maps = {"head.hidden": self.hidden, "head.output": self.output}
        return {
            f"{ours}.{leaf}": f"{theirs}.{leaf}"
            for ours, theirs in maps.items()
            if theirs is not None
            for leaf in ("weight", "bias")
        }


_WORDS = {
    "Bert": "bert",
    "Roberta": "roberta",
    "XLMRoberta": "xlm-roberta",
    "Electra": "electra",
    "DistilBert": "distilbert",
}
_DENSE, _OUT = "classifier.dense", "classifier.out_proj"
# All of them read the first position; BERT's own dense layer is the pooler of its encoder.
CLASSES: Mapping[str, _Form] = {
    "BertForSequenceClassification": _Form(
        model_type="bert", hidden="bert.pooler.dense", output="classifier"
    ),
    "RobertaForSequenceClassification": _Form(model_type="roberta", hidden=_DENSE, output=_OUT),
    "XLMRobertaForSequenceClassification": _Form(model_type="xlm-roberta", hidden=_DENSE, output=_OUT),
    "ElectraForSequenceClassification": _Form(
        model_type="electra", hidden=_DENSE, output=_OUT, activation="gelu"
    ),
    "DistilBertForSequenceClassification": _Form(
        model_type="distilbert", hidden="pre_classifier", output="classifier", activation="relu"
    ),
} | {
    f"{name}ForTokenClassification": _Form(model_type=model_type, output="classifier")
    for name, model_type in _WORDS.items()
}
"""What `read_head` reads: the classes of `transformers` for sequence and token classification."""

_PROBLEMS: Mapping[str, KindName] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


class _Config(msgspec.Struct):
    """The keys of config.json that say what a classifier answers; all others are left alone."""

    model_type: str | None = None
    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None
    num_labels: int | None = None
    problem_type: str | None = None


def read_encoder(folder: Path | str, *, max_tokens: int | None = None) -> TrunkData:
    """The encoder of a folder that `save_pretrained` wrote; every error names the folder. See `load_trunk`."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise TrunkNotFound(
            "there is no such folder", got=folder, do="give a folder saved by `save_pretrained`"
        )
    try:
        data = load_trunk(str(path.resolve()), max_tokens=max_tokens)
    except TrunkError as error:
        raise _in(folder, error) from error
    return msgspec.structs.replace(data, name=str(folder))


def read_base(name: str, *, max_tokens: int | None = None) -> TrunkData:
    """The encoder that `load_trunk` reads under this name; every error names it."""
    try:
        return load_trunk(name, max_tokens=max_tokens)
    except TrunkError as error:
        raise _in(f"base {name}", error) from error


def read_head(folder: Path | str) -> ForeignHead:
    """The classifier of a folder that `save_pretrained` wrote, without its encoder.

    Raises TrunkError for a class or a problem type that is not read, WeightsMismatch for labels and arrays that do
    not belong together; every error names the folder.
    """
    path = Path(folder).expanduser()
    try:
        config = _config(path)
        model_class, form = _form(config)
        arrays = _arrays(path, form, _outputs(config))
        kind = _kind(config, model_class, _outputs(config))
        labels = _labels(config)
    except TrunkError as error:
        raise _in(folder, error) from error
    return ForeignHead(
        model_class=model_class,
        kind=kind,
        labels=() if kind == "regression" else labels,
        activation=form.activation,
        arrays=arrays,
    )


def weights_digests(folder: Path | str) -> dict[str, str]:
    """SHA-256, in hex, of each file that holds the folder's weights, by its name."""
    found = {}
    for file in sorted(set(open_checkpoint(Path(folder).expanduser()).files.values())):
        with file.open("rb") as opened:
            found[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def _in(folder: Path | str, error: TrunkError) -> TrunkError:
    what = error.what if str(folder) in error.what else f"{folder}: {error.what}"
    return type(error)(what, got=error.got, allowed=error.allowed, do=error.do, **error.facts)


def _config(path: Path) -> _Config:
    try:
        return msgspec.json.decode((path / "config.json").read_bytes(), type=_Config)
    except OSError as error:
        raise TrunkNotFound(
            "no config.json", got=error.strerror, do="give a folder saved by `save_pretrained`"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrunkError(
            "config.json cannot be understood", got=error, do="give the file as `save_pretrained` wrote it"
        ) from None


def _form(config: _Config) -> tuple[str, _Form]:
    named = next(iter(config.architectures or ()), None)
    form = CLASSES.get(named or "")
    if named is None or form is None:
        raise TrunkError(
            "its model class has no head that can be read",
            got=named or "no 'architectures' in config.json",
            allowed=sorted(CLASSES),
            do="give a folder that one of these classes saved with `save_pretrained`",
        )
    if config.model_type != form.model_type:
        raise TrunkError(
            f"config.json names the class {named} and another model type",
            got=config.model_type,
            allowed=form.model_type,
            do="give the config.json that belongs to the weights",
        )
    return named, form


def _outputs(config: _Config) -> int:
    """How many labels config.json speaks of; like `transformers`, 2 where it says nothing."""
    if config.id2label is not None:
        return len(config.id2label)
    return 2 if config.num_labels is None else config.num_labels


def _labels(config: _Config) -> tuple[str, ...]:
    """Labels in the order of the outputs; LABEL_0, LABEL_1, ... where none are named, as `transformers` has it."""
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


def _kind(config: _Config, model_class: str, outputs: int) -> KindName:
    if model_class.endswith("TokenClassification"):
        return "tagging"
    problem = config.problem_type
    if problem is not None and problem not in _PROBLEMS:
        raise TrunkError("its problem_type is not known", got=problem, allowed=sorted(_PROBLEMS))
    kind = _PROBLEMS[problem] if problem else "regression" if outputs == 1 else "single_label"
    if (kind == "regression") != (outputs == 1) and kind != "multi_label":
        raise TrunkError(
            f"a head with problem_type '{problem}' cannot have this number of outputs",
            got=outputs,
            allowed="1 for regression, 2 or more for single_label_classification",
            do="train several numbers as several models",
        )
    return kind


def _arrays(path: Path, form: _Form, outputs: int) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(path)
    missing = sorted(set(form.names.values()) - set(checkpoint.files))
    if missing:
        raise WeightsMismatch(
            "the checkpoint lacks arrays of its head",
            got=f"no {', '.join(missing)}",
            do="give a folder that was saved after training",
        )
    arrays = checkpoint.read(form.names)
    rows, hidden = arrays["head.output.bias"].size, arrays.get("head.hidden.bias", np.zeros(0)).size
    if rows != outputs:
        raise WeightsMismatch(
            "config.json and the classifier differ in the number of labels",
            got=f"{outputs} labels (id2label, or 2 where it is missing), {rows} outputs",
            do="give the config.json of these weights, with all labels in id2label",
        )
    width = arrays["head.hidden.weight" if hidden else "head.output.weight"].size // max(1, hidden or rows)
    expected = dict(linear("head.output", hidden or width, outputs))
    expected |= dict(linear("head.hidden", width, hidden)) if hidden else {}
    check_arrays(arrays, expected, owner="its head")
    return arrays
