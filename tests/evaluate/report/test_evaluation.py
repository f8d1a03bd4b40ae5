"""The report of an evaluation: whatever texts and labels hold, it is text; and it stays small."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from polyhead.data.columns import Source
from polyhead.data.read import Examples, ReadReport
from polyhead.evaluate.compare import compare_versions
from polyhead.evaluate.details import details_of
from polyhead.evaluate.explain import Explanation, Phrase, Said
from polyhead.evaluate.report.evaluation import Reported, page_of
from polyhead.evaluate.report.page import html_text
from polyhead.evaluate.scores import Evaluation, SplitOutputs, SplitScore, WrongRow
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from support import browser as browsers

MARKUP = "</p></title></style><script>alert(1)</script><img src=x onerror=\"alert('2')\">&lt;b&amp;'\""
HOSTILE = f"{MARKUP}\x00\u202e\ud800"
FETCHES = {"src", "href", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href"}


class Read(HTMLParser):
    """The elements and the words of a page."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def evaluated(labels, texts, *, seed=0):
    """An evaluation of a task with these labels on these texts, answered at random."""
    rng, rows = np.random.default_rng(seed), len(texts)
    task = Task(name="mood", kind="single_label", labels=tuple(labels))
    targets = [np.array(label) for label in rng.integers(len(labels), size=rows)]
    outputs = list(rng.normal(size=(rows, len(labels))).astype(np.float32))
    report = ReadReport(**dict.fromkeys(ReadReport.__struct_fields__, 0))
    examples = Examples(
        inputs=[(text,) for text in texts], targets=targets, words=None, rows=list(range(1, rows + 1)), report=report
    )
    kind, each = kind_of(task), examples.each()
    score = SplitScore(
        task="mood",
        split="test",
        rows=rows,
        metric="accuracy",
        scores=kind.evaluate(task, outputs, targets, each),
        labels=kind.label_scores(task, outputs, targets, each),
        wrong=1,
    )
    errors = [
        WrongRow(task="mood", row=row, input=(text,), truth=labels[0], answer=labels[1], score=0.9)
        for row, text in enumerate(texts, 1)
    ]
    answered = SplitOutputs(task=task, source=Source(path="x.jsonl"), examples=examples, outputs=outputs)
    return Evaluation(score=score, errors=tuple(errors), digest="", answered=answered)


def hostile_page():
    labels, texts = (f"a{MARKUP}", f"b{MARKUP}"), [f"{HOSTILE} {number}" for number in range(30)]
    evaluation = evaluated(labels, texts)
    part = Phrase(place=0, start=4, end=20, text=texts[0][4:20], effect=0.5, becomes=HOSTILE)
    why = Explanation(task="mood", texts=(texts[0],), said=(Said(says=labels[0], support=0.9, parts=(part,)),))
    details = details_of(evaluation, columns={HOSTILE: [HOSTILE, "x"] * 15}, explanations=[why])
    comparison = compare_versions(evaluation.answered, evaluated(labels, texts, seed=1).answered, against=HOSTILE)
    reported = Reported(title=HOSTILE, facts=(HOSTILE,), details=(details,), comparisons=(comparison,))
    return page_of(reported)


def test_hostile_texts_and_labels_are_words_and_never_elements():
    page = hostile_page()
    read = Read(page)
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "img", "iframe", "link", "object", "embed", "form", "base", "image", "use"}
    for tag, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        fetched = {name: value for name, value in attributes.items() if name in FETCHES}
        assert all(name == "href" and value.startswith("#") for name, value in fetched.items()), (tag, fetched)
    assert "url(" not in page and "@import" not in page and "http:" not in page and "https:" not in page
    shown = "".join(read.words)
    assert shown.count("<script>alert(1)</script>") > 50  # each place says it as it is
    assert not re.search("[\x00\u202e\ud800]", page)
    page.encode()


def test_nothing_of_a_value_is_markup():
    assert html_text("<a b=\"c\" d='e'>&") == "&lt;a b=&quot;c&quot; d=&#x27;e&#x27;&gt;&amp;"
    assert html_text("a\x00b\x1b[31m\u202ec\ud800\n") == "a\ufffdb\ufffd[31m\ufffdc\ufffd\n"


@pytest.mark.skipif(browsers.missing() is not None, reason=browsers.missing() or "")
def test_a_browser_shows_the_page_and_asks_nothing_else(tmp_path):
    file = tmp_path / "report.html"
    file.write_bytes(hostile_page().encode())
    with browsers.Browser() as page:
        for scheme in ("light", "dark"):
            page.emulate(width=400, scheme=scheme)
            page.go(file.as_uri())
            assert page.run("return document.documentElement.scrollWidth <= 400"), scheme
            assert page.run("return document.querySelectorAll('svg').length") >= 4
            assert page.run("return document.querySelectorAll('mark').length") == 1
        assert set(page.requested()) == {file.as_uri()}
        assert not page.log("browser")


@pytest.mark.slow
def test_a_page_of_many_rows_is_as_small_as_one_of_few():
    """Long texts, a column of many values, 120 labels: eight times the rows add a tenth to the page at most."""
    sizes = []
    for rows in (1000, 8000):
        texts = ["some words of a text that is not so long after all " * 40] * rows
        evaluation = evaluated([f"label {number}" for number in range(120)], texts)
        columns = {"place": [f"v{number % 900}" for number in range(rows)], "size": list(range(rows))}
        details = details_of(evaluation, columns=columns)
        other = evaluated(evaluation.answered.task.labels, texts, seed=1).answered
        comparison = compare_versions(evaluation.answered, other, against="v")
        page = page_of(Reported(title="t", facts=(), details=(details,), comparisons=(comparison,)))
        assert details.score.rows == rows and len(comparison.changes) == min(1000, comparison.changed) > 900
        sizes.append(len(page))
    assert sizes[1] < 1.1 * sizes[0] < 200_000
