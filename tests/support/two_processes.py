"""Two processes on one machine that train together, and what they run: a joint training of the tiny tasks."""

import gc
import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path

import msgspec

from support import tiny_project

LIMIT = 120  # seconds that one run may take before it counts as hanging
MEETING = 20  # seconds in which two processes form their group; gloo's sockets now and then fail to meet
TRIES = 3  # of forming it
PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "polyhead.deep.recipes.joint_loop"]  # once for all processes


class Pair:
    """Runs a function in two processes at once, inside their group; `with` ends them."""

    def __init__(self):
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def run(self, function, *arguments):
        """Each process's `function(place, *arguments)`, by rank. What fails leaves two new processes behind."""
        try:
            self._meet()
            for pipe in self._pipes:
                pipe.send((function, arguments))
            return [self._answer(rank, LIMIT) for rank in range(2)]
        except Exception:
            self.end()
            self._start()
            raise

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipes, self._processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for rank in range(2):
            self._answer(rank, LIMIT)  # it has imported

    def end(self, ranks=range(2)):
        for rank in ranks:
            self._processes[rank].kill()
            self._processes[rank].join()

    def _meet(self):
        """Both are in one group. Where only one of them came, both begin anew."""
        for left in reversed(range(TRIES)):
            try:
                with tempfile.TemporaryDirectory() as folder:
                    for pipe in self._pipes:
                        pipe.send(f"file://{folder}/meeting")
                    for rank in range(2):
                        self._answer(rank, MEETING)
                return
            except (AssertionError, EOFError, OSError):
                if not left:
                    raise
                self.end()
                self._start()

    def _answer(self, rank, limit):
        pipe = self._pipes[rank]
        assert pipe.poll(limit), f"process {rank} hangs"
        value, error = pipe.recv()
        assert error is None, f"process {rank}: {error}"
        return value


def _serve(rank, pipe):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    from polyhead.deep.loop.devices import process_group
    from polyhead.train.runs import ProcessRank

    torch.set_num_threads(1)
    gc.freeze()  # whoever leaves a group collects garbage, and need not look through all that was imported
    pipe.send((None, None))
    while True:
        place = ProcessRank(rank=rank, world=2, meeting=pipe.recv())
        try:
            with process_group(place):
                pipe.send((None, None))
                function, arguments = pipe.recv()
                found = function(place, *arguments), None
        except Exception:
            found = None, traceback.format_exc()
        pipe.send(found)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One joint training of tiny tasks."""

    home: str
    names: tuple[str, ...]
    recipe: object
    training: object
    strategies: dict = {}  # of tasks that do not have the usual one
    entries: tuple = ()  # of tasks in addition to those of `tiny_project`
    checkpoint: str | None = None
    stop: int | None = None  # after so many epochs are saved, as if it were killed
    inside: int | None = None  # or after so many updates of the first epoch
    events: str | None = None
    precision: str = "float32"


class Stopped(Exception):
    """In place of a kill."""


def course_of(job, place):
    from polyhead.deep.recipes.joint_loop import JointLoop
    from polyhead.deep.recipes.paths import joint_paths
    from polyhead.project.pretrained import load_trunk
    from polyhead.train.data.prepare import prepare
    from polyhead.train.events import Events

    home = Path(job.home)
    project = tiny_project.project(home, *job.names, training=job.training)
    tasks = (*(entry for entry in project.tasks if entry.name in job.names), *job.entries)
    project = msgspec.structs.replace(project, tasks=tasks, recipe=job.recipe)
    prepared = [
        msgspec.structs.replace(p, strategy=job.strategies.get(p.task.name, p.strategy)) for p in prepare(project, home)
    ]
    data = load_trunk(str(home / "trunk"))
    return JointLoop(
        prepared,
        joint_paths(prepared, data, job.recipe),
        data,
        job.recipe,
        training=job.training,
        precision=job.precision,
        checkpoint=Path(job.checkpoint) if job.checkpoint else None,
        events=Events(file=Path(job.events)) if job.events and place.is_first else Events(),
        place=place,
    )


def learn(place, job):
    """What a training leaves: arrays by name, the history, the scores; None where it was stopped."""
    from polyhead.deep.loop import fit

    loop, save, saved = course_of(job, place), fit.TrainingLoop.save, []

    def noted(run):
        save(run)
        saved.append(run.done)
        if run.done == job.stop:
            raise Stopped

    within = fit.TrainingLoop.save_inside

    def begun(run, state):
        within(run, state)
        if (run.done, state.updates) == (0, job.inside):
            raise Stopped

    fit.SAVE_SECONDS, fit.ASKED_EVERY, fit.TrainingLoop.save, fit.TrainingLoop.save_inside = 0.0, 1, noted, begun
    try:
        learned = loop.learn()
    except Stopped:
        return None
    finally:
        fit.SAVE_SECONDS, fit.ASKED_EVERY, fit.TrainingLoop.save, fit.TrainingLoop.save_inside = 5.0, 64, save, within
    arrays = {f"trunk.{name}": value for name, value in learned.data.arrays.items()}
    for task, several in learned.arrays.items():
        arrays |= {f"{task}.{name}": value for name, value in several.items()}
    return {
        "arrays": {name: value.copy() for name, value in arrays.items()},
        "history": learned.fitted.history,
        "seen": learned.fitted.examples_seen,
        "validation": learned.validation,
        "epochs": len(saved),
    }


def refused(place, job):
    """The error that training ends with."""
    from polyhead.errors import PolyheadError

    try:
        course_of(job, place).learn()
    except PolyheadError as error:
        return type(error).__name__, str(error)
    return None
