"""Two tiny bundles on different trunks with a task in common, for tests of sets and cascades."""

from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.engine.several import SessionSet
from polyhead.testing import tiny_trunk
from support.admin_server import TASKS, draft

CHEAP, DEEP = tiny_trunk(layers=2), tiny_trunk(layers=4, seed=3)
EXACT = {"backend": "reference", "precision": "float32", "deterministic": True}
WORDS = ("good", "bad", "lamp", "order", "bill", "where", "is", "my", "the", "late", "broken", "happy", "sad", "anna")
TEXTS = [" ".join(WORDS[(start * step) % len(WORDS)] for step in range(1, 6)) for start in range(1, 13)]


def bundle_of(root, trunk, seeds, *, tasks=TASKS):
    """A bundle on this trunk with tiny tasks whose arrays are drawn from these seeds."""
    write_bundle(root, trunk)
    for name, seed in seeds.items():
        write.add_tasks(root, [draft(name, seed, trunk=trunk, task=tasks[name])])
    return root


def two_bundles(folder):
    """`cheap` (mood, urgency, same) and `deep` (mood, topics)."""
    return (
        bundle_of(folder / "cheap", CHEAP, {"mood": 0, "urgency": 1, "same": 2}),
        bundle_of(folder / "deep", DEEP, {"mood": 5, "topics": 6}),
    )


def set_of(bundles, **cascades):
    """The set, exact to the bit."""
    return SessionSet(list(bundles), cascades=cascades, **EXACT)
