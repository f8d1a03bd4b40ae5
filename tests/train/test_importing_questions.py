"""Question answering and multiple choice of plain `transformers`, imported: the bundle answers as they do."""

import json
import shutil

import numpy as np
import pytest

from support.tiers import first_of

pytest.importorskip("transformers")

import torch
import transformers

from polyhead.bundle.read import Bundle
from polyhead.convert.folders import scan_folders
from polyhead.convert.hugging_face import read_head
from polyhead.convert.run import import_folders
from polyhead.convert.task import ImportRequest
from polyhead.engine.export.write import export_bundle
from polyhead.engine.inputs import Passage
from polyhead.engine.session import Session
from polyhead.errors import BackendError, ConfigError, TrunkError, WeightsMismatch
from polyhead.text.question import Question
from polyhead.text.tokenize import windows_of
from polyhead.text.words import words_of
from support import adapters, checkpoints

WORDS = (
    *[
        "please",
        "refund",
        "order",
        "17",
        "of",
        "the",
        "lamp,",
        "it",
        "is",
        "broken",
        "today;",
        "ANNA's",
        "naïve",
        "kettle?",
    ],
    "—",
    "ça",
    "va",
)
PASSAGES = [
    (f"where is order {i}?", " ".join(WORDS[(i + j) * 7 % len(WORDS)] for j in range(3 + i % 9))) for i in range(24)
]
QUESTIONS = [
    Question(text=f"is the lamp {WORDS[i % 15]}?", options=tuple(WORDS[i % 7 : 2 + i % 7 + i % 3])) for i in range(12)
]
STORIES = [
    Question(text="what then?", context=f"{WORDS[i]} and {WORDS[-i]}", options=(f"{WORDS[-i]} again", "it was not, no"))
    for i in range(1, 13)
]
FORMS = ("QuestionAnswering", "MultipleChoice")
BACKENDS = ("torch", "reference", "openvino", "onnxruntime")


def imported(out, *folders, given=None, **fields):
    names = {str(folder): f"task{i}" for i, folder in enumerate(folders)}
    return import_folders(ImportRequest(folders=tuple(map(str, folders)), names=names, **fields), out, given)


def opened(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


def called(model, given):
    with torch.inference_mode():
        return model(**checkpoints.inputs_of(model, given))


def span_logits(folder, passages):
    """For each passage its logits (tokens, 2), each token's characters in the context, and which are of the context."""
    tokenizer, model = opened(folder)
    for passage in passages:
        given = tokenizer(*passage, return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0].numpy()
        made = called(model, given)
        logits = torch.stack([made.start_logits[0], made.end_logits[0]], -1).numpy()
        is_context = [i for i, part in enumerate(given.sequence_ids(0)) if part == 1]
        yield logits, offsets, [i for i in is_context if offsets[i, 1] > offsets[i, 0]]


def tokens_of(word, offsets, context):
    return [i for i in context if offsets[i, 0] < word[1] and offsets[i, 1] > word[0]]


def best_over_tokens(logits, context):
    """The two tokens that `transformers`' examples choose, at most 30 apart, and their sum."""
    pairs = [(i, j) for n, i in enumerate(context) for j in context[n : n + 30]]
    sums = {(i, j): logits[i, 0] + logits[j, 1] for i, j in pairs}
    best = max(sums, key=sums.get)
    return best, sums[best]


# question answering


@pytest.mark.slow
@pytest.mark.parametrize("family", first_of(checkpoints.ASKED))
def test_numbers_of_words_are_those_of_their_first_and_last_tokens(family, tmp_path):
    folder = checkpoints.headed("QuestionAnswering", family)
    (one,) = imported(tmp_path / "b", folder, given=PASSAGES).tasks
    assert (one.kind, one.tap, one.layers) == ("span", 4, 0)
    assert one.parity.max_abs_difference < 1e-5
    several = 0
    sessions = [Session(tmp_path / "b", backend=name) for name in ("torch", "reference")]
    ours = [session.outputs("task0", PASSAGES) for session in sessions]
    for row, (logits, offsets, context) in enumerate(span_logits(folder, PASSAGES)):
        words = words_of(PASSAGES[row][1])
        tokens = [tokens_of(word, offsets, context) for word in words.tolist()]
        wanted = [logits[0], *((logits[own[0], 0], logits[own[-1], 1]) for own in tokens)]
        several += sum(len(own) > 1 for own in tokens)
        for outputs in ours:
            np.testing.assert_allclose(outputs[row], wanted, atol=1e-5)
    assert several > 20
    assert one.parity.answers == sum(1 + len(words_of(context)) for _, context in PASSAGES)


@pytest.mark.parametrize("null_answers", [False, True])
def test_answers_are_the_best_spans_and_the_proof_counts_those_that_are_best_over_tokens(null_answers, tmp_path):
    folder = checkpoints.headed("QuestionAnswering", seed=3)
    (one,) = imported(tmp_path / "b", folder, given=PASSAGES, null_answers=null_answers).tasks
    session, same, unanswered = Session(tmp_path / "b"), 0, 0
    results = session.predict([Passage(question=q, context=c) for q, c in PASSAGES])
    for passage, result, (logits, offsets, context) in zip(
        PASSAGES, results, span_logits(folder, PASSAGES), strict=True
    ):
        (first, last), best = best_over_tokens(logits, context)
        answer, words = result.answers["task0"], words_of(passage[1])
        inside = words[(words[:, 0] < offsets[last, 1]) & (words[:, 1] > offsets[first, 0])]
        wanted = (inside[0, 0], inside[-1, 1])
        if null_answers and logits[0].sum() > best:
            wanted, unanswered = (None, None), unanswered + 1
        same += wanted == (answer["start"], answer["end"])
        if answer["text"] is not None:
            assert answer["text"] == passage[1][answer["start"] : answer["end"]]
    assert one.parity.agreement == pytest.approx(same / len(PASSAGES))
    assert same > 5
    assert unanswered > 0 or not null_answers


def test_words_of_one_token_are_answered_as_over_tokens(tmp_path):
    """The tokenizer knows these words whole, so that places and tokens are the same."""
    folder = checkpoints.headed("QuestionAnswering")
    known = [text for text in checkpoints.TEXTS if "are" not in text]
    given = [(first, second) for first in known[:3] for second in known]
    (one,) = imported(tmp_path / "b", folder, given=given).tasks
    for pair, (_, offsets, context) in zip(given, span_logits(folder, given), strict=True):
        assert all(len(tokens_of(word, offsets, context)) == 1 for word in words_of(pair[1]).tolist())
    assert one.parity.agreement == 1.0


@pytest.mark.parametrize("name", first_of(BACKENDS))
def test_other_tasks_beside_it_change_nothing(name, tmp_path):
    """A classifier of pairs reads the same texts in the same call; deterministic bits are the same alone and beside."""
    if name != "reference":
        pytest.importorskip(name)
    folders = [
        checkpoints.headed("QuestionAnswering"),
        checkpoints.trained("mood", frozen=4),
        checkpoints.headed("MultipleChoice"),
    ]
    imported(tmp_path / "b", *folders, given=[*PASSAGES, *QUESTIONS, *STORIES], pair="joined")
    session = Session(tmp_path / "b", backend=name, deterministic=True)
    results = session.predict([*PASSAGES, *QUESTIONS])
    assert {task for result in results for task in result.answers} == {"task0", "task1", "task2"}
    alone = [result.answers["task0"] for result in session.predict(PASSAGES, tasks=["task0"])]
    assert [result.answers["task0"] for result in results[: len(PASSAGES)]] == alone
    reference = Session(tmp_path / "b", backend="reference")
    for task, inputs in (("task0", PASSAGES), ("task2", QUESTIONS)):
        for mine, theirs in zip(session.outputs(task, inputs), reference.outputs(task, inputs), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_long_contexts_are_read_in_windows_each_as_transformers_reads_it(tmp_path):
    folder = checkpoints.headed("QuestionAnswering")
    imported(tmp_path / "b", folder, given=PASSAGES, long_texts="windows")
    long, (_, model) = ("where is the lamp?", " ".join(WORDS * 9)), opened(folder)
    session, best = Session(tmp_path / "b"), []
    windows = session.tokenizer.encode([long], windows=windows_of(session.tokenizer.max_tokens))
    assert len(windows) > 3
    for window in windows:
        context = [i for i in range(len(window.ids)) if window.sequence[i] == 1]
        given = {"input_ids": window.ids, "token_type_ids": window.segments, "attention_mask": window.ids >= 0}
        made = called(model, {name: torch.tensor(np.asarray(value))[None].long() for name, value in given.items()})
        logits = torch.stack([made.start_logits[0], made.end_logits[0]], -1).numpy()
        words = words_of(long[1])
        tokens = {tuple(word): own for word in words.tolist() if (own := tokens_of(word, window.offsets, context))}
        places = list(tokens)
        for n, first in enumerate(places):
            sums = [logits[tokens[first][0], 0] + logits[tokens[last][-1], 1] for last in places[n : n + 30]]
            best.append((max(sums), first[0], places[n + int(np.argmax(sums))][1]))
    answer = session.predict([long])[0].answers["task0"]
    assert (answer["start"], answer["end"]) == max(best)[1:]
    with pytest.raises(ConfigError, match="fit in one.*1 of 25"):
        imported(tmp_path / "c", folder, given=[*PASSAGES, long], long_texts="windows")


def test_ends_that_were_read_at_first_tokens_would_be_refused(tmp_path, monkeypatch):
    """The proof does not take the engine's word for where words end."""
    from polyhead.text import words

    monkeypatch.setattr(words, "_last_subtokens", lambda encodings, reads: reads.tokens)
    with pytest.raises(TrunkError, match="would not answer"):
        imported(tmp_path / "b", checkpoints.headed("QuestionAnswering"), given=PASSAGES)


def test_an_adapter_of_question_answering_answers_as_its_base_with_its_matrices(tmp_path):
    torch.manual_seed(5)
    model = transformers.BertForQuestionAnswering.from_pretrained(checkpoints.base()).eval()
    arrays = {}
    for name, module in model.named_modules():
        if name.endswith(".query"):
            low = torch.randn(2, 32) * 0.2, torch.randn(32, 2) * 0.2
            module.weight.data += 4.0 * low[1] @ low[0]
            arrays |= {f"{name}.lora_{letter}.weight": array for letter, array in zip("AB", low, strict=True)}
    for name, value in model.qa_outputs.named_parameters():
        value.data = torch.randn(value.shape)
        arrays[f"qa_outputs.{name}"] = value.data
    folder = tmp_path / "adapter"
    adapters.write(folder, arrays, base=checkpoints.base(), maps=("query",), task_type="QUESTION_ANS")
    (one,) = imported(tmp_path / "b", folder, given=PASSAGES).tasks
    assert (one.kind, one.model_class) == ("span", "BertForQuestionAnswering")
    tokenizer, session = checkpoints.wordpiece(), Session(tmp_path / "b")
    for passage, outputs in zip(PASSAGES, session.outputs("task0", PASSAGES), strict=True):
        made = called(model, tokenizer(*passage, return_tensors="pt"))
        wanted = [made.start_logits[0, 0], made.end_logits[0, 0]]
        np.testing.assert_allclose(outputs[0], wanted, atol=1e-5)


# multiple choice


@pytest.mark.slow
@pytest.mark.parametrize("family", first_of(checkpoints.ASKED))
def test_options_have_the_logits_of_transformers(family, tmp_path):
    """Pairs of question and option; with a context, as SWAG and RACE are read, context and question with option."""
    folder = checkpoints.headed("MultipleChoice", family)
    given = [*QUESTIONS, *STORIES]
    (one,) = imported(tmp_path / "b", folder, given=given).tasks
    assert (one.kind, one.parity.agreement) == ("multiple_choice", 1.0)
    assert one.parity.max_abs_difference < 1e-5
    assert one.parity.answers == sum(len(question.options) for question in given)
    session, (tokenizer, model) = Session(tmp_path / "b"), opened(folder)
    for question, outputs in zip(given, session.outputs("task0", given), strict=True):
        first = [question.context or question.text] * len(question.options)
        second = [f"{question.text} {option}" if question.context else option for option in question.options]
        tokens = tokenizer(first, second, padding=True, return_tensors="pt")
        made = called(model, {name: value[None] for name, value in tokens.items()})
        np.testing.assert_allclose(outputs, made.logits[0].numpy(), atol=1e-5)
    assert np.std(np.concatenate(session.outputs("task0", given))) > 0.01


# both


def test_the_packaged_sample_proves_each_task_on_what_it_reads(tmp_path):
    folders = [
        checkpoints.headed("QuestionAnswering"),
        checkpoints.headed("MultipleChoice"),
        checkpoints.trained("mood"),
    ]
    outcome = imported(tmp_path / "b", *folders)
    assert [one.parity.texts for one in outcome.tasks] == [128, 128, 128]
    bundle = Bundle.open(tmp_path / "b")
    assert [bundle.tasks[f"task{i}"].task.pair for i in range(3)] == ["joined", "none", "none"]
    probe = bundle.probes("task1")[0]
    assert len(probe["options"]) == 3
    assert bundle.probes("task0")[0]["words"][0] == [-1, -1]
    bundle.verify()


def test_scan_names_their_kinds(tmp_path):
    folders = [str(checkpoints.headed(form)) for form in FORMS]
    found = scan_folders(folders, base=str(checkpoints.base()))
    assert [model.facts()["kind"] for model in found.models] == ["span", "multiple_choice"]
    assert [model.model_class for model in found.models] == ["BertForQuestionAnswering", "BertForMultipleChoice"]
    assert not any(model.refused for model in found.models)


def test_texts_that_no_task_reads_are_refused(tmp_path):
    folder = checkpoints.headed("QuestionAnswering")
    with pytest.raises(ConfigError, match="a question with options"):
        imported(tmp_path / "b", folder, given=[*PASSAGES, QUESTIONS[0]])
    with pytest.raises(ConfigError, match="too few.*task1.*12.*16 or more, each a question"):
        imported(tmp_path / "b", folder, checkpoints.headed("MultipleChoice"), given=[*PASSAGES, *QUESTIONS])


def test_a_head_of_three_numbers_is_refused(tmp_path):
    folder = shutil.copytree(checkpoints.trained("names", frozen=3), tmp_path / "three")
    config = json.loads((folder / "config.json").read_text())
    arrays = transformers.BertForTokenClassification.from_pretrained(folder)
    made = transformers.BertForQuestionAnswering.from_pretrained(folder, num_labels=3)
    assert (len(arrays.classifier.bias), config["architectures"]) == (4, ["BertForTokenClassification"])
    made.save_pretrained(folder)
    with pytest.raises(WeightsMismatch, match="Got: 3.*Allowed: 2"):
        imported(tmp_path / "b", folder, given=PASSAGES)


def test_classes_whose_head_reads_more_than_the_encoder_are_refused_by_name(tmp_path):
    folder = shutil.copytree(checkpoints.headed("QuestionAnswering"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    other = {"architectures": ["BartForSequenceClassification"], "model_type": "bart"}
    (folder / "config.json").write_text(json.dumps(config | other))
    with pytest.raises(TrunkError, match=r"the decoder's last state.*BartForSequence.*Do: give trunk.name"):
        read_head(folder)


def test_export_says_that_it_reads_two_tokens_of_a_word(tmp_path):
    imported(tmp_path / "b", checkpoints.headed("QuestionAnswering"), given=PASSAGES)
    with pytest.raises(BackendError, match="first and last tokens"):
        export_bundle(Bundle.open(tmp_path / "b"), tmp_path / "onnx")
