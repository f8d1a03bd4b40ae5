"""A stand-in for IPython, which tests need not install."""

import sys
import types


class Notebook:
    """The outputs of a cell, each as it was shown over time."""

    def __init__(self, monkeypatch):
        self.outputs = {}
        self.shell = types.SimpleNamespace(kernel=object())
        tools = types.SimpleNamespace(display=self.display)
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: self.shell))
        monkeypatch.setitem(sys.modules, "IPython.display", tools)

    def display(self, content, *, raw, display_id):
        assert raw and display_id is True and "text/plain" in content
        shown = self.outputs.setdefault(len(self.outputs), [content])

        def update(content, *, raw):
            assert raw and set(content) == {"text/html", "text/plain"}
            shown.append(content)

        return types.SimpleNamespace(update=update)
