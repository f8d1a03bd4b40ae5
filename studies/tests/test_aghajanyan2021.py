"""The numbers that Aghajanyan et al. 2021 print, against their own sums and claims (papers.md 4.a, 4.d, B.4)."""

import msgspec
import pytest

from studies import aghajanyan2021 as paper

TABLES = {
    "3": (paper.published_table3, 3, 7),
    "4": (paper.published_table4, 3, 4 + 9),
    "5": (paper.published_table5, 3, 4 + 9),
    "6": (paper.published_table6, 5, 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_model_has_a_line_before_and_one_after(name):
    make, models, columns = TABLES[name]
    table = make()
    assert [line.name == paper.AFTER for line in table.lines] == [False, True] * models
    assert len(table.columns) == len(set(table.columns)) == len(table.metrics) == columns
    for line in table.lines:
        assert len(line.scores) == columns
        assert all(score is None or 5 < score < 100 for score in line.scores)
    for before, after in zip(table.lines[::2], table.lines[1::2], strict=True):
        assert [one is None for one in before.scores] == [one is None for one in after.scores]


def test_gains_are_those_that_the_text_names():
    """The numbers of papers.md 4.d, which stand there apart from the rows."""
    third, fourth, fifth, sixth = (paper.gains(make()) for make, _, _ in TABLES.values())
    assert third["RoBERTa-base"]["RTE"] == pytest.approx(87.8 - 78.7)
    assert third["RoBERTa-large"]["RTE"] == pytest.approx(92.8 - 88.1)
    assert max(third["RoBERTa-base"], key=third["RoBERTa-base"].get) == "RTE"
    assert "SQuAD" not in third["BART"]
    assert [task for task, gain in fourth["BART"].items() if gain < 0] == [
        "CommonsenseQA",
        "HellaSwag",
        "OpenBookQA",
        "CNN/DailyMail ROUGE-2",
    ]
    assert all(gain > 0 for name in ("RoBERTa-base", "RoBERTa-large") for gain in fourth[name].values())
    assert fourth["BART"]["Reddit TIFU ROUGE-1"] == pytest.approx(30.30 - 24.19)
    assert [task for task, gain in fifth["RoBERTa-base"].items() if gain < 0] == ["parsing", "part of speech"]
    assert sixth["S, M, F, A1, A2, A3"]["all"] == pytest.approx(56.9 - 53.7)
    assert {model: len(gains) for model, gains in fifth.items()} == {"RoBERTa-base": 4, "RoBERTa-large": 4, "BART": 13}


def test_the_last_column_of_table_6_is_the_mean_of_the_rounds_but_for_the_known_exceptions():
    table = paper.published_table6()
    assert len([line for line in table.lines if line.counted]) == 10
    assert paper.printed_otherwise(table) == [
        "S, M + MUPPET: all printed 33.3, counted 33.48",
        "S, M, F + MUPPET: all printed 33.9, counted 34.85",
        "S, M, F, A1 + MUPPET: all printed 36.7, counted 38.60",
        "S, M, F, A1, A2 + MUPPET: all printed 45.9, counted 46.83",
        "S, M, F, A1, A2, A3: all printed 53.7, counted 54.99",
    ]


def test_no_other_table_has_a_mean_to_check():
    """The paper prints no averages (papers.md 0.4)."""
    for make in (paper.published_table3, paper.published_table4, paper.published_table5):
        assert not any(line.counted for line in make().lines)
        assert paper.printed_otherwise(make()) == []


def test_means_need_all_their_columns():
    lines = paper.before_and_after("m", (1.0, 3.0, None), (None, 3.0, 2.0))
    table = paper.table_of(("x", "y", "z"), ("accuracy",) * 3, lines, means={"z": {"x": 1, "y": 3}})
    assert [line.counted for line in table.lines] == [{"z": 2.5}, {}]
    assert paper.gains(table) == {"m": {"y": 0.0}}
    assert paper.printed_otherwise(table) == []
    told = msgspec.structs.replace(table.lines[0], scores=(1.0, 3.0, 2.6))
    assert paper.printed_otherwise(msgspec.structs.replace(table, lines=(told,))) == ["m: z printed 2.6, counted 2.50"]


def test_table_1_sums_to_what_the_paper_says_of_itself():
    families = paper.published_table1()
    assert sum(family.sets for family in families) == 46
    assert round(sum(family.train for family in families) / 1000, 1) == 4.8  # million
    assert sum(family.evaluated for family in families) == 390  # thousand


def test_the_sets_of_the_appendix_are_46_in_other_families():
    assert [len(names) for names in paper.DATASETS.values()] == [25, 5, 10, 6]
    names = [name for family in paper.DATASETS.values() for name in family]
    assert len(set(names)) == 46
    assert paper.families_printed_otherwise() == [
        "classification: 26 sets in table 1, 25 in appendix A.1",
        "reading comprehension: evaluation rows printed 123 million, 123 thousand make the total",
        "summarization: 4 sets in table 1, 5 in appendix A.1",
    ]


def test_the_tasks_of_the_figures_are_among_the_sets():
    names = {name for family in paper.DATASETS.values() for name in family}
    assert set(paper.FIGURE_TASKS) <= names
    assert list(paper.FIGURE1_SETS) == sorted(paper.FIGURE1_SETS) and paper.FIGURE1_SETS[-1] == 46
