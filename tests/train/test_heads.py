"""Heads are chosen on rows that they did not learn from: folds, the part that learns from all rows, baselines."""

import collections
import json
import math
import threading
from contextlib import nullcontext

import msgspec
import numpy as np
import pytest
import torch

from polyhead.bundle.read import Bundle
from polyhead.data.split import folds
from polyhead.deep.examples import module_outputs
from polyhead.deep.heads import stepped
from polyhead.deep.heads.stepped import FoldRun, rounds_of
from polyhead.engine.session import Session
from polyhead.plan import Codec
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.train import events as telling
from polyhead.train.candidates import STEPS_FROM, candidate_paths, candidates, of_effort
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare, wanted
from polyhead.train.data.prepared import FOLDS
from polyhead.train.events import Events
from polyhead.train.heads import run as choosing
from polyhead.train.heads import search, trials
from polyhead.train.heads.run import train_task
from polyhead.train.heads.selection_rule import choosing_score
from polyhead.train.heads.trials import Trials
from polyhead.train.record import lines
from polyhead.train.run import train_project
from support import tiny_project

AUTO = msgspec.structs.replace(tiny_project.STRATEGY, positions="auto")
POOLERS = ["mean vector, hidden layer", "first token, hidden layer", "attention, learned mix of layers"]
QUICK = msgspec.structs.replace(tiny_project.TRAINING, epochs=4, patience=4)


FEW = [
    (STEPS_FROM - 1, {}, 0),
    (STEPS_FROM, {}, 1),
    (8, {"effort": "best"}, 4),
    (8, {"epochs": 3}, 1),
    (2 * STEPS_FROM, {"effort": "quick"}, 0),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    tiny_project.project(folder)
    return folder


@pytest.fixture
def brief(monkeypatch):
    """Linear heads take few steps: for tests that look at what is done with them, and not at how good they are."""
    monkeypatch.setattr(search, "ITERATIONS", 8)


def trained(home, root, *names, strategy=AUTO, training=QUICK, **changes):
    project = tiny_project.project(home, *names, strategy=strategy, training=training, **changes)
    lines = []
    project = msgspec.structs.replace(project, bundle=str(root))
    train_project(project, folder=home, cache=home / "cache", events=Events(say=lines.append))
    return Bundle.open(root), lines, project


@pytest.mark.slow
def test_scores_of_heads_are_said_while_others_still_learn(home, tmp_path, monkeypatch):
    """With 50,000 rows nobody saw for a quarter of an hour what the linear heads score, nor the one that learned."""
    monkeypatch.setattr(choosing, "TOLD_FROM", 1)
    monkeypatch.setattr(telling, "LAP_SECONDS", -1.0)
    for folder, changes in (("a", {}), ("b", {"validation": 0.25})):
        bundle, lines, _ = trained(home, tmp_path / folder, "mood", strategy=tiny_project.STRATEGY, **changes)
        notes = bundle.scores("mood")
        (name,) = notes["tried"] or {notes["chosen"]: 0}
        said = [line for line in lines if line.startswith(f"mood: {name}: validation accuracy ")]
        assert said == [f"mood: {name}: validation accuracy {notes['splits']['validation']['accuracy']:.4f}"]
        laps = [line for line in lines if ": round " in line or ": epoch " in line]
        assert laps and all("validation 0." in line or "validation 1." in line for line in laps if ": round" in line)


@pytest.mark.parametrize("count", [2, 5])
def test_every_row_is_in_one_fold_and_equal_texts_are_in_the_same(home, count):
    whole = prepare(tiny_project.project(home, "mood", validation=0.3), home)[0].whole
    doubled = whole.take([*range(len(whole.targets)), *range(len(whole.targets))])
    task = prepare(tiny_project.project(home, "mood"), home)[0].task
    parts = folds(doubled, count, 3, task)
    assert sorted(row for part in parts for row in part) == list(range(len(doubled.targets)))
    for part in parts:
        assert {row % len(whole.targets) for row in part} == {row for row in range(len(whole.targets)) if row in part}
    assert folds(doubled, count, 3, task) == parts != folds(doubled, count, 4, task)


def test_labels_are_dealt_out_evenly(home):
    """Each label's rows differ by at most one between folds."""
    prepared = prepare(tiny_project.project(home, "mood", validation=0.3), home)[0]
    parts = folds(prepared.whole, 5, 1, prepared.task)
    for label in range(len(prepared.task.labels)):
        counts = [sum(int(prepared.whole.targets[row]) == label for row in part) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_few_rows_are_each_held_out_once_and_the_kept_part_learns_from_all(home, tmp_path, brief):
    bundle, lines, project = trained(home, tmp_path / "b", "mood", validation=0.3)
    notes = bundle.scores("mood")
    assert notes["folds"] == FOLDS and notes["refitted"]
    assert set(notes["tried"]) == {"linear, last 2 layers", "linear, last layer", "attention"}
    assert any("5 folds" in line for line in lines)
    # The score is of outputs for rows not seen: the part itself, which has seen them, scores no worse.
    whole = prepare(project, home)[0].whole
    outputs = Session(tmp_path / "b").outputs("mood", whole.inputs)
    assert whole.scores(bundle.tasks["mood"].task, outputs)["accuracy"] >= notes["splits"]["validation"]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(("far", "rounds"), [(0, 3), (1e9, 9)], ids=["far behind", "not far"])
@pytest.mark.parametrize(
    "changes", [{"validation": 0.3}, {"validation": "data/messages-test.jsonl"}], ids=["folds", "a file"]
)
def test_a_head_that_stays_far_behind_the_linear_one_is_given_up(home, monkeypatch, brief, far, rounds, changes):
    monkeypatch.setattr(stepped, "FAR", far)
    assert len(attention_beside(home, **changes).fitted.history) == rounds


def attention_beside(home, **changes):
    """The trial of a head that learns nothing, beside linear ones."""
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=9, patience=9, learning_rate=1e-9)
    project = tiny_project.project(home, "mood", strategy=AUTO, training=training, **changes)
    prepared = prepare(project, home)[0]
    data = load_trunk(str(home / "trunk"))
    extractor = Extractor(data, folder=home / "cache" / "features", precision="float32")
    paths = candidate_paths(prepared, extractor, Codec(name="float32"))
    extractor.fill([feature for path in paths for feature in wanted(prepared, path, extractor)])
    trials = Trials(prepared, extractor, checkpoints=None, events=Events())
    linear, *_, attention = (
        trials.tried(candidate, path) for candidate, path in zip(candidates(prepared, extractor), paths, strict=True)
    )
    scores = [choosing_score(prepared.task, trials.held, trial.outputs) for trial in (linear, attention)]
    assert scores[0] > scores[1]
    return attention


@pytest.mark.parametrize(
    ("ahead_by", "most_tokens", "rounds"),
    [(12, 2**30, 3), (10**6, 2**30, 9), (8, 2**10, 2), (12, 1, 3)],
    ids=["never ahead", "not yet", "dropped first", "tokens spent"],
)
def test_updates_and_tokens_are_counted_where_folds_decide(home, monkeypatch, brief, ahead_by, most_tokens, rounds):
    """Rounds of four updates here; no clock has a say."""
    monkeypatch.setattr(stepped, "AHEAD_BY", ahead_by)
    monkeypatch.setattr(stepped, "MOST_TOKENS", most_tokens)
    monkeypatch.setattr(stepped, "FAR", 1e9)
    monkeypatch.setattr(stepped, "_is_ahead", (lambda *given: True) if most_tokens == 1 else stepped._is_ahead)
    attention = attention_beside(home, validation=0.3)
    assert attention.fitted.steps == 4 and len(attention.fitted.history) == rounds


@pytest.mark.parametrize(("rows", "changes", "tries"), FEW, ids=[str(case) for case in FEW])
def test_few_rows_try_linear_heads_alone_unless_more_is_asked_for(home, monkeypatch, rows, changes, tries):
    """No clock decides it: rows, effort and epochs do."""
    training = msgspec.structs.replace(Training(), **changes)
    (prepared,) = prepare(tiny_project.project(home, "mood", strategy=AUTO, training=training, validation=0.25), home)
    examples = prepared.whole
    several = [row % len(examples.targets) for row in range(rows)]
    prepared = msgspec.structs.replace(prepared, whole=examples.take(several))
    solvers = [one.solver for one in of_effort(prepared, 2)]
    assert solvers.count("steps") == tries and solvers.count("linear") > 1


def attention_of(home):
    """A task of few rows, its features, and the head that is trained in steps."""
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=4, dropout=0.3)
    prepared = prepare(tiny_project.project(home, "mood", strategy=AUTO, training=training, validation=0.3), home)[0]
    extractor = Extractor(load_trunk(str(home / "trunk")), folder=home / "cache" / "features", precision="float32")
    paths = candidate_paths(prepared, extractor, Codec(name="float32"))
    extractor.fill([feature for path in paths for feature in wanted(prepared, path, extractor)])
    candidate, path = list(zip(candidates(prepared, extractor), paths, strict=True))[-1]
    assert candidate.solver != "linear"
    return prepared, extractor, candidate, path, paths


def test_folds_in_several_threads_are_those_of_one_that_draws_from_torchs_generator(home, monkeypatch):
    """To the bit, dropout included; torch's generator stays as it was."""
    prepared, extractor, candidate, path, _ = attention_of(home)
    with monkeypatch.context() as plain:
        plain.setattr("polyhead.deep.heads.stepped.own_generator", nullcontext)
        in_turn = Trials(prepared, extractor, checkpoints=None, events=Events()).tried(candidate, path)
    before, number = torch.random.get_rng_state(), torch.get_num_threads()
    trials = Trials(prepared, extractor, checkpoints=None, events=Events())
    torch.set_num_threads(3)
    try:
        at_once = trials.tried(candidate, path)
    finally:
        torch.set_num_threads(number)
    assert trials.folds > 1 and torch.equal(torch.random.get_rng_state(), before)
    assert in_turn.setting == at_once.setting and np.array_equal(np.stack(in_turn.outputs), np.stack(at_once.outputs))
    assert len(in_turn.fitted.history) == len(at_once.fitted.history)
    assert in_turn.fitted.examples_seen == at_once.fitted.examples_seen


@pytest.mark.slow
def test_folds_are_trained_in_as_many_threads_as_torch_has_each_of_which_computes_in_one(home, monkeypatch):
    prepared, extractor, _, _, paths = attention_of(home)
    seen = []

    def rounds(runs, *, threads):
        seen.append(threads)
        return rounds_of(runs, threads=threads)

    def outputs(*given):
        seen.append((threading.current_thread().name.partition("_")[0], torch.get_num_threads()))
        return module_outputs(*given)

    monkeypatch.setattr(stepped, "rounds_of", rounds)
    monkeypatch.setattr("polyhead.deep.heads.stepped.module_outputs", outputs)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        train_task(prepared, paths, extractor, checkpoints=None, events=Events())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen[0] == 3 and set(seen[1:]) == {("polyhead-folds", 1)}


class Paced:
    """A loop that says which rounds it began, and waits in the first for another."""

    most = 4

    def __init__(self, name, begun, until=None):
        self.name, self.begun, self.until = name, begun, until

    def advance(self, number):
        self.begun[self.name, number].set()
        if number == 1 and self.until is not None:
            assert self.begun[self.until].wait(60)


def test_a_thread_without_a_fold_begins_the_next_round(monkeypatch):
    """It waited for the slowest fold: five folds on two threads took as long as six. One round ahead is all."""
    monkeypatch.setattr("polyhead.deep.heads.stepped.module_outputs", lambda module, held: [held])
    begun = collections.defaultdict(threading.Event)
    loops = [Paced("a", begun), Paced("b", begun), Paced("c", begun, until=("a", 2))]
    runs = [FoldRun(module=torch.nn.Identity(), loop=one, held=one.name, tokens=1.0) for one in loops]
    with rounds_of(runs, threads=2) as answered:
        assert next(answered) == ["a", "b", "c"]
    assert not any(number > 2 for _, number in begun)


def test_a_validation_file_chooses_and_is_never_learned_from(home, tmp_path):
    """Other labels in it leave the arrays of each candidate as they are, so a linear part is the same to the bit."""
    bundle, _, _ = trained(home, tmp_path / "b", "mood")
    notes = bundle.scores("mood")
    assert "folds" not in notes and "refitted" not in notes


@pytest.mark.slow
def test_scores_stand_beside_the_best_constant_and_the_best_linear_head(home, tmp_path):
    bundle, lines, project = trained(home, tmp_path / "b", "mood", "urgency", "names")
    prepared = {p.task.name: p for p in prepare(project, home)}
    for name in ("mood", "urgency", "names"):
        notes = bundle.scores(name)
        learned = {"linear"} if name == "names" else {"linear", "tf-idf"}  # which reads whole texts
        assert set(notes["baselines"]) == {"constant", *learned}
        assert all(set(notes["baselines"][each]) == set(notes["splits"]) == {"validation", "test"} for each in learned)
    targets = [int(target) for target in prepared["mood"].train.examples.targets]
    most = max(set(targets), key=targets.count)
    asked = [int(target) for target in prepared["mood"].test.examples.targets]
    constant = bundle.scores("mood")["baselines"]["constant"]["test"]["accuracy"]
    assert constant == pytest.approx(asked.count(most) / len(asked))
    assert bundle.scores("urgency")["baselines"]["constant"]["test"]["pearson"] == 0.0
    assert any(line.startswith("mood: validation accuracy") and ", constant " in line for line in lines)


@pytest.mark.parametrize("strategy", [tiny_project.STRATEGY], ids=["attention"])
def test_a_head_that_is_asked_for_stands_beside_the_same_baselines(home, tmp_path, strategy):
    chosen, _, _ = trained(home, tmp_path / "a", "mood")
    asked, _, _ = trained(home, tmp_path / "b", "mood", strategy=strategy)
    found = [bundle.scores("mood")["baselines"]["constant"] for bundle in (chosen, asked)]
    assert found[0] == found[1] and "linear" in asked.scores("mood")["baselines"]


def test_a_kept_linear_head_is_solved_once_though_it_is_its_own_baseline(home, tmp_path, monkeypatch, brief):
    solved, solve = [], trials.solution_of
    monkeypatch.setattr(trials, "solution_of", lambda *words: solved.append(1) or solve(*words))
    training = msgspec.structs.replace(QUICK, effort="quick")
    bundle, _, _ = trained(home, tmp_path / "b", "mood", training=training, validation=0.3)
    notes = bundle.scores("mood")
    assert notes["chosen"].startswith("linear")
    assert set(notes["splits"]) == set(notes["baselines"]["linear"]) == {"validation", "test"}
    assert len(solved) == 1


@pytest.mark.slow
def test_a_task_that_gives_one_answer_is_warned_of(home, tmp_path, brief):
    """It was shown as an accuracy of 0.95. Texts here say nothing of the rare label."""
    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    for split, count in (("train", 120), ("test", 60)):
        rows = [
            {"text": " ".join(rng.choice(["a", "b", "c", "d"], 6)), "label": "yes" if i % 20 == 0 else "no"}
            for i in range(count)
        ]
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    project = tiny_project.project(home, "mood", strategy=AUTO, training=QUICK)
    entry = msgspec.structs.replace(
        project.tasks[0],
        labels=("no", "yes"),
        label="label",
        metric="accuracy",
        train=str(data / "train.jsonl"),
        validation=0.3,
        test=str(data / "test.jsonl"),
    )
    lines = []
    project = msgspec.structs.replace(project, tasks=(entry,), bundle=str(tmp_path / "b"))
    train_project(project, folder=home, cache=tmp_path / "cache", events=Events(say=lines.append))
    assert any("mood: warning: " in line and "one answer is all that it gives" in line for line in lines)


def rare(folder, name, count, seed, chance):
    """Rows of which an eighth or so are of the label `yes`."""
    rows = [
        {"text": row["text"], "label": "yes" if row["mood"] == "good" and chance.random() < 0.25 else "no"}
        for row in tiny_project.messages(count * 20, seed)[:count]
    ]
    tiny_project.write_jsonl(folder / name, rows)
    return str(folder / name)


@pytest.mark.slow
def test_a_part_with_an_offset_answers_as_its_scores_say(home, tmp_path):
    """The offset was added once more for the baseline, to the part that is kept."""
    project, chance = tiny_project.project(home, "mood", strategy=AUTO, training=QUICK), np.random.default_rng(0)
    entry = msgspec.structs.replace(
        project.tasks[0],
        labels=("no", "yes"),
        label="label",
        metric="macro_f1",
        **{
            split: rare(tmp_path, f"{split}.jsonl", count, seed, chance)
            for seed, (split, count) in enumerate((("train", 200), ("validation", 100), ("test", 100)))
        },
    )
    project = msgspec.structs.replace(project, tasks=(entry,), bundle=str(tmp_path / "b"))
    offsets, kept = [], Trials.kept

    def watched(trials, trial):
        offsets.append(trial.offset)
        return kept(trials, trial)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trials, "kept", watched)
        train_project(project, folder=home, cache=tmp_path / "cache")
    assert len(offsets) == 2 and all(offset is not None for offset in offsets)
    prepared, notes = prepare(project, home)[0], Bundle.open(tmp_path / "b").scores("mood")
    for split in (prepared.validation, prepared.test):
        outputs = Session(tmp_path / "b").outputs("mood", split.examples.inputs)
        assert split.examples.scores(prepared.task, outputs) == pytest.approx(notes["splits"][split.name])
    assert notes["splits"]["test"] == pytest.approx(notes["baselines"]["linear"]["test"])


def test_class_weights_weigh_linear_heads_too(home, tmp_path):
    weighed = [
        trained(home, tmp_path / str(on), "topics", training=msgspec.structs.replace(QUICK, class_weights=on))[0]
        for on in (False, True)
    ]
    assert all(bundle.scores("topics")["chosen"].startswith("linear") for bundle in weighed)
    assert tiny_project.part_bytes(weighed[0].root, "topics") != tiny_project.part_bytes(weighed[1].root, "topics")


@pytest.mark.parametrize(
    ("labels", "counts", "metric"),
    [
        (("no", "yes"), (95, 5), "matthews"),
        (("no", "yes"), (60, 40), None),
        (("a", "b", "c"), (70, 20, 10), "macro_f1"),
        (("a", "b", "c"), (40, 40, 20), None),
    ],
    ids=["rare of two", "even of two", "frequent of three", "even of three"],
)
def test_the_metric_of_a_task_that_names_none_fits_its_labels(labels, counts, metric):
    task = Task(name="t", kind="single_label", labels=labels)
    targets = [np.asarray(label) for label, count in enumerate(counts) for _ in range(count)]
    assert kind_of(task).fitting_metric(task, targets) == metric


def test_offsets_are_what_balanced_shares_would_add():
    """With all of it a head that says the shares of the labels answers none of them before another."""
    task = Task(name="t", kind="single_label", labels=("a", "b", "c"), metric="macro_f1")
    targets = [np.asarray(label) for label in [0] * 70 + [1] * 20 + [2] * 10]
    half, whole = kind_of(task).offsets(task, targets)
    assert whole == pytest.approx([-math.log(share) for share in (0.7, 0.2, 0.1)], rel=1e-6)
    assert half == pytest.approx(whole / 2)
    assert kind_of(task).offsets(msgspec.structs.replace(task, metric="accuracy"), targets) == []


@pytest.mark.parametrize(
    ("kind", "pair", "depth", "names"),
    [
        (
            "single_label",
            "none",
            6,
            [
                "linear, last 2 layers",
                "linear, last layer",
                "linear, last 4 layers",
                "linear, last 4 layers side by side",
                "linear, first word, last 4 layers side by side",
                "linear, last 4 layers side by side, words",
                "attention",
            ],
        ),
        (
            "single_label",
            "separate",
            6,
            [
                "linear, last layer",
                "linear, last 2 layers",
                "linear, last 4 layers",
                "linear, last layer, words",
                "attention",
            ],
        ),
        ("single_label", "none", 1, ["linear, last layer", "linear, last layer, words", "attention"]),
        ("tagging", "none", 6, ["linear, with neighbours", "linear", "linear, with neighbours, words", "hidden layer"]),
        ("span", "joined", 6, ["hidden layer"]),
    ],
    ids=["six layers", "pairs", "one layer", "words", "span"],
)
def test_the_simplest_heads_come_first(kind, pair, depth, names):
    labels = {"single_label": ("a", "b"), "tagging": ("O", "B-x"), "span": ()}[kind]
    task = Task(name="t", kind=kind, labels=labels, pair=pair)
    assert [one.name for one in AUTO.candidates(task, depth)] == names


@pytest.mark.parametrize(("kind", "more"), [("single_label", POOLERS), ("tagging", ["hidden layer, with neighbours"])])
def test_effort_says_which_heads_are_tried(kind, more):
    labels = {"single_label": ("a", "b"), "tagging": ("O", "B-x")}[kind]
    task = Task(name="t", kind=kind, labels=labels)
    quick, default, best = (AUTO.candidates(task, 6, effort) for effort in ("quick", "default", "best"))
    assert {one.solver for one in quick} == {"linear"}
    assert default == (*quick, default[-1]) and default[-1].solver == "steps"
    assert [one.name for one in best] == [one.name for one in default] + more
    other = msgspec.structs.replace(AUTO, layers="learned", window=1)
    named = [[one.name for one in other.candidates(task, 6, effort)] for effort in ("default", "best")]
    assert named[1] == named[0] + [name for name in more if name in POOLERS[:2]]  # no second mix
    span = Task(name="t", kind="span", pair="joined")
    assert AUTO.candidates(span, 6, "quick") == AUTO.candidates(span, 6)  # no linear head answers it


@pytest.mark.parametrize("steps", [1, 2, 7, 40, 500])
def test_few_rows_get_as_many_updates_as_many_rows(steps):
    schedule = Training().schedule(steps)
    least = max(1500, 30 * steps)
    assert least <= schedule.most_updates < least + schedule.updates
    assert schedule.updates >= 25 and schedule.updates % steps == 0
    assert schedule.patience * schedule.updates >= 187


@pytest.mark.parametrize(("steps", "parts"), [(1, 1), (7, 1), (500, 1), (501, 2), (1475, 3)])
def test_epochs_and_patience_that_are_given_are_passes(steps, parts):
    """Of a long pass an update for each of its rounds may be left out."""
    schedule = Training(epochs=4, patience=2).schedule(steps)
    assert (schedule.updates, schedule.rounds, schedule.patience) == (steps // parts, 4 * parts, 2 * parts)
    assert 4 * (steps - parts) < schedule.most_updates <= 4 * steps


@pytest.mark.parametrize("rows", [16_001, 42_487, 10**6])
def test_many_rows_are_validated_within_a_pass_and_read_once_before_updates_end(rows):
    """47,208 rows took up to 42,000 updates, of which 8,000 without a better score stopped nothing."""
    steps = -(-rows // 32)
    schedule = Training().schedule(steps)
    assert schedule.updates <= 500 and 3_000 <= schedule.patience * schedule.updates < 3_500
    most = max(15_000, steps)
    assert most - 500 < schedule.most_updates < most + 500
    assert Training().schedule(steps, whole=True).updates == steps


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, None], ids=["folds", "rows of validation"])
def test_labels_inside_tokens_are_told_once_whichever_head_learns(home, tmp_path, brief, share):
    """Thai letters are one token here: no answer can begin at the second of them."""
    row = {"text": "my กขค", "spans": [{"start": 4, "end": 5, "label": "person"}]}
    data = tmp_path / "names.jsonl"
    data.write_text("".join(json.dumps({**row, "text": f"{row['text']} {i}"}) + "\n" for i in range(12)))
    project = tiny_project.project(home, "names", strategy=AUTO, training=QUICK)
    entry = msgspec.structs.replace(
        project.tasks[0],
        train=str(data),
        validation=share or str(data),
        test=None,
        tokens=None,
        tags=None,
        spans="spans",
    )
    project, told = msgspec.structs.replace(project, tasks=(entry,), bundle=str(tmp_path / "b")), []
    train_project(project, folder=home, cache=tmp_path / "cache", events=Events(say=told.append))
    begins = "names: in 12 of 12 training texts a label changes inside a token"
    assert [line.startswith(begins) for line in told].count(True) == 1, told


@pytest.mark.slow
def test_the_cosine_of_texts_is_answered_where_few_pairs_are_labelled(home, tmp_path, brief):
    """On three rows nothing but the cosine can be learned: answers rise with it."""
    data = tmp_path / "pairs.jsonl"
    texts = ["red green blue", "red green", "one two three", "cat dog bird", "cat dog fish"]
    rows = [{"a": a, "b": b, "score": float(a == b)} for a in texts for b in texts if a <= b]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    project = tiny_project.project(home, "urgency", strategy=AUTO, training=QUICK)
    entry = msgspec.structs.replace(
        project.tasks[0], train=str(data), validation=0.3, test=None, text="a", text_b="b", label="score", pair=None
    )
    project = msgspec.structs.replace(project, tasks=(entry,), bundle=str(tmp_path / "b"))
    assert project.tasks[0].pair == "separate"
    train_project(project, folder=home, cache=tmp_path / "cache")
    session = Session(tmp_path / "b")
    same, other = session.predict([(texts[0], texts[0]), (texts[0], texts[3])])
    assert same.answers["urgency"]["value"] > other.answers["urgency"]["value"]


@pytest.mark.parametrize(
    ("name", "strategy", "is_advised"),
    [("names", AUTO, True), ("names", Branch(layers=1), False), ("mood", AUTO, False)],
    ids=["words", "words with layers of their own", "texts"],
)
def test_layers_of_their_own_are_advised_for_words_of_enough_texts(home, monkeypatch, name, strategy, is_advised):
    prepared = prepare(tiny_project.project(home, name, strategy=strategy, validation=0.3), home)[0]
    count = len(prepared.whole.targets)
    for least in (count, count + 1):
        monkeypatch.setattr(lines, "ADVISED_FROM", least)
        advice = lines._advice(prepared)
        assert bool(advice) == (is_advised and least == count)
        assert all('kind = "branch"' in line for line in advice)
