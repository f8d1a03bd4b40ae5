"""Certificates in words: who changed what, when, and on how many probes; also of bundles that do not say all of it."""

import hashlib
import json
import shutil
from datetime import UTC, datetime

import pytest

from polyhead.certify.certificate import Certificate, Ledger, read_certificate
from polyhead.engine.probes import ProbeAnswers
from polyhead.tasks.agreement import AnswerChange
from polyhead.values import to_json
from support.commands import run


@pytest.fixture
def bundle(home, tmp_path):
    return shutil.copytree(home / "bundle", tmp_path / "bundle", ignore=shutil.ignore_patterns("certificates"))


def newest(bundle):
    return json.loads(sorted((bundle / "certificates").glob("*.json"))[-1].read_text())


def done(*words, **options):
    finished = run(*words, **options)
    assert finished.code == 0, finished.err
    return finished


def test_a_change_says_who_made_it_when_and_on_how_many_probes(bundle, monkeypatch):
    began = datetime.now(UTC).replace(microsecond=0)
    done("tasks", "remove", bundle, "mood", "--actor", "Anna Example")
    kept = newest(bundle)
    assert kept["actor"] == "Anna Example"
    assert began <= datetime.fromisoformat(kept["at"]) <= datetime.now(UTC)
    said = done("tasks", "certificate", bundle).out.splitlines()
    day, minute = kept["at"][:10], kept["at"][11:16]
    assert said == [
        f"On {day} at {minute} UTC, Anna Example removed task 'mood' (it was v0001). The change touched nothing else: "
        "5 tasks answered 60 probes before and after it with the same bits (probes are inputs that are stored with a "
        "task to test it).",
        "(certificates/0001-remove.json)",
    ]


def test_without_an_actor_it_is_that_of_the_environment_or_the_login(bundle, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "login")
    done("tasks", "verify", bundle)
    assert newest(bundle)["actor"] == "login"
    monkeypatch.setenv("POLYHEAD_ACTOR", "nightly job")
    done("tasks", "remove", bundle, "mood")
    assert newest(bundle)["actor"] == "nightly job"
    done("tasks", "remove", bundle, "names", "--actor", "")
    assert "actor" not in newest(bundle)
    assert "somebody who was not named removed task 'names'" in done("tasks", "certificate", bundle).out

    def nobody():
        raise KeyError("no such user")

    monkeypatch.delenv("POLYHEAD_ACTOR")
    monkeypatch.setattr("getpass.getuser", nobody)
    done("tasks", "remove", bundle, "topics")
    assert "actor" not in newest(bundle)


def test_a_name_that_a_terminal_would_obey_or_that_has_no_end_is_refused(bundle):
    for name in ("a\x1b[31m", "a\nb", "x" * 201):
        run("tasks", "remove", bundle, "mood", "--actor", name).refuses("at most 200 characters", code=2)
    assert not (bundle / "certificates").exists()


def test_certificates_are_shown_by_number_or_all_and_as_json(bundle):
    run("tasks", "certificate", bundle).refuses("BundleError", "no certificate", "polyhead tasks verify")
    for name in ("mood", "names"):
        done("tasks", "remove", bundle, name, "--actor", "ben")
    assert "'mood'" in done("tasks", "certificate", bundle, "1").out
    everything = done("tasks", "certificate", bundle, "--all").out
    assert everything.index("'names'") < everything.index("'mood'")
    told = json.loads(done("tasks", "certificate", bundle, "--json", "-").out)["certificates"]
    assert [one["file"] for one in told] == ["0002-remove.json"] and told[0]["certificate"] == newest(bundle)
    run("tasks", "certificate", bundle, "3").refuses("no sound certificate 3", "0002-remove.json")
    run("tasks", "certificate", bundle, "1", "--all").refuses("contradict", code=2)


def test_an_edited_certificate_is_not_put_into_words(bundle):
    done("tasks", "remove", bundle, "mood", "--actor", "ben")
    file = bundle / "certificates" / "0001-remove.json"
    file.write_text(file.read_text().replace('"ben"', '"eve"'))
    run("tasks", "certificate", bundle).refuses("BundleError")


def test_training_and_merging_name_who_did_it(work, tmp_path):
    from support.commands import write_project

    done("train", write_project(work, "mood"))
    (tmp_path / "more").mkdir()
    again = write_project(work, "mood", "topics", "urgency")
    done("train", again, "--actor", "carl")
    kept = newest(work / "bundle")
    assert kept["operation"] == "train" and kept["actor"] == "carl"
    said = done("tasks", "certificate", work / "bundle").out
    assert "carl trained task 'urgency' (new, version v0001). The change touched nothing else: 2 tasks answered" in said
    done("merge", tmp_path / "both", f"{work / 'bundle'}:mood,topics", "--actor", "dora")
    said = done("tasks", "certificate", tmp_path / "both").out
    assert "dora merged bundles into this one, which got tasks 'mood' (new, version v0001), 'topics'" in said
    assert "as in the bundles that they come from" in said


def certificate(**fields):
    answered = ProbeAnswers(version="v0001", record="r", probes=3, sha256="s")
    known = {"before": {"a": answered, "b": answered}, "after": {}, "unchanged": True, "numerics": {}}
    return Certificate(**{**known, "operation": "update", "changed": {"mood": ("v0001", "v0002")}, **fields})


def test_paragraphs_of_cases_by_hand():
    change = AnswerChange(texts=("t",), before=None, after=None)
    answers = {"answers_changed": {"mood": (change,)}, "answers_asked": {"mood": 12}}
    assert certificate(at="2026-11-25T09:10:11+00:00", actor="ann", **answers).paragraph == (
        "On 2026-11-25 at 09:10 UTC, ann updated task 'mood' (version v0001 before, v0002 now). The change touched "
        "nothing else: 2 tasks answered 6 probes before and after it with the same bits (probes are inputs that are "
        "stored with a task to test it). 'mood' now answers 1 of 12 probes differently."
    )
    unproven = ProbeAnswers(version="v0001", record="r", probes=0, sha256="")
    assert certificate(before={"a": unproven}).paragraph == (
        "At a time that was not recorded, somebody who was not named updated task 'mood' (version v0001 before, v0002 "
        "now). There was no other task whose answers could have been compared. Not asked, so compared by their "
        "files alone: 'a'."
    )
    many = certificate(operation="add", changed={f"t{n}": (None, "v0001") for n in range(12)}).paragraph
    assert "'t9' (new, version v0001), and 2 more." in many and "t10" not in many
    seen = certificate(operation="verify", changed={}).paragraph
    assert "verified the bundle. 2 tasks answered 6 probes again as in earlier certificates, bit for bit" in seen


def test_a_certificate_of_before_there_were_actors_and_times_still_opens(bundle):
    """Its file has neither key; its digest is made here, by hand, as programs of before made it."""
    done("tasks", "remove", bundle, "mood", "--actor", "ann")
    file = bundle / "certificates" / "0001-remove.json"
    plain = json.loads(file.read_text())
    del plain["actor"], plain["at"]
    plain["sha256"] = ""
    plain["sha256"] = hashlib.sha256(to_json(plain)).hexdigest()
    file.write_bytes(to_json(plain))
    assert b'"at"' not in file.read_bytes()
    assert read_certificate(file.read_bytes(), file).probes == 60
    assert "At a time that was not recorded, somebody who was not named" in done("tasks", "certificate", bundle).out
    assert done("tasks", "verify", bundle).code == 0
    done("tasks", "remove", bundle, "names", "--actor", "ann")
    assert [one.actor or "" for one in Ledger(bundle).sound()] == ["ann", ""]
