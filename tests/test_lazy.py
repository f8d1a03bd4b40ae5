"""Attributes that are computed when they are first read: once, and without a lock that others wait for."""

import threading

from polyhead.bundle.read import Bundle
from polyhead.lazy import lazy


class Slow:
    """Waits in the first object until the second has its value."""

    def __init__(self, waits_for=None):
        self.waits_for, self.times = waits_for, 0

    @lazy
    def value(self):
        """What is computed."""
        self.times += 1
        if self.waits_for is not None:
            assert self.waits_for.wait(60), "another object's value waits for this one's"
        return [self.times]


def test_it_is_computed_once_and_kept_in_its_object():
    first, second = Slow(), Slow()
    assert first.value is first.value and first.times == 1 and second.times == 0
    assert "value" in vars(first) and Slow.value.__doc__ == "What is computed."


def test_one_object_that_takes_long_stops_no_other():
    is_there = threading.Event()
    slow, quick = Slow(is_there), Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    try:
        assert quick.value == [1]
    finally:
        is_there.set()
        thread.join()
    assert slow.value == [1]


def test_two_threads_get_the_one_value_that_is_kept():
    both, values = threading.Barrier(2, timeout=60), []

    class Met:
        @lazy
        def value(self):
            both.wait()
            return object()

    met = Met()
    threads = [threading.Thread(target=lambda: values.append(met.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 2 and values[0] is values[1] is met.value


def test_no_bundle_waits_for_another_bundle():
    assert {name for name, held in vars(Bundle).items() if isinstance(held, lazy)} == {
        "tasks",
        "tokenizer",
        "_record",
        "_trunk",
    }
