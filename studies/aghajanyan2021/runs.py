"""The runs behind the studies of joint training: learned trunks, and heads on them for tasks that they never saw.

Each run is one row of a study, so that it goes on where it stopped. A learned trunk is a file beside the rows; it is
rebuilt by the same command where it is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec

from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from studies.aghajanyan2021.mixes import MAX_TOKENS, POOLED, ROWS, VALIDATION, WHOLE, Mix
from studies.aghajanyan2021.sets import HELD_OUT, MIX
from studies.shared import runs
from studies.shared.data import Set, prepared_of, train_rows
from studies.shared.runs import Facts
from studies.shared.steps import fine_tune, head, learn

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.train.data.extract import Extractor
    from polyhead.train.data.prepared import Prepared

HEAD = Pooled(positions="attention")
HEADS = Training(epochs=30, patience=6)  # of tasks over a frozen trunk
FULL = Training(epochs=3, patience=3, batch=16, learning_rate=2e-4, warmup=0.1)  # all layers, one task


class Runs(runs.Runs):
    """Trunks that learned from a mix, by mix and seed; heads and fine-tuned trunks of tasks that were held out."""

    max_tokens = MAX_TOKENS

    def held_out(self, dataset: Set, seed: int, *, training: Training = HEADS, rows: int = ROWS) -> Prepared:
        """A held-out task; `rows` fewer than all are the first of the same shuffle."""
        training = msgspec.structs.replace(training, seed=seed)
        return prepared_of(self.data, dataset, train=rows, validation=VALIDATION, strategy=HEAD, training=training)

    def trunk(self, mix: Mix, seed: int) -> FilePath:
        """The bundle that holds the mix's learned trunk, made now if it is not there; its row says what it took."""
        folder = self.folder / "trunks" / f"{mix.name}-{mix.digest()}-{seed}"
        key: Facts = {"stage": "trunk", "mix": mix.name, "digest": mix.digest(), "seed": seed}
        row = self.learned(folder, key, partial(self._learn, mix, seed, folder))
        self.say(f"trunk   {mix.name:18s} seed {seed}  {row.get('seconds', '–')} s  mean validation {row['score']}")
        return folder

    def frozen(
        self, seed: int, *, mix: Mix | None, tasks: Iterable[Set] = HELD_OUT, sizes: Iterable[int] = (ROWS,)
    ) -> None:
        """Pooled attention heads of the held-out tasks over the plain trunk, or over the mix's."""
        name = mix.name if mix else "plain"
        digest = mix.digest() if mix else ""
        planned: list[tuple[Set, int, Facts]] = [
            (
                dataset,
                rows,
                {"stage": "heads", "mix": name, "digest": digest, "task": dataset.task, "rows": rows, "seed": seed},
            )
            for dataset in tasks
            for rows in sizes
        ]
        lacking = [run for run in planned if not self.rows_of(run[2])]
        if not lacking:
            return
        from polyhead.train.data.extract import Extractor

        data = self._data(mix, seed)
        folder = self.folder / "features" / (f"{name}-{digest}-{seed}" if mix else "plain")
        extractor = Extractor(data, folder=folder, precision="bfloat16")
        for dataset, rows, key in lacking:
            row = self.study.row(partial(self._head, dataset, seed, rows, extractor), **key)
            self.say(f"heads   {name:18s} seed {seed}  {dataset.task:16s} {rows:5d} rows  {row['test']:.4f}")
        if mix:
            shutil.rmtree(folder, ignore_errors=True)

    def full(self, seed: int, tasks: Iterable[Set] = HELD_OUT, mix: Mix | None = None) -> None:
        """Full fine-tuning of the plain trunk, or of the mix's, for each task alone."""
        name = mix.name if mix else "plain"
        for dataset in tasks:
            key: Facts = {
                "stage": "full",
                "mix": name,
                **({"digest": mix.digest()} if mix else {}),
                "task": dataset.task,
                "rows": ROWS,
                "seed": seed,
            }
            row = self.study.row(partial(self._full, dataset, seed, mix), **key)
            self.say(
                f"full    {name:18s} seed {seed}  {dataset.task:16s} {row.get('seconds', '–')} s  {row['test']:.4f}"
            )

    def mixed(self, mix: Mix, seed: int) -> list[Prepared]:
        """The tasks that a trunk learns from."""
        known = {dataset.folder: dataset for dataset in MIX}
        training = msgspec.structs.replace(mix.training, seed=seed)
        rows = mix.rows_of({folder: train_rows(self.data, known[folder]) for folder in mix.sets})
        return [
            prepared_of(
                self.data, known[folder], train=rows[folder], validation=VALIDATION, strategy=POOLED, training=training
            )
            for folder in mix.sets
        ]

    def _learn(self, mix: Mix, seed: int, folder: FilePath) -> Facts:
        held = [self.held_out(dataset, seed) for dataset in HELD_OUT]
        return learn(
            self.mixed(mix, seed),
            self.plain,
            mix.recipe,
            held=held,
            folder=folder,
            label=f"{mix.name} seed {seed}",
            say=self.say,
        )

    def _head(self, dataset: Set, seed: int, rows: int, extractor: Extractor) -> Facts:
        return head(self.held_out(dataset, seed, rows=rows), extractor)

    def _full(self, dataset: Set, seed: int, mix: Mix | None) -> Facts:
        prepared = self.held_out(dataset, seed, training=FULL)
        return fine_tune(msgspec.structs.replace(prepared, strategy=WHOLE), self._data(mix, seed))

    def _data(self, mix: Mix | None, seed: int) -> TrunkData:
        from polyhead.bundle.read import Bundle

        return Bundle.open(self.trunk(mix, seed)).trunk() if mix else self.plain
