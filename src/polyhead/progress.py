"""How far long work is, in words."""

from __future__ import annotations


def progress_line(label: str, *, done: int, total: int, unit: str, seconds: float, before: int = 0) -> str:
    """`label: 5 of 10 texts, 2 a second, about 3 s left`; of those done, `before` took no part of the seconds."""
    rate = (done - before) / seconds if seconds > 0 else 0.0
    left = (total - done) / rate if rate else 0.0
    return f"{label}: {done:,} of {total:,} {unit}, {rate:,.0f} a second, about {duration(left)} left"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `1 h 02 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
