"""Proof that a change to a bundle changed no other task's answers: pinned probes answered before and after, bit by bit.

`certified` makes a change and proves it, or undoes it; `verify` repeats the proof at any time; the certificates between
them lie in the bundle.
"""

from polyhead.engine.isolation.answers import Answering, numerics
from polyhead.engine.isolation.certificate import AnswerChange, Answered, Certificate, Operation
from polyhead.engine.isolation.certify import Done, certified, certified_once
from polyhead.engine.isolation.verification import Finding, Verification, checked, verify

__all__ = [
    "AnswerChange",
    "Answered",
    "Answering",
    "Certificate",
    "Done",
    "Finding",
    "Operation",
    "Verification",
    "certified",
    "certified_once",
    "checked",
    "numerics",
    "verify",
]
