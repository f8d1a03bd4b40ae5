"""Texts that a decoder writes beside `transformers`' `generate`: BART-base's shape, random weights.

    python -m benchmarks.encoders_decoder     an idle machine, about 10 minutes; writes results/encoders_decoder.json

Both write 64 tokens for each of 8 documents of 400 tokens, the end of a text ruled out, greedily and with four beams,
from token ids: encoder and decoder are in both times. Every backend and precision of ours is a way, in turn with
`transformers` in float32 and, where the processor multiplies it, in bfloat16. Claims compare the fastest in float32,
where the first text of both must be the same, and the fastest of all, whose texts may differ: our decoders are in
float32 always, theirs not.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tokenizers

from benchmarks.encoders import claim, fastest, precisions
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import Backend, LoadedTask, TokenBatch
from polyhead.engine.generate.search import write
from polyhead.plan import Embed, Head, Pool, merge, shared_layers
from polyhead.plan import Path as PlanPath
from polyhead.project.pretrained import load_trunk
from polyhead.tasks.generation import GenerationRules
from studies.results import Claim
from studies.settings import command, report, say

NAME = "encoders_decoder"
DOCUMENTS, TOKENS, WRITTEN = 8, 400, 64
BEAMS = {"greedy": 1, "4 beams": 4}
SPREAD = 0.05  # of weights: scores differ by more than rounding
Row = dict[str, Any]
Way = Callable[[int], list[list[int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6, help="of encoder and decoder")
    parser.add_argument("--written", type=int, default=WRITTEN, help="tokens of each text")
    options = parser.parse_args()
    rows = list(measured(options))
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Seconds of every way, in turn; a first run of each is not counted."""
    import torch

    torch.set_num_threads(options.threads)
    with TemporaryDirectory() as folder:
        model, trunk = made(Path(folder), options.layers)
        ids = np.random.default_rng(0).integers(5, model.config.vocab_size, (DOCUMENTS, TOKENS))
        ways = {**theirs(model, ids, options.written), **ours(trunk, ids, options.written)}
        for case, beams in BEAMS.items():
            first = {way: call(beams) for way, call in ways.items()}
            check(first)
            for repeat in range(options.repeats):
                for way, call in ways.items():
                    began = time.perf_counter()
                    call(beams)
                    row = {"shape": "bart", "case": case, "way": way, "repeat": repeat}
                    row |= {"tokens": DOCUMENTS * options.written, "seconds": round(time.perf_counter() - began, 4)}
                    say(str(row))
                    yield row


def check(first: dict[str, list[list[int]]]) -> None:
    """Ends the program unless ours and theirs write the same first text in float32."""
    wanted = first["transformers float32"][0]
    for way, texts in first.items():
        if way.startswith("polyhead") and way.endswith("float32") and texts[0] != wanted:
            raise SystemExit(f"{way} writes another text than transformers: {texts[0][:10]} and {wanted[:10]}")


def made(folder: Path, layers: int) -> tuple[Any, TrunkData]:
    """A model of `transformers` with random weights, and the trunk of the folder that it saved."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"d_model": 768, "encoder_layers": layers, "decoder_layers": layers, "init_std": SPREAD}
    sizes |= {f"{part}_attention_heads": 12 for part in ("encoder", "decoder")}
    sizes |= {f"{part}_ffn_dim": 3072 for part in ("encoder", "decoder")}
    config = transformers.BartConfig(vocab_size=50265, max_position_embeddings=1024, **sizes)
    model = transformers.BartForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    words = {f"w{number}": number for number in range(config.vocab_size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return model, load_trunk(str(folder), max_tokens=512)


def theirs(model: Any, ids: np.ndarray, written: int) -> dict[str, Way]:
    """`generate`, in float32 and, where the processor multiplies it, in bfloat16."""
    import torch

    read = torch.from_numpy(ids)
    rules = {"max_new_tokens": written, "min_new_tokens": written, "do_sample": False, "forced_eos_token_id": None}
    rules |= {"forced_bos_token_id": None, "eos_token_id": 2, "pad_token_id": 1}

    def call(own: Any, beams: int) -> list[list[int]]:
        with torch.inference_mode():
            written_ids = own.generate(input_ids=read, attention_mask=torch.ones_like(read), num_beams=beams, **rules)
        return written_ids[:, 1:].tolist()

    ways: dict[str, Way] = {"transformers float32": lambda beams: call(model, beams)}
    if "bfloat16" in precisions():
        halved = copy.deepcopy(model).to(torch.bfloat16)
        ways["transformers bfloat16"] = lambda beams: call(halved, beams)
    return ways


def ours(trunk: TrunkData, ids: np.ndarray, written: int) -> dict[str, Way]:
    """A backend's states, and the search over steps of its decoder, which is in float32."""
    assert trunk.decoder is not None
    known, shape = trunk.decoder(), trunk.architecture
    head = Head(kind="summarization", width=shape.vocabulary, part="task:brief", decoder=known.shape)
    path = PlanPath(nodes=(Embed(trunk=trunk.digest), *shared_layers(shape.layers), Pool(positions="all"), head))
    loaded = {"brief": LoadedTask(path=path, arrays=known.arrays)}
    mask = np.ones(ids.shape, bool)
    batch = TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.full((len(ids), 1), -1))
    ways: dict[str, Way] = {}
    for name, several in (("openvino", precisions()), ("onnxruntime", ["float32"]), ("torch", ["float32"])):
        for precision in several:
            backend = open_backend(name, trunk, loaded, precision=precision)

            def call(beams: int, own: Backend = backend) -> list[list[int]]:
                states = own.run(merge({"brief": path}), batch)["brief"]
                rules = GenerationRules(start=2, ends=(2,), pad=1, tokens=written, least=written, beams=beams)
                written_texts = write(own.decoder("brief"), states, mask, rules)
                return [text.ids.tolist() for text in written_texts if text is not None]

            ways[f"polyhead {name} {precision}"] = call
    return ways


def claims(rows: list[Row]) -> list[Claim]:
    """Both in float32, where texts are the same, and the fastest way of each library, in the same repeat."""
    claimed, what = [], f"BART-base's shape, {DOCUMENTS} documents of {TOKENS} tokens"
    for case in dict.fromkeys(str(row["case"]) for row in rows):
        mine = [row for row in rows if row["case"] == case]
        exact = [row for row in mine if str(row["way"]).endswith("float32")]
        for some, slug in ((exact, ""), (mine, "_fastest")):
            ours_, theirs_ = fastest(some, "polyhead"), fastest(some, "transformers")
            text = f"{what}, {case}: seconds of transformers ({theirs_}) over ours ({ours_})"
            id = f"encoders.decoder_speed{'' if case == 'greedy' else '_beams'}{slug}"
            claimed.append(claim(id, text, 1.0, mine, theirs_, ours_))
    return claimed


if __name__ == "__main__":
    main()
