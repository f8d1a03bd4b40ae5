"""ONNX files of a bundle's tasks: they answer as the session does, padded at either end, whatever the strategy."""

import hashlib
import itertools
import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from support.tiers import first_of

pytest.importorskip("onnxruntime")

from polyhead.bundle.create import write_bundle
from polyhead.engine.export import graphs, write
from polyhead.engine.export.record import Export
from polyhead.engine.export.write import ExportedModel
from polyhead.engine.session import Session
from polyhead.errors import BackendError, ConfigError, UnknownTask
from polyhead.plan import Codec, Pool
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Pooled, Prompted
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Example
from polyhead.testing import CODECS, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import TEXTS, add_tiny, tiny_bundle, tiny_paths
from polyhead.text.question import Question
from polyhead.text.words import GOES_ON, boundary_places, first_subtokens, words_of

STRATEGIES = {
    "pooled": Pooled(layers="learned", positions="attention", heads=2, hidden=8),
    "mean": Pooled(layers="mean", of=2, positions="mean", hidden=0),
    "beside": Pooled(layers="beside", of=2, positions="mean", hidden=8),
    "neighbours": Pooled(layers="learned", positions="mean", hidden=8, window=2),
    "branch": Branch(positions="first", layers=1),
    "branch-from-below": Branch(positions="attention", tap=0, layers=2),
    "prompted": Prompted(rows=1, shared=2, shift=True, hidden=8),
    "prompted-isolated": Prompted(isolated=True, rows=2),
    "in-layer": InLayer(
        adapters=(Adapter(delta="prefix", size=3, stop=1), Adapter(size=6, heads=2, start=1, share="ends")),
        positions="mean",
    ),
    "in-layer-upper": InLayer(adapters=(Adapter(delta="lora", size=2, start=1),)),
    "on-top": OnTop(width=8, heads=2, layers=2),
}


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def pooled(trunk, tmp_path_factory):
    """A bundle, and its export."""
    folder = tmp_path_factory.mktemp("export")
    tiny_bundle(folder / "bundle", trunk, tiny_paths(STRATEGIES["pooled"], trunk))
    return folder / "bundle", write.export_bundle(folder / "bundle", folder / "out", backend="reference")


def read(folder):
    return msgspec.json.decode((folder / "export.json").read_bytes(), type=Export)


@pytest.mark.parametrize("name", first_of(STRATEGIES))
def test_files_answer_as_the_session(name, trunk, tmp_path):
    """The command's own comparison, with plain numpy that walks each path by itself, over every tiny task that fits."""
    paths = tiny_paths(STRATEGIES[name], trunk)
    tiny_bundle(tmp_path / "b", trunk, paths)
    export = write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    assert set(export.tasks) == set(paths) and len(paths) >= 5
    for files in export.tasks.values():
        assert files.largest_difference < 1e-5 and files.probes >= 3, files.task.name
        assert ("input_ids" in files.model.inputs) == name.startswith("prompted")
    assert read(tmp_path / "out") == export
    check_whole(tmp_path / "out", export)


def check_whole(folder, export):
    """The ONNX library finds no fault, and digests are those of the files."""
    import onnx

    models = [files.model for files in export.tasks.values()] + ([export.trunk] if export.trunk else [])
    for model in models:
        onnx.checker.check_model(folder / model.file, full_check=True)
        for name, digest in model.digests.items():
            content = (folder / model.file).with_name(name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == digest
    assert not list(folder.parent.glob(".new-*"))


def test_a_task_file_holds_what_is_the_tasks_own(trunk, tmp_path, pooled):
    """A pooled task none of the layers, a branch its private one."""
    sizes = {}
    for name in ("mean", "branch"):
        tiny_bundle(tmp_path / name, trunk, tiny_paths(STRATEGIES[name], trunk))
        write.export_bundle(tmp_path / name, tmp_path / f"{name}-out", tasks=["mood"], backend="reference")
        sizes[name] = (tmp_path / f"{name}-out" / "tasks" / "mood.onnx").stat().st_size
    layer = sum(a.nbytes for n, a in trunk.arrays.items() if n.startswith("layers.1."))
    assert layer < sizes["branch"] - sizes["mean"] < 2 * layer


PAIRS = [("Is the lamp good?", "The lamp is bad."), ("Thanks!", "Thank you!")]
README_ASKS = {
    "text": [("The lamp is broken and late.",), ("Thank you!",)],
    "pair": PAIRS,
    "question": [Question(text="Which lamp?", options=("the red one", "the other"))],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "asked", "shown"),
    [
        ("pooled", None, {"mood": "text", "topics": "text", "urgency": "text", "alike": "pair"}),
        ("pooled", ["same", "alike"], {"same": "pair", "alike": "pair"}),
        ("pooled", ["alike"], {"alike": "pair"}),
        ("prompted", ["alike"], {"alike": "pair"}),
        ("pooled", ["reply"], {"reply": "question"}),
    ],
    ids=["texts", "pairs", "separate-pairs", "prompted-separate-pairs", "questions"],
)
def test_the_examples_of_the_readme_run_without_polyhead(strategy, asked, shown, trunk, tmp_path):
    """In a process of its own in which importing polyhead fails; what they print is what the session answers.

    Pairs that are read separately were read as one text, and their features printed beside the labels; of questions
    the example was no Python.
    """
    bundle, out = tmp_path / "b", tmp_path / "out"
    tiny_bundle(bundle, trunk, tiny_paths(STRATEGIES[strategy], trunk))
    write.export_bundle(bundle, out, tasks=asked, backend="reference")
    found = printed(out)
    session = Session(bundle, backend="reference", precision="float32")
    assert set(found) == set(shown)
    for name, form in shown.items():
        wanted = np.stack(session.outputs(name, README_ASKS[form])).reshape(np.shape(found[name]["logits"]))
        np.testing.assert_allclose(found[name]["logits"], wanted, atol=1e-5)
    if asked is None:
        answers = session.predict([text for (text,) in README_ASKS["text"]])
        for name in ("mood", "topics"):
            scores = [list(one.answers[name]["scores"].values()) for one in answers]
            np.testing.assert_allclose(found[name]["scores"], scores, atol=1e-5)
        values = [[one.answers["urgency"]["value"]] for one in answers]
        np.testing.assert_allclose(found["urgency"]["value"], values, atol=1e-5)


def printed(out):
    """What the README's examples print, run one after another as they stand: by task, each output."""
    examples = [one.partition("```")[0] for one in (out / "README.md").read_text().split("```python\n")[1:]]
    assert 1 <= len(examples) <= 2 and all(len(one.splitlines()) <= 30 for one in examples)
    code = f"""
import sys
sys.modules["polyhead"] = sys.modules["torch"] = None
kept = {{}}
def print(name, labels, found): kept[name] = {{key: value.tolist() for key, value in found.items()}}
{"".join(examples)}
json.dump(kept, sys.stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_outputs_are_those_that_the_kind_can_decode(pooled):
    """Scores where a row has them by itself; words where the kind answers these."""
    outputs = {}
    for files in pooled[1].tasks.values():
        outputs[files.task.kind] = set((files.compare or files.model).outputs)
        assert kind_of(files.task).per_word == ("words" in files.model.inputs)
    scored, valued = {"logits", "scores"}, {"logits", "value"}
    assert outputs == {
        "single_label": scored,
        "multi_label": scored,
        "tagging": scored,
        "regression": valued,
        "multiple_choice": {"logits"},
        "span": {"logits"},
    }


def test_padding_before_a_text_is_as_good_as_behind(pooled):
    """Rows turned so that their padding comes first give the same logits."""
    bundle, export = pooled
    exported = ExportedModel(bundle.parent / "out", export)
    texts = [one for one in TEXTS if isinstance(one, tuple) and len(one) == 1]
    found = {}
    for side in ("right", "left"):
        exported._tokenizer.enable_padding(direction=side, pad_id=export.tokenizer.pad_id)
        found[side] = {n: exported.logits(export.tasks[n], texts, []) for n in ("mood", "topics", "urgency")}
    for name, logits in found["left"].items():
        np.testing.assert_allclose(logits, found["right"][name], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pooled", "prompted-isolated"])
def test_another_runtime_reads_the_files_and_answers_alike(name, trunk, tmp_path):
    openvino = pytest.importorskip("openvino")
    tiny_bundle(tmp_path / "b", trunk, tiny_paths(STRATEGIES[name], trunk))
    export = write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    ids = np.random.default_rng(0).integers(5, 60, (3, 7))
    values = {"input_ids": ids, "token_type_ids": 0 * ids, "words": np.array([[1, 2], [1, -1], [2, 3]])}
    values["attention_mask"] = (np.arange(7) < np.array([[7], [4], [5]])).astype(np.int64)
    exported, core = ExportedModel(tmp_path / "out", export), openvino.Core()
    for model in ([export.trunk] if export.trunk else []) + [files.model for files in export.tasks.values()]:
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(core.read_model(tmp_path / "out" / model.file), "CPU", settings)
        found = compiled({one: values[one] for one in model.inputs})
        wanted = exported.run(model, values)
        for one in model.outputs:
            np.testing.assert_allclose(found[one], wanted[one], atol=1e-5)
        values |= wanted


def test_arrays_stand_beside_a_model_that_would_be_too_large(pooled, tmp_path):
    bundle, export = pooled
    small = write.export_bundle(bundle, tmp_path / "small", tasks=["mood"], backend="reference", largest=10_000)
    assert set(small.trunk.digests) == {"trunk.onnx", "trunk.onnx.data"}
    assert (tmp_path / "small" / "trunk.onnx").stat().st_size < 100_000
    assert set(export.trunk.digests) == {"trunk.onnx"}
    assert small.tasks["mood"].largest_difference < 1e-5
    check_whole(tmp_path / "small", small)


def tagger_bundle(root, trunk, **changes):
    """A bundle with the one task 'names', whose head reads each word's neighbours."""
    (task,) = [task for task in tiny_tasks() if task.name == "names"]
    write_bundle(root, trunk)
    path = tiny_paths(STRATEGIES["neighbours"], trunk)["names"]
    add_tiny(root, trunk, msgspec.structs.replace(task, **changes), path, seed=3)


def test_a_word_inside_the_token_before_is_left_out(trunk, tmp_path):
    """ "24th" is two words and one token; an empty place for the second would be read as a neighbour."""
    tagger_bundle(tmp_path / "b", trunk)
    (encoded,) = Session(tmp_path / "b", backend="reference").tokenizer.encode([("24th day",)])
    assert first_subtokens(encoded, words_of("24th day")).tolist() == [1, GOES_ON, 2]
    assert "24th day" in write.TEXTS
    export = write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    assert export.tasks["names"].largest_difference < 1e-5
    assert "leave out a word without a token of its own" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("is_learned", [True, False])
def test_a_taggers_scores_become_the_sessions_spans_as_the_readme_says(is_learned, trunk, tmp_path):
    """Every sequence of labels is tried for the best sum."""
    learned = np.random.default_rng(5).normal(size=(6, 5), scale=2).round(4)
    transitions = tuple(map(tuple, learned.tolist())) if is_learned else ()
    tagger_bundle(tmp_path / "b", trunk, decoder="constrained", transitions=transitions)
    export = write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    notes = (tmp_path / "out" / "README.md").read_text()
    assert "best sum of the logarithms of `scores`" in notes and "`I-x` may follow only `B-x` or `I-x`" in notes
    assert ("plus its `transitions`" in notes) == ("Row 0 of `transitions`" in notes) == is_learned
    session, files = Session(tmp_path / "b", backend="reference", precision="float32"), export.tasks["names"]
    added = np.array(files.task.transitions) if is_learned else np.zeros((6, 5))
    for text in ("anna is happy", "my lamp was late", "where is ben", "the phone"):
        (encoded,) = session.tokenizer.encode([(text,)])
        words = words_of(text)
        logits = ExportedModel(tmp_path / "out", export).logits(files, [(text,)], [first_subtokens(encoded, words)])[0]
        logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        (answer,) = session.predict([text])
        spans = [(span["start"], span["end"], span["label"]) for span in answer.answers["names"]["spans"]]
        assert spans == spans_of(best_sequence(logarithms, files.task.labels, added), files.task.labels, words)


@pytest.mark.parametrize("name", ["where", "who"])
def test_a_spans_logits_become_the_sessions_answer_as_the_readme_says(name, pooled):
    """Every answer is tried; some longer ones, and place 0, have a better sum than the session's answer."""
    bundle, export = pooled
    task, text = export.tasks[name].task, "good lamp late sad " * 12
    (note,) = [line for line in (bundle.parent / "out" / "README.md").read_text().splitlines() if f"**{name}**" in line]
    assert "words from 1 on, at most 30, with the largest sum" in note
    assert ("no answer where the sum of place 0 is larger" in note) == task.null_answers
    places, rng = boundary_places(text), np.random.default_rng(4)
    example, seen = Example(input=("when?", text)), set()
    for logits in rng.normal(size=(60, len(places), 2)):
        every = {(i, j): logits[i, 0] + logits[j, 1] for i in range(1, len(places)) for j in range(i, len(places))}
        first, last = max((pair for pair in every if pair[1] - pair[0] < 30), key=every.__getitem__)
        logits[0] *= 2
        is_none = task.null_answers and logits[0].sum() > every[first, last]
        answer = kind_of(task).decode(task, logits, example)
        assert (answer["start"], answer["end"]) == ((None, None) if is_none else (places[first, 0], places[last, 1]))
        seen.add((bool(logits[0].sum() > every[first, last]), bool(max(every.values()) > every[first, last])))
    assert {(False, True), (True, False), (False, False)} <= seen


def test_the_readme_says_that_no_file_knows_whether_a_text_is_familiar(trunk, tmp_path):
    mood = msgspec.structs.replace(tiny_tasks()[0], none_below=0.05)
    write_bundle(tmp_path / "b", trunk)
    add_tiny(tmp_path / "b", trunk, mood, tiny_paths(STRATEGIES["mean"], trunk)["mood"], seed=3)
    write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    assert "`none_of_these` of texts whose familiarity is below 0.05" in (tmp_path / "out" / "README.md").read_text()


def best_sequence(logarithms, labels, transitions):
    """Indices of labels, by trying all."""
    every = [s for s in itertools.product(range(len(labels)), repeat=len(logarithms)) if may_stand(s, labels)]
    sums = []
    for sequence in every:
        rows = [0, *(1 + before for before in sequence[:-1])]
        sums.append(sum(logarithms[range(len(rows)), sequence]) + sum(transitions[rows, sequence]))
    return every[int(np.argmax(sums))]


def may_stand(sequence, labels):
    names = ["O", *(labels[index] for index in sequence)]
    return all(after[0] != "I" or before in (after, f"B{after[1:]}") for before, after in itertools.pairwise(names))


def spans_of(sequence, labels, words):
    spans = []
    for index, (start, end) in zip(sequence, words.tolist(), strict=True):
        if labels[index].startswith("B-"):
            spans.append((start, end, labels[index][2:]))
        elif labels[index].startswith("I-"):
            spans[-1] = (spans[-1][0], end, labels[index][2:])
    return spans


def test_files_that_answer_otherwise_are_not_left(pooled, tmp_path, monkeypatch):
    def wrong(*given, **named):
        slot = right(*given, **named)
        return msgspec.structs.replace(slot, first_bias=slot.first_bias + np.float32(0.01))

    right = graphs.folded
    monkeypatch.setattr(graphs, "folded", wrong)
    with pytest.raises(BackendError, match="answer otherwise"):
        write.export_bundle(pooled[0], tmp_path / "out", backend="reference")
    assert not list(tmp_path.iterdir())


def test_features_pass_their_codec(trunk, tmp_path):
    """One bit a dimension: a file without the codec would differ in every text."""
    tiny_bundle(tmp_path / "b", trunk, coded_paths(trunk, "sign"))
    export = write.export_bundle(tmp_path / "b", tmp_path / "out", tasks=["mood"], backend="reference")
    assert export.tasks["mood"].largest_difference < 1e-5


@pytest.mark.parametrize("positions", ["attention", "first", "second", "mean"])
def test_files_tell_the_codec_tokens(trunk, tmp_path, positions):
    """Of both paddings: a file has ids, and a table of what the codec says of them."""
    pool = Pool(positions=positions, part="task:x" if positions == "attention" else None, codec=CODECS["token1"])
    tasks = {task.name: task for task in tiny_tasks()}
    tiny_bundle(tmp_path / "b", trunk, {name: tiny_path(tasks[name], trunk, pool=pool) for name in ("mood", "names")})
    export = write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference")
    assert {name: files.largest_difference < 1e-5 for name, files in export.tasks.items()} == {"mood": 1, "names": 1}


def coded_paths(trunk, codec):
    """Paths of a pooled strategy whose features pass this codec."""
    paths = {}
    for name, path in tiny_paths(STRATEGIES["mean"], trunk).items():
        *before, pool, head = path.nodes
        pool = msgspec.structs.replace(pool, codec=Codec(name=codec))
        paths[name] = msgspec.structs.replace(path, nodes=(*before, pool, head))
    return paths


def test_what_cannot_be_exported_is_named(pooled, tmp_path):
    bundle, _ = pooled
    with pytest.raises(UnknownTask, match="nobody"):
        write.export_bundle(bundle, tmp_path / "out", tasks=["nobody"], backend="reference")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    with pytest.raises(ConfigError, match="something at"):
        write.export_bundle(bundle, tmp_path / "full", backend="reference")
    assert (tmp_path / "full" / "file").read_text() == "kept"
    with pytest.raises(ConfigError, match="no folder"):
        write.export_bundle(bundle, tmp_path / "not" / "there", backend="reference")


def test_one_feature_on_the_border_of_its_code_is_no_fault_but_several_texts_are(trunk, tmp_path, monkeypatch):
    """Of five probes one may differ under a codec, by what a border explains; without a codec, none may."""
    for codec in ("sign", "float16", "float32"):
        tiny_bundle(tmp_path / codec, trunk, coded_paths(trunk, codec))
    for codec, apart, is_kept in (
        ("sign", [0.0, 0.2, 0.0, 0.0, 0.0], True),
        ("sign", [0.0, 0.2, 0.2, 0.0, 0.0], False),
        ("sign", [0.0, 2.0, 0.0, 0.0, 0.0], False),
        ("float16", [0.0, 0.005, 0.0, 0.0, 0.0], True),
        ("float16", [0.0, 0.2, 0.0, 0.0, 0.0], False),
        ("float32", [0.0, 0.005, 0.0, 0.0, 0.0], False),
        ("sign", [0.0, 0.0, float("nan"), 0.0, 0.0], False),
    ):
        monkeypatch.setattr(write, "export_differences", lambda *given, apart=apart: apart)
        out, words = tmp_path / f"{codec}-{sum(apart)}", {"tasks": ["mood"], "backend": "reference"}
        if is_kept:
            assert write.export_bundle(tmp_path / codec, out, **words).tasks["mood"].largest_difference == max(apart)
            continue
        with pytest.raises(BackendError, match="answer otherwise"):
            write.export_bundle(tmp_path / codec, out, **words)
        assert not out.exists()
