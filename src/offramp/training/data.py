"""The tokenized splits of a task."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from offramp.errors import BadOption
from offramp.model import ExitModel
from offramp.tasks import Task


def load_tokenizer(model: ExitModel) -> PreTrainedTokenizerBase:
    """The tokenizer from where the model, or its encoder, was loaded."""
    source = model.config.name_or_path or model.config.encoder_config.name_or_path
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        where = f"found at {source}" if source else "known for this model"
        raise BadOption(f"no tokenizer {where}; pass tokenizer=...") from error
    return tokenizer


def tokenize_splits(
    task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int, positions: int
) -> dict[str, Any]:
    """The train and validation splits as token ids, truncated to `max_length` and the encoder's positions."""
    shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if max_length < shortest:
        raise BadOption(f"max_length={max_length} leaves no room for texts; use at least {shortest} tokens")
    limit = min(max_length, positions, tokenizer.model_max_length)
    splits = [split for split in ("train", "validation") if split in task.splits]
    return {split: tokenize(rows, tokenizer, limit) for split, rows in task.load(*splits).items()}


def tokenize(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        tokens = dict(
            tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=max_length)
        )
        return {**tokens, "length": [len(ids) for ids in tokens["input_ids"]]}

    unneeded = [name for name in rows.column_names if name != "label"]
    rows = rows.map(encode, batched=True, remove_columns=unneeded, desc="tokenizing")
    return rows.rename_column("label", "labels") if "label" in rows.column_names else rows


def has_labels(data: Mapping[str, Any], split: str) -> bool:
    return split in data and "labels" in data[split].column_names
