"""A bundle whose files changed: each change is seen by whoever reads, or alters nothing that is read."""

import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.errors import PolyheadError
from support.backfills import make_bundle

CHANGES = 40  # of bytes of each file


def content(root):
    """All that a reader can read of a bundle, except cards, which anybody may edit."""
    bundle = Bundle.open(root)
    trunk = bundle.trunk()
    everything = [bundle.lines, bundle.families, trunk.tokenizer, trunk.settings, trunk.architecture]
    everything.append({name: array.tobytes() for name, array in trunk.arrays.items()})
    for name, record in bundle.tasks.items():
        everything += [record, {leaf: array.tobytes() for leaf, array in bundle.part(name).items()}]
        everything += [bundle.scores(name), bundle.probes(name), bundle.seen(name)]
    return everything


def test_a_changed_byte_of_any_file_is_seen_or_changes_nothing_that_is_read(tmp_path):
    root, rng, wrong, seen = tmp_path / "bundle", np.random.default_rng(0), [], 0
    make_bundle(root, ["mood", "urgency"])
    before = content(root)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) >= 10
    for path in files:
        raw = path.read_bytes()
        for place in rng.choice(len(raw), min(CHANGES, len(raw)), replace=False):
            changed = raw[:place] + bytes([raw[place] ^ (1 << int(rng.integers(8)))]) + raw[place + 1 :]
            for what in (changed, raw[:place]):
                path.write_bytes(what)
                try:
                    is_same = content(root) == before
                except PolyheadError:
                    seen += 1
                except BaseException as error:
                    wrong.append((path.name, place, repr(error)))
                else:
                    wrong += [] if is_same else [(path.name, place, "other content")]
        path.write_bytes(raw)
    assert not wrong, wrong[:10]
    assert seen > CHANGES * len(files)
