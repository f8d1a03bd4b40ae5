"""Pairs of near texts, against every pair compared one by one."""

import numpy as np
import pytest

from polyhead.check import duplicates as near
from support.labelled_files import text


def words_of(value):
    words = "".join(c if c.isalnum() else " " for c in value.casefold()).split()[: near.MOST]
    return {(w,) for w in words} | set(zip(words, words[1:], strict=False))


def likeness(first, second):
    one, other = words_of(first), words_of(second)
    return len(one & other) / len(one | other)


@pytest.mark.slow
def test_every_pair_that_is_told_is_near_and_hardly_one_is_missed():
    generator = np.random.default_rng(1)
    texts = []
    for i in range(150):
        words = " ".join(text(int(n)) for n in generator.integers(0, 6000, 3)).split()
        changed = list(words)
        for place in generator.choice(len(words), i % 4, replace=False):
            changed[place] = f"new{i}"
        texts += [" ".join(words), " ".join(changed).upper()]
    texts += [
        "short text",
        "short text",
        "",
        "ÄÖÜ ärger über öl und ähnliches nur für zwei",
        "äöü Ärger über Öl, und ähnliches nur für zwei",
    ]
    pairs = near.near_pairs(texts)
    assert all(likeness(texts[i], texts[j]) >= near.NEAR for i, j in pairs)
    true = {
        (i, j)
        for i in range(len(texts))
        for j in range(i + 1, len(texts))
        if likeness(texts[i], texts[j]) >= near.NEAR and len(texts[i].split()) >= near.LEAST
    }
    assert len(true) > 60
    assert len(true - set(pairs)) <= 0.02 * len(true)


def test_texts_of_several_blocks_are_compared_as_those_of_one(monkeypatch):
    texts = [f"{text(i * 5)} {text(i * 3 + 1)} {text(i % 40)}" for i in range(120)]
    whole = near.near_pairs([*texts, *texts[:30]])
    monkeypatch.setattr(near, "BLOCK", 500)
    assert near.near_pairs([*texts, *texts[:30]]) == whole
    assert {(i, 120 + i) for i in range(30)} <= set(whole)


def test_no_texts_and_short_texts_have_no_pairs():
    assert near.near_pairs([]) == []
    assert near.near_pairs(["one two", "one two", ""]) == []
