"""Runs the stages of an ExitModel in PyTorch, on CPU or GPU."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from offramp.errors import BadOption
from offramp.models.exit_model import ExitModel
from offramp.problems import Array
from offramp.runtimes import Tokens, attention_mask, pad, token_types

CPU_BATCH_TOKENS, CPU_OVERHEAD = 1024, 16  # measured by benchmarks/engine.py; the table is in docs/running.md
GPU_BATCH_TOKENS, GPU_OVERHEAD = 16_384, 1024


class Batch(NamedTuple):
    """A micro-batch between two stages."""

    layers: int  # how many have run
    hidden: Tensor  # (rows, longest, width)
    lengths: Array  # (rows,)
    mask: Tensor | None  # (rows, longest), None without padding
    context: Any  # what the layers need besides hidden states
    types: Tensor | None  # (rows, longest) of tokens, None if no head reads them


class TorchRuntime:
    """The stages of a model.

    The model is moved to `device` and set to evaluation mode. `autocast` is a dtype to compute in, such as
    torch.bfloat16; the weights keep their own. `threads` sets PyTorch's CPU threads for the whole process.
    """

    compiled = None

    def __init__(
        self,
        model: ExitModel,
        device: str | torch.device | None = None,
        autocast: torch.dtype | None = None,
        threads: int | None = None,
    ) -> None:
        try:
            nn.Module.to(model, device or model.device)
        except (RuntimeError, AssertionError) as error:
            raise BadOption(f"device={device!r} cannot be used: {str(error).partition('.')[0]}.") from error
        nn.Module.eval(model)
        if threads is not None:
            torch.set_num_threads(threads)
        config = model.config
        self.model = model
        self.backbone: Any = model.backbone
        self.adapter = model.adapter
        self.heads = [model.heads.head_of(exit) for exit in range(len(config.exits))]
        self.device = model.device
        self.autocast = autocast
        self.padding = config.encoder_config.pad_token_id or 0
        self.info = config.info
        self.name = f"torch {torch.__version__}, {self.device.type}"
        self.precision = precision_name(autocast or model.dtype)
        self.max_length = model.max_length
        on_cpu = self.device.type == "cpu"
        self.batch_tokens, self.overhead = (
            (CPU_BATCH_TOKENS, CPU_OVERHEAD) if on_cpu else (GPU_BATCH_TOKENS, GPU_OVERHEAD)
        )

    @torch.inference_mode()
    def embed(self, tokens: Sequence[Tokens]) -> Batch:
        lengths = np.array([len(example.ids) for example in tokens])
        ids = self.tensor(pad([example.ids for example in tokens], self.padding))
        types = self.tensor(token_types(tokens)) if any(example.types for example in tokens) else None
        mask = self.mask(lengths)
        with self.precision_context():
            hidden = self.adapter.embed(self.backbone, ids, mask, types)
            context = self.adapter.context(self.backbone, hidden, mask)
            return Batch(0, hidden, lengths, mask, context, types if self.info.reads_types else None)

    @torch.inference_mode()
    def run(self, exit: int, batch: Batch) -> tuple[Batch, Array, Array | None]:
        adapter, backbone, hidden, layers = self.adapter, self.backbone, batch.hidden, self.info.exits[exit]
        with self.precision_context():
            for layer in range(batch.layers, layers):
                hidden = adapter.layer(backbone, layer, hidden, batch.context)
            logits, gates = self.heads[exit](adapter.norm(backbone, hidden), batch.mask, batch.types)
        after = batch._replace(layers=layers, hidden=hidden)
        if self.info.problem.of_tokens:  # without padding
            real = self.tensor(attention_mask(batch.lengths)).bool()
            logits, gates = logits[real], None if gates is None else gates[real]
        return after, to_numpy(logits), None if gates is None else to_numpy(gates)

    @torch.inference_mode()
    def keep(self, batch: Batch, rows: Array) -> Batch:
        lengths = batch.lengths[rows]
        chosen, longest, types = self.tensor(rows), lengths.max(), batch.types
        hidden = batch.hidden[:, :longest].index_select(0, chosen)
        types = None if types is None else types[:, :longest].index_select(0, chosen)
        return self.batch(batch.layers, hidden, lengths, types)

    @torch.inference_mode()
    def merge(self, batches: Sequence[Batch]) -> Batch:
        lengths = np.concatenate([batch.lengths for batch in batches])
        hidden = stack([batch.hidden for batch in batches])
        types = [batch.types for batch in batches if batch.types is not None]
        return self.batch(batches[0].layers, hidden, lengths, stack(types) if types else None)

    def batch(self, layers: int, hidden: Tensor, lengths: Array, types: Tensor | None) -> Batch:
        mask = self.mask(lengths)
        context = self.adapter.context(self.backbone, hidden, mask)
        return Batch(layers, hidden, lengths, mask, context, types)

    def mask(self, lengths: Array) -> Tensor | None:
        return None if lengths.min() == lengths.max() else self.tensor(attention_mask(lengths))

    def is_finite(self) -> bool:
        return self.model.is_finite()

    def fingerprint(self) -> str:
        return self.model.fingerprint()

    def tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def precision_context(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()


def stack(parts: Sequence[Tensor]) -> Tensor:
    """(rows of all, longest, ...), padded with zeros."""
    longest = max(part.shape[1] for part in parts)
    stacked = parts[0].new_zeros(sum(map(len, parts)), longest, *parts[0].shape[2:])
    first = 0
    for part in parts:
        stacked[first : first + len(part), : part.shape[1]] = part
        first += len(part)
    return stacked


def to_numpy(tensor: Tensor) -> Array:
    array: Array = tensor.float().cpu().numpy()
    return array


def precision_name(dtype: Any) -> str:
    """The short name of a torch dtype.

    >>> precision_name(torch.bfloat16)
    'bf16'
    """
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
