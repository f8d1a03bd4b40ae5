"""The description of an export: export.json, and README.md with an example that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from polyhead.engine.export.graphs import reads_states
from polyhead.engine.inputs import InputType
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.span import LONGEST
from polyhead.tasks.task import Task
from polyhead.values import Value

FORMAT = 1
RECORD, README, TOKENIZER, TRUNK = "export.json", "README.md", "tokenizer.json", "trunk.onnx"


class Array(Value):
    """An input or output; a size that each run chooses has a name."""

    type: Literal["int64", "float32"]
    shape: tuple[int | str, ...]


class ModelFile(Value):
    """One ONNX model."""

    file: str
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    digests: dict[str, str]  # SHA-256 of the file, and of the one beside it that holds its arrays, where there is one


class TaskFiles(Value):
    """The files of one task: its model, and the trunk outputs and parts of the text that it reads."""

    task: Task
    reads: InputType  # text: one; pair: two as one input; question: a pair for each option
    version: str  # in the bundle
    arrays: str  # digest of the arrays that the task owns
    max_tokens: int  # of a text or pair that it reads, special tokens included
    model: ModelFile
    compare: ModelFile | None = None  # of a pair read separately: features of both texts to the answer
    step: ModelFile | None = None  # of a task that writes: its decoder, a token at a time, behind `model`
    columns: int = 0  # of hashed words that it reads; 0: none
    largest_difference: float = 0.0  # of a logit from the session's
    probes: int = 0  # inputs that were compared


class TokenizerFile(Value):
    """Settings by which a text becomes ids."""

    file: str
    sha256: str
    max_tokens: int
    pad_id: int


class Export(Value):
    """All of an export."""

    format: int
    polyhead: str
    trunk_digest: str
    opset: int
    tokenizer: TokenizerFile
    trunk: ModelFile | None  # None where no task reads the plain text's states
    tasks: dict[str, TaskFiles]
    word_pattern: str  # the regular expression of a word, where a task reads hashed words; else ""
    left_out: dict[str, str]  # tasks that cannot be exported, and why
    checked_with: dict[str, str]
    tolerance: float


_TEXTS: dict[InputType, str] = {
    "text": '["The lamp is broken and late.", "Thank you!"]',
    "pair": '[("Is the lamp good?", "The lamp is bad."), ("Thanks!", "Thank you!")]',
    "question": '[("Which lamp?", "the red one"), ("Which lamp?", "the other")]  # a pair for each option',
}
_BEGIN = """import json
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

export = json.loads(Path("export.json").read_text())
tokenizer = Tokenizer.from_file(export["tokenizer"]["file"])
tokenizer.enable_truncation(export["tokenizer"]["max_tokens"])
tokenizer.enable_padding(pad_id=export["tokenizer"]["pad_id"])

def run(model, values):
    session = onnxruntime.InferenceSession(model["file"])
    outputs = session.run(None, {name: values[name] for name in model["inputs"]})
    return dict(zip(model["outputs"], outputs))

def read(texts):
    encoded = tokenizer.encode_batch(texts)
    values = {"input_ids": np.array([text.ids for text in encoded])}
    values["attention_mask"] = np.array([text.attention_mask for text in encoded])
    values["token_type_ids"] = np.array([text.type_ids for text in encoded])
    return values | (run(export["trunk"], values) if export["trunk"] else {})
"""
_HASHED = '''
import math, re, unicodedata, zlib
from collections import Counter

def mixed(code):
    code = (code ^ code >> 16) * 0x85EBCA6B % 2**32
    code = (code ^ code >> 13) * 0xC2B2AE35 % 2**32
    return code ^ code >> 16

def hashed_row(text, columns):
    """Column and value of each word, pair of words, and 3 to 5 characters of a word."""
    words, row = re.findall(export["word_pattern"], unicodedata.normalize("NFKC", text).lower()), Counter()
    pairs = [f"{one} {two}" for one, two in zip(words, words[1:])]
    grams = [f" {word} "[i : i + n] for word in words for n in (3, 4, 5) for i in range(len(word) + 3 - n)]
    for group in (((words, 0), (pairs, 1)), ((grams, 2),)):
        counts = Counter(mixed(zlib.crc32(one.encode(), begin)) for several, begin in group for one in several)
        values = {code: 1 + math.log(count) for code, count in counts.items()}
        length = math.sqrt(sum(value**2 for value in values.values()))
        for code, value in values.items():
            row[code % columns] += (-value if code >= 2**31 else value) / length
    return row

def hashed(texts, columns):
    if not columns:
        return {}
    rows = [hashed_row(text, columns) for text in texts]
    size = (len(rows), max(map(len, rows)))
    values = {"word_columns": np.zeros(size, np.int64), "word_values": np.zeros(size, np.float32)}
    for number, row in enumerate(rows):
        values["word_columns"][number, : len(row)] = list(row.keys())
        values["word_values"][number, : len(row)] = list(row.values())
    return values
'''
_WHOLE = """
texts = {texts}
values = read(texts)
for name, task in export["tasks"].items():
    if task["reads"] == "{form}" and not (task["compare"] or task["step"]) and "words" not in task["model"]["inputs"]:
        print(name, task["task"]["labels"], run(task["model"], values{hashed}))
"""
_APART = """
pairs = {texts}
sides = [read([pair[side] for pair in pairs]) for side in (0, 1)]
for name, task in export["tasks"].items():
    if task["compare"]:
        first, second = [run(task["model"], values)["features"] for values in sides]
        print(name, task["task"]["labels"], run(task["compare"], {{"first": first, "second": second}}))
"""
_WRITTEN = """
def write(task, values):
    rules, step = task["task"]["generation"], task["step"]
    kept, rows = run(task["model"], values), len(values["input_ids"])
    session = onnxruntime.InferenceSession(step["file"])
    size = step["inputs"]["key.0"]["shape"]
    past = {{name: np.zeros((rows, size[1], 0, size[3]), np.float32) for name in step["inputs"] if "." in name[:6]}}
    ids, length = np.full((rows, 1), rules["start"]), rules.get("tokens", 128)
    for position in range(length):
        read = kept | past | {{"decoder_ids": ids[:, -1:], "position": np.array([position])}}
        outputs = session.run(None, {{name: read[name] for name in step["inputs"]}})
        found = dict(zip(step["outputs"], outputs))
        past = {{name: np.concatenate([past[name], found["new." + name]], 2) for name in past}}
        scores = found["scores"][:, 0]
        if position < rules.get("least", 0):
            scores[:, rules["ends"]] = -np.inf
        forced = [rules["first"]] if position == 0 and "first" in rules else []
        forced = rules.get("last", []) if position == length - 1 and rules.get("last") else forced
        scores[:, forced] = np.inf
        ids = np.concatenate([ids, scores.argmax(-1)[:, None]], 1)
        if np.isin(ids[:, 1:], rules["ends"]).any(1).all():
            break
    return ids[:, 1:]

def cut(ids, ends):
    places = np.flatnonzero(np.isin(ids, ends))
    return ids[: places[0]] if len(places) else ids

texts = {texts}
values = read(texts)
for name, task in export["tasks"].items():
    if task["step"]:
        ends = task["task"]["generation"]["ends"]
        print(name, [tokenizer.decode(cut(ids, ends).tolist()) for ids in write(task, values)])
"""


def readme(export: Export) -> str:
    """The page, in Markdown."""
    parts = ["# ONNX files of a Polyhead bundle", *_files(export), *_examples(export)]
    parts += ["## What the tasks read and give", "\n".join(_notes(export))]
    return "\n\n".join(parts) + "\n"


def _examples(export: Export) -> Iterator[str]:
    """One of the tasks that answer an input at once, and one of those that compare two texts."""
    tasks, begin = export.tasks.values(), _BEGIN
    form = next((reads for reads in _TEXTS if any(_is_whole(task, reads) for task in tasks)), None)
    if form is not None:
        yield "## An example"
        yield "It runs in this folder (`pip install onnxruntime tokenizers`)."
        reads_words = form == "text" and any(task.columns for task in tasks)
        hashed = ' | hashed(texts, task["columns"])' if reads_words else ""
        example = _WHOLE.format(texts=_TEXTS[form], form=form, hashed=hashed)
        yield f"```python\n{begin}{_HASHED if reads_words else ''}{example}```"
        begin = ""
    if any(task.compare is not None for task in tasks):
        yield "## An example of pairs that are read separately"
        runs = "goes on where the first ends" if form else "runs in this folder"
        yield f"It {runs}: each text of a pair is read alone, then the features of both are compared."
        if form is None:
            yield "It needs `pip install onnxruntime tokenizers`."
        yield f"```python\n{begin}{_APART.format(texts=_TEXTS['pair'])}```"
        begin = ""
    yield from _writing(export, begin)


def _writing(export: Export, begin: str) -> Iterator[str]:
    if any(task.step is not None for task in export.tasks.values()):
        yield "## An example of writing"
        runs = "runs in this folder (`pip install onnxruntime tokenizers`)" if begin else "goes on where the first ends"
        yield (
            f"It {runs}, and takes the best token at every step; rules of repetition, and beams, are left to you, with "
            "those of `generation` in export.json."
        )
        yield f"```python\n{begin}{_WRITTEN.format(texts=_TEXTS['text'])}```"


def _is_whole(files: TaskFiles, form: InputType) -> bool:
    """Whether the task answers whole inputs of this form, each by one run of its model."""
    return files.reads == form and files.compare is files.step is None and not kind_of(files.task).per_word


def _files(export: Export) -> Iterator[str]:
    yield (
        f"Made by Polyhead {export.polyhead}; it is not needed to run them. `{RECORD}` says what every file reads and "
        "gives, with labels, thresholds and digests."
    )
    trunk = export.trunk
    if trunk is not None:
        inputs = ", ".join(f"`{name}`" for name in trunk.inputs)
        yield (
            f"`{trunk.file}` is run once on {inputs} (int64, rows by tokens); it gives "
            + ", ".join(f"`{name}`" for name in trunk.outputs)
            + ", which the tasks' files read beside the mask."
        )
    checked = export.checked_with
    probes = sum(task.probes for task in export.tasks.values())
    worst = max(task.largest_difference for task in export.tasks.values())
    yield (
        f"The files were run on {probes} inputs and compared with Polyhead's backend "
        f"`{checked['backend']}` ({checked['precision']}): the largest difference of a logit is {worst:.2g}."
    )
    if export.left_out:
        yield "Not here: " + "; ".join(f"{name} ({why})" for name, why in export.left_out.items()) + "."


def _notes(export: Export) -> Iterator[str]:
    for name, files in export.tasks.items():
        yield (f"- **{name}** ({files.task.kind}): " + ". ".join(_file_notes(files, export.tokenizer.max_tokens)) + ".")


def _file_notes(files: TaskFiles, longest: int) -> Iterator[str]:
    task, kind, file = files.task, kind_of(files.task), files.model
    reads, gives = (", ".join(f"`{name}`" for name in side) for side in (file.inputs, file.outputs))
    yield f"`{file.file}` reads {reads}, gives {gives}"
    if not reads_states(file.inputs):
        yield "It runs the trunk's layers itself, since its prompts stand before the text"
    if files.max_tokens < longest:
        yield f"It reads texts of at most {files.max_tokens} tokens: truncate to these"
    if files.compare is not None:
        yield f"Run it on each text of a pair alone; `{files.compare.file}` reads both as `first` and `second`"
    elif files.reads == "pair":
        yield "It reads two texts as one input"
    if kind.per_option:
        yield (
            "A row is one option of a question: the pair (question, option), or (context, question and option); the "
            "softmax of the logits goes over the options"
        )
    if kind.per_word:
        yield (
            "`words` (rows, words) holds the place of each word's first token, -1 behind the last; leave out a word "
            "without a token of its own"
        )
        yield from _decoding(task)
    if files.step is not None:
        yield f"`{files.step.file}` reads these, the last token of each row, and keys and values of those before"
    if files.columns:
        yield f"`word_columns` and `word_values` are the text's words, hashed to {files.columns:,} columns as above"
    if kind.scores == "softmax":
        yield "`scores` are the labels' probabilities"
    elif kind.scores == "sigmoid":
        yield f"`scores` are each label's probability; a label is given from {task.threshold:g} on"
    elif kind.scores == "range":
        yield "`value` is the answer"
    elif kind.per_word:
        yield (
            "The words are those of the second text, after a place 0 that stands for no answer; `logits` say how well "
            "an answer begins and how well it ends there"
        )
        otherwise = "; there is no answer where the sum of place 0 is larger" if task.null_answers else ""
        yield (
            f"The answer is the words from 1 on, at most {LONGEST}, with the largest sum of the first one's beginning "
            f"and the last one's end{otherwise}; words inside the last one's token belong to it"
        )
    if task.none_below:
        yield (
            f"A session also says `none_of_these` of texts whose familiarity is below {task.none_below:g}; these files "
            "cannot, since the rows that texts are compared with are not exported"
        )


def _decoding(task: Task) -> Iterator[str]:
    """How scores of words become labels."""
    if task.labels:
        yield "A word inside the token of the word before continues its label"
    if task.decoder == "constrained":
        learned = " plus its `transitions` in export.json" if task.transitions else ""
        yield (
            f"The labels of a text are the sequence with the best sum of the logarithms of `scores`{learned}, where "
            "`I-x` may follow only `B-x` or `I-x`; a word without any token has equal scores for all labels, and no "
            "transition to it or from it counts"
        )
    if task.transitions:
        yield "Row 0 of `transitions` is for the first word's label, row 1 + i for a label that follows label i"
