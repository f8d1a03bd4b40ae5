"""Trained tasks as a bundle takes them: record, arrays, scores, probes and card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyhead._version import __version__
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft
from polyhead.plan import merge
from polyhead.train.data.prepared import Prepared, rows_of
from polyhead.train.heads.trained import Trained
from polyhead.train.record.card import card_of
from polyhead.train.record.fingerprints import Fingerprint, tag
from polyhead.train.record.probes import probes_of
from polyhead.trunk.data import TrunkData


def drafts_of(
    several: Sequence[tuple[Prepared, Trained]],
    data: TrunkData,
    prints: Mapping[str, Fingerprint],
    label: Mapping[str, str],
) -> list[Draft]:
    """One for each of the tasks, which are written in one step; `label` says how their values were computed."""
    plan = merge({p.task.name: trained.path for p, trained in several})
    drafts = []
    for p, trained in several:
        fingerprint = prints[p.task.name]
        # Of the test rows too: they decide nothing, but the scores are of them.
        facts = {**fingerprint, "data": rows_of(p.splits), "numerics": dict(label)}
        record = TaskRecord(
            task=p.task,
            path=trained.path,
            trunk=data.digest,
            trained_with={"fingerprint": tag(fingerprint), "polyhead": __version__, **facts},
        )
        draft = Draft(
            record=record,
            arrays=trained.arrays,
            scores=trained.notes(),
            probes=probes_of(p),
            card=card_of(p, trained, data, plan),
        )
        drafts.append(draft)
    return drafts
