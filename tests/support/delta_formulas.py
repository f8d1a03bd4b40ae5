"""What each form of `polyhead.testing.tiny` puts into a layer, by its paper's formula over `reference_encoder`.

Sizes, heads and scales are written out here and read from no plan.
"""

import numpy as np

from support.reference_encoder import Slots, attend, gelu, linear, norm, sigmoid


class FormulaSlots(Slots):
    """The task functions of one layer; a class for each form below."""

    def __init__(self, task, index, sees):
        self.own, self.others, self.index, self.sees = task.arrays, task.others, index, sees
        self.name = f"delta.{index}"

    def attended(self, own, ends, encoder, heads, hidden):
        low = linear(ends, f"{encoder}.encoder", hidden)
        query, key, value = (linear(own, f"{self.name}.{part}", low) for part in ("query", "key", "value"))
        return linear(ends, f"{encoder}.decoder", attend(query, key, value, heads, self.sees))

    def between(self, name, g, hidden):
        return linear(self.own, f"{name}.decoder", g(linear(self.own, f"{name}.encoder", hidden)))

    def one_hidden_layer(self, low):
        return linear(self.own, f"{self.name}.outer", gelu(linear(self.own, f"{self.name}.inner", low)))

    def low_rank_map(self, target, scale, values):
        down, up = (self.own[f"{self.name}.{target}.{end}.weight"] for end in ("encoder", "decoder"))
        return scale * np.einsum("or,ri,ti->to", up.astype(np.float64), down, values)


class Attention(FormulaSlots):
    def term(self, hidden):
        return self.attended(self.own, self.own, self.name, 2, hidden)


class AttentionTied(FormulaSlots):
    def term(self, hidden):
        return gelu(self.attended(self.own, self.own, "delta", 3, hidden))


class AttentionEnds(FormulaSlots):
    def term(self, hidden):
        return self.attended(self.own, self.others["family:ends"], "delta", 2, hidden)


class AttentionEndsByLayer(FormulaSlots):
    def term(self, hidden):
        return self.attended(self.own, self.others["family:ends-by-layer"], self.name, 2, hidden)


class AttentionScaled(FormulaSlots):
    def term(self, hidden):
        added = gelu(self.attended(self.own, self.own, "delta", 1, hidden))
        return 2 * sigmoid(self.own[f"{self.name}.scale"]) * added


class AttentionAll(FormulaSlots):
    def term(self, hidden):
        family = self.others["family:adapters"]
        return self.attended(family, family, "delta", 1, hidden)


class AttentionSerial(FormulaSlots):
    def after(self, out):
        added = out + self.attended(self.own, self.own, "delta", 1, out)
        return norm(self.own, f"{self.name}.norm", added)


class LowRank(FormulaSlots):
    def term(self, hidden):
        return self.between(self.name, lambda low: low, hidden)


class LowRankGelu(FormulaSlots):
    def term(self, hidden):
        return self.between(self.name, gelu, hidden)


class LowRankSerial(FormulaSlots):
    def after(self, out):
        return norm(self.own, f"{self.name}.norm", out + gelu(self.between(self.name, lambda low: low, out)))


class FeedForward(FormulaSlots):
    def term(self, hidden):
        return self.between("delta", self.one_hidden_layer, hidden)


class FeedForwardGelu(FormulaSlots):
    def term(self, hidden):
        return self.between(self.name, lambda low: gelu(self.one_hidden_layer(low)), hidden)


class Scale(FormulaSlots):
    def after(self, out):
        return 2 * sigmoid(self.own[f"{self.name}.scale"]) * out


class Bottleneck(FormulaSlots):
    def within(self, half, out):
        return out + self.between(f"{self.name}.{half}", gelu, out)


class Prefix(FormulaSlots):
    def prefix(self):
        return self.own[f"{self.name}.key"], self.own[f"{self.name}.value"]


class LowRankMaps(FormulaSlots):
    def dense(self, target, values):
        wanted = target in ("attention.query", "attention.value")
        return self.low_rank_map(target, 3.0 / 2, values) if wanted else 0.0


class LowRankMapsEverywhere(FormulaSlots):
    def dense(self, target, values):
        return self.low_rank_map(target, 1.0 / 4, values)


FORMULAS = {
    "attention": Attention,
    "attention-tied": AttentionTied,
    "attention-ends": AttentionEnds,
    "attention-ends-by-layer": AttentionEndsByLayer,
    "attention-scaled": AttentionScaled,
    "attention-all": AttentionAll,
    "attention-serial": AttentionSerial,
    "low-rank": LowRank,
    "low-rank-gelu": LowRankGelu,
    "low-rank-serial": LowRankSerial,
    "feed-forward": FeedForward,
    "feed-forward-gelu": FeedForwardGelu,
    "scale": Scale,
    "bottleneck": Bottleneck,
    "prefix": Prefix,
    "lora": LowRankMaps,
    "lora-everywhere": LowRankMapsEverywhere,
}
