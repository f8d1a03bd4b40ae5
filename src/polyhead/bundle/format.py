"""The number of the bundle format, the names of its files, and the steps of a change.

To change the format: (1) keep a golden bundle of the number that ends in `tests/formats/v<number>/`; (2) move the
reader of that number into a separate file; (3) add one to FORMAT; (4) describe the change and its reason in
`docs/project/bundle-format.md`. A new digest rule, key or default is a change of format. A reader refuses numbers
that it does not know; it never guesses.
"""

from __future__ import annotations

from polyhead import files

FORMAT = 1

BUNDLE = "bundle.json"
TRUNK, TRUNK_RECORD, WEIGHTS, TOKENIZER = "trunk", "trunk.json", "weights.safetensors", "tokenizer.json"
LINEAGE = "lineage.json"  # where a learned trunk comes from; only beside such a one
TASKS, TASK, PART = "tasks", "task.json", "part.safetensors"
CODEC = "codec.safetensors"  # the arrays of a codec that has some; beside the part of a task that reads through it
SEEN = "seen.safetensors"  # what the rows that the task was validated on looked like, where that was kept
FAMILIES, FAMILY = "families", "family.json"
SCORES, PROBES, CARD = "scores.json", "probes.jsonl", "README.md"
CERTIFICATES = "certificates"
LOCK = ".lock"
BEGUN = ".begun.json"  # a command that has not reported its end, and its aim
TEMPORARY = files.TEMPORARY  # no task name starts with a point

# Far above any real file, far below what would hurt: a hostile bundle must not fill the memory or hang a
# reader.
LARGEST_JSON = 2**24
LARGEST_TEXT = 2**28
LARGEST_DEPTH = 4096
MOST_TASKS = 10_000  # live tasks and families of one bundle
LARGEST_CARD = 2**20  # bytes
MOST_PROBES = 2**14  # of a version: more than a task has labels, since each label that occurs has one
MOST_NEEDS = 1024  # owners of arrays that one task reads
MOST_ARRAYS = 2**16  # in one file
