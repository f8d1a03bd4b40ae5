"""Answers in lines for people, for `polyhead predict` on a terminal and for the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.cli.output import counted

MOST_LABELS = 10  # of a set that holds the truth


def answered_lines(texts: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
    """The texts of an input, its answers by task, and what it cost; `fields` are those of its result."""
    answers, failed = fields.get("answers", {}), fields.get("failed", {})
    late = fields.get("late", ())
    width = max(map(len, [*answers, *failed, *late]), default=0)
    lines = ["  +  ".join(texts)]
    lines += [f"  {task:<{width}}  {short_answer(answer)}{_beyond(answer)}" for task, answer in answers.items()]
    lines += [f"  {task:<{width}}  failed: {reason}" for task, reason in failed.items()]
    lines += [f"  {task:<{width}}  late: the server had no time for it" for task in late]
    if "error" in fields:
        return [*lines, f"  not answered: {fields['error']}"]
    if not answers and not failed and not late:
        reasons = "; ".join(f"{task}: {reason}" for task, reason in fields.get("skipped", {}).items())
        return [*lines, f"  no task answers it{f' ({reasons})' if reasons else ''}"]
    return [*lines, f"  receipt: {_receipt(fields['receipt'], len(answers))}"]


def short_answer(answer: Mapping[str, Any]) -> str:
    """An answer of any kind in a few words, scores in brackets."""
    if "label" in answer:
        return _scored(answer["label"], answer["scores"].get(answer["label"]))
    if "labels" in answer:
        return ", ".join(_scored(name, answer["scores"][name]) for name in answer["labels"]) or "none"
    if "value" in answer:
        return f"{answer['value']:.2f}"
    if "option" in answer:
        return _scored(answer["option"], answer["scores"][answer["index"]])
    if "text" in answer:
        return _scored("no answer" if answer["text"] is None else repr(answer["text"]), answer.get("score"))
    spans = answer.get("spans", answer.get("words", []))
    return ", ".join(f"{span['label']} {_where(span)}" for span in spans) or "none"


def _scored(answer: object, score: float | None) -> str:
    if score is None:
        return f"{answer}"
    return f"{answer} (>0.99)" if 0.995 <= score < 1 else f"{answer} ({score:.2f})"


def _beyond(answer: Mapping[str, Any]) -> str:
    """Lines about calibration and familiarity beside the answer."""
    calibrated, notes = answer.get("calibrated") or {}, list[str]()
    for key in ("label", "labels"):
        if key in calibrated and calibrated[key] != answer.get(key):
            notes.append(f"calibrated: {calibrated[key]}")
    if calibrated.get("unsure"):
        notes.append("unsure")
    if calibrated.get("set"):
        notes.append(f"one of {', '.join(map(str, calibrated['set'][:MOST_LABELS]))}")
    if calibrated.get("interval"):
        notes.append("between {:.4g} and {:.4g}".format(*calibrated["interval"]))
    if isinstance(answer.get("familiar"), float):
        notes.append(f"familiar {answer['familiar']:.2f}")
    if answer.get("none_of_these"):
        notes.append("none of these")
    return f"; {'; '.join(notes)}" if notes else ""


def _where(span: Mapping[str, Any]) -> str:
    place = f"[{span['start']}:{span['end']}]"
    return f"{span['text']!r} {place}" if "text" in span else place


def _receipt(receipt: Mapping[str, Any], tasks: int) -> str:
    facts = [
        counted(receipt["passes"], "encoder pass", several="encoder passes"),
        counted(receipt["layers"], "layer"),
        counted(receipt["tokens"], "token"),
        f"{counted(tasks, 'task')} answered",
    ]
    more = {"cut": "token not read", "repaired": "character replaced"}
    for name, noun in more.items():
        if receipt.get(name):
            facts.append(counted(receipt[name], noun, several=noun.replace(" ", "s ", 1)))
    return ", ".join(facts)
