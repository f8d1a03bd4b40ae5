"""Units of work end in time on any machine, and a stop says what is kept."""

import io
import sys
import types

import pytest

from polyhead.progress import UNIT_SECONDS, NotebookDisplay, UnitSize, counted, progress_display, stopped_with


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
    display = NotebookDisplay(shown.append)
    display.line("kind <single_label>")
    display.show("encoding: 1,024 of 4,096 texts, 60 a second")
    assert '<progress value="1024" max="4096"' in shown[-1] and "60 a second" in shown[-1]
    display.show("looking at columns")
    assert "<progress" not in shown[-1] and "looking at columns" in shown[-1]
    display.line("mood: accuracy 0.9")
    assert "<progress" not in shown[-1] and "2 lines" in shown[-1]
    assert "kind &lt;single_label&gt;\nmood: accuracy 0.9" in shown[-1] and "<single_label>" not in "".join(shown)


def test_progress_goes_to_a_notebook_where_there_is_one(monkeypatch):
    """A fake of IPython: a shell with a kernel is a notebook's, one without is a terminal's."""
    stream, outputs = io.StringIO(), []
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    progress_display(stream).line("plain")
    shell, tools = types.SimpleNamespace(kernel=None), types.SimpleNamespace(HTML=str)
    tools.display = lambda content, display_id: types.SimpleNamespace(update=outputs.append)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", tools)
    progress_display(stream).line("terminal")
    shell.kernel = object()
    progress_display(stream).line("notebook")
    progress_display(None).line("silent")
    assert stream.getvalue() == "plain\nterminal\n" and len(outputs) == 1 and "notebook" in outputs[0]
