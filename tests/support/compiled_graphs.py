"""Graphs of OpenVINO that are compiled once: tests open the same tiny bundles again and again."""

import hashlib
import re
import tempfile
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path

MOST, LARGEST = 256, 2**20  # graphs that are remembered, and bytes of the arrays of each
NAMES = re.compile(rb' (?:output_)?names?="[^"]*"')  # numbered anew for each graph that is made
_known = OrderedDict()
_anew = []  # what is at work that wants graphs of its own


@contextmanager
def anew():
    """Within, every graph is compiled again: what a second compilation of the same makes is looked at."""
    _anew.append(True)
    try:
        yield
    finally:
        _anew.pop()


def remember(monkeypatch):
    """What equal graphs, arrays and settings are compiled to is computed once; requests stay each session's own."""
    from polyhead.engine.backends.openvino import runtime

    compile_model = runtime.ov.Core.compile_model
    monkeypatch.setattr(runtime, "trim", lambda: None)  # memory that the next graph takes again

    def remembered(core, model, device, settings):
        if _anew:
            return compile_model(core, model, device, settings)
        key = _key(runtime.ov, model, device, settings)
        made = _known.pop(key, None)
        if made is None:
            made = compile_model(core, model, device, settings)
        if key is not None:
            _known[key] = made  # the one that was asked for last
        while len(_known) > MOST:
            _known.popitem(last=False)
        return made

    monkeypatch.setattr(runtime.ov.Core, "compile_model", remembered)


def _key(ov, model, *settings):
    """None for what is too large to be kept."""
    with tempfile.TemporaryDirectory() as folder:
        graph, arrays = Path(folder) / "graph.xml", Path(folder) / "graph.bin"
        ov.serialize(model, graph, arrays)
        if arrays.stat().st_size > LARGEST:
            return None
        content = NAMES.sub(b"", graph.read_bytes()) + arrays.read_bytes()
    return hashlib.sha256(content + repr(settings).encode()).digest()
