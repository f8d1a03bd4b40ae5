"""An encoder written out once more for the tests: float64, one text at a time, loops over heads and positions.

Nothing of the project computes here, so that what these functions give says what is right.
"""

import math
from statistics import NormalDist

import numpy as np

EPSILON = 1e-12
NORMAL = NormalDist()


def gelu(values):
    return np.vectorize(lambda x: x * NORMAL.cdf(x))(values)


def sigmoid(values):
    return np.vectorize(lambda x: math.exp(x) / (math.exp(x) + 1))(values)


def linear(arrays, name, values):
    """`W x + b` for each row of `values`."""
    out = np.einsum("oi,ti->to", arrays[f"{name}.weight"].astype(np.float64), values)
    return out + arrays[f"{name}.bias"]


def norm(arrays, name, values):
    rows = [(row - row.mean()) / math.sqrt(row.var() + EPSILON) for row in values]
    return np.array(rows) * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]


def attend(query, key, value, heads, sees):
    """One head and one position at a time, over the keys `sees[position]`."""
    out, size = np.zeros_like(query), query.shape[1] // heads
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for place, one in enumerate(query):
            shares = {k: math.exp(one[part] @ key[k, part] / math.sqrt(size)) for k in sees[place]}
            for k, share in shares.items():
                out[place, part] += share / sum(shares.values()) * value[k, part]
    return out


def everything(tokens):
    """Every position sees every position."""
    return [list(range(tokens))] * tokens


class Slots:
    """What a delta may put into a layer; this one puts in nothing."""

    def dense(self, target, values):
        return 0.0

    def prefix(self):
        return None

    def within(self, half, out):
        return out

    def term(self, hidden):
        return 0.0

    def after(self, out):
        return out


def attention(arrays, name, hidden, sees, *, heads, slots):
    def mapped(which, values):
        out = linear(arrays, f"{name}.attention.{which}", values)
        return out + slots.dense(f"attention.{which}", values)

    key, value, prefix = mapped("key", hidden), mapped("value", hidden), slots.prefix()
    if prefix is not None:
        size = len(prefix[0])
        key, value = np.vstack([prefix[0], key]), np.vstack([prefix[1], value])
        sees = [[*range(size), *(size + k for k in keys)] for keys in sees]
    return mapped("output", attend(mapped("query", hidden), key, value, heads, sees))


def feed_forward(arrays, name, hidden, *, slots):
    def mapped(which, values):
        out = linear(arrays, f"{name}.feed_forward.{which}", values)
        return out + slots.dense(f"feed_forward.{which}", values)

    hidden, number = gelu(mapped("inner", hidden)), 0
    while f"{name}.feed_forward.between.{number}.weight" in arrays:
        hidden, number = gelu(linear(arrays, f"{name}.feed_forward.between.{number}", hidden)), number + 1
    return mapped("outer", hidden)


def layer(arrays, name, hidden, sees, *, heads=2, slots=None):
    """`a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a) + TS(h))`."""
    slots = slots or Slots()
    mixed = slots.within("attention", attention(arrays, name, hidden, sees, heads=heads, slots=slots))
    a = norm(arrays, f"{name}.attention.norm", hidden + mixed)
    fed = slots.within("feed_forward", feed_forward(arrays, name, a, slots=slots))
    return slots.after(norm(arrays, f"{name}.feed_forward.norm", a + fed + slots.term(hidden)))


def embedded(arrays, ids, segments, *, prompts=(), first=0):
    """Prompt rows with segment 0 and no position, then the text from position `first` on; one norm over all."""
    segment_rows = arrays["embeddings.segment.weight"]
    rows = [row + segment_rows[0] for prompt in prompts for row in prompt]
    for place, (token, segment) in enumerate(zip(ids, segments, strict=True), first):
        word = arrays["embeddings.word.weight"][token] + arrays["embeddings.position.weight"][place]
        rows.append(word + segment_rows[segment])
    return norm(arrays, "embeddings.norm", np.array(rows, np.float64))
