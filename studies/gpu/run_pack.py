"""Makes the pack for the card: minilm in bfloat16 and the sets as token ids, at most 64 MiB with the checkout."""

from __future__ import annotations

from pathlib import Path

from studies.gpu.run import PACK
from studies.settings import DATA, answer_help, say

MOST = 44 << 20  # bytes: 64 MiB travel, 16 of them are the checkout


def main() -> None:
    answer_help(__doc__)
    from polyhead.project.pretrained import load_trunk
    from studies.gpu.jobs import HELD_OUT
    from studies.gpu.pack import MAX_TOKENS, pack_of, prepared_mix, prepared_whole
    from studies.gpu.packed import write_pack

    if not DATA.is_dir():
        raise SystemExit(f"there are no data sets in {DATA}: name their folder in POLYHEAD_DATA")
    tasks = prepared_whole(DATA)
    mix = prepared_mix(DATA, [tasks[name] for name in HELD_OUT])
    pack = pack_of(load_trunk("minilm", max_tokens=MAX_TOKENS), tasks, mix)
    size = write_pack(Path(PACK), pack)
    sizes = ", ".join(f"{name} {len(one.splits['train']):,}" for name, one in (*pack.sets.items(), *pack.mix.items()))
    say(
        f"{PACK}: {size / 2**20:.1f} MiB, {len(pack.weights['embeddings.word.weight']):,} words; rows of train: {sizes}"
    )
    if size > MOST:
        raise SystemExit(f"the pack has {size:,} bytes, at most {MOST:,} travel")


if __name__ == "__main__":
    main()
