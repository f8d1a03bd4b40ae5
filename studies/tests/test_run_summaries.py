"""The study of summaries in a mixture, on the smallest scale, where its data are there."""

import json

import pytest

from studies.settings import DATA

pytest.importorskip("rouge_score")


@pytest.mark.slow
def test_the_smallest_study_has_a_row_of_each_way_and_goes_on(tmp_path, monkeypatch):
    if not (DATA / "dialogsum").is_dir():
        pytest.skip("the data sets are not beside the project")
    from studies.aghajanyan2021 import run_summaries as study

    rows = tmp_path / "rows.jsonl"
    words = ["run-summaries", "--jobs", "tiny", "--seeds", "1", "--rows", str(rows), "--threads", "1"]
    monkeypatch.setattr("sys.argv", words)
    study.main()
    first = rows.read_text()
    told = [json.loads(line) for line in first.splitlines()]
    assert [row["way"] for row in told] == ["alone", "mixed"]
    assert set(told[0]["own"]) == {"dialogsum"} and len(told[1]["own"]) == 6
    assert all(row["examples"]["dialogsum"] == 48 for row in told)
    monkeypatch.setattr(study, "trained", lambda *_: pytest.fail("trained again"))
    study.main()
    assert rows.read_text() == first
