"""Heads from one pass: the pooled features of a frozen backbone are stored once and trained on for many epochs.

With a frozen backbone every head reads one vector per example, which never changes. `Features` holds these vectors
in a memory-mapped file, as fp16: 2 bytes x examples x exits x width, or 1 GB for 100,000 texts, 13 exits and width
384, and 4 GB for heads that read pairs. Batches of them replace batches of tokens; everything else about training
stays the same.

Heads that tag tokens read a vector for each word, that of its first token, and so a word is an example here. Beyond
`MOST_WORDS` they read a sample: all words in spans, as far as they fit, and a random part of the others.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from offramp.files import atomic_file
from offramp.models.exit_model import ExitModel
from offramp.models.heads import Head, pool
from offramp.problems import Array
from offramp.tags import TagScheme
from offramp.training.data import batches, model_inputs

LARGEST = float(np.finfo(np.float16).max)
SAMPLE = 5_000
"""Examples that the mean and scale of features are estimated from."""
MOST_WORDS = 200_000
"""Words that heads of a tagger learn from: 2 GB, for 13 exits and width 384."""
BLOCK = 4096
"""Vectors that are moved at once."""


class Features(TorchDataset[Any]):
    """The vectors that the heads read, and the labels, in batches."""

    def __init__(self, vectors: Array, rows: Any, words: Array | None = None) -> None:
        """`words` (examples, 2) are the row and the token of each example, if words are examples."""
        self.vectors = vectors  # (examples, exits, widest)
        self.scaling: Scaling | None = None
        labels = rows["labels"][:] if "labels" in rows.column_names else None
        self.lengths = list(rows["length"])
        self.texts: Array | None = None
        """The row of each word."""
        if words is not None:
            labels = None if labels is None else [labels[row][token] for row, token in words.tolist()]
            self.lengths, self.texts = [1] * len(words), words[:, 0]
        self.labels = None if labels is None else torch.tensor(labels)

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
    if model.config.problem.of_tokens:
        return collect_words(model, rows, collator, file, batch_size, progress)
    shape = len(rows), len(model.config.exits), max(model.heads.widths)
    if not file.exists():
        nn.Module.eval(model)
        with atomic_file(file) as draft:
            vectors = np.lib.format.open_memmap(draft, "w+", np.float16, shape)
            reserve_space(draft)
            for chosen in batches(rows["length"], batch_size, "features", progress):
                vectors[chosen] = pooled(model, collator, rows, chosen)
            vectors.flush()
            del vectors
    return Features(np.load(file, mmap_mode="r"), rows)


def collect_words(
    model: ExitModel, rows: Any, collator: Any, file: Path, batch_size: int, progress: bool
) -> Features:
    """Like `collect_features`, with a vector for each word, or for as many as fit."""
    index = words_file(file)
    if not file.exists():
        nn.Module.eval(model)
        size = min(MOST_WORDS, sum(map(len, rows["words"])))
        with atomic_file(file) as draft:
            shape = max(1, size), len(model.config.exits), max(model.heads.widths)
            sample = WordSample(np.lib.format.open_memmap(draft, "w+", np.float16, shape))
            reserve_space(draft)
            for chosen in batches(rows["length"], batch_size, "features", progress):
                sample.add(*word_vectors(model, collator, rows, chosen))
            sample.vectors.flush()
            with atomic_file(index) as words:
                np.save(words, sample.words[: sample.count])
            del sample
    words = np.load(index)
    return Features(np.load(file, mmap_mode="r")[: len(words)], rows, words)


def whole_texts(rows: Any) -> Any:
    """The first rows whose words fit: spans are scored on whole texts."""
    fitting = np.cumsum([*map(len, rows["words"])]) <= MOST_WORDS
    return rows.select(range(max(1, int(fitting.sum()))))


def words_file(file: Path) -> Path:
    """Beside a file of features, which words they are of."""
    return file.with_suffix(".words.npy")


def word_vectors(model: ExitModel, collator: Any, rows: Any, chosen: Array) -> tuple[Array, Array, Array]:
    """(words, exits, widest) the inputs of the heads; (words, 2) row and token; (words,) whether in a span."""
    inputs: Any = model_inputs(rows, chosen, collator, model.device)
    places = [[(row, token) for token in words] for row, words in enumerate(rows[chosen.tolist()]["words"])]
    where = np.array([place for of_row in places for place in of_row], np.int64).reshape(-1, 2)
    padding = inputs["attention_mask"].argmax(1).cpu().numpy()  # on the left of each row
    row, token = where[:, 0], where[:, 1] + padding[where[:, 0]]
    states = [hidden[row, token] for hidden in model.exit_states(**inputs)]
    logits, _ = model.heads.head_of(len(states) - 1).classify(states[-1])
    outside = TagScheme(model.config.label_names).outside
    vectors: Array = torch.stack(states, dim=1).float().clamp(-LARGEST, LARGEST).cpu().numpy()
    return vectors, np.column_stack([chosen[row], where[:, 1]]), ~outside[logits.argmax(-1).cpu().numpy()]


class WordSample:
    """Fills an array with vectors of words, in spans and outside.

    When it is full, half of the words of the more frequent kind are dropped, and from then on only that share of them
    is added. So all words of a kind have the same chance to stay.
    """

    def __init__(self, vectors: Array) -> None:
        self.vectors: Any = vectors  # (most words, exits, widest)
        self.words = np.empty((len(vectors), 2), np.int64)
        self.in_span = np.empty(len(vectors), bool)
        self.count, self.shares = 0, np.ones(2)
        self.random = np.random.default_rng(0)

    def add(self, vectors: Array, words: Array, in_span: Array) -> None:
        for row, inside in enumerate(in_span.tolist()):
            if self.shares[int(inside)] < 1 and self.random.random() >= self.shares[int(inside)]:
                continue
            if self.count == len(self.vectors):
                self.thin()
            self.vectors[self.count], self.words[self.count] = vectors[row], words[row]
            self.in_span[self.count] = inside
            self.count += 1

    def thin(self) -> None:
        kind = self.in_span.mean() > 0.5
        self.shares[int(kind)] /= 2
        keep = np.flatnonzero((self.in_span != kind) | (self.random.random(self.count) < 0.5))
        self.count = 0
        for block in np.array_split(keep, -(-len(keep) // BLOCK) or 1):  # to hold a part in memory
            place = slice(self.count, self.count + len(block))
            self.vectors[place], self.words[place] = self.vectors[block], self.words[block]
            self.in_span[place] = self.in_span[block]
            self.count = place.stop


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


@contextmanager
def standardized(model: ExitModel, features: Mapping[str, Features]) -> Iterator[None]:
    """Inside the block, heads read features of mean 0 and deviation 1, from which they compute the same.

    Nothing changes if exits share the layers that read features.
    """
    if not can_standardize(model):
        yield
        return
    scaling = measure_scaling(features["train"])
    for split in features.values():
        split.scaling = scaling
    fold_scaling_into_head(model, scaling, inverse=True)
    if not model.config.problem.has_classes and model.heads.sharing == 1:
        shift_to_mean(model, features["train"])
    yield
    fold_scaling_into_head(model, scaling)


def can_standardize(model: ExitModel) -> bool:
    """Whether each inner exit has first linear layers of its own."""
    heads = [model.heads.head_of(exit) for exit in range(len(model.config.exits))]
    first = [id(layer) for head in heads for layer in first_linears(head)]
    return len({*first}) == len(first)


def measure_scaling(features: Features) -> Scaling:
    """Estimate mean and scale on a sample: heads train faster on standardized inputs."""
    step = max(1, len(features) // SAMPLE)
    sample = features.vectors[::step].astype(np.float32)
    mean, scale = torch.from_numpy(sample.mean(0)), torch.from_numpy(sample.std(0)).clamp(min=1e-3)
    mean[-1], scale[-1] = 0, 1
    return Scaling(mean, scale)


@torch.no_grad()
def fold_scaling_into_head(model: ExitModel, scaling: Scaling, inverse: bool = False) -> None:
    """Move the standardization of the inputs into the first linear layers of each inner head, or out of them.

    Heads then read plain features again, and nothing needs to be stored or exported for it.
    """
    for exit in range(len(model.config.exits) - 1):
        for first in first_linears(model.heads.head_of(exit)):
            mean, scale = (values[exit, : first.in_features].to(first.weight) for values in scaling)
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


def first_linears(head: Head) -> list[nn.Linear]:
    """The layers that read the input of a head."""
    if head.pooler is not None:
        return [cast(Any, head.pooler).dense]
    beside = [] if head.correction is None else [cast(Any, head.correction).hidden]
    return [cast(nn.Linear, head.hidden or head.classifier), *beside]
