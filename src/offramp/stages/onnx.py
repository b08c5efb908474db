"""Stages of an exported model in ONNX Runtime, on CPU. Needs neither torch nor transformers.

What travels between two stages is the array that one graph has made and the next reads, in place.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from offramp.errors import BadOption, CannotLoad
from offramp.stages import Array, Tokens, pad
from offramp.store import Manifest, ModelInfo

BUDGET, OVERHEAD = 1024, 16  # as in PyTorch


@dataclass(frozen=True)
class Batch:
    """Rows of one micro-batch between two stages."""

    passed: int  # stages so far
    hidden: Array  # (rows, longest, width)
    lengths: Array  # (rows,)
    mask: Array  # (rows, longest)


class OnnxStages:
    """The stages in a folder that `offramp.export` wrote. `threads` is how many cores work on one call, by
    default all."""

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        folder = Path(folder)
        self.manifest = Manifest.load(folder)
        info = ModelInfo.read(folder)
        self.layers, self.labels = info.exits, info.labels
        self.problem_type, self.policy = info.problem_type, info.policy
        self.precision = self.manifest.precision
        self.max_length = self.manifest.max_length
        self.budget, self.overhead = BUDGET, OVERHEAD
        options = session_options(threads)
        files = {name: session(folder / name, options) for name in dict.fromkeys(self.manifest.stages)}
        self.embedding = session(folder / self.manifest.embedding, options)
        self.graphs = [files[name] for name in self.manifest.stages]
        self.inputs = {each.name for each in self.embedding.get_inputs()}

    def embed(self, tokens: Sequence[Tokens]) -> Batch:
        lengths = np.array([len(example.ids) for example in tokens])
        ids, mask = pad([example.ids for example in tokens], self.manifest.padding), real(lengths)
        feeds = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self.inputs:
            types = [example.types or [0] * len(example.ids) for example in tokens]
            feeds["token_type_ids"] = pad(types, 0)
        feeds = {name: array for name, array in feeds.items() if name in self.inputs}
        return Batch(0, self.embedding.run(None, feeds)[0], lengths, mask)

    def run(self, exit: int, batch: Batch) -> tuple[Batch, Array, Array | None]:
        hidden, said = batch.hidden, []
        for graph in self.graphs[batch.passed : exit + 1]:
            hidden, *said = graph.run(None, {"hidden": hidden, "attention_mask": batch.mask})
        logits, *gates = said
        return Batch(exit + 1, hidden, batch.lengths, batch.mask), logits, gates[0] if gates else None

    def keep(self, batch: Batch, rows: Array) -> Batch:
        lengths = batch.lengths[rows]
        return Batch(batch.passed, batch.hidden[rows, : lengths.max()], lengths, real(lengths))

    def merge(self, batches: Sequence[Batch]) -> Batch:
        lengths = np.concatenate([batch.lengths for batch in batches])
        hidden = np.zeros((len(lengths), lengths.max(), batches[0].hidden.shape[-1]), np.float32)
        first = 0
        for batch in batches:
            rows, longest, _ = batch.hidden.shape
            hidden[first : first + rows, :longest] = batch.hidden
            first += rows
        return Batch(batches[0].passed, hidden, lengths, real(lengths))

    def is_finite(self) -> bool:
        return True  # others are not exported

    def about(self) -> dict[str, Any]:
        return {
            "fingerprint": self.manifest.fingerprint,
            "runtime": f"onnxruntime {onnxruntime.__version__}, cpu",
            "shape": dict(self.manifest.shape),
        }


def real(lengths: Array) -> Array:
    """(rows, longest) int64, 1 where a token is no padding."""
    return (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)


def session_options(threads: int | None) -> Any:
    if threads is not None and threads < 1:
        raise BadOption(f"threads={threads} must be at least 1.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    # each graph has threads of its own, which spin between its operations: faster than to sleep and be woken. When
    # it is done they must not go on, as they would keep the cores from the graph that is next, and from torch.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def session(file: Path, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a kind of its own for each reason
        raise CannotLoad(f"{file} cannot be run ({error}); export the model again.") from error
