"""The tokenized splits of a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from offramp.data import Task
from offramp.errors import BadOption
from offramp.files import atomic_file
from offramp.lists import Lists
from offramp.models.exit_model import ExitModel
from offramp.problems import UNLABELLED, Array
from offramp.row_hashes import hash_batch
from offramp.tags import find_subwords, marks_subwords, token_tags
from offramp.training.recipes import Recipe


def load_splits(task: Task, unlabelled: Any = None) -> dict[str, Any]:
    """The train and validation splits, and unlabelled text."""
    splits = [split for split in ("train", "validation") if split in task.splits]
    return dict(task.load(*splits)) | ({} if unlabelled is None else {"unlabelled": unlabelled})


def check_unlabelled(rows: Any, task: Task, recipe: Recipe) -> Any:
    """Text without labels, in the task's columns; text that the recipe could not use is an error."""
    if rows is None:
        return None
    if not any(phase.unlabelled for phase in recipe.phases):
        raise BadOption(f"{recipe.name} has no use for text without labels; leave out unlabelled=...")
    if not isinstance(rows, Dataset):
        raise BadOption("unlabelled=... must be a datasets.Dataset with a column text")
    if not len(rows):
        raise BadOption("unlabelled=... has no rows")
    columns, expected = {*rows.column_names} & {"text", "text_pair"}, {*task.text_columns}
    if columns != expected:
        raise BadOption(
            f"unlabelled=... has {' and '.join(sorted(columns)) or 'no column text'}; {task.name} has "
            f"{' and '.join(sorted(expected))}"
        )
    return rows.select_columns(sorted(expected))


def text_limit(tokenizer: PreTrainedTokenizerBase, max_length: int, positions: int) -> int:
    """The number of tokens that texts are truncated to, given the encoder's number of positions."""
    shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if max_length < shortest:
        raise BadOption(f"max_length={max_length} leaves no room for texts; use at least {shortest} tokens")
    return int(min(max_length, positions, tokenizer.model_max_length))


def tokenize_splits(
    rows: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    limit: int,
    of_tokens: bool,
) -> dict[str, Any]:
    """The splits as token ids, truncated; if tokens are tagged, longer texts become several rows instead."""
    tokenize = tokenize_words if of_tokens else tokenize_texts
    return {split: tokenize(part, tokenizer, limit) for split, part in rows.items()}


def tokenize_texts(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        tokens = dict(
            tokenizer(batch["text"], batch.get("text_pair"), truncation=True, max_length=max_length)
        )
        return {**tokens, "length": [len(ids) for ids in tokens["input_ids"]]}

    unneeded = [name for name in rows.column_names if name != "label"]
    rows = rows.map(encode, batched=True, remove_columns=unneeded, desc="tokenizing")
    return rows.rename_column("label", "labels") if "label" in rows.column_names else rows


def tokenize_words(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    """Rows of up to `max_length` tokens, with the positions of the first tokens of `words`.

    If the words have tags, `labels` has them at these tokens, and UNLABELLED at all others.
    """
    rust = tokenizer.backend_tokenizer
    has_prefix, unknown = marks_subwords(rust), tokenizer.unk_token_id

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded = tokenizer(
            batch["text"], truncation=True, max_length=max_length, return_overflowing_tokens=True
        )
        tokens, labels = dict(encoded), []
        texts = tokens.pop("overflow_to_sample_mapping")
        for row, (text, encoding) in enumerate(zip(texts, encoded.encodings, strict=True)):
            if "label" in batch:
                continued = row > 0 and texts[row - 1] == text
                offsets = np.array(encoding.offsets)
                labels.append(token_tags(offsets, batch["words"][text], batch["label"][text], continued))
            else:
                is_first = ~find_subwords(batch["text"][text], encoding, has_prefix, unknown)
                labels.append(
                    np.where(is_first & (np.array(encoding.special_tokens_mask) == 0), 0, UNLABELLED)
                )
        tokens["words"] = [np.flatnonzero(of_row != UNLABELLED) for of_row in labels]
        return {
            **tokens,
            **({"labels": labels} if "label" in batch else {}),
            "length": [len(ids) for ids in tokens["input_ids"]],
        }

    return rows.map(encode, batched=True, remove_columns=rows.column_names, desc="tokenizing")


def training_hashes(rows: Mapping[str, Any]) -> Array:
    """The hashes of all texts that a model is trained on."""
    return np.concatenate([hash_batch(part[:]) for split, part in rows.items() if split != "validation"])


def train_rows(data: Mapping[str, Any], unlabelled: bool) -> Any:
    """The train split, with the unlabelled text after it if it is to be used."""
    rows = data["train"]
    if not unlabelled or "unlabelled" not in data:
        return rows
    more = data["unlabelled"]
    if "labels" in rows.column_names:
        more = more.add_column("labels", [*map(missing_like(rows), more["length"])]).cast(rows.features)
    return concatenate_datasets([rows, more])


def missing_like(rows: Any) -> Callable[[int], Any]:
    """The labels of an unlabelled row, by its number of tokens."""
    first = rows["labels"][0]
    if isinstance(first, int):
        return lambda length: UNLABELLED
    if isinstance(first, list) and isinstance(first[0], int):  # tags
        return lambda length: [UNLABELLED] * length
    return lambda length: [float("nan")] * len(first) if isinstance(first, list) else float("nan")


@torch.no_grad()
def add_teacher(
    model: ExitModel, rows: Any, collator: Any, file: Path, batch_size: int, progress: bool
) -> Any:
    """The rows with a column `teacher`: the logits of the model's last exit, computed once and stored in a file. Rows
    with tagged tokens get the logits of every token."""
    tags = model.config.problem.of_tokens
    ends = np.cumsum(rows["length"]) if tags else np.arange(1, len(rows) + 1)
    if not file.exists():
        logits = np.empty((int(ends[-1]), len(model.config.label_names)), np.float32)
        nn.Module.eval(model)
        for chosen in batches(rows["length"], batch_size, "teacher", progress):
            inputs = model_inputs(rows, chosen, collator, model.device)
            outputs = model(**inputs).logits.float().cpu()
            if tags:
                outputs = outputs[
                    inputs["attention_mask"].bool().cpu()
                ]  # (tokens, tags), in the order of the rows
                chosen = Lists.consecutive(rows["length"]).rows(chosen)
            logits[chosen] = outputs
        with atomic_file(file) as draft:
            np.save(draft, logits)
    logits = np.load(file)
    teacher = [[*part] for part in np.split(logits, ends[:-1])] if tags else [*logits]
    return rows.add_column("teacher", teacher)


def batches(lengths: Sequence[int], size: int, what: str, progress: bool) -> Iterator[Array]:
    """Indices of rows of similar length, the longest first, so that memory errors come early; with a progress bar."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    with tqdm(total=len(order), desc=what, unit=" texts", disable=not progress) as bar:
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            yield chosen
            bar.update(len(chosen))


def model_inputs(rows: Any, chosen: Any, collator: Any, device: Any) -> dict[str, Tensor]:
    """A padded batch of some tokenized rows."""
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in rows.column_names]
    batch = collator(rows.select_columns(names)[chosen.tolist()])
    return {name: tensor.to(device) for name, tensor in batch.items()}


class TagCollator(DataCollatorWithPadding):
    """Pads what each token has too: its tag, and its teacher's logits."""

    def __call__(self, features: Any) -> dict[str, Any]:
        if isinstance(features, Mapping):
            return super().__call__(cast(Any, features))
        of_tokens = [name for name in ("labels", "teacher") if name in features[0]]
        batch = super().__call__(
            [{name: value for name, value in row.items() if name not in of_tokens} for row in features]
        )
        real = batch["attention_mask"].bool()
        for name in of_tokens:
            values = torch.cat([torch.as_tensor(row[name]) for row in features])
            padded = values.new_full((*real.shape, *values.shape[1:]), UNLABELLED)
            padded[real] = values
            batch[name] = padded
        return batch


def has_labels(data: Mapping[str, Any], split: str) -> bool:
    return split in data and "labels" in data[split].column_names
