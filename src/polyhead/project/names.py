"""Names of project keys in transformers, SetFit, spaCy and scikit-learn.

None of these names is accepted: a key has one spelling. The error for a foreign name suggests the right key.
"""

from __future__ import annotations

from collections.abc import Mapping

_BY_KEY: Mapping[str, tuple[str, ...]] = {
    "training.learning_rate": ("lr", "learn_rate", "body_learning_rate", "learning_rate_init", "eta0", "initial_rate"),
    "training.batch": (
        *("batch_size", "per_device_train_batch_size", "per_device_batch_size", "train_batch_size", "minibatch_size"),
    ),
    "training.epochs": ("epoch", "num_epochs", "n_epochs", "num_train_epochs", "max_epochs", "max_iter", "n_iter"),
    "training.least_updates": ("max_steps", "num_steps", "min_steps"),
    "training.patience": ("early_stopping", "early_stopping_patience", "n_iter_no_change"),
    "training.seed": ("random_state", "random_seed", "data_seed"),
    "training.weight_decay": ("wd", "l2", "l2_reg"),
    "training.warmup": ("warmup_ratio", "warmup_steps", "warmup_proportion", "num_warmup_steps"),
    "training.clip": ("max_grad_norm", "grad_clip", "gradient_clip_val", "clip_norm"),
    "training.dropout": ("dropout_rate", "hidden_dropout_prob", "classifier_dropout"),
    "training.class_weights": ("class_weight", "balanced"),
    "training.precision": ("fp16", "bf16", "dtype", "torch_dtype", "mixed_precision"),
    "trunk.max_tokens": ("max_length", "max_len", "max_seq_length", "max_seq_len", "model_max_length", "seq_length"),
    "trunk.name": ("model_name", "model_name_or_path", "pretrained_model_name_or_path", "base_model", "encoder")
    + ("backbone", "model_id", "model"),
    "bundle": ("output_dir", "output_path", "out_dir", "save_dir"),
    "tasks.kind": ("task_type", "problem_type"),
    "tasks.labels": ("classes", "label_names", "class_names", "label_list", "id2label", "label2id"),
    "tasks.text": ("text_column", "text_col", "sentence", "sentence1"),
    "tasks.text_b": ("text_pair", "text2", "text_b_column", "sentence2"),
    "tasks.label": ("label_column", "label_col", "target", "target_column", "y"),
    "tasks.train": ("train_file", "train_path", "train_data", "train_dataset"),
    "tasks.validation": ("dev", "val", "valid", "validation_file", "dev_path", "eval_dataset", "eval_file")
    + ("validation_split", "validation_fraction", "val_size"),
    "tasks.test": ("test_file", "test_path", "test_data", "test_dataset"),
    "tasks.metric": ("scoring", "eval_metric", "metric_for_best_model"),
    "tasks.separator": ("sep", "delimiter"),
    "tasks.positive": ("pos_label",),
}

MEANT: Mapping[str, str] = {name: key for key, names in _BY_KEY.items() for name in names}
"""By another name the key that is meant, with the table that it stands in."""


def other_name(name: str) -> str:
    """The spelling of a name in `MEANT`: `--Batch-Size` is `batch_size`."""
    return name.strip("-").lower().replace("-", "_")
