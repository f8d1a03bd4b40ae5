"""An error says the limit that the caller's tasks have."""

from concurrent.futures import Future

import msgspec
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.engine.queue import Queue
from polyhead.engine.session import Session
from polyhead.errors import BadValue
from polyhead.plan import Path, Pool, Prompt
from polyhead.serve.checks import check_cut
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny

LONG = "good " * 60  # 62 tokens of 48


def test_a_text_that_is_too_long_is_refused_with_the_limit_of_the_tasks_that_cut_it(tmp_path):
    """The trunk's was named, where a task behind shifted prompts, which takes 6 positions of 48, reads fewer tokens."""
    trunk, tasks = tiny_trunk(), {task.name: task for task in tiny_tasks()}
    write_bundle(tmp_path, trunk)
    for name, long_texts, rows in (("urgency", "cut", 0), ("mood", "cut", 6), ("topics", "windows", 10)):
        task = msgspec.structs.replace(tasks[name], long_texts=long_texts)
        path = tiny_path(task, trunk, pool=Pool())
        if rows:
            prompts = (Prompt(part=path.head.part, rows=rows),)
            path = Path(nodes=(msgspec.structs.replace(path.embed, prompts=prompts, shift=True), *path.nodes[1:]))
        add_tiny(tmp_path, trunk, task, path, seed=rows)
    queue = Queue(Session(tmp_path, backend="reference"))
    for asked, limit in ((["urgency", "topics"], 48), (["mood", "urgency"], 42)):
        future = Future()
        queue.submit([("good",), (LONG,)], future.set_result, tasks=asked)
        with pytest.raises(BadValue, match=f"input 1 .* Got: {62 - limit} tokens more. Allowed: {limit} tokens in all"):
            check_cut(future.result(30))
    queue.close()
