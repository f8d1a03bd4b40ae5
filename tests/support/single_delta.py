"""The adapters of an owner that has one delta, in some layers."""

from polyhead.deep.sharing.in_layer import Adapters
from polyhead.encoder.shape import Architecture
from polyhead.project.strategies.base import DeltaStart


class OneDelta(Adapters):
    def __init__(self, node, layers, *, width, heads, feed_forward=1, owner=None, shared=None, generator=None, **start):
        shape = Architecture(
            layers=12, width=width, heads=heads, feed_forward=feed_forward, vocabulary=9, positions=9, segments=2
        )
        self.node = node
        start = DeltaStart(**{"dropout": 0.0} | start)
        super().__init__(
            owner or node.part, {node: layers}, shape, starts={node: start}, shared=shared, generator=generator
        )

    def at(self, index):
        return super().at(self.node, index)
