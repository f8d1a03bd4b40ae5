"""The choice of the encoder: every task's default over each, on the same held-out rows, at what one text costs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from polyhead.advise.choice import MARGIN, UNITS, WORTH, Advice, Budget, TrunkTrial
from polyhead.advise.ladder import Ladder
from polyhead.advise.measure import counted_costs
from polyhead.advise.sharing_ways import TaskSet
from polyhead.errors import ConfigError
from polyhead.project.tables import TrunkChoice
from polyhead.train.events import Events


def advised(
    tasks: TaskSet, folder: Path, budget: Budget, events: Events, *, trunks: Sequence[str] = ()
) -> tuple[Ladder, Advice]:
    """The advice, and the ladder that writes its project file.

    With other `trunks`, named as in a project file, the ladder stands on the encoder that their defaults choose. Raises
    ConfigError if the budget allows nothing.
    """
    declared = tasks.project.trunk
    ladder = Ladder(tasks, folder, budget, events)
    home = Path(tasks.folder)
    others = [name for name in dict.fromkeys(trunks) if TrunkChoice(name=name).place(home) != declared.place(home)]
    if not others:
        return ladder, ladder.run()
    ladders, clock = {declared.name: ladder}, ladder.clock
    for name in others:
        trunk = TrunkChoice(name=name, max_tokens=declared.max_tokens)
        over = msgspec.structs.replace(tasks, project=msgspec.structs.replace(tasks.project, trunk=trunk))
        ladders[name] = Ladder(over, folder / f"trunk-{hashlib.sha256(name.encode()).hexdigest()[:8]}", budget, events)
        ladders[name].clock = clock  # the minutes are those of all of them
    trials = tuple(trial for name, trunk_ladder in ladders.items() if (trial := _tried(name, trunk_ladder)) is not None)
    chosen, whys = chosen_trunk(trials, budget) if trials else (declared.name, ())
    advice = ladders[chosen].run()
    late = [name for name in ladders if name not in {trial.name for trial in trials}]
    left_out = (*(f"encoder '{name}': it would take longer than the minutes given" for name in late), *advice.left_out)
    return ladders[chosen], msgspec.structs.replace(advice, trunks=trials, why_trunk=whys, left_out=left_out)


def chosen_trunk(trials: Sequence[TrunkTrial], budget: Budget) -> tuple[str, tuple[str, ...]]:
    """The encoder to take, from the cheapest up, and why each dearer one is taken or not.

    It binds all tasks, so the mean must gain MARGIN. Without a budget, moreover, every task gains, or the mean does
    WORTH points for the work of each of the cheaper one's layers. Raises ConfigError where none is within the budget.
    """
    rising = sorted((trial for trial in trials if trial.is_affordable), key=lambda trial: trial.flops)
    whys = [f"{trial.name}: over the budget" for trial in trials if not trial.is_affordable]
    if not rising:
        within = "" if budget.amount is None else f"{budget.amount:g} {UNITS[budget.unit]}"
        raise ConfigError("no encoder is within the budget", got=within, do="raise it")
    chosen, *others = rising
    for other in others:
        gain, more = other.score - chosen.score, (other.flops / chosen.flops - 1) * chosen.layers
        losing = [task for task, points in other.tasks.items() if points <= chosen.tasks[task]]
        pays = not losing or gain >= WORTH * more
        wins = gain > MARGIN and (budget.amount is not None or pays)
        every = "every task gains" if not losing else f"not better at {', '.join(losing)}"
        whys.append(
            f"{other.name} {'over' if wins else 'not over'} {chosen.name}: {gain:+.2f} points, {every}, at "
            f"{other.flops / chosen.flops:.1f} times the work"
        )
        chosen = other if wins else chosen
    return chosen.name, tuple(whys)


def _tried(name: str, ladder: Ladder) -> TrunkTrial | None:
    """Every task's default over the encoder; None where there is no time for it."""
    scores = ladder.defaults()
    if scores is None:
        return None
    rows = sum(size.rows for size in ladder.sizes.values())
    tokens = max(1, round(sum(size.train for size in ladder.sizes.values()) / max(1, rows)))
    counted = counted_costs([ladder.last], tokens, counts=()).of_set
    points = {task: score.validation for task, score in scores.items()}
    return TrunkTrial(
        name=name,
        tasks={task: round(value, 3) for task, value in points.items()},
        score=round(sum(points.values()) / len(points), 3),
        tokens=tokens,
        flops=counted.flops,
        layers=counted.layers,
        is_affordable=ladder.has_room(),
    )
