"""Compiled graphs, token ids and hidden states of probes that are kept between proofs, of a process or of several."""

from __future__ import annotations

from polyhead.bundle.read import Bundle
from polyhead.engine.probes import ProbeRunner

KEPT_BYTES = 500 * 2**20  # of hidden states of probes; a file of them has a quarter of `compiled.MOST`


class Prover:
    """A cache of compiled graphs, and of token ids and hidden states of probes, between proofs.

    A second change runs no layer for probes that the first has run. Certificates are the same as without it. `store`
    writes the states for later processes, where the program keeps a folder for compiled graphs; else nothing is
    written.
    """

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._last: ProbeRunner | None = None

    def answering(self, bundle: Bundle) -> ProbeRunner:
        """The tasks of a bundle, with graphs compiled earlier for one with the same trunk."""
        last, self._last = self._last, None
        if last is not None and (last.bundle.root, last.bundle.digest) != (bundle.root, bundle.digest):
            last = None
        if last is not None and (last.bundle.lines, last.bundle.families) == (bundle.lines, bundle.families):
            return last  # the last proof read its arrays and confirmed their digests
        return ProbeRunner(bundle, before=last, kept_bytes=self._kept_bytes)

    def following(self, before: ProbeRunner, bundle: Bundle) -> ProbeRunner:
        """The tasks of a bundle, with the graphs of `before`, which is not used any more."""
        return ProbeRunner(bundle, before=before, kept_bytes=self._kept_bytes)

    def keep(self, answering: ProbeRunner) -> None:
        """Keeps this for the next proof."""
        answering.drop_unread()
        self._last = answering

    def prepare(self, bundle: Bundle) -> None:
        """Asks all tasks their probes, so that the first proof runs no layer for them."""
        answering = self.answering(bundle)
        answering.answered(bundle.lines)
        self.keep(answering)

    def store(self) -> None:
        """Stores what the last proof computed of probes for later processes, if it is new."""
        if self._last is not None:
            self._last.store()
