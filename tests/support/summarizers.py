"""Tiny encoder-decoders that plain `transformers` made, with documents that have summaries."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = (
    *("late", "early", "broken", "new", "old", "red", "blue", "lamp", "kettle", "phone", "box", "card", "bill"),
    *("order", "parcel", "refund", "today", "monday", "anna", "ben", "happy", "sad", "please", "return", "send"),
    *("lost", "found", "paid", "twice", "never", "again"),
)
SHAPE = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "init_std": 0.2,
    "dropout": 0.1,
}
SPECIAL = {
    "bart": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    "pegasus": {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
}


def documents(count, *, seed=0, words=10):
    """(document, summary) pairs: the summary is some of the document's words, in another order."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        text = [WORDS[i] for i in generator.choice(len(WORDS), words)]
        found.append((" ".join(text) + " .", f"{text[3]} {text[0]} and {text[6]}"))
    return found


def tokenizer(kind):
    """Byte pairs trained on the documents, with the special tokens of the family at their places."""
    texts = [text for pair in documents(200, seed=9) for text in pair]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"] if kind == "bart" else ["<pad>", "</s>", "<unk>"]
    made.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(
            vocab_size=360,
            special_tokens=special,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if kind == "bart":
        made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    else:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 1)]
        )
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    if kind == "bart":
        names |= {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **names
    )


@functools.cache
def folder(kind="bart", seed=0, config=(), **generation):
    """What `save_pretrained` writes of a random model; `generation` goes into its generation_config.json.

    `config` are pairs of other settings of its config.json.
    """
    place = Path(tempfile.mkdtemp(prefix="polyhead-summarizer-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    torch.manual_seed(seed)
    library = tokenizer(kind)
    name = {"bart": "Bart", "pegasus": "Pegasus"}[kind]
    config = getattr(transformers, f"{name}Config")(
        **{**SHAPE, **SPECIAL[kind], **dict(config)}, vocab_size=len(library)
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    with torch.no_grad():  # biases and norms start at 0 and 1, where a mixed-up one would not show
        for value in model.parameters():
            value.add_(0.05 * torch.randn(value.shape))
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(place)
    library.save_pretrained(place)
    return place


def theirs(place):
    """The model and tokenizer as `transformers` opens them."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(place, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(place)


@functools.cache
def taught(kind="bart", *, steps=60, **generation):
    """The random model after some steps of plain `transformers` and torch, so that it has something to say."""
    place = Path(tempfile.mkdtemp(prefix="polyhead-summarizer-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    model, library = theirs(folder(kind))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    torch.manual_seed(1)
    given = batch(library, documents(24, seed=3))
    for _ in range(steps):
        model.train()(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(place)
    library.save_pretrained(place)
    return place


def batch(library, pairs):
    """Documents and labels as `transformers` has them: padded, labels with -100."""
    texts, summaries = ([pair[side] for pair in pairs] for side in (0, 1))
    given = library(texts, padding=True, return_tensors="pt")
    labels = library(text_target=summaries, padding=True, return_tensors="pt")
    ids = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
    return {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"], "labels": ids}
