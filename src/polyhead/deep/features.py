"""Labelled examples over kept states at the tap of a branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.deep.examples import FeatureExamples, TapBatch
from polyhead.deep.model import stored_value
from polyhead.deep.nn.trunk import States
from polyhead.deep.sharing.part import BranchPart
from polyhead.plan import Path
from polyhead.project.strategies.branch import tap_of, tap_path
from polyhead.tasks.kinds import kind_of
from polyhead.text.question import read_alone
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import KeptExamples, options_in
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureRequest
from polyhead.train.data.windows import WordWindows, windowed


class OnTap(nn.Module):
    """A branch that reads kept states; optionally under bfloat16 autocast."""

    def __init__(self, part: BranchPart, path: Path, *, bfloat16: bool) -> None:
        super().__init__()
        self.part, self._tap, self._bfloat16 = part, tap_of(path), bfloat16
        self._stop, self._pool = path.depth, path.stored().pool

    def forward(self, first: TapBatch, second: TapBatch | None = None) -> Tensor:
        """Outputs (rows, labels) or (rows, words, labels)."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bfloat16 and self.training):
            values = [self._value(tapped) for tapped in (first, second) if tapped is not None]
        outputs: Tensor = self.part(*values[0], *([values[1]] if second is not None else []))
        return outputs

    def _value(self, batch: TapBatch) -> tuple[Tensor, Tensor]:
        states = States(hidden=(batch.hidden,), mask=batch.mask, first=self._tap)
        value = stored_value(self.part.run(states, stop=self._stop), self._pool, batch.words)
        return value.values, value.mask

    def served(self, dtype: torch.dtype) -> OnTap:
        """The same with the branch in the form that a backend runs."""
        copied = OnTap.__new__(OnTap)
        nn.Module.__init__(copied)
        copied.part, copied._tap, copied._bfloat16 = self.part.served(dtype), self._tap, False
        copied._stop, copied._pool = self._stop, self._pool
        return copied.eval()


def wanted_taps(prepared: Prepared, path: Path, extractor: Extractor) -> list[FeatureRequest]:
    """Every input of every split, or every window of it, for the value at the path's tap."""
    kept = tap_path(path, precision=extractor.precision)
    return [
        FeatureRequest(path=kept, inputs=inputs).each(windowed(prepared.task, split.examples, extractor.tokenizer))
        for split in prepared.splits
        for inputs in single_inputs(split.examples.inputs, prepared.task)
    ]


def tap_examples(
    prepared: Prepared,
    split: Split,
    path: Path,
    extractor: Extractor,
    *,
    precision: str,
    soft: Sequence[np.ndarray] | None = None,
    teacher: Callable[..., Tensor] | None = None,
) -> FeatureExamples:
    """The split's targets over the states kept at the path's tap."""
    kept = tap_path(path, precision=precision)
    store, windows = extractor.store(kept), windowed(prepared.task, split.examples, extractor.tokenizer)
    features = [
        store.features(FeatureRequest(path=kept, inputs=inputs).each(windows).keys())
        for inputs in single_inputs(split.examples.inputs, prepared.task)
    ]
    words = windows.tokens if isinstance(windows, WordWindows) else None
    if windows is None and kind_of(prepared.task).per_word:
        assert split.examples.words is not None
        words = extractor.first_subtokens(read_alone(split.examples.inputs), split.examples.words)
    examples = KeptExamples(
        features[0],
        split.examples.taught,
        second=features[1] if len(features) > 1 else None,
        words=words,
        options=options_in(split.examples.inputs),
        windows=windows,
        tapped=True,
    )
    return FeatureExamples(examples, soft=soft, teacher=teacher)
