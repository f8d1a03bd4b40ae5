"""Depths found on validation: all of them trained to the end, or the better half of what is left, again and again."""

import statistics
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from polyhead.deep.branch.run import Branches, DepthCandidate, FallenBranches, grid, halving, seed_spread
from polyhead.deep.loop import fit as fitting
from polyhead.project.strategies import Branch
from support.cases import cases, fresh
from support.tiers import first_of
from support.tiny_branches import branches_of, bytes_of, extractor_of, home_in, seeded, untimed

EPOCHS = 4
DEPTHS, SEEDS = (1, 2, 3), (1, 2)
LONGER = seeded(epochs=EPOCHS, patience=EPOCHS)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def kept(home, tmp_path_factory):
    extractor = extractor_of(home, tmp_path_factory.mktemp("kept"))
    branches_of(home, extractor, "mood")
    branches_of(home, extractor, "alike")
    return extractor


def branches(home, kept, name="mood", *, training=LONGER, **named):
    return branches_of(home, kept, name, strategy=Branch(hidden=8), training=training, depths=(), **named)


@pytest.fixture(scope="module")
def alone(home, kept):
    """Every depth and seed as a teacher trained by itself."""
    made = branches(home, kept)
    return {(layers, seed): made.teacher(layers, seed=seed) for layers in DEPTHS for seed in SEEDS}


@pytest.fixture
def trained(monkeypatch):
    """How many epochs each module was trained."""
    counts, epoch = {}, fitting.TrainingLoop.epoch

    def counted(run, *arguments):
        counts[id(run.module)] = counts.get(id(run.module), 0) + 1
        return epoch(run, *arguments)

    monkeypatch.setattr(fitting.TrainingLoop, "epoch", counted)
    return counts


def scores_after(grown, epochs):
    return max(row["score"] for row in grown.fitted.history[:epochs])


def best_key(scores):
    """The best score; of equals fewer layers, then the smaller seed."""
    return sorted(scores, key=lambda key: (-scores[key], key[0], key[1]))[0]


@pytest.mark.slow
def test_the_grid_is_the_best_of_separately_trained_teachers_byte_for_byte(home, kept, alone, trained):
    found = grid(branches(home, kept), DEPTHS, SEEDS)
    assert sorted(trained.values()) == [EPOCHS] * 6
    assert {(c.layers, c.seed): c.score for c in found.candidates} == {
        key: grown.fitted.score for key, grown in alone.items()
    }
    assert {c.epochs for c in found.candidates} == {EPOCHS}
    best = alone[best_key({key: grown.fitted.score for key, grown in alone.items()})]
    assert bytes_of(found.best.arrays) == bytes_of(best.arrays) and found.best.path == best.path
    assert untimed(found.best.fitted) == untimed(best.fitted)
    assert [one.layers for one in found.ended] == list(DEPTHS)
    for one in found.ended:  # of each depth its best seed
        scores = {key: g.fitted.score for key, g in alone.items() if key[0] == one.layers}
        assert bytes_of(one.arrays) == bytes_of(alone[best_key(scores)].arrays)


def test_halving_trains_six_for_an_epoch_three_for_two_and_two_to_the_end(home, kept, alone, trained):
    found = halving(branches(home, kept), DEPTHS, SEEDS)
    assert sorted(trained.values()) == [1, 1, 1, 2, EPOCHS, EPOCHS]
    stopped = {(c.layers, c.seed): c for c in found.candidates}
    assert set(stopped) == set(alone) and len(found.candidates) == 6
    assert sorted(c.epochs for c in found.candidates) == sorted(trained.values())
    for key, candidate in stopped.items():  # the very runs of the grid, as far as they went
        assert candidate.score == scores_after(alone[key], candidate.epochs)


def by_hand(scores, epochs):
    """Successive halving over given score curves: (epochs of each, the best)."""
    alive, reached = sorted(scores), dict.fromkeys(scores, 0)
    for epoch in range(1, epochs + 1):
        for key in alive:
            reached[key] = epoch
        if len(alive) > 2:
            ranked = sorted(alive, key=lambda key: (-max(scores[key][:epoch]), key))
            alive = ranked[: max(2, -(-len(alive) // 2))]
    return reached, min(alive, key=lambda key: (-max(scores[key]), key))


def test_halving_keeps_the_better_half_on_validation_and_its_winner_is_a_run_of_the_grid(home, kept, alone):
    curves = {key: [row["score"] for row in grown.fitted.history] for key, grown in alone.items()}
    reached, best = by_hand(curves, EPOCHS)
    found = halving(branches(home, kept), DEPTHS, SEEDS)
    assert {(c.layers, c.seed): c.epochs for c in found.candidates} == reached
    assert found.best.layers == best[0]
    assert bytes_of(found.best.arrays) == bytes_of(alone[best].arrays)
    assert untimed(found.best.fitted) == untimed(alone[best].fitted)


@pytest.mark.slow
@pytest.mark.parametrize("search", [grid, halving])
def test_a_search_again_finds_the_same_bytes(home, kept, search):
    short = seeded(epochs=2, patience=2)
    one, two = (search(branches(home, kept, "alike", training=short), (1, 2, 3), (4,)) for _ in range(2))
    assert bytes_of(one.best.arrays) == bytes_of(two.best.arrays) and one.candidates == two.candidates


@pytest.fixture(scope="module")
def halved(home, kept):
    """What halving finds that was not interrupted."""
    return halving(branches(home, kept), DEPTHS, SEEDS)


def test_one_candidate_is_in_memory_at_a_time_and_goes_on_from_its_checkpoint(
    home, kept, halved, tmp_path, monkeypatch
):
    """The weights and optimizers of all depths were held at once."""
    alive, counts, start = weakref.WeakSet(), [], fitting.TaskLoop.__init__

    def started(loop, *arguments, **named):
        alive.add(loop)
        counts.append(len(alive))
        start(loop, *arguments, **named)

    monkeypatch.setattr(fitting.TaskLoop, "__init__", started)
    found = halving(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    assert counts == [1] * (6 + 3 + 2)
    assert found.candidates == halved.candidates
    for one, other in zip(found.ended, halved.ended, strict=True):
        assert bytes_of(one.arrays) == bytes_of(other.arrays)


@pytest.mark.slow
@pytest.mark.parametrize("after", first_of([2, 7, 9]), ids=["first rung", "second rung", "last rung"])
def test_a_search_that_was_interrupted_goes_on_as_if_it_had_not_been(home, kept, halved, tmp_path, monkeypatch, after):
    """Candidates that went further than the rung that is judged again must not push others out."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    save, count = fitting.TrainingLoop.save, [0]

    def saved(run):
        save(run)
        count[0] += 1
        if count[0] == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "save", saved)
        with pytest.raises(KeyboardInterrupt):
            halving(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    count[0] = -1000
    epochs = []
    epoch = fitting.TrainingLoop.epoch
    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "epoch", lambda run, *given: epochs.append(run) or epoch(run, *given))
        found = halving(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    assert len(epochs) == 13 - after  # 3 x 1 + 1 x 2 + 2 x 4, less what was done
    assert bytes_of(found.best.arrays) == bytes_of(halved.best.arrays)
    assert found.candidates == halved.candidates


def test_a_search_that_was_interrupted_inside_an_epoch_goes_on_as_if_it_had_not_been(
    home, kept, halved, tmp_path, monkeypatch
):
    """The first rung, judged again, took the weights inside the second epoch for those before it."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    save_inside = fitting.TrainingLoop.save_inside

    def saved(run, begun):
        save_inside(run, begun)
        if run.done == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "save_inside", saved)
        with pytest.raises(KeyboardInterrupt):
            halving(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    again = halving(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    assert again.candidates == halved.candidates
    for one, other in zip(again.ended, halved.ended, strict=True):
        assert bytes_of(one.arrays) == bytes_of(other.arrays)


def keys_on_disk(folder):
    """The depths and seeds that have a checkpoint; another file there is none of a branch."""
    parts = [file.stem.rsplit("-", 2) for file in folder.glob("mood-teacher-*.checkpoint")]
    return {(int(layers), int(seed)) for _, layers, seed in parts}


@pytest.mark.parametrize("search", [halving, pytest.param(grid, marks=pytest.mark.slow)])
def test_a_branch_that_is_out_of_the_race_leaves_no_checkpoint(home, kept, tmp_path, monkeypatch, search):
    """All stayed until the search ended: weights and optimizers of every depth and seed."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    made, seen, begin = branches(home, kept, checkpoints=tmp_path), [], Branches.loop

    def loop(self, path, *, seed):
        seen.append(keys_on_disk(tmp_path))
        return begin(self, path, seed=seed)

    monkeypatch.setattr(Branches, "loop", loop)
    searched = search(made, DEPTHS, SEEDS)
    scores = {(c.layers, c.seed): c.score for c in searched.candidates}
    ranked = sorted(scores, key=lambda key: (-scores[key], key))
    if search is halving:
        epochs = {(c.layers, c.seed): c.epochs for c in searched.candidates}
        assert seen[6] == {key for key in epochs if epochs[key] > 1} and len(seen[6]) == 3
        assert seen[9] == keys_on_disk(tmp_path) == {key for key in epochs if epochs[key] == EPOCHS}
    else:
        for count, files in enumerate(seen):
            ended = [(layers, seed) for layers in DEPTHS for seed in SEEDS][:count]
            assert files == {next(key for key in ranked if key[0] == of and key in ended) for of, _ in ended}
    assert ranked[0] in keys_on_disk(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("search", [halving, grid])
def test_a_search_that_ended_before_its_branches_were_kept_trains_nothing_again(
    home, kept, tmp_path, monkeypatch, search
):
    """The best go on from their checkpoints; those out of the race are known by their scores."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    first = search(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    epochs, epoch = [], fitting.TrainingLoop.epoch
    monkeypatch.setattr(fitting.TrainingLoop, "epoch", lambda run, *given: epochs.append(run) or epoch(run, *given))
    again = search(branches(home, kept, checkpoints=tmp_path), DEPTHS, SEEDS)
    assert not epochs and again.candidates == first.candidates
    for one, other in zip(again.ended, first.ended, strict=True):
        assert bytes_of(one.arrays) == bytes_of(other.arrays)


def test_a_candidate_that_lost_patience_says_how_long_it_really_trained(home, kept, trained):
    impatient = seeded(epochs=6, patience=1, learning_rate=1e-30)
    for search in (grid, halving):
        trained.clear()
        found = search(branches(home, kept, training=impatient), (1, 2), (1,))
        assert [c.epochs for c in found.candidates] == [2, 2] == sorted(trained.values())


# which is chosen, on score curves that are given


class Curves:
    """Branches whose scores are known beforehand: (layers, seed) -> one score an epoch."""

    checkpoints = None

    def __init__(self, curves):
        self.curves, self.running = curves, {}

    def path(self, layers):
        return layers

    def loop(self, path, *, seed):
        most = max(map(len, self.curves.values()))
        made = SimpleNamespace(done=0, best_score=-np.inf, key=(path, seed), most=most)

        def advance(epochs=most):
            made.done = max(made.done, epochs)
            made.best_score = max(self.curves[made.key][: made.done])

        made.advance, made.set_aside = advance, lambda: False
        self.running[made.key] = made
        return None, made

    def grown(self, path, module, loop):
        return SimpleNamespace(layers=path, key=loop.key)


@cases("search", [grid, halving])
@cases(
    ("scores", "chosen"),
    [
        ({(1, 1): 0.5, (2, 1): 0.5, (3, 1): 0.5}, (1, 1)),
        ({(1, 1): 0.4, (2, 1): 0.5, (3, 1): 0.5}, (2, 1)),
        ({(1, 1): 0.5, (1, 2): 0.6, (2, 1): 0.6, (2, 2): 0.6}, (1, 2)),
        ({(2, 1): 0.6, (2, 2): 0.6, (3, 1): 0.1, (3, 2): 0.6}, (2, 1)),
        ({(1, 1): 0.1, (2, 1): 0.2, (3, 1): 0.3}, (3, 1)),
    ],
    ids=["all equal", "two equal", "seeds", "smaller seed", "deepest best"],
)
def test_ties_go_to_fewer_layers_then_to_the_smaller_seed(search, scores, chosen):
    curves = Curves({key: [score] * 3 for key, score in scores.items()})
    depths, seeds = ({key[place] for key in scores} for place in (0, 1))
    assert search(curves, sorted(depths), sorted(seeds)).best.key == chosen


@cases(
    ("count", "epochs", "wanted"),
    [
        (1, 3, [3]),
        (2, 3, [3, 3]),
        (3, 3, [1, 3, 3]),
        (6, 5, [1, 1, 1, 2, 5, 5]),
        (7, 5, [1, 1, 1, 2, 2, 5, 5]),
        (12, 6, [1] * 6 + [2] * 3 + [3] + [6, 6]),
        (6, 1, [1] * 6),
        (12, 2, [1] * 6 + [2] * 6),
    ],
    ids=str,
)
def test_halving_spends_so_many_epochs_on_each(count, epochs, wanted):
    """The half is rounded up, at least two go on, and the last two train to the end."""
    curves = Curves({(layers, 1): [layers / 100] * epochs for layers in range(1, count + 1)})
    found = halving(curves, range(1, count + 1), (1,))
    assert sorted(c.epochs for c in found.candidates) == wanted
    assert found.best.layers == count  # the best from the first epoch on


def test_a_late_riser_is_lost_by_halving_and_found_by_the_grid():
    """The price of halving, stated: it judges after one epoch."""
    curves = {(layers, 1): [0.5, 0.5, 0.5] for layers in range(1, 6)} | {(6, 1): [0.1, 0.2, 0.9]}
    assert grid(Curves(curves), range(1, 7), (1,)).best.layers == 6
    assert halving(Curves(curves), range(1, 7), (1,)).best.layers == 1


@cases("seed", range(20))
def test_halving_on_random_curves_is_what_its_definition_says(seed):
    chance = np.random.default_rng(seed)
    epochs, depths, seeds = (range(1, chance.integers(2, 7)) for _ in range(3))
    curves = {(layers, s): chance.integers(0, 5, len(epochs)).tolist() for layers in depths for s in seeds}
    found = halving(Curves(curves), depths, seeds)
    reached, best = by_hand(curves, len(epochs))
    assert {(c.layers, c.seed): c.epochs for c in found.candidates} == reached
    assert found.best.key == best
    for candidate in found.candidates:
        curve = curves[candidate.layers, candidate.seed]
        assert candidate.score == max(curve[: candidate.epochs])


# the spread of seeds


def test_the_spread_of_a_depth_is_that_of_its_seeds_scores():
    chance = np.random.default_rng(0)
    scores = {layers: chance.random(5 if layers > 1 else 4).tolist() for layers in (3, 1, 2)}
    candidates = tuple(
        DepthCandidate(layers=layers, seed=seed, epochs=3, score=score)
        for layers, several in scores.items()
        for seed, score in enumerate(several)
    )
    found = seed_spread(candidates)
    assert list(found) == [1, 2, 3]
    for layers, row in found.items():
        several = np.array(scores[layers])
        expected = [several.max(), several.mean(), np.median(several), several.std(ddof=1)]
        assert [row[name] for name in ("max", "mean", "median", "spread")] == pytest.approx(expected)
        assert row["spread"] == pytest.approx(statistics.stdev(scores[layers]))


def test_one_seed_has_no_spread():
    candidates = (DepthCandidate(layers=2, seed=1, epochs=1, score=0.25),)
    found = seed_spread(candidates)
    assert found == {2: {"max": 0.25, "mean": 0.25, "median": 0.25, "spread": 0.0}}


class SavedCurves(Curves):
    """Given curves whose search may be interrupted, before so many candidates have advanced, and goes on later."""

    def __init__(self, curves, checkpoints, *, most=None):
        super().__init__(curves)
        self.checkpoints, self.most, self.advanced = checkpoints, most, 0

    def checkpoint(self, path, seed):
        return self.checkpoints / f"{path}-{seed}"

    def loop(self, path, *, seed):
        module, made = super().loop(path, seed=seed)
        advance = made.advance

        def counted(*epochs):
            if self.advanced == self.most:
                raise KeyboardInterrupt
            self.advanced += 1
            advance(*epochs)

        made.advance = counted
        return module, made


@cases("search", [halving, grid])
@cases("after", [1, 3, 5, 7])
@cases(
    ("depths", "seeds"),
    [(range(1, most + 1), (1, 2)) for most in (1, 2, 3)] + [((2, 3), (1,)), ((1, 2, 3), (2,)), ((1, 2, 3, 4), (1, 2))],
    ids=str,
)
def test_a_search_among_others_than_the_interrupted_one_is_as_if_that_had_not_been(
    tmp_path, monkeypatch, search, after, depths, seeds
):
    """With fewer depths, as where fewer minutes are given, it ran for ever, or reported depths that it did not try."""
    curves = {(layers, seed): [layers / 10 + seed / 100] * 4 for layers in range(1, 5) for seed in (1, 2)}
    folder = fresh(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(SavedCurves(curves, folder, most=after), (1, 2, 3, 4), (1, 2))
    rungs, add = [], FallenBranches.add

    def counted(*arguments):
        rungs.append(arguments)
        assert len(rungs) < 20, "the search does not end"
        add(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(FallenBranches, "add", counted)
        again = search(SavedCurves(curves, folder), depths, seeds)
    whole = search(Curves(curves), depths, seeds)
    assert again.candidates == whole.candidates
    assert again.best.key == whole.best.key
    assert [branch.key for branch in again.ended] == [branch.key for branch in whole.ended]


def test_the_last_rung_and_a_grid_pass_over_candidates_that_fell_in_another_kind_of_search(tmp_path):
    """A grid of one depth leaves one seed; the other never left the race of a later halving."""
    curves = {(1, 1): [0.1] * 4, (1, 2): [0.2] * 4}
    assert grid(SavedCurves(curves, tmp_path / "one"), (1,), (1, 2)).best.key == (1, 2)
    assert halving(SavedCurves(curves, tmp_path / "one"), (1,), (1, 2)).best.key == (1, 2)
    curves = {(layers, seed): [layers / 10] * 4 for layers in (1, 2, 3, 4) for seed in (1, 2)}
    assert halving(SavedCurves(curves, tmp_path / "four"), (1, 2, 3, 4), (1, 2)).best.key == (4, 1)
    assert grid(SavedCurves(curves, tmp_path / "four"), (1, 2, 3, 4), (1, 2)).best.key == (4, 1)
