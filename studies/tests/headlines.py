"""Made-up headlines in files like those beside the project."""

import gzip
import json
import random

from studies.huang2022.nhc import CATEGORIES

LETTERS = "abcdefghijklmnopqrstuvwxyz"
OTHERS = ("crime", "sports")


def headline(chance, label):
    """A text that no other call gives, with words of its own in which the label shows."""
    words = ["".join(chance.choice(LETTERS) for _ in range(6)) for _ in range(3)]
    return f"{label.split()[0]} {words[0]}, {words[1]}'s {words[2]}"


def rows(count, seed, labels=(*CATEGORIES, *OTHERS)):
    chance = random.Random(seed)
    return [(headline(chance, label), label) for label in labels for _ in range(count)]


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_sets(root, *, count=30):
    """huffpost41, huffpost_news and subj; a third of the second one's texts is the first one's, its test's too."""
    first = {split: rows(count, f"41 {split}") for split in ("train", "validation", "test")}
    for split, several in first.items():
        lines = [{"text": in_words(text), "label": label} for text, label in several]
        write_lines(root / "huffpost41" / f"{split}.jsonl.gz", lines)
    for split, several in first.items():
        shared, own = several[: len(several) // 3], rows(count // 2, f"news {split}")
        lines = [
            {"headline": text.title(), "text": f"{text}. More.", "label": label.upper()}
            for text, label in (*shared, *own)
        ]
        write_lines(root / "huffpost_news" / f"{split}.jsonl.gz", lines)
    for split in ("train", "test"):
        lines = [
            {"text": text, "label": label}
            for text, label in rows(4 * count, f"subj {split}", ("objective", "subjective"))
        ]
        write_lines(root / "subj" / f"{split}.jsonl.gz", lines)
    return root


def in_words(text):
    """As huffpost41 has it: small letters, signs apart."""
    return text.replace(",", " ,").replace("'s", " 's")
