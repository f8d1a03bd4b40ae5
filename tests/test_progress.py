"""Units of work end in time on any machine, and a stop says what is kept."""

import io
import sys

import pytest

from polyhead.progress import UNIT_SECONDS, NotebookDisplay, UnitSize, counted, progress_display, stopped_with
from support.notebook import Notebook


@pytest.mark.parametrize("rate", [0.5, 14, 100, 5_000])
def test_units_take_about_the_same_time_on_slow_and_fast_machines(rate):
    size, seconds = UnitSize(8192), []
    for _ in range(12):
        seconds.append(size.rows / rate)
        size.took(size.rows, seconds[-1])
    assert seconds[-1] == pytest.approx(min(UNIT_SECONDS, 8192 / rate), rel=0.2)
    assert all(later <= 4 * earlier for earlier, later in zip(seconds, seconds[1:], strict=False))


def test_a_unit_is_never_empty_nor_larger_than_the_most():
    size = UnitSize(10)
    assert size.rows == 10
    size.took(10, 1e9)
    assert size.rows == 1
    for _ in range(9):
        size.took(size.rows, 0.0)
    assert size.rows == 10


@pytest.mark.parametrize(
    ("kept", "said"), [(0, "nothing was finished yet"), (1, "rows kept: 1"), (12_000, "rows kept: 12,000")]
)
def test_a_stop_says_what_is_kept(kept, said):
    with pytest.raises(KeyboardInterrupt, match=f"^{said}$"), stopped_with(lambda: kept, "rows"):
        raise KeyboardInterrupt


def test_one_of_a_thing_has_no_plural():
    assert [counted(n, "piece") for n in (0, 1, 2, 1200)] == ["0 pieces", "1 piece", "2 pieces", "1,200 pieces"]


def test_a_notebook_shows_one_bar_and_keeps_the_lines():
    shown = []
    display = NotebookDisplay(lambda content: shown.append(content["text/html"]))
    display.line("kind <single_label>")
    display.show("encoding: 1,024 of 4,096 texts, 60 a second")
    assert '<progress value="1024" max="4096"' in shown[-1] and "60 a second" in shown[-1]
    display.show("looking at columns")
    assert "<progress" not in shown[-1] and "looking at columns" in shown[-1]
    display.line("mood: accuracy 0.9")
    assert "<progress" not in shown[-1] and "2 lines" in shown[-1]
    assert "kind &lt;single_label&gt;\nmood: accuracy 0.9" in shown[-1] and "<single_label>" not in "".join(shown)


def _say(stream, text):
    with progress_display(stream) as display:
        display.line(text)


def test_progress_goes_to_a_notebook_where_there_is_one(monkeypatch):
    """A shell with a kernel is a notebook's, one without is a terminal's."""
    stream = io.StringIO()
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    _say(stream, "plain")
    notebook = Notebook(monkeypatch)
    kernel, notebook.shell.kernel = notebook.shell.kernel, None
    _say(stream, "terminal")
    notebook.shell.kernel = kernel
    _say(stream, "notebook")
    _say(None, "silent")
    assert stream.getvalue() == "plain\nterminal\n" and len(notebook.outputs) == 1
    assert "notebook" in notebook.outputs[0][-1]["text/html"]


def test_a_console_with_a_kernel_reads_the_same_in_plain_text(monkeypatch):
    """Front ends without HTML showed `<IPython.core.display.HTML object>`."""
    notebook = Notebook(monkeypatch)
    with progress_display(io.StringIO()) as display:
        display.line("mood: warning: few rows")
        display.show("encoding: 10 of 40 texts")
        assert notebook.outputs[0][-1]["text/plain"] == "mood: warning: few rows\nencoding: 10 of 40 texts"
        display.line("bundle moods: 1 trained")
    assert notebook.outputs[0][-1]["text/plain"] == "mood: warning: few rows\nbundle moods: 1 trained"


def test_warnings_stay_visible_in_a_notebook(monkeypatch):
    """They were among the lines that only a click shows."""
    notebook = Notebook(monkeypatch)
    with progress_display(io.StringIO()) as display:
        display.line("mood: warning: one <answer> is all that it gives")
        display.line("bundle moods: 1 trained, 0 kept, in 9 s")
    visible, hidden = notebook.outputs[0][-1]["text/html"].split("<details>")
    assert "warning: one &lt;answer&gt; is all that it gives" in visible and "in 9 s" in visible
    assert "2 lines" in hidden and "warning: one" in hidden
