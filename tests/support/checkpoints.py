"""Tiny checkpoints that plain `transformers` trained over a common base with its first layers frozen."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import tokenizers
import torch
import transformers

from polyhead.testing import tiny_tokenizer
from polyhead.testing.tiny import PIECES

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

LAYERS = 4
TEXTS = [
    "my order is late",
    "the lamp was broken",
    "where is the kettle ?",
    "please refund the bill today",
    "anna and ben are happy",
    "the phone is good , the box is bad",
    "not today",
    "when was monday ?",
]
LABELS = {
    "mood": ("sad", "glad", "calm"),
    "topics": ("bill", "card", "order", "box"),
    "score": ("LABEL_0",),
    "names": ("O", "I-PER", "B-PER", "B-ORG"),
}
PROBLEMS = {
    "mood": "single_label_classification",
    "topics": "multi_label_classification",
    "score": "regression",
    "names": None,
}


def wordpiece():
    """BERT's own tokenizer, which numbers the texts of a pair."""
    return transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)}, do_lower_case=True)


def wordpiece_without_segments():
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tiny_tokenizer().decode()),
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def byte_pairs():
    """Bytes alone, with the special tokens of RoBERTa at their places."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*special, *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


WIDTHS = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.2,
}
BERT = WIDTHS | {"vocab_size": 110, "max_position_embeddings": 64}
DISTIL = {"dim": 32, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 64, "initializer_range": 0.2}
ROBERTA = WIDTHS | {"vocab_size": 260, "max_position_embeddings": 258, "pad_token_id": 1, "type_vocab_size": 1}
DISTANCES = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
LONGER = WIDTHS | {
    "vocab_size": 260,
    "max_position_embeddings": 258,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
MODERN = LONGER | {"cls_token_id": 0, "sep_token_id": 2, "local_attention": 8, "global_attn_every_n_layers": 2}
FAMILIES = {
    "Bert": (wordpiece, BERT),
    "Electra": (wordpiece, BERT | {"embedding_size": 16}),
    "DistilBert": (wordpiece_without_segments, DISTIL | {"vocab_size": 110, "max_position_embeddings": 64}),
    "Roberta": (byte_pairs, ROBERTA),
    "XLMRoberta": (byte_pairs, ROBERTA),
    "Camembert": (byte_pairs, ROBERTA),
    "MPNet": (byte_pairs, WIDTHS | {"vocab_size": 260, "max_position_embeddings": 258}),
    "DebertaV2": (wordpiece, BERT | DISTANCES),
    "Gte": (byte_pairs, WIDTHS | {"vocab_size": 260, "max_position_embeddings": 256}),
    "NomicBert": (wordpiece, BERT),
    "ModernBert": (byte_pairs, MODERN),
    "EuroBert": (byte_pairs, LONGER | {"mask_token_id": 3, "classifier_pooling": "mean"}),
}

ASKED = tuple(
    name for name in FAMILIES if name not in ("Gte", "NomicBert", "EuroBert")
)  # with classes that answer questions


@functools.cache
def root():
    """A folder for the checkpoints of this run."""
    folder = Path(tempfile.mkdtemp(prefix="polyhead-checkpoints-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def base(family="Bert", seed=0):
    """A random encoder with its tokenizer, as `save_pretrained` writes them."""
    folder = root() / f"{family}-base-{seed}"
    make_tokenizer, settings = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}Model")(config)
    with torch.no_grad():  # biases and norms start at 0 and 1, where a mixed-up one would not show
        for value in model.parameters():
            value.add_(0.05 * torch.randn(value.shape))
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@functools.cache
def trained(task="mood", *, family="Bert", frozen=2, seed=1, steps=3, name=None, embeddings=False):
    """A classifier over the base, embeddings and first `frozen` layers left as they were; what a script does."""
    folder = root() / (name or f"{family}-{task}-{frozen}-{seed}")
    base(family)  # made under its own seed
    torch.manual_seed(seed)
    model, tokenizer = classifier(task, family), FAMILIES[family][0]()
    encoder = model.base_model
    layers = getattr(getattr(encoder, "transformer", getattr(encoder, "encoder", encoder)), "layer", None)
    layers = encoder.layers if layers is None else layers
    words = getattr(encoder, "embeddings", None) or encoder.embed_tokens
    still = [layers[i] for i in range(frozen)] + ([] if embeddings else [words])
    still += [encoder.embeddings_project] if hasattr(encoder, "embeddings_project") else []
    names = ("rel_embeddings", "LayerNorm", "relative_attention_bias")  # what all layers read of distances
    still += [module for name, module in encoder.named_modules() if name in {f"encoder.{each}" for each in names}]
    closing = [getattr(encoder, name) for name in ("final_norm", "norm") if hasattr(encoder, name)]
    still += closing if frozen == LAYERS else []  # the closing norm is of the last layer
    for module in still:
        module.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    for _ in range(steps):
        loss = model.train()(**inputs_of(model, given), labels=targets(task, given)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def classifier(task, family="Bert", *, over=None):
    """The base, or the encoder in the folder `over`, with a new head for the task."""
    form = "TokenClassification" if task == "names" else "SequenceClassification"
    labels = LABELS[task]
    return getattr(transformers, f"{family}For{form}").from_pretrained(
        over or base(family),
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        problem_type=PROBLEMS[task],
    )


def inputs_of(model, given):
    """What the model takes: DistilBERT has no segments."""
    return {k: v for k, v in given.items() if k != "token_type_ids" or model.config.model_type != "distilbert"}


def targets(task, given):
    rows, tokens = given["input_ids"].shape
    generator = torch.Generator().manual_seed(7)
    size = len(LABELS[task])
    if task == "names":
        return torch.randint(size, (rows, tokens), generator=generator)
    if task == "topics":
        return torch.randint(2, (rows, size), generator=generator).float()
    if task == "score":
        return 5 * torch.rand(rows, generator=generator)
    return torch.randint(size, (rows,), generator=generator)


@functools.cache
def headed(form, family="Bert", seed=2):
    """The base with a random head of this form, such as QuestionAnswering: what `save_pretrained` writes of it."""
    folder = root() / f"{family}-{form}-{seed}"
    base(family)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}For{form}").from_pretrained(base(family))
    encoder = {id(value) for value in model.base_model.parameters()}
    with torch.no_grad():
        for name, value in model.named_parameters():
            if id(value) not in encoder or "pooler" in name:
                value.copy_(0.3 * torch.randn(value.shape))
    model.save_pretrained(folder)
    FAMILIES[family][0]().save_pretrained(folder)
    return folder
