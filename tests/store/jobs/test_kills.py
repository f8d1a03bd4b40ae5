"""A backfill that is killed at any step, or whose disk fills, loses nothing that was committed and then goes on."""

import pytest

from polyhead.bundle.read import Bundle
from polyhead.errors import StoreError
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from support.backfills import append, make_bundle, schema, texts
from support.disk_failures import FullDisk, run_forking

# Forks a backfill for every n, which dies, without any cleaning up, right before its n-th step at the disk.
KILLED = """
import os, sys
from support.disk_failures import Kill, exit_code
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.corpus.plain import PlainStore

location, bundle = sys.argv[1:]
wish = BackfillRequest(tasks=("mood",), executor="inline")
deadly, kills, most = 0, 0, 0
while True:
    deadly += 1
    if os.fork() == 0:
        Kill(deadly)
        backfill(location, bundle, wish)
        os._exit(0)
    code = exit_code()
    kills += code == 9
    store = PlainStore.open(location)
    store.verify()
    done = sum(fragment.rows for fragment in store.fragments if fragment.results)
    assert done >= most and sum(fragment.rows for fragment in store.fragments) == 9
    most = done
    if code == 0:
        break
print(kills, done)
"""


def store_of(folder, *ranges):
    bundle = make_bundle(folder / "bundle", ["mood"], words=256)
    path = Bundle.open(bundle).tasks["mood"].path
    store = PlainStore.create(str(folder / "store"), schema(path, words=True))
    for numbers in ranges:
        append(store, path, texts(numbers))
    return str(folder / "store"), bundle


@pytest.mark.slow
def test_a_backfill_killed_at_every_step_goes_on_and_loses_nothing(tmp_path):
    location, bundle = store_of(tmp_path, range(4), range(4, 7), range(7, 9))
    kills, done = map(int, run_forking(KILLED, location, bundle).split())
    assert kills >= 6 and done == 9
    killed = [PlainStore.open(location).results(f.name, f.results[0]) for f in PlainStore.open(location).fragments]
    column = PlainStore.open(location).fragments[0].results[0]
    PlainStore.open(location).drop_results(column)
    backfill(location, bundle, BackfillRequest(tasks=("mood",)))
    whole = [PlainStore.open(location).results(f.name, column) for f in PlainStore.open(location).fragments]
    assert [one["label"].tolist() for one in killed] == [one["label"].tolist() for one in whole]


def test_a_full_disk_is_a_clear_error_and_the_store_stays_readable(tmp_path, monkeypatch):
    location, bundle = store_of(tmp_path, range(4), range(4, 7))
    wish, failing, errors = BackfillRequest(tasks=("mood",), executor="inline"), 0, 0
    while True:
        failing += 1
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                done = backfill(location, bundle, wish)
            except StoreError as error:
                assert "No space left on device" in str(error) and "make room" in str(error)
                errors += 1
        PlainStore.open(location).verify()
        if disk.calls < failing:
            break
    assert errors >= 5 and done.documents == 7
    assert all(fragment.results for fragment in PlainStore.open(location).fragments)
