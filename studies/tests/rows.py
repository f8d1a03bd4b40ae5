"""Rows of a made-up study of joint training: two held-out tasks, three seeds, gains that follow from a rule."""

TASKS = {"rte": 60.0, "mrpc": 70.0}  # points of heads over the plain trunk
FULL = {"rte": 70.0, "mrpc": 74.0}
SPREAD = {1: -1.0, 2: 0.0, 3: 1.0}
GAIN = {"sets-6": 1.0, "sets-12": 2.0, "sets-18": 3.0, "sets-24": 4.0, "heterogeneous": 3.0, "batch": 2.0}
DROP = 5.0  # from validation to test
SIZES = (100, 1500)


def row(stage, mix, task, seed, points, *, rows=1500, digest=""):
    return {
        "stage": stage,
        "mix": mix,
        "task": task,
        "rows": rows,
        "seed": seed,
        "metric": "accuracy",
        "validation": (points + DROP) / 100,
        "test": points / 100,
        "best_epoch": 2,
        **({"digest": digest} if digest or stage != "full" else {}),
    }


def study(seeds=(1, 2, 3), sizes=SIZES):
    """Gains are the mix's number, and as many more points as the seed's spread; twice as much at 100 rows."""
    found = []
    for seed in seeds:
        for mix in GAIN:
            found.append(
                {
                    "stage": "trunk",
                    "mix": mix,
                    "digest": "d",
                    "seed": seed,
                    "sets": 2,
                    "examples": {"glue_sst2": 1500, "ud_ewt_upos": 1400},
                    "score": 0.5,
                    "seconds": 9.0,
                    "dropped": 3,
                }
            )
        for task, plain in TASKS.items():
            found.append(row("full", "plain", task, seed, FULL[task] + SPREAD[seed]))
            for size in sizes:
                found.append(row("heads", "plain", task, seed, plain - (10 if size == 100 else 0), rows=size))
            for mix, gain in GAIN.items():
                for size in sizes if mix == "sets-24" else (1500,):
                    base = plain - 10 + 2 * gain if size == 100 else plain + gain
                    found.append(row("heads", mix, task, seed, base + SPREAD[seed], rows=size, digest="d"))
    return found
