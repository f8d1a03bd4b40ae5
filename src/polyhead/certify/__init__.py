"""Proofs that a change to a bundle changed no other task's answers: probes answered before and after, bit by bit.

`certified` makes a change and proves it, or undoes it; `verify` repeats the proof at any time; the certificates
connecting both are in the bundle.
"""

from polyhead.certify.certificate import Certificate
from polyhead.certify.changes import Requester, add_from, remove_from, roll_back, update_from
from polyhead.certify.proof import BundleChange, certified
from polyhead.certify.prover import Prover
from polyhead.certify.verification import Verification, checked, verify
from polyhead.engine.probes import ProbeAnswers, ProbeRunner, numerics_label

__all__ = [
    "ProbeAnswers",
    "ProbeRunner",
    "BundleChange",
    "Certificate",
    "Prover",
    "Requester",
    "Verification",
    "add_from",
    "certified",
    "checked",
    "numerics_label",
    "remove_from",
    "roll_back",
    "update_from",
    "verify",
]
