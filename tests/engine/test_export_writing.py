"""Files of a task that writes: the same texts as the session's, token by token, without Polyhead too."""

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from polyhead.engine.export import write
from polyhead.engine.generate import search
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.plan import Layers, Path, Prompt
from polyhead.testing import tiny_part, tiny_trunk, tiny_writing
from support import writing_bundles as made

TEXTS = [(text,) for text in made.texts(6)]
ASKED = [("The lamp is broken and late.",), ("Thank you!",)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A bundle with a greedy task, one of beams with rules, and a classification; and its export."""
    folder, data = tmp_path_factory.mktemp("export"), made.trunk()
    drafts = [
        made.writing_draft(data, least=3),
        made.writing_draft(data, "beams", seed=4, beams=3, no_repeat=2, length_penalty=2.0, probes=[TEXTS[0][0]]),
        made.class_draft(data),
    ]
    made.bundle(folder / "b", *drafts, data=data)
    return folder / "b", write.export_bundle(folder / "b", folder / "out", backend="reference"), folder / "out"


def test_scores_are_those_of_the_session(exported):
    _, export, _ = exported
    for name in ("brief", "beams"):
        files = export.tasks[name]
        assert files.probes >= 3 and files.largest_difference < 1e-4
        assert set(files.model.outputs) >= {"given_key.0", "given_value.0", "added"}
        assert set(files.step.inputs) >= {"decoder_ids", "position", "added", "given_key.0", "key.0"}
    assert export.left_out == {} and export.tasks["mood"].step is None


@pytest.mark.parametrize("name", ["brief", "beams"])
def test_the_search_over_files_writes_what_the_session_writes(exported, name):
    bundle, export, out = exported
    session, files = Session(bundle, backend="reference"), export.tasks[name]
    steps = write.ExportedModel(out, export).steps(files, TEXTS)
    states = np.zeros((len(TEXTS), 1, session.shape.width), np.float32)  # files compute their own
    found = search.write(steps, states, np.ones(states.shape[:2], bool), files.task.generation)
    written = [session.tokenizer.decode(one.ids) for one in found]
    assert written == [str(text) for text in session.outputs(name, TEXTS)]
    assert len(set(written)) > 3


@pytest.mark.parametrize("form", ["prompted", "isolated", "branch"])
def test_states_may_be_those_of_any_strategy(form, tmp_path):
    """Prompt rows before the text, which the decoder does not read, or layers of the task's own."""
    data = tiny_trunk()
    task, loaded = tiny_writing(data)
    embed, layers, pool, head = loaded.path.nodes
    if form == "branch":
        nodes = (embed, Layers(start=0, stop=1), Layers(start=1, stop=layers.stop, weights=head.part), pool, head)
    else:
        prompts = (Prompt(part=head.part, rows=3),)
        nodes = (msgspec.structs.replace(embed, prompts=prompts, isolated=form == "isolated"), layers, pool, head)
    path = Path(nodes=nodes)
    arrays = tiny_part(path, data.architecture, head.part)
    made.bundle(tmp_path / "b", made.draft(task, path, data, arrays, ()), data=data)
    files = write.export_bundle(tmp_path / "b", tmp_path / "out", backend="reference").tasks["brief"]
    assert files.probes >= 4 and files.largest_difference < 1e-4


def test_the_example_of_the_readme_writes_without_polyhead(exported):
    bundle, _, out = exported
    found = printed(out)
    wanted = Session(bundle, backend="reference").outputs("brief", ASKED)
    assert [text.strip() for text in found["brief"]] == [str(text) for text in wanted]
    assert "mood" in found


def printed(out):
    """What the README's examples print, by task, in a process in which importing polyhead fails."""
    examples = [one.partition("```")[0] for one in (out / "README.md").read_text().split("```python\n")[1:]]
    assert len(examples) == 2
    code = f"""
import sys
sys.modules["polyhead"] = sys.modules["torch"] = None
kept = {{}}
def print(name, found, *more): kept[name] = found
{"".join(examples)}
json.dump(kept, sys.stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_files_that_score_otherwise_are_not_left(exported, tmp_path, monkeypatch):
    def wrong(self, ids, cache):
        scores, cache = step(self, ids, cache)
        return scores + 0.01 * (cache.length == 3), cache

    step = write.ExportedSteps.step
    monkeypatch.setattr(write.ExportedSteps, "step", wrong)
    with pytest.raises(BackendError, match="'brief' answer otherwise"):
        write.export_bundle(exported[0], tmp_path / "out", tasks=["brief"], backend="reference")
    assert not (tmp_path / "out").exists()
