"""Linear heads whose solutions are remembered, and whose search is short where it is not what is looked at."""

import hashlib
import threading

import numpy as np

MOST = 2**20  # numbers of inputs whose solutions are remembered
_known, _own = {}, {}
_solving = threading.RLock()


def shorten(monkeypatch, *, folds=2, steps=8, tried=slice(2, 8, 2)):
    """Linear heads are tried with three penalties in place of all, in two folds in place of five, in few steps each."""
    from polyhead.train.heads import search, trials

    few = search.PENALTIES[tried]

    def short(folds, penalties=search.PENALTIES, **settings):
        return _remembered(folds, few if penalties == search.PENALTIES else penalties, **settings)

    monkeypatch.setattr(trials, "FOLDS", folds)
    monkeypatch.setattr(search, "ITERATIONS", steps)
    _replace(monkeypatch, short)


def lessen(monkeypatch):
    """Four penalties, three folds and forty steps each: enough to learn labels that a word of the text says."""
    shorten(monkeypatch, folds=3, steps=40, tried=slice(2, 12, 3))


def hurry(monkeypatch):
    """The same; heads that are trained in steps take few, and speeds are measured once.

    For tests that do not look at what is learned or measured.
    """
    from polyhead.advise import measure
    from polyhead.project import recipes

    shorten(monkeypatch)
    monkeypatch.setattr(recipes, "LEAST_UPDATES", 20)
    monkeypatch.setattr(measure, "REPEATS", 1)
    monkeypatch.setattr(measure, "ALONE", 2)


def remember(monkeypatch):
    """What depends on its inputs alone is computed once: most tests train heads of the same few texts."""
    from polyhead.train.heads import search

    _replace(
        monkeypatch, lambda folds, penalties=search.PENALTIES, **settings: _remembered(folds, penalties, **settings)
    )


def forget(monkeypatch):
    """Nothing is remembered."""
    from polyhead.train.heads import search

    monkeypatch.setattr(search, "fold_solutions", _own["solutions"])


def _replace(monkeypatch, solutions):
    from polyhead.train.heads import search

    _own.setdefault("solutions", search.fold_solutions)
    monkeypatch.setattr(search, "fold_solutions", solutions)


def _remembered(folds, penalties, *, axes=None, near=0.0):
    from polyhead.train.heads import search

    solutions, settings = _own["solutions"], {"axes": axes} | ({"near": near} if near else {})
    if sum(fold.members.size for fold in folds) * folds[0].values.shape[1] > MOST:
        yield from solutions(folds, penalties, **settings)
        return
    key = _key(folds, axes or (), search.ITERATIONS, penalties, near)
    with _solving:
        solved, more = _known.setdefault(key, ([], solutions(folds, penalties, **settings)))
    place = 0
    while True:
        with _solving:
            if place == len(solved):
                try:
                    solved.append(next(more))
                except StopIteration:
                    return
                except BaseException:
                    _known.pop(key, None)
                    raise
        yield solved[place]
        place += 1


def _key(folds, axes, *settings):
    told = hashlib.sha256(repr(settings).encode())
    arrays = list(axes)
    for inputs in folds:
        told.update(repr((inputs.loss, inputs.outputs, inputs.cosine)).encode())
        arrays += [inputs.read(), inputs.targets, inputs.weights, inputs.prior]
    for array in arrays:
        array = np.zeros(0) if array is None else array
        told.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return told.digest()
