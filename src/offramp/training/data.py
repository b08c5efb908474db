"""The tokenized splits of a task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import concatenate_datasets
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from offramp.atomic import atomic_file
from offramp.errors import BadOption
from offramp.losses import UNLABELLED
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
    task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int, positions: int, unlabelled: Any = None
) -> dict[str, Any]:
    """The train and validation splits, and unlabelled text, as token ids: truncated to `max_length` and the
    encoder's positions."""
    shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if max_length < shortest:
        raise BadOption(f"max_length={max_length} leaves no room for texts; use at least {shortest} tokens")
    limit = min(max_length, positions, tokenizer.model_max_length)
    splits = [split for split in ("train", "validation") if split in task.splits]
    rows = dict(task.load(*splits)) | ({} if unlabelled is None else {"unlabelled": unlabelled})
    return {split: tokenize(each, tokenizer, limit) for split, each in rows.items()}


def tokenize(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        tokens = dict(
            tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=max_length)
        )
        return {**tokens, "length": [len(ids) for ids in tokens["input_ids"]]}

    unneeded = [name for name in rows.column_names if name != "label"]
    rows = rows.map(encode, batched=True, remove_columns=unneeded, desc="tokenizing")
    return rows.rename_column("label", "labels") if "label" in rows.column_names else rows


def train_rows(data: Mapping[str, Any], unlabelled: bool) -> Any:
    """The train split, with the unlabelled text after it if it is to be used."""
    rows = data["train"]
    if not unlabelled or "unlabelled" not in data:
        return rows
    more = data["unlabelled"]
    if "labels" in rows.column_names:
        first = rows["labels"][0]
        missing = UNLABELLED if isinstance(first, int) else float("nan")
        none = [missing] * len(first) if isinstance(first, list) else missing
        more = more.add_column("labels", [none] * len(more)).cast(rows.features)
    return concatenate_datasets([rows, more])


@torch.no_grad()
def add_teacher(model: ExitModel, rows: Any, collator: Any, file: Path, batch_size: int) -> Any:
    """The rows with a column `teacher`: the logits of the model's last exit, computed once and stored in a file."""
    if not file.exists():
        logits = np.empty((len(rows), len(model.config.id2label or {})), np.float32)
        order = np.argsort(-np.asarray(rows["length"]), kind="stable")
        nn.Module.eval(model)
        for start in tqdm(range(0, len(order), batch_size), desc="teacher", disable=None):
            chosen = order[start : start + batch_size]
            logits[chosen] = model(**model_inputs(rows, chosen, collator, model.device)).logits.float().cpu()
        with atomic_file(file) as half:
            np.save(half.open("wb"), logits)
    return rows.add_column("teacher", list(np.load(file)))


def model_inputs(rows: Any, chosen: Any, collator: Any, device: Any) -> dict[str, Tensor]:
    """A padded batch of some tokenized rows."""
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in rows.column_names]
    batch = collator(rows.select_columns(names)[chosen.tolist()])
    return {name: tensor.to(device) for name, tensor in batch.items()}


def has_labels(data: Mapping[str, Any], split: str) -> bool:
    return split in data and "labels" in data[split].column_names
