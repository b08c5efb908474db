"""LengthGroupedSampler: batches of texts of similar length."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler


class LengthGroupedSampler(Sampler[int]):
    """Batches of similar length in random order, different in each epoch.

    Unlike transformers' sampler, the order depends only on seed and epoch, so that a resumed run has the same
    batches, and long batches do not all come first.
    """

    def __init__(self, lengths: Tensor, batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed, self.epoch = lengths, batch, seed, 0

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        random = torch.Generator().manual_seed(self.seed + self.epoch)
        pools = torch.randperm(len(self), generator=random).split(50 * self.batch)
        ordered = torch.cat([pool[self.lengths[pool].argsort(stable=True)] for pool in pools])
        full = len(self) // self.batch * self.batch
        batches = ordered[:full].view(-1, self.batch)
        shuffled = batches[torch.randperm(len(batches), generator=random)]
        return iter([*shuffled.flatten().tolist(), *ordered[full:].tolist()])
