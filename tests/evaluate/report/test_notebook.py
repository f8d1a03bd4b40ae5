"""HTML for notebooks: whole, escaped, and with the marks and bars of the answers."""

from html.parser import HTMLParser

from polyhead.evaluate.report.notebook import AnsweredText, ReportPage, TaskRow, answers_html, marked_html, tasks_html

EVIL = "<script>alert('x')</script> & \u202e kettle"


class Read(HTMLParser):
    """The texts of marks and paragraphs, and the open elements; fails on one that is closed out of order."""

    def __init__(self, content):
        super().__init__()
        self.open, self.texts, self.names, self.widths = [], [], [], []
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.widths += [value for name, value in attrs if name == "style" and value.startswith("width")]
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def test_spans_are_marked_where_they_are_and_nothing_is_markup():
    spans = [{"start": 32, "end": 38, "label": "<b>", "score": 0.5}, {"start": 33, "end": 35, "label": "inside"}]
    text = "<script>alert('x')</script> & z kettle"
    read = Read(marked_html(text, spans))
    assert [data for tag, data in read.texts if tag == "mark"] == ["kettle"]
    assert "".join(data for tag, data in read.texts if tag in ("bdi", "mark")) == text.replace("kettle", "kettle<b>")
    assert "script" not in read.names


def test_answers_of_every_kind_are_shown():
    answers = {
        "mood": {"label": EVIL, "scores": {EVIL: 0.75, "good": 0.25}},
        "topics": {"labels": [], "scores": {"a": 0.1}},
        "names": {"spans": [{"start": 0, "end": 3, "label": "word", "text": "<sc"}]},
        "found": {"text": "ale", "start": 8, "end": 11, "score": 0.5},
        "size": {"value": 7.26490176},
        "choice": {"option": "second", "scores": [0.25, 0.75]},
    }
    row = AnsweredText(texts=(EVIL,), answers=answers, reasons={"pairs": "it reads <two> texts"})
    read = Read(answers_html([row] * 25))
    said = " ".join(data for _, data in read.texts)
    assert "script" not in read.names and "5 more" in said and "7.265" in said and "<two>" in said and "none" in said
    assert [data for tag, data in read.texts if tag == "mark"][:2] == ["<sc", "ale"]
    assert read.widths[:2] == ["width: 75.0%", "width: 25.0%"]


def test_tasks_are_a_table_and_a_page_is_in_a_frame_of_its_own(tmp_path):
    task = TaskRow(
        name="mood", kind="single_label", labels=(EVIL, *"abcdefghijklmn"), version="v0002", metric="f1", score=0.5,
        split="held out",
    )  # fmt: skip
    read = Read(tasks_html("Model(<m>)", [task, TaskRow(**{**as_dict(task), "score": None})]))
    said = " ".join(data for _, data in read.texts)
    assert "and 3 more" in said and "0.500" in said and "Model(<m>)" in said and read.widths == ["width: 50.0%"]
    assert "no task yet" in tasks_html("Model", [])
    page = ReportPage(html='<p class="a">1 & 2</p>')
    frame = Read(page._repr_html_())
    assert frame.names == ["iframe"] and page.save(tmp_path / "report.html").read_text() == page.html
    long = repr(ReportPage(html="<p>" + "text " * 9000))
    assert "45 KB" in long and len(long) < 100, "a terminal showed the whole page"


def as_dict(task):
    return {name: getattr(task, name) for name in type(task).__struct_fields__}
