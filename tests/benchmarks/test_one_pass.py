"""The study of one pass: what its rows claim, who takes turns, and which tasks its bundles hold."""

import importlib
import itertools
import json
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAKE = """
import sys
sys.path.insert(0, {folder!r})
from protocol import serve

def load(job):
    print("noise that is no answer")
    seen = []

    def answer(texts):
        seen.append(list(texts))
        if "stop" in texts:
            raise SystemExit("broken")
        return [{{"score": float(len(text))}} for text in texts]

    return answer

serve(load, ("numpy",))
"""


@pytest.fixture
def study(monkeypatch):
    """A module of the study, by name."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def timed(who, tasks, seconds, repeat=1, how="all", group=None, texts=10):
    row = {"what": "time", "group": group or who, "who": who, "tasks": tasks, "how": how, "texts": texts}
    return {**row, "repeat": repeat, "seconds": seconds, "resident": 100 + tasks}


def test_a_ratio_compares_runs_of_one_repeat(study):
    """Twice as slow a machine in the second repeat changes no ratio; 0.8 and 0.9 and 1.0 have the median 0.9."""
    claims = study("one_pass_claims")
    bare, tasks = (8.0, 18.0, 10.0), (10.0, 20.0, 10.0)
    rows = [timed(claims.BF16, 0, one, repeat) for repeat, one in enumerate(bare)]
    rows += [timed(claims.BF16, 21, one, repeat) for repeat, one in enumerate(tasks)]
    found = {claim.id: claim for claim in claims.claims(rows)[0]}
    share = found["engine.bf16-21-tasks"]
    assert share.value == pytest.approx(0.9) and not share.holds and "0.800 to 1.000" in share.note


def test_a_rival_is_compared_within_its_own_group(study):
    """Polyhead's time beside another rival, ten times longer here, does not count."""
    claims = study("one_pass_claims")
    name = "adapters, heads only"
    rows = [
        timed(name, 21, 40.0, how="sorted"),
        timed(claims.INT8, 21, 8.0, group=name),
        timed(claims.INT8, 21, 80.0),
        timed(claims.INT8, 21, 80.0, group="adapters, parallel"),
    ]
    made, lacking = claims.claims(rows)
    assert [(claim.id, claim.value, claim.holds) for claim in made] == [("engine.adapters-heads", 5.0, True)]
    assert "engine.adapters-parallel" in lacking and "engine.slope" in lacking


def test_the_slope_is_in_hundredths_of_the_bare_time(study):
    """Each task adds 0.4 % of the bare time of its own repeat."""
    claims = study("one_pass_claims")
    rows = [
        timed(claims.BF16, tasks, bare * (1 + 0.004 * tasks), repeat)
        for repeat, bare in enumerate((1.0, 3.0))
        for tasks in (0, 1, 5, 21, 50, 100)
    ]
    found = {claim.id: claim for claim in claims.claims(rows)[0]}
    assert found["engine.slope"].value == pytest.approx(0.4) and found["engine.slope"].holds
    assert found["engine.memory"].value == pytest.approx(150 / 101, abs=1e-3)


def test_loading_ends_with_the_first_answer_where_that_was_measured(study):
    claims = study("one_pass_claims")
    row = {"what": "load", "who": claims.BF16, "tasks": 50, "load_seconds": 0.5}
    (before,), (claim,) = (claims.claims(rows)[0] for rows in ([row], [row, {**row, "first_seconds": 0.25}]))
    assert before.value == 0.5 and "before the first call" in before.text
    assert claim.value == 0.75 and claim.text.endswith("to the answer to a first text")


def test_claims_beside_a_rival_say_both_precisions(study):
    claims = study("one_pass_claims")
    name = "adapters, heads only"
    times = {name: 40.0, claims.INT8: 8.0, claims.BF16: 16.0}
    rows = [
        timed(who, 21, seconds, how="sorted" if who == name else "all", group=name) for who, seconds in times.items()
    ]
    (claim,) = claims.claims(rows)[0]
    assert claim.value == 5.0 and "in int8" in claim.text and claim.text.endswith("float32")
    assert "2.50 beside openvino:bfloat16" in claim.note


def test_a_table_has_the_median_time_a_text_of_everybody_alone(study):
    claims = study("one_pass_claims")
    rows = [timed(claims.BF16, 0, seconds, repeat) for repeat, seconds in enumerate((0.01, 0.02, 0.09))]
    rows += [timed(claims.BF16, 21, 0.05), timed(claims.BF16, 21, 0.007, how="single", texts=3)]
    rows += [timed("rival", 21, 0.5, how="sorted"), timed(claims.BF16, 21, 9.0, group="rival")]
    head, ours, rival = claims.milliseconds(rows)
    assert head[1:] == ["bare", "21 tasks", "one text, bare", "one text, 21 tasks"]
    assert ours == ["Polyhead, bfloat16", "2.00", "5.00", "", "7.00"]
    assert rival == ["rival", "", "50.00", "", ""]


def test_claims_are_made_anew_from_rows_and_a_second_machine_is_named(study):
    restate, claims = study("restate"), study("one_pass_claims")
    rows = [timed(claims.BF16, 21, 4.0), timed(claims.BF16, 0, 3.0)]
    facts = {"date": "2026-01-01", "hardware": "a machine", "versions": {}, "command": "c", "claims": []}
    for name, id in (("one_pass", "engine.bf16-21-tasks"), ("one_pass_old", "engine.old.bf16-21-tasks")):
        file = restate.Results(name=name, rows=rows, **facts)
        made = restate.restated(file)
        found = {claim.id: claim for claim in made.claims}
        assert found[id].value == 0.75 and found[id].text.endswith("on a machine") is (name != "one_pass")
        assert (made.rows, made.date, made.command) == (rows, "2026-01-01", "c")
    other = restate.Results(name="one_passage", rows=rows, **facts)
    assert restate.restated(other) == other


def test_one_text_is_timed_by_its_median_and_not_divided_again(study):
    claims = study("one_pass_claims")
    rows = [timed(claims.BF16, 21, 3.0, how="single"), timed(claims.BF16, 0, 2.0, how="single", texts=5)]
    assert [(claim.id, claim.value) for claim in claims.claims(rows)[0]] == [("engine.one-text", 1.5)]


def test_a_worker_answers_each_run_and_what_it_prints_is_no_answer(study, tmp_path):
    rivals = study("peers.rivals")
    (tmp_path / "texts.json").write_text(json.dumps(["four", "sixsix", "x"]))
    (tmp_path / "fake.py").write_text(FAKE.format(folder=str(BENCHMARKS / "peers")))
    job = {"texts": str(tmp_path / "texts.json"), "threads": 1, "batch": 2}
    with rivals.Worker([sys.executable, str(tmp_path / "fake.py")], job, log=tmp_path / "log.txt") as worker:
        assert "numpy" in worker.loaded["versions"] and worker.loaded["resident"] > 2**20
        for how, texts, total in (("all", 3, 11.0), ("sorted", 2, 10.0), ("batches", 3, 11.0), ("single", 1, 4.0)):
            assert worker.run(how, texts)["checksum"] == total, how
    assert "noise" in (tmp_path / "log.txt").read_text()


def test_a_worker_that_ends_says_where_its_words_are(study, tmp_path):
    rivals = study("peers.rivals")
    (tmp_path / "texts.json").write_text(json.dumps(["a", "stop"]))
    (tmp_path / "fake.py").write_text(FAKE.format(folder=str(BENCHMARKS / "peers")))
    job = {"texts": str(tmp_path / "texts.json"), "threads": 1, "batch": 2}
    with rivals.Worker([sys.executable, str(tmp_path / "fake.py")], job, log=tmp_path / "log.txt") as worker:
        worker.run("all", 1)
        with pytest.raises(RuntimeError, match=r"log\.txt"):
            worker.run("all", 2)


def test_the_tasks_are_of_many_kinds_and_copies_have_names_of_their_own(study):
    tasks = study("one_pass_tasks")
    assert len(tasks.TASKS) == 20 and {task.kind for task in tasks.TASKS[:5]} == {t.kind for t in tasks.TASKS}
    assert len({task.kind for task in tasks.TASKS}) == 4
    assert sum(task.kind == "tagging" for task in tasks.TASKS) == 2
    hundred = list(itertools.islice(tasks.names(), 100))
    assert len(dict(hundred)) == 100 and [new for new, _ in hundred[:21]] == [
        task.name for task in (*tasks.TASKS, tasks.PAIRED)
    ]
    assert all(task.fields.get("pair") is None for task in tasks.TASKS) and tasks.PAIRED.fields["pair"] == "separate"


def test_every_rival_has_its_script_and_exact_versions(study):
    rivals = study("peers.rivals")
    assert len(rivals.RIVALS) == 6
    for rival in rivals.RIVALS:
        assert (rivals.HERE / rival.script).is_file()
        lines = (rivals.HERE / "requirements" / f"{rival.environment}.txt").read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert pins and all(re.fullmatch(r"[\w.\[\]-]+==[\w.+]+", pin) for pin in pins), rival.name
