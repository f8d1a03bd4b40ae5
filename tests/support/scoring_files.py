"""What the tests of scoring share: a bundle, files in each format, and files read back by other libraries."""

import csv
import gzip
import json

import numpy as np

from polyhead.engine.answers import AnswerColumn, AnswerTable
from polyhead.engine.outputs import Outputs
from polyhead.engine.receipt import Receipts
from polyhead.plan import Pool
from polyhead.store.jobs import ScoreRequest, score
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle


def make_bundle(root):
    """All tiny tasks over the tiny trunk."""
    trunk, pool = tiny_trunk(), Pool(positions="mean")
    return tiny_bundle(root, trunk, {task.name: tiny_path(task, trunk, pool=pool) for task in tiny_tasks()})


def texts(count):
    """Rows of a text and a number, no two alike."""
    words = ("lamp", "kettle", "phone", "box", "card", "bill")
    return [{"id": i, "text": f"the {words[i % 6]} is late{' today' * (i % 4)} {i}"} for i in range(count)]


def write(path, rows):
    """Rows as the file's name says."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
        return path
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if name.endswith(".jsonl"):
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            columns = dict.fromkeys(key for row in rows for key in row)
            writer = csv.DictWriter(file, columns, delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
    return path


def read(path):
    """The rows of a file, as plain values; of CSV all are strings."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)) if name.endswith(".csv") else [json.loads(line) for line in file]


def run(session, source, target, *, piece_rows=3, fresh=False, **wish):
    """Scores a file, and gives the summary."""
    return score(session, str(source), str(target), ScoreRequest(**wish), piece_rows=piece_rows, fresh=fresh)


def failed(columns, task, errors):
    """The columns, in which the task failed on some more inputs: their errors by number."""
    column = columns[task]
    keep = [at for at, row in enumerate(column.rows.tolist()) if row not in errors]
    outputs = Outputs(rows=column.rows[keep], values=[column.outputs[at] for at in keep])
    columns.tasks[task] = AnswerColumn(
        column.task, columns.inputs, outputs, skipped=column.skipped, failed={**column.errors, **errors}, late=()
    )
    return columns


def unfit(session, inputs, task):
    """Columns of a task that fits none of the inputs."""
    outputs = Outputs(rows=np.zeros(0, np.int64), values=[])
    reasons = dict.fromkeys(range(len(inputs)), "no")
    column = AnswerColumn(session.tasks[task], inputs, outputs, skipped=reasons, failed={}, late=())
    return AnswerTable(inputs, {task: column}, Receipts(inputs), flops=lambda *_: {})
