"""A ladder of ways, tried over kept states from the cheapest up, and the choice among them within a budget."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from polyhead.advise.choice import MARGIN, MICRO, UNITS, WORTH, Advice, Budget, next_step, scale_of, task_advice
from polyhead.advise.compare import seconds_of, trained_scores
from polyhead.advise.labels import LearningCurve, curve_of
from polyhead.advise.measure import measured_speed
from polyhead.advise.rows import TaskScore, data_digest, key_of
from polyhead.advise.sharing_ways import ALL, ALONE, TaskSet, Way, declared, project_file
from polyhead.bundle.read import Bundle
from polyhead.deep.training_time import rates_of, sizes_of
from polyhead.errors import ConfigError
from polyhead.files import replace_file
from polyhead.machine import Clock
from polyhead.plan.cost.allocate import (
    AllocationOption,
    LayerPrice,
    OptionsFile,
    allocation_of,
    best_under,
    by_rule,
    price_of,
)
from polyhead.progress import duration
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.strategies.branch import private_layers, tap_of
from polyhead.project.tables import Project, TaskEntry
from polyhead.train.data.encoder import encoding_precision, load_any_trunk
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from polyhead.values import from_json

POOLED = Way(name="pooled-heads", title="pooled heads on kept features", strategy=Pooled())
ATTENTION = Way(
    name="pooled-attention", title="attention heads on kept features", strategy=Pooled(positions="attention")
)
HEADS = {way.name: way for way in (POOLED, ATTENTION)}
LEARNED = Way(
    name="pooled-joint", title="pooled heads, the trunk learns too", strategy=Pooled(), recipe=Joint(), retrained=ALL
)


class Ladder:
    """The trials on one set of tasks, in a folder that keeps results: repeating the call trains nothing again."""

    def __init__(self, tasks: TaskSet, folder: Path, budget: Budget, events: Events, *, seed: int = 1) -> None:
        self.tasks, self.folder, self.budget, self.events, self.seed = tasks, folder, budget, events, seed
        self.home, self.clock = Path(tasks.folder), Clock()
        self.data = load_any_trunk(tasks.project, self.home)
        self.depth, self.digest = self.data.architecture.layers, data_digest(tasks) + self.data.digest
        self.prepared = prepare(self._project(POOLED), self.home)
        self.rates = rates_of(self.data, self.prepared)
        self.sizes = {p.task.name: sizes_of(self.data, p) for p in self.prepared}
        self.left_out: list[str] = []
        self._last: Path | None = None  # the last trained bundle
        self._grown: Sequence[AllocationOption] = ()  # branches of every depth that were tried

    def run(self) -> Advice:
        """Tries the ways within the budget and chooses. Raises ConfigError if the budget allows nothing."""
        self._say_price()
        options, price = list[AllocationOption](), self._price(None)
        if self._affords_trunk(price):
            options += self._pooled()
            price = self._price(price)
        curves = self._curves()
        if not options or self._affords_trunk(price):
            options += self._branches(price)
            price = self._price(price)
        options = [option for option in options if self._affords(option, price)]
        if not options:
            raise ConfigError(
                "no way of sharing is within the budget",
                got=f"{self.budget.amount:g} {UNITS[self.budget.unit]}",
                allowed=f"{(price.base + price.shared + price.private) / scale_of(price):g} or more",
                do="raise it, or share the tasks out over several bundles",
            )
        return self._advice(options, self._learned(price), price, curves)

    def defaults(self) -> dict[str, TaskScore] | None:
        """Every task's default over this encoder; None where there is no time for it."""
        return self._trained(POOLED) if self._has_time(POOLED) else None

    def has_room(self) -> bool:
        """Whether one pass of the whole encoder is within the budget; in milliseconds, once something is trained."""
        return self._affords_trunk(self._price(self._price(None)))

    @property
    def last(self) -> Path:
        """The bundle that was trained last."""
        assert self._last is not None
        return self._last

    def project_text(self, advice: Advice, bundle: str) -> str:
        """The project file of the choice."""
        if advice.learned:
            return project_file(self._declared(LEARNED, bundle), self.home)
        project = self._declared(POOLED, bundle)
        entries = [
            entry if advice.tasks[entry.name].chosen == POOLED.name else self._with_choice(entry.name, advice)
            for entry in project.tasks
        ]
        return project_file(msgspec.structs.replace(project, tasks=tuple(entries)), self.home)

    # Trials

    def _pooled(self) -> list[AllocationOption]:
        """Heads on kept features: the one that training chooses, and attention, which needs more proof to be chosen."""
        return [
            AllocationOption(task=name, name=way.name, tap=self.depth, layers=0, score=score.validation)
            for way in HEADS.values()
            for name, score in self._trained(way).items()
        ]

    def _branches(self, price: LayerPrice) -> list[AllocationOption]:
        """Branches of every depth within the budget, by successive halving on the states at their taps."""
        if not self.depth:
            self.left_out.append("branches: a table of word vectors has no layers")
            return []
        way = self._halving(self._deepest(price)) if self._affords_trunk(price) else self._shallow(price)
        if way is None:
            self.left_out.append("branches: the budget has no room for a private layer")
        while way is not None and not self._has_time(way):
            deepest = int(getattr(way.strategy, "most", None) or self.depth)
            way = self._halving(deepest - 1) if way.strategy.is_undecided else None
            if way is None:
                self.left_out.append("branches: they would take longer than the minutes given")
        if way is None:
            return []
        self._grown = self._trained_branches(way)
        return [msgspec.structs.replace(option, name=f"branch-{option.layers}") for option in self._grown]

    def _halving(self, most: int) -> Way | None:
        if most < 1:
            return None
        strategy = Branch(layers=1) if most == 1 else Branch(most=most)
        return Way(name=f"branches-{most}", title=f"branches of 1 to {most} layers, by halving", strategy=strategy)

    def _shallow(self, price: LayerPrice) -> Way | None:
        """If the whole trunk is too expensive: one private layer per task above the deepest affordable tap."""
        room = self.budget.most(price) - price.base - len(self.prepared) * price.private
        tap = min(int(room // max(1, price.shared)), self.depth - 1)
        if tap < 0:
            return None
        return Way(name=f"low-{tap}", title=f"one layer above tap {tap}", strategy=Branch(layers=1, tap=tap))

    def _learned(self, price: LayerPrice) -> dict[str, TaskScore]:
        reason = ""
        if self.budget.frozen:
            reason = "the trunk is to stay frozen"
        elif not self._affords_trunk(price):
            reason = "its whole pass is over the budget"
        elif not self._has_time(LEARNED):
            reason = "it would take longer than the minutes given"
        if reason:
            self.left_out.append(f"a trunk that learns: {reason}")
            return {}
        return self._trained(LEARNED)

    def _trained(self, way: Way) -> dict[str, TaskScore]:
        clock, project = Clock(), self._project(way)
        self.events.line(f"{way.title}: about {duration(self._estimated(way))}")
        train_project(project, folder=self.home, cache=(self.folder / "cache").resolve(), events=Events())
        self._last = Path(project.bundle)
        scores = trained_scores([self._last])
        mean = sum(score.validation for score in scores.values()) / len(scores)
        self.events.line(f"{way.title}: {mean:.2f} points on validation, in {duration(clock.seconds)}")
        return scores

    def _curves(self) -> dict[str, LearningCurve]:
        precision = encoding_precision(self.prepared[0].training)
        source = Extractor.within(self.data, self.folder / "cache", precision=precision)
        curves = {p.task.name: curve_of(p, source) for p in self.prepared}
        return {name: curve for name, curve in curves.items() if curve is not None}

    def _trained_branches(self, way: Way) -> Sequence[AllocationOption]:
        """The way's branches that were trained to the end, as training recorded them."""
        # Training writes one file for all ways, and nothing where the bundle is there: each way keeps its own.
        bundle = self._project(way).bundle
        file = Path(f"{bundle}.options.json")
        if not file.exists():  # the bundle alone does not say them; its branches are in the cache
            shutil.rmtree(bundle, ignore_errors=True)
        self._trained(way)
        if not file.exists():
            replace_file(file, (self.folder / "cache" / "options.json").read_bytes())
        return from_json(file.read_bytes(), OptionsFile, source=str(file)).options

    def _declared(self, way: Way, bundle: str = "") -> Project:
        return declared(self.tasks, way, seed=self.seed, bundle=bundle, epochs=self.budget.epochs)

    def _project(self, way: Way) -> Project:
        """The way's project; other data or settings have another bundle."""
        project = self._declared(way)
        bundle = self.folder / "bundles" / f"{way.name}-{key_of(project, self.digest)[:8]}"
        return msgspec.structs.replace(project, bundle=str(bundle.resolve()))

    # Cost

    def _price(self, before: LayerPrice | None) -> LayerPrice:
        """The price of a layer in the budget's unit; milliseconds are measured on the last trained bundle."""
        if self.budget.unit != "ms":
            return price_of(self.budget.unit, self.data.architecture)
        if before is None or self._last is None:
            return LayerPrice(shared=0, private=1, unit=MICRO)  # nothing is refused before it is measured
        inputs = {p.task.name: list((p.test or p.validation).examples.inputs) for p in self.prepared}
        count = len(self.prepared)
        speeds, _ = measured_speed([self._last], inputs, counts=(count,))
        took = round(1000 * speeds[count].ms)
        paths = [record.path for record in Bundle.open(self._last, verify=False).tasks.values()]
        private = sum(len(private_layers(path)) for path in paths)
        if not private:
            each = max(1, took // max(1, self.depth))
            return LayerPrice(shared=each, private=each, base=max(0, took - each * self.depth), unit=MICRO)
        below = before.base + max(map(tap_of, paths)) * before.shared
        return msgspec.structs.replace(before, private=max(1, (took - below) // private))

    def _affords_trunk(self, price: LayerPrice) -> bool:
        return price.base + self.depth * price.shared <= self.budget.most(price)

    def _affords(self, option: AllocationOption, price: LayerPrice) -> bool:
        return price.base + option.tap * price.shared + option.layers * price.private <= self.budget.most(price)

    def _deepest(self, price: LayerPrice) -> int:
        """The maximum number of private layers of one task, with all others pooled."""
        most = self.budget.most(price)
        if most == float("inf") or len(self.prepared) == 1:
            return self.depth
        room = most - price.base - self.depth * price.shared
        return max(0, min(self.depth, int(room // price.private)))

    def _estimated(self, way: Way) -> float:
        """Seconds of training the way."""
        prepared = [
            msgspec.structs.replace(p, strategy=entry.strategy or way.strategy, training=entry.training)
            for p, entry in zip(self.prepared, self._project(way).tasks, strict=True)
        ]
        return seconds_of(way, prepared, self.sizes, self.rates, self.data.architecture)

    def _has_time(self, way: Way) -> bool:
        if self.budget.minutes is None:
            return True
        return self.clock.seconds + self._estimated(way) <= 60 * self.budget.minutes

    def _say_price(self) -> None:
        search = [Way(name="branches", title="", strategy=Branch())] if self.depth else []
        ways = [*HEADS.values(), *search, *([] if self.budget.frozen else [LEARNED])]
        within = "" if self.budget.minutes is None else f"; at most {self.budget.minutes:g} minutes were given"
        self.events.line(f"price: the whole ladder in about {duration(sum(map(self._estimated, ways)))}{within}")

    # Choice

    def _advice(
        self,
        options: Sequence[AllocationOption],
        learned: Mapping[str, TaskScore],
        price: LayerPrice,
        curves: Mapping[str, LearningCurve],
    ) -> Advice:
        budget = self.budget
        if budget.amount is None:
            chosen = allocation_of(by_rule(options, WORTH), price)
        else:
            chosen = best_under(options, int(budget.most(price)), price)
        score, cost, is_learned = chosen.score, chosen.cost, False
        if learned:
            mean = sum(part.validation for part in learned.values()) / len(learned)
            if mean > score + MARGIN:
                score, cost, is_learned = mean, price.base + self.depth * price.shared, True
        tasks = {}
        for name, option in chosen.chosen.items():
            tried = {o.name: o.score for o in options if o.task == name}
            tried |= {LEARNED.name: learned[name].validation} if learned else {}
            taken = LEARNED.name if is_learned else option.name
            tasks[name] = task_advice(taken, tried, curves.get(name), budget.how)
        return Advice(
            tasks=tasks,
            learned=is_learned,
            score=round(score, 3),
            cost=cost / scale_of(price),
            unit=budget.unit,
            budget=budget.amount,
            retrained=ALL if is_learned else ALONE,
            next=next_step(options, price, chosen, score=score, cost=cost),
            left_out=tuple(self.left_out),
            seconds=round(self.clock.seconds, 1),
        )

    def _with_choice(self, task: str, advice: Advice) -> TaskEntry:
        """The task with the chosen head or branch."""
        name = advice.tasks[task].chosen
        way = HEADS.get(name) or Way(name=name, title="", strategy=self._branch(task, name))
        entry = next(entry for entry in self._declared(way).tasks if entry.name == task)
        return msgspec.structs.replace(entry, strategy=way.strategy)

    def _branch(self, task: str, name: str) -> Branch:
        layers = int(name.removeprefix("branch-"))
        tap = next(option.tap for option in self._grown if option.task == task and option.layers == layers)
        return Branch(layers=layers, tap=None if tap == self.depth - layers else tap)
