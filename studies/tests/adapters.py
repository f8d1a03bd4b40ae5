"""Rows of a made-up study of adapters: eight tasks, three seeds, points that follow from a rule."""

from studies.stickland2019.study import GLUE

SPREAD = {1: -1.0, 2: 0.0, 3: 1.0}
ABOVE = {("shared", "annealed"): 0.0, ("shared", "proportional"): -2.0, ("pals", "annealed"): 3.0}
ABOVE |= {("low-rank", "annealed"): 2.0, ("scale", "annealed"): 1.0, ("pals", "round-robin"): -1.0}
RATIO = {"shared": 1.0, "pals": 1.09, "low-rank": 1.08, "scale": 1.0}
BASE, DROP, STEPS = 60.0, 5.0, (10, 20)  # points of the shared trunk; from validation to test; of the curve
QUESTIONS = {"squad": {"f1": 0.6, "exact_match": 0.5}, "socialiqa": {"accuracy": 0.4}}


def points(method, sampling, seed, task):
    """Tasks are 0 to 7 points above the base."""
    return BASE + list(GLUE).index(task) + ABOVE[method, sampling] + SPREAD[seed]


def metric_of(task):
    return {"cola": "matthews", "stsb": "pearson"}.get(task, "accuracy")


def rows(seeds=(1, 2, 3), ways=tuple(ABOVE), *, settings="s"):
    """A row a run and a row a task."""
    found = []
    for seed in seeds:
        for method, sampling in ways:
            key = {"method": method, "sampling": sampling, "seed": seed, "settings": settings}
            curve = []
            for step in STEPS:
                level = {t: (points(method, sampling, seed, t) + step) / 100 for t in GLUE}
                scores = {task: {metric_of(task): value} for task, value in level.items()}
                curve.append({"step": step, "score": 0.5, "validation": scores})
            found.append({"stage": "run", **key, "tasks": list(GLUE), "curve": curve, "seconds": 9.0})
            for task in GLUE:
                value = points(method, sampling, seed, task) / 100
                scores = {"metric": metric_of(task), "validation": value + DROP / 100, "test": value}
                found.append({"stage": "task", **key, "task": task, **scores, **costs(method)})
    return found


def costs(method):
    return {
        "metrics": {},
        "ratio": RATIO[method],
        "ratio_bert_base": 1.13,
        "layers": 48,
        "share": 1.07,
        "new_layers": 6,
        "learned": "trunk and parts",
    }


def questions(seeds=(1, 2, 3)):
    """Shared trunks alone."""
    return [
        {
            "stage": "task",
            "method": "shared",
            "sampling": "round-robin",
            "seed": seed,
            "task": task,
            **costs("shared"),
            "layers": 12,
            "share": 0.5,  # of two tasks
            "metric": next(iter(metrics)),
            "metrics": {name: value + SPREAD[seed] / 100 for name, value in metrics.items()},
            "validation": 0.5,
            "test": next(iter(metrics.values())),
            "settings": "q",
        }
        for seed in seeds
        for task, metrics in QUESTIONS.items()
    ]
