"""Compiled graphs, token ids and hidden states of probes, which one process keeps from one proof to the next."""

from __future__ import annotations

from polyhead.bundle.read import Bundle
from polyhead.engine.probes import ProbeRunner

KEPT_BYTES = 512 * 2**20  # of hidden states of probes


class Prover:
    """Keeps compiled graphs, and token ids and hidden states of probes, from one proof to the next.

    A second change runs no layer for probes that the first has run. Nothing is written, and certificates are the same
    as without it.
    """

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._last: ProbeRunner | None = None

    def answering(self, bundle: Bundle) -> ProbeRunner:
        """The tasks of a bundle, with what was compiled before for one with the same trunk."""
        last, self._last = self._last, None
        if last is not None and (last.bundle.root, last.bundle.digest) != (bundle.root, bundle.digest):
            last = None
        if last is not None and (last.bundle.lines, last.bundle.families) == (bundle.lines, bundle.families):
            return last  # its arrays were read, and found to be these, by the last proof
        return ProbeRunner(bundle, before=last, kept_bytes=self._kept_bytes)

    def following(self, before: ProbeRunner, bundle: Bundle) -> ProbeRunner:
        """The tasks of a bundle, with what `before` compiled, which answers no more."""
        return ProbeRunner(bundle, before=before, kept_bytes=self._kept_bytes)

    def keep(self, answering: ProbeRunner) -> None:
        """Leaves this to the next proof."""
        answering.drop_unread()
        self._last = answering
