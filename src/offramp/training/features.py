"""Heads from one pass: the pooled features of a frozen backbone are stored once and trained on for many epochs.

With a frozen backbone every head reads one vector per example, which never changes. `Features` holds these vectors
in a memory-mapped file, as fp16: 2 bytes x examples x exits x width, or 1 GB for 100,000 texts, 13 exits and width
384, and 4 GB for heads that read pairs. Batches of them replace batches of tokens; everything else about training
stays the same.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from offramp.files import atomic_file
from offramp.models.exit_model import ExitModel
from offramp.models.heads import Head, pool
from offramp.problems import Array
from offramp.training.data import batches, model_inputs

LARGEST = float(np.finfo(np.float16).max)
SAMPLE = 5_000
"""Examples that the mean and scale of features are estimated from."""


class Features(TorchDataset[Any]):
    """The vectors that the heads read, and the labels, in batches."""

    def __init__(self, vectors: Array, rows: Any) -> None:
        self.vectors = vectors  # (examples, exits, widest)
        self.scaling: Scaling | None = None
        self.labels = torch.tensor(rows["labels"][:]) if "labels" in rows.column_names else None
        self.lengths = list(rows["length"])

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, name: str) -> Any:
        return {"length": self.lengths}[name]  # the sampler asks for lengths

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A batch, for the DataLoader; sorted reads are faster from a file."""
        rows = np.asarray(indices)
        order = np.argsort(rows)
        vectors = np.empty((len(rows), *self.vectors.shape[1:]), np.float32)
        vectors[order] = self.vectors[rows[order]]
        features = torch.from_numpy(vectors)
        batch = {"features": self.scaling.apply(features) if self.scaling else features}
        return batch if self.labels is None else batch | {"labels": self.labels[rows]}


@torch.no_grad()
def collect_features(
    model: ExitModel, rows: Any, collator: Any, file: Path, batch_size: int, progress: bool
) -> Features:
    """Run the backbone once over tokenized rows, or reuse the file of an earlier run."""
    shape = len(rows), len(model.config.exits), max(model.heads.widths)
    if not file.exists():
        nn.Module.eval(model)
        with atomic_file(file) as draft:
            vectors = np.lib.format.open_memmap(draft, "w+", np.float16, shape)
            reserve_space(draft)
            for chosen in batches(rows, batch_size, "features", progress):
                vectors[chosen] = pooled(model, collator, rows, chosen)
            vectors.flush()
            del vectors
    return Features(np.load(file, mmap_mode="r"), rows)


def reserve_space(file: Path) -> None:
    """Claim the blocks of a sparse file: on a full disk, this is an error here and not a bus error later."""
    if hasattr(os, "posix_fallocate"):  # macOS has no such call
        with file.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)


def pooled(model: ExitModel, collator: Any, rows: Any, chosen: Array) -> Array:
    """(examples, exits, widest) the input of each head after pooling, followed by zeros."""
    inputs: Any = model_inputs(rows, chosen, collator, model.device)
    heads, mask, types = model.heads, inputs.get("attention_mask"), inputs.get("token_type_ids")
    vectors = torch.zeros(len(chosen), len(heads.widths), max(heads.widths))
    for exit, hidden in enumerate(model.exit_states(**inputs)):
        vectors[:, exit, : heads.widths[exit]] = pool(hidden, mask, heads.poolings[exit], types)
    clamped: Array = vectors.clamp(-LARGEST, LARGEST).numpy()
    return clamped


class Scaling(NamedTuple):
    """Mean and standard deviation of each exit's features: (exits, widest). The last exit is left alone."""

    mean: Tensor
    scale: Tensor

    def apply(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.scale


def measure_scaling(features: Features) -> Scaling:
    """Estimate mean and scale on a sample: heads train faster on standardized inputs."""
    step = max(1, len(features) // SAMPLE)
    sample = features.vectors[::step].astype(np.float32)
    mean, scale = torch.from_numpy(sample.mean(0)), torch.from_numpy(sample.std(0)).clamp(min=1e-3)
    mean[-1], scale[-1] = 0, 1
    return Scaling(mean, scale)


@torch.no_grad()
def fold_scaling_into_head(model: ExitModel, scaling: Scaling, inverse: bool = False) -> None:
    """Move the standardization of the inputs into the first linear layer of each inner head, or out of it.

    Heads then read plain features again, and nothing needs to be stored or exported for it.
    """
    for exit in range(len(model.config.exits) - 1):
        first = first_linear(model.heads.head_of(exit))
        mean, scale = (each[exit, : first.in_features].to(first.weight) for each in scaling)
        if inverse:  # W(x) = W s ((x - m) / s) + W m + b
            first.bias.add_(first.weight @ mean)
            first.weight.mul_(scale)
        else:
            first.weight.div_(scale)
            first.bias.sub_(first.weight @ mean)


@torch.no_grad()
def shift_to_mean(model: ExitModel, features: Features) -> None:
    """Shift the inner exits of a regression so that their mean is that of the last exit.

    A step moves a bias by no more than the learning rate, so a short training would mostly be spent on reaching the
    mean.
    """
    nn.Module.eval(model)
    sample = features.__getitems__(range(0, len(features), max(1, len(features) // SAMPLE)))["features"]
    means = model(features=sample.to(model.device)).exit_logits.mean(0)  # (exits, outputs)
    for exit in range(len(means) - 1):
        classifier: Any = model.heads.head_of(exit).classifier
        classifier.bias.add_(means[-1] - means[exit])


def first_linear(head: Head) -> nn.Linear:
    first: Any = head.pooler.dense if head.pooler is not None else head.hidden or head.classifier
    return first  # type: ignore[no-any-return]


def can_standardize(model: ExitModel) -> bool:
    """Whether each inner exit has a first linear layer of its own."""
    heads = [model.heads.head_of(exit) for exit in range(len(model.config.exits))]
    return len({id(first_linear(head)) for head in heads}) == len(heads)
