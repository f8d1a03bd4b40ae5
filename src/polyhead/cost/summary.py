"""What writing one summary costs, by the rule of `cost.work`: a multiply and an add are 2, look-ups do not count."""

from __future__ import annotations

from polyhead.seq2seq.data import Seq2SeqShape


def summary_flops(shape: Seq2SeqShape, tokens: int, steps: int) -> int:
    """FLOPs of reading a document of `tokens` tokens and writing `steps` tokens, one after another, one beam.

    Keys and values are kept: each is computed once, those of the document for every decoder layer, and step t attends
    to t tokens of the summary. For n tokens, width d and feed-forward width f: an encoder layer is
    `2 n (4 d^2 + 2 d f) + 4 n^2 d`; a decoder layer `4 n d^2` once and `2 (6 d^2 + 2 d f) + 4 d (n + t)` a step; the
    vocabulary of V `2 d V` a step.
    """
    width, total = shape.width, 0
    encoder = 4 * width**2 + 2 * width * shape.encoder_feed_forward
    total += shape.encoder_layers * (2 * tokens * encoder + 4 * tokens**2 * width)
    decoder = 6 * width**2 + 2 * width * shape.decoder_feed_forward
    attended = steps * tokens + steps * (steps + 1) // 2
    total += shape.decoder_layers * (4 * tokens * width**2 + 2 * steps * decoder + 4 * attended * width)
    return total + 2 * steps * width * shape.vocabulary


def summary_layers(shape: Seq2SeqShape, steps: int) -> int:
    """Layers run: the encoder's once, the decoder's at every step."""
    return shape.encoder_layers + steps * shape.decoder_layers
