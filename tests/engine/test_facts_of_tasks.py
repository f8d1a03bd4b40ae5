"""What follows from the tasks of a moment is found once, and forgotten with the moment."""

import gc
import weakref

from polyhead.engine import loaded
from polyhead.engine.loaded import FactOfTasks


class Moment:
    pass


def test_a_fact_is_found_once_for_each_moment_and_names():
    asked = []

    def find(loaded, names):
        asked.append((loaded, names))
        return len(asked)

    fact, one, two = FactOfTasks(find), Moment(), Moment()
    assert [fact(one, ["a"]), fact(one, ("a",)), fact(two, ("a",)), fact(one, ("a", "b"))] == [1, 1, 2, 3]


def test_a_moment_that_nobody_has_is_forgotten():
    fact, moment = FactOfTasks(lambda moment, names: names), Moment()
    fact(moment, ("a",))
    known = weakref.ref(moment)
    del moment
    gc.collect()
    assert known() is None


def test_no_more_sets_are_remembered_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(loaded, "FACTS", 3)
    fact, moment = FactOfTasks(lambda moment, names: names), Moment()
    for number in range(10):
        assert fact(moment, (f"{number}",)) == (f"{number}",)
        assert len(fact._known[moment]) <= 3
