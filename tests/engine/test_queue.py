"""Calls that share batches are answered as each alone; late, cancelled and failing calls hold nobody up."""

import gc
import random
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.engine import queue as queues
from polyhead.engine.queue import Queue, QueueLimits
from polyhead.engine.session import Session, attach_vectors
from polyhead.engine.tickets import Rate, SharedBatch
from polyhead.errors import BackendError, BadValue, ConfigError, Overloaded, UnknownTask
from polyhead.plan import Pool
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import TEXTS, add_tiny
from polyhead.text.tokenize import Tokenizer
from support.loopback_server import until

TASKS = {task.name: task for task in tiny_tasks()}
DEPTHS = {"mood": 1, "urgency": 3}  # layers of four; the others read all
LONG = ("the kettle is broken and my phone was late . " * 12,)
SETS = (None, ["mood"], ["topics", "names"], ["urgency", "mood"], ["same", "alike"], ["where"], ["who", "topics"])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    trunk, folder = tiny_trunk(layers=4), tmp_path_factory.mktemp("queue") / "b"
    write_bundle(folder, trunk)
    for seed, (name, task) in enumerate(TASKS.items()):
        task = msgspec.structs.replace(task, long_texts="windows") if name == "topics" else task
        path = tiny_path(task, trunk, pool=Pool(positions="mean") if name in DEPTHS else Pool(), stop=DEPTHS.get(name))
        add_tiny(folder, trunk, task, path, seed=seed)
    return folder


@pytest.fixture(scope="module")
def session(root):
    return Session(root, backend="reference", deterministic=True)


@pytest.fixture
def queue(session):
    made = Queue(session)
    yield made
    made.close()


class Gate:
    """Holds the queue's thread in its first batch until it is opened, so that what comes meanwhile waits."""

    def __init__(self, monkeypatch):
        self.entered, self.opened, run = threading.Event(), threading.Event(), SharedBatch.run

        def gated(batch, deliver):
            self.entered.set()
            assert self.opened.wait(30)
            return run(batch, deliver)

        monkeypatch.setattr(SharedBatch, "run", gated)


@pytest.fixture
def gate(monkeypatch):
    held = Gate(monkeypatch)
    yield held
    held.opened.set()


def asked(queue, inputs, **keys):
    """A call in the queue, and its results to come."""
    future = Future()

    def done(ticket):
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.results)

    return queue.submit(inputs, done, **keys), future


def told(result):
    """A result as plain values, its receipt apart."""
    fields = msgspec.to_builtins(result)
    return fields, fields.pop("receipt")


def test_receipt_says_nothing_of_tasks_that_are_asked_unseen(session, queue, gate):
    """Calls that share a batch: one asks a task, or it is asked unseen beside the other; `topics` reads windows."""
    asked(queue, ["sad"])
    assert gate.entered.wait(30)
    inputs, tasks = [LONG, ("good",), ("good", "lamp")], ["mood", "topics"]
    both = asked(queue, inputs, tasks=tasks)
    unseen = [asked(queue, inputs, tasks=[name], unseen=[other]) for name, other in (tasks, tasks[::-1])]
    gate.opened.set()
    for (_, waiting), names in zip((both, *unseen), (tasks, *([name] for name in tasks)), strict=True):
        alone = session.predict(inputs, tasks=names)
        for result, expected in zip(waiting.result(), alone, strict=True):
            layers = max(result.receipt.layers, expected.receipt.layers)  # those of the other task ran in the same pass
            assert result.receipt == msgspec.structs.replace(expected.receipt, layers=layers)


def test_calls_of_all_forms_from_many_threads_are_answered_as_each_alone(session):
    """Answers and receipts to the bit, whatever shares their batches: texts, pairs, options, windows, own words."""
    batches, chance = [], random.Random(5)
    queue = Queue(session, QueueLimits(batch_tokens=300), observe=batches.append)
    forms = [*TEXTS, LONG, ("",), ("thank you",)]
    words = np.array([[0, 5], [6, 9]], np.int32)
    calls = []
    for _ in range(60):
        inputs = chance.sample(forms, chance.randint(1, 4))
        own = [words if entry == ("thank you",) else None for entry in inputs]
        calls.append((inputs, chance.choice(SETS), own if any(each is not None for each in own) else None))
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(queue.answers, inputs, tasks=tasks, words=own) for inputs, tasks, own in calls]
        answered = [each.result() for each in waiting]
    queue.close()
    for (inputs, tasks, own), results in zip(calls, answered, strict=True):
        alone = session.predict(inputs, tasks=tasks, words=own)
        for result, expected in zip(results, alone, strict=True):
            (fields, receipt), (wanted, cost) = told(result), told(expected)
            assert fields == wanted
            # A text of a pair that is read separately may have been read for another call's pair.
            if not {"alike"} & fields["answers"].keys():
                assert receipt == cost
    assert max(batch.tickets for batch in batches) > 1


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_calls_that_share_packed_batches_are_answered_within_the_tolerance(root, backend):
    pytest.importorskip(backend)
    session = Session(root, backend=backend, precision="float32")
    queue, texts = Queue(session), ["where is my order?", "the lamp is broken and late", "good", LONG[0]]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda text: queue.answers([text], tasks=["mood", "topics"])[0], texts * 6))
    queue.close()
    for text, result in zip(texts * 6, results, strict=True):
        (alone,) = session.predict([text], tasks=["mood", "topics"])
        for task in ("mood", "topics"):
            scores, expected = result.answers[task]["scores"], alone.answers[task]["scores"]
            assert scores == pytest.approx(expected, abs=1e-4)


def test_calls_for_different_tasks_over_the_same_layers_share_one_batch(session, gate):
    batches = []
    queue = Queue(session, QueueLimits(), observe=batches.append)
    asked(queue, ["good"], tasks=["names"])
    assert gate.entered.wait(30)
    sets = (["mood"], ["names"], ["mood"], ["reply"], ["mood", "names"], ["names", "urgency"])
    waiting = [asked(queue, ["sad"], tasks=names)[1] for names in sets]
    gate.opened.set()
    results = [each.result(30)[0] for each in waiting]
    queue.close()
    assert [set(result.answers) for result in results] == [set(names) - {"reply"} for names in sets]
    assert "reply" in results[3].skipped  # a task over questions: answered without a batch
    facts = sorted((batch.tickets, batch.layers) for batch in batches)
    assert facts == [(1, 4), (2, 2 * DEPTHS["mood"]), (3, 3 * 4)]  # those that ask 'mood' alone run one layer each


def test_which_sets_of_tasks_run_alike(session):
    alike = session.loaded.runs_alike
    assert alike(("names",)) == alike(("names", "mood")) == alike(("urgency", "names"))  # a tap costs no layer
    assert alike(("mood",)) != alike(("urgency",)) != alike(("names",))  # depths
    assert alike(("names",)) != alike(("topics",))  # windows
    assert alike(("same",)) != alike(("alike",))  # joined, separate
    assert alike(("same",)) != alike(("same", "mood"))


def test_the_nearest_deadline_is_read_first(session, gate):
    order = []
    queue = Queue(session, QueueLimits(batch_tokens=1))
    asked(queue, ["good"])
    assert gate.entered.wait(30)
    seconds = {"third": None, "second": 60.0, "first": 20.0}
    for name, deadline in seconds.items():
        queue.submit(["sad"], lambda ticket, name=name: order.append(name), deadline=deadline)
    gate.opened.set()
    queue.close()
    assert order == ["first", "second", "third"]


def test_a_call_of_many_inputs_lets_others_in_between(session, gate):
    order = []
    queue = Queue(session, QueueLimits(batch_tokens=60))
    many = queue.submit(["the lamp is broken"] * 40, lambda ticket: order.append("many"), tasks=["mood"], deadline=90)
    assert gate.entered.wait(30)
    queue.submit(["good"], lambda ticket: order.append("one"), tasks=["mood"], deadline=30)
    gate.opened.set()
    queue.close()
    assert order == ["one", "many"] and all(result.answers for result in many.results)


def test_what_is_late_is_not_read(session, gate):
    batches = []
    queue = Queue(session, observe=batches.append)
    asked(queue, ["good"])
    assert gate.entered.wait(30)
    late = asked(queue, ["sad", "good"], tasks=["mood", "names"], deadline=1e-6)[1]
    gate.opened.set()
    results = late.result(30)
    queue.close()
    assert [result.late for result in results] == [("mood", "names")] * 2
    assert not any(result.answers for result in results) and results[0].receipt.passes == 0
    assert len(batches) == 1


def test_what_is_late_in_the_queue_is_what_is_late_without_it(session, gate):
    """Tasks that do not fit an input were late as well, and versions were not said."""
    queue, inputs = Queue(session), ["sad", ("good", "lamp")]
    asked(queue, ["good"])
    assert gate.entered.wait(30)
    late = asked(queue, inputs, deadline=1e-6)[1]
    gate.opened.set()
    assert list(map(told, late.result(30))) == list(map(told, session.predict(inputs, deadline=0.0)))
    queue.close()


def test_what_is_in_time_does_not_wait_for_answers_to_what_is_late(session, gate, monkeypatch):
    """Late answers were made on the encoder's thread, before the batch."""
    is_run, have_run, give = threading.Event(), [], queues.give_unread

    def told_after_the_batch(ticket, numbers):
        if numbers:
            have_run.append(is_run.wait(30))
        return give(ticket, numbers)

    monkeypatch.setattr(queues, "give_unread", told_after_the_batch)
    queue = Queue(session)
    first = asked(queue, ["good"], tasks=["mood"])[1]
    assert gate.entered.wait(30)
    late = asked(queue, ["sad"], tasks=["mood"], deadline=1e-6)[1]
    in_time = asked(queue, ["happy"], tasks=["mood"], stage=lambda stage: is_run.set())[1]
    gate.opened.set()
    assert in_time.result(60)[0].answers and late.result(60)[0].late == ("mood",) and first.result(60)
    assert have_run == [True]
    queue.close()
    assert queue.is_idle


@pytest.mark.parametrize("way", ["cancel", "gone"])
def test_a_call_that_nobody_waits_for_is_dropped(session, gate, way):
    batches, hung_up = [], threading.Event()
    queue = Queue(session, observe=batches.append)
    asked(queue, ["good"])
    assert gate.entered.wait(30)
    ticket, future = asked(queue, ["sad"], is_gone=hung_up.is_set)
    ticket.cancel() if way == "cancel" else hung_up.set()
    gate.opened.set()
    with pytest.raises(CancelledError):
        future.result(30)
    queue.close()
    assert len(batches) == 1 and queue.is_idle


def test_a_caller_whose_function_raises_keeps_nobody_else_from_being_told(session, gate, caplog):
    batches = []
    queue = Queue(session, observe=batches.append)
    asked(queue, ["good"], tasks=["mood"])
    assert gate.entered.wait(30)
    queue.submit(["good"], lambda ticket: 1 / 0, tasks=["mood"])
    other = asked(queue, ["sad"], tasks=["mood"])[1]
    gate.opened.set()
    assert other.result(30)[0].answers["mood"]
    queue.close()
    assert [batch.tickets for batch in batches] == [1, 2] and "ZeroDivisionError" in caplog.text


def test_a_caller_whose_is_gone_raises_fails_alone(session, gate):
    queue = Queue(session)
    asked(queue, ["good"], tasks=["mood"])
    assert gate.entered.wait(30)
    failing = asked(queue, ["good"], tasks=["mood"], is_gone=lambda: 1 / 0)[1]
    other = asked(queue, ["sad"], tasks=["mood"])[1]
    gate.opened.set()
    with pytest.raises(ZeroDivisionError):
        failing.result(30)
    assert other.result(30)[0].answers["mood"]
    queue.close()


def test_what_may_not_wait_any_more_is_refused_with_the_time_to_come_back(session, gate):
    queue = Queue(session, QueueLimits(waiting_inputs=3))
    asked(queue, ["good"])
    assert gate.entered.wait(30)
    kept = asked(queue, ["sad"] * 3)[1]
    with pytest.raises(Overloaded, match="3 inputs") as caught:
        asked(queue, ["good"])
    assert caught.value.retry_after > 0 and queue.waiting == 3
    gate.opened.set()
    assert len(kept.result(30)) == 3
    queue.close()


def test_a_call_that_would_be_late_is_refused_at_once(session, gate):
    queue = Queue(session)
    asked(queue, ["good"])
    assert gate.entered.wait(30)
    waiting = asked(queue, ["the lamp is broken and late"] * 2000, tasks=["mood"])[1]
    with pytest.raises(Overloaded, match="before its deadline") as caught:
        asked(queue, ["good"], deadline=0.01)
    assert caught.value.retry_after > 0.01
    gate.opened.set()
    assert len(waiting.result(60)) == 2000
    queue.close()


def test_what_runs_and_the_own_batch_count_for_a_deadline_too(session, gate):
    """At ten seconds for a token a batch of 5.2 tokens runs, and the next one has 4.9 that wait and 5.2 more."""
    queue = Queue(session)
    queue._rate._seconds = 10.0
    asked(queue, ["good"], tasks=["mood"])
    assert gate.entered.wait(30)
    kept = [asked(queue, ["sad"], tasks=["mood"])[1]]
    for deadline in (40.0, 60.0, 120.0):
        with pytest.raises(Overloaded, match="until it is answered"):
            asked(queue, ["good"], tasks=["mood"], deadline=deadline)
    kept.append(asked(queue, ["good"], tasks=["mood"], deadline=200.0)[1])
    gate.opened.set()
    assert all(future.result(30) for future in kept)
    queue.close()


def test_batches_before_the_own_one_count_whole(session):
    """What waits fills two batches of ten tokens, and 3 of a third, in which the call is with its 5 tokens."""
    queue = Queue(session, QueueLimits(batch_tokens=10))
    queue._rate._seconds, queue._rate._a_character, queue._characters = 1.0, 1.0, 23
    assert queue._expected(1, 1) == 10 + 10 + 3 + 5
    assert queue._expected(96, 1) == 10 + 10 + 10  # its first batch
    queue.close()


def test_what_a_full_batch_would_answer_too_late_gives_its_place_to_others(session, gate):
    """Two texts fill a batch, which takes 100 seconds; the call whose deadline is in 60 is dropped for those behind."""
    queue = Queue(session, QueueLimits(batch_tokens=11))
    first = asked(queue, ["good"], tasks=["mood"])[1]
    assert gate.entered.wait(30)
    hurried = asked(queue, ["sad"], tasks=["mood"], deadline=60.0)[1]
    others = [asked(queue, ["good"], tasks=["mood"], deadline=600.0)[1] for _ in range(4)]
    queue._rate._seconds = 100 / 11
    gate.opened.set()
    assert hurried.result(30)[0].late == ("mood",)
    assert all(future.result(30)[0].answers for future in [first, *others])
    queue.close()


def test_where_nobody_else_wants_the_place_a_wrong_estimate_drops_nothing(session):
    """A call of many batches, each of which would take longer than its deadline if the estimate were right."""
    queue = Queue(session, QueueLimits(batch_tokens=16))
    queue._rate._seconds = 10.0
    results = asked(queue, ["good"] * 40, tasks=["mood"], deadline=60.0)[1].result(60)
    assert all(result.answers and not result.late for result in results)
    assert not any(queue._until) or not queue.is_idle
    queue.close()


def test_a_slower_full_batch_counts_at_once_and_a_faster_one_little_by_little():
    rate = Rate(4)
    before = rate.seconds(0, 1)
    rate.learn(0, 1, 4, 3 * before)
    assert rate.seconds(0, 1) == pytest.approx(2 * before)
    rate.learn(0, 1, 4, before)
    assert rate.seconds(0, 1) == pytest.approx(1.9 * before)


def test_a_slower_small_batch_counts_by_its_size():
    """One text for which a graph was compiled: the queue refused calls that it could answer in time."""
    rate, small = Rate(400), Rate(400)
    seconds = 3 * rate.seconds(0, 100)
    rate.learn(0, 100, 400, seconds)
    for _ in range(100):
        small.learn(0, 1, 4, seconds / 100)
    assert small.seconds(0, 100) == pytest.approx(rate.seconds(0, 100), rel=0.2)
    small = Rate(400)
    small.learn(0, 1, 4, seconds)
    assert small.seconds(0, 100) < 2 * seconds


def test_small_batches_that_are_slow_and_fast_in_turn_are_not_promised_earlier_than_they_end():
    """Fast ones counted fully and slow ones by their size: the estimate settled near the fastest."""
    rate = Rate(400)
    fast = rate.seconds(0, 1)
    for _ in range(1000):
        rate.learn(0, 1, 4, 3 * fast)
        rate.learn(0, 1, 4, fast)
    assert 2 * fast < rate.seconds(0, 1) < 3 * fast


def test_a_call_larger_than_the_limit_is_taken_where_nothing_waits(session):
    queue = Queue(session, QueueLimits(waiting_inputs=2))
    assert len(queue.answers(["good"] * 5, tasks=["mood"])) == 5
    queue.close()


@pytest.mark.parametrize("drain", [True, False])
def test_closing_answers_or_fails_what_waits_and_takes_no_more(session, gate, drain):
    queue = Queue(session)
    first = asked(queue, ["good"])[1]
    assert gate.entered.wait(30)
    waiting = asked(queue, ["sad"])[1]
    closing = threading.Thread(target=queue.close, kwargs={"drain": drain})
    closing.start()
    if not drain:
        with pytest.raises(BackendError, match="closed before"):
            waiting.result(30)
    gate.opened.set()
    closing.join(30)
    assert first.result(30)[0].answers
    if drain:
        assert waiting.result(30)[0].answers
    with pytest.raises(BackendError, match="is closed"):
        queue.answers(["good"])


def test_a_close_that_does_not_wait_for_all_leaves_no_caller_without_a_word(session, gate):
    """The batch that ran could not be told, and what waited behind it was never told."""
    queue = Queue(session, QueueLimits(batch_tokens=8))
    first = asked(queue, ["good"])[1]
    assert gate.entered.wait(30)
    waiting = [asked(queue, ["sad"])[1] for _ in range(3)]
    queue.close(timeout=0.0)
    gate.opened.set()
    for call in waiting:
        with pytest.raises(BackendError, match="closed before"):
            call.result(30)
    assert first.result(30)[0].answers
    assert not queue.waiting


def test_a_call_that_waits_is_answered_by_the_tasks_of_its_time(root, gate):
    session = Session(root, backend="reference")
    queue = Queue(session)
    asked(queue, ["good"], tasks=["names"])
    assert gate.entered.wait(30)
    before = asked(queue, ["sad"], tasks=["mood"])[1]
    session.detach("mood")
    with pytest.raises(UnknownTask):
        asked(queue, ["sad"], tasks=["mood"])
    gate.opened.set()
    assert before.result(30)[0].answers["mood"]
    queue.close()


def test_a_result_that_is_changed_changes_no_other(queue):
    first, second = queue.answers(["good", "bad"], tasks=["mood"])
    first.versions["mood"] = "changed"
    assert second.versions == queue.answers(["good"], tasks=["mood"])[0].versions == {"mood": "v0001"}


def test_a_task_that_fails_fails_alone(root, monkeypatch):
    session = Session(root, backend="reference")
    run, queue = type(session.backend).stages, Queue(session)

    def stages(self, plan, batch):
        for stage in run(self, plan, batch):
            wrong = {name: ValueError("a head raised") for name in stage.outputs if name == "mood"}
            outputs = {name: array for name, array in stage.outputs.items() if name not in wrong}
            yield msgspec.structs.replace(stage, outputs=outputs, failed=stage.failed | wrong)

    monkeypatch.setattr(type(session.backend), "stages", stages)
    monkeypatch.setattr(type(session.backend), "run", lambda self, plan, batch: 1 / 0)
    (result,) = queue.answers(["good"], tasks=["mood", "names"])
    assert set(result.answers) == {"names"} and "a head raised" in result.failed["mood"]
    (alone,) = queue.answers(["good"], tasks=["mood"])
    assert not alone.answers and "a head raised" in alone.failed["mood"]
    queue.close()


def test_a_batch_that_cannot_be_run_fails_only_the_call_that_is_at_fault(session, gate, monkeypatch):
    queue, run = Queue(session), SharedBatch.run

    def poisoned(batch, deliver):
        if ("poison",) in batch.inputs:
            raise MemoryError("too much")
        return run(batch, deliver)

    monkeypatch.setattr(SharedBatch, "run", poisoned)
    asked(queue, ["good"], tasks=["mood"])
    assert gate.entered.wait(30)
    good, bad = (asked(queue, [text], tasks=["mood"])[1] for text in ("sad", "poison"))
    gate.opened.set()
    assert good.result(30)[0].answers["mood"]
    with pytest.raises(MemoryError):
        bad.result(30)
    queue.close()


def test_a_caller_that_wants_stages_gets_each_answer_once_and_as_the_results_have_it(session, gate):
    seen, queue = [], Queue(session)
    asked(queue, ["good"], tasks=["names"])
    assert gate.entered.wait(30)
    other = asked(queue, ["sad", "good"], tasks=["names"])[1]
    future = asked(queue, ["the lamp", "good"], tasks=["names", "mood"], stage=seen.append)[1]
    gate.opened.set()
    results = future.result(30)
    given = {(stage.task, number): answer for stage in seen for number, answer in stage.answers.items()}
    assert len(given) == sum(len(stage.answers) for stage in seen) == 4
    assert given == {(name, i): answer for i, each in enumerate(results) for name, answer in each.answers.items()}
    assert [stage.task for stage in seen] == ["mood", "names"]  # what needs the fewest layers comes first
    assert other.result(30)[0].answers["names"]
    queue.close()


def test_the_mean_vector_of_a_text_comes_from_the_same_pass(root):
    session = Session(root, backend="reference")
    batches, name = [], attach_vectors(session)
    queue, texts = Queue(session, observe=batches.append), ["where is my order?", "good"]
    assert name not in session.tasks and name not in session.predict(["good"])[0].answers
    ticket, future = asked(queue, texts, tasks=["mood", name])
    results = future.result(30)
    queue.close()
    assert sum(batch.passes for batch in batches) == 2
    assert all(set(result.answers) == {"mood"} and set(result.receipt.added_flops) == {"mood"} for result in results)
    tokenizer = Tokenizer(session.bundle.trunk().tokenizer, session.bundle.trunk().settings)
    for text, outputs in zip(texts, ticket.outputs, strict=True):
        states = states_of(session, tokenizer, text)
        np.testing.assert_allclose(outputs[name], states.mean(axis=0), atol=1e-5)


def states_of(session, tokenizer, text):
    """The trunk's last states of a text (tokens, width), by the numpy backend's own features."""
    from polyhead.engine.backends.base import TokenBatch
    from polyhead.plan import Embed, Layers, Path

    encoded = tokenizer.encode([(text,)])[0]
    ids, segments = encoded.ids[None].astype(np.int64), encoded.segments[None].astype(np.int64)
    batch = TokenBatch(ids=ids, mask=np.ones(ids.shape, bool), segments=segments, words=np.zeros((1, 0), np.int64))
    every = Path(nodes=(Embed(trunk=session.bundle.digest), Layers(start=0, stop=4), Pool(positions="all")))
    return session.backend.features([every], batch)[0][:, 0]


def test_inputs_that_no_task_reads_are_answered_without_a_batch(session):
    batches = []
    queue = Queue(session, observe=batches.append)
    results = queue.answers([("a", "b"), ""], tasks=["mood"])
    queue.close()
    assert [set(result.skipped) for result in results] == [{"mood"}, {"mood"}] and not batches


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"inputs": "one text"}, BadValue),
        ({"inputs": [3]}, BadValue),
        ({"inputs": ["a"], "tasks": ["none"]}, UnknownTask),
        ({"inputs": ["a"], "deadline": float("nan")}, BadValue),
    ],
    ids=["a string", "a number", "unknown task", "deadline"],
)
def test_what_cannot_be_asked_is_refused_before_it_waits(queue, call, error):
    with pytest.raises(error):
        asked(queue, **call)
    assert queue.is_idle


@pytest.mark.parametrize("limits", [{"batch_tokens": 0}, {"waiting_inputs": 0}, {"waiting_characters": -1}])
def test_limits_that_let_nothing_through_are_refused(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        queues.QueueLimits(**limits)


def test_what_a_queue_answered_keeps_no_tasks_that_were_replaced(root):
    """Without a collector of cycles, which a server seldom runs: each change left a whole set of tasks behind."""
    session = Session(root, backend="reference")
    queue = Queue(session)
    gc.disable()
    try:
        before = weakref.ref(session.loaded)
        for some in SETS:
            assert queue.answers([("good",), ("the lamp is late",)], tasks=some)
        kept = Future()  # a caller who keeps the ticket, as an event loop does
        queue.submit([("good",)], lambda ticket, kept=kept: kept.set_result(ticket))
        assert kept.result(30).results
        del kept
        session.detach("where")
        assert queue.answers([("good",)])
        while not queue.is_idle:
            time.sleep(0.001)
        queue.close()
        assert before() is None
    finally:
        gc.enable()


def test_an_answered_ticket_that_its_caller_forgets_is_gone_at_once(queue):
    """Without a collector of cycles: what a caller gives to be asked whether it is gone may hold the ticket."""
    gc.disable()
    try:
        future = Future()
        queue.submit([("good",)], future.set_result, is_gone=future.cancelled)
        ticket = weakref.ref(future.result(30))
        del future
        assert queue.answers([("bad",)])  # the queue's thread holds no earlier batch
        until(lambda: ticket() is None)
    finally:
        gc.enable()
