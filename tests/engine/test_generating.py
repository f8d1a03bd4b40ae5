"""A task that writes is a task like any other: one pass of the encoder, its own part, its own failures."""

import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.engine.queue import Queue
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.plan.cost.work import decoder_flops
from support import writing_bundles as made

BACKENDS = {"reference": {}, "onnxruntime": {}, "openvino": {"precision": "float32"}, "torch": {"precision": "float32"}}
LONG = ["late lamp " * 3, *made.texts(5), "red box", "please return the broken kettle today anna " * 2]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return made.bundle(tmp_path_factory.mktemp("writing") / "b")


def opened(home, backend="reference", **settings):
    return Session(home, backend=backend, **BACKENDS[backend], **settings)


def summaries(session, texts, task="brief", **settings):
    return [result.answers[task]["summary"] for result in session.predict(texts, tasks=[task], **settings)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_are_those_of_transformers(home, backend):
    expected = made.theirs(LONG)
    assert len(set(expected)) > 3
    session = opened(home, backend)
    assert summaries(session, LONG) == expected
    assert [str(output) for output in session.outputs("brief", LONG)] == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_beams_are_those_of_transformers(tmp_path, backend):
    data = made.trunk()
    root = made.bundle(
        tmp_path / "b", made.writing_draft(data, beams=3, least=5, no_repeat=2, length_penalty=2.0), data=data
    )
    rules = {"num_beams": 3, "min_new_tokens": 5, "no_repeat_ngram_size": 2, "length_penalty": 2.0}
    assert summaries(opened(root, backend), LONG) == made.theirs(LONG, **rules)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_summary_and_five_classifications_take_one_pass(home, backend):
    session = opened(home, backend)
    before = session.backend.layers_run
    (result,) = session.predict(["late red lamp and kettle"])
    assert set(result.answers) == {"brief", *made.MOOD}
    (alone,) = session.predict(["late red lamp and kettle"], tasks=made.MOOD)
    shape, decoder = session.shape, session.records["brief"].path.head.decoder
    steps = (result.receipt.layers - alone.receipt.layers) // decoder.layers
    assert result.receipt.passes == alone.receipt.passes == 1
    assert result.receipt.tokens == alone.receipt.tokens
    assert alone.receipt.layers == shape.layers and 1 <= steps <= 12
    assert session.backend.layers_run - before == 2 * shape.layers
    tokens = result.receipt.tokens
    flops = decoder_flops(decoder, shape.width, shape.vocabulary, tokens, steps)
    assert result.receipt.added_flops["brief"] == flops > 0
    for name in made.MOOD:
        assert result.answers[name]["label"] == alone.answers[name]["label"]


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_in_deterministic_mode_a_text_is_the_same_whatever_stands_beside_it(home, backend, tmp_path):
    session = opened(home, backend, deterministic=True)
    together = summaries(session, LONG)
    assert [summaries(session, [text])[0] for text in LONG] == together
    moods = [output.tobytes() for output in session.outputs("mood", LONG)]
    data = made.trunk()
    without = opened(made.bundle(tmp_path / "c", made.class_draft(data), data=data), backend, deterministic=True)
    assert [output.tobytes() for output in without.outputs("mood", LONG)] == moods


def test_a_stream_gives_labels_before_texts_and_each_answer_once(home):
    session = opened(home)
    stream, seen = session.stream(LONG), {}
    for results in stream:
        for row, answer in results.answers.items():
            assert (results.task, row) not in seen
            seen[results.task, row] = answer
    order = [task for task, _ in seen]
    assert order.index("brief") > order.index("mood")
    expected = session.predict(LONG)
    assert seen == {(task, row): answer for row, each in enumerate(expected) for task, answer in each.answers.items()}
    assert stream.columns().results() == expected


def test_after_the_deadline_texts_are_late_and_labels_are_there(home, monkeypatch):
    from polyhead.engine import request

    session, clock = opened(home), [0.0]
    monkeypatch.setattr(request, "monotonic", lambda: clock[0])
    step = type(session.loaded.backend.decoder("brief"))
    plain = step.step

    def slow(self, ids, cache):
        clock[0] += 1.0
        return plain(self, ids, cache)

    monkeypatch.setattr(step, "step", slow)
    results = session.predict(LONG, deadline=3.0)
    assert any(result.late == ("brief",) for result in results)
    assert all(result.late == () or set(result.answers) == set(made.MOOD) for result in results)
    assert all(set(made.MOOD) <= set(result.answers) for result in results)
    assert all(result.answers for result in session.predict(LONG, deadline=1000.0))


def test_a_decoder_that_fails_touches_no_other_task_and_no_other_text(home, monkeypatch):
    session = opened(home)
    expected = summaries(session, LONG)
    step = type(session.loaded.backend.decoder("brief"))
    begin = step.begin

    def broken(self, states, mask):
        if (mask.sum(axis=1) == mask.sum(axis=1).max()).any() and mask.shape[1] > 35:
            raise BackendError("no room")
        return begin(self, states, mask)

    monkeypatch.setattr(step, "begin", broken)
    long = [*LONG, "please return the broken kettle today anna " * 9]
    results = session.predict(long)
    assert [result.answers.get("brief", {}).get("summary") for result in results] == [*expected, None]
    assert "no room" in results[-1].failed["brief"] and set(results[-1].answers) == set(made.MOOD)
    with pytest.raises(BackendError, match="no room"):
        session.outputs("brief", long)


def test_it_is_attached_replaced_and_detached_while_it_answers(home, tmp_path):
    data = made.trunk()
    root = made.bundle(tmp_path / "b", made.class_draft(data), data=data)
    session = opened(root, "onnxruntime")
    draft, other = made.writing_draft(data), made.writing_draft(data, seed=5)
    session.attach(draft.record, draft.arrays)
    assert summaries(session, LONG) == summaries(opened(home), LONG)
    session.attach(other.record, other.arrays)
    changed = summaries(session, LONG)
    assert changed != summaries(opened(home), LONG)
    session.detach("brief")
    assert set(session.tasks) == {"mood"}
    add_tasks(root, [other])
    assert session.refresh().attached == ("brief",)
    assert summaries(session, LONG) == changed and session.loaded.versions["brief"] == "v0001"


def test_a_queue_answers_it(home):
    queue = Queue(opened(home, "onnxruntime"))
    try:
        results = queue.answers(LONG, tasks=["brief", "mood"])
    finally:
        queue.close()
    assert [result.answers["brief"]["summary"] for result in results] == summaries(opened(home), LONG)


def test_a_text_beyond_the_encoder_is_cut_and_an_empty_call_is_empty(home):
    session = opened(home)
    (result,) = session.predict(["late lamp " * 50], tasks=["brief"])
    assert result.receipt.cut > 0 and result.receipt.tokens == 40 and "summary" in result.answers["brief"]
    assert session.predict([], tasks=["brief"]) == []
    (pair,) = session.predict([("late lamp", "box")])
    assert "brief" in pair.skipped


def test_the_part_is_the_decoder_and_the_rules_stand_in_the_record(home):
    bundle = Bundle.open(home)
    assert bundle.record("brief").task.generation == made.RULES
    assert set(bundle.part("brief")) == set(made.trunk().decoder().arrays)
    bundle.verify()
