"""Runs the stages of an exported model in ONNX Runtime on the CPU, without torch or transformers.

Hidden states pass from one graph to the next without copying.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from offramp.cpus import available_cpus
from offramp.errors import BadOption, CannotLoad
from offramp.problems import Array
from offramp.stages import Tokens, attention_mask, pad, token_types
from offramp.store import Manifest, ModelInfo

BUDGET, OVERHEAD = 1024, 16  # as measured for PyTorch


@dataclass(frozen=True)
class Batch:
    """A micro-batch between two stages."""

    stages: int  # how many have run
    hidden: Array  # (rows, longest, width)
    lengths: Array  # (rows,)
    mask: Array  # (rows, longest)


class OnnxStages:
    """The stages in a folder written by `export`. `threads` is the number of CPUs used for a call, by default all."""

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        folder = Path(folder)
        self.manifest = Manifest.load(folder)
        info = ModelInfo.read(folder)
        self.layers, self.labels = info.exits, info.labels
        self.problem_type, self.policy = info.problem_type, info.policy
        self.precision = self.manifest.precision
        self.has_gate = bool(info.head.get("gate"))
        self.max_length = self.manifest.max_length
        self.budget, self.overhead = BUDGET, OVERHEAD
        options = session_options(threads)
        files = {name: session(folder / name, options) for name in dict.fromkeys(self.manifest.stages)}
        self.embedding = session(folder / self.manifest.embedding, options)
        self.graphs = [files[name] for name in self.manifest.stages]
        self.inputs = [each.name for each in self.embedding.get_inputs()]

    def embed(self, tokens: Sequence[Tokens]) -> Batch:
        lengths = np.array([len(example.ids) for example in tokens])
        mask = attention_mask(lengths)
        inputs = {
            "input_ids": pad([example.ids for example in tokens], self.manifest.padding),
            "attention_mask": mask,
            "token_type_ids": token_types(tokens),
        }
        used = {name: inputs[name] for name in self.inputs}
        return Batch(0, self.embedding.run(None, used)[0], lengths, mask)

    def run(self, exit: int, batch: Batch) -> tuple[Batch, Array, Array | None]:
        hidden = batch.hidden
        for graph in self.graphs[batch.stages : exit + 1]:
            hidden, logits, *gates = graph.run(None, {"hidden": hidden, "attention_mask": batch.mask})
        return Batch(exit + 1, hidden, batch.lengths, batch.mask), logits, gates[0] if gates else None

    def keep(self, batch: Batch, rows: Array) -> Batch:
        lengths = batch.lengths[rows]
        return Batch(batch.stages, batch.hidden[rows, : lengths.max()], lengths, attention_mask(lengths))

    def merge(self, batches: Sequence[Batch]) -> Batch:
        lengths = np.concatenate([batch.lengths for batch in batches])
        hidden = np.zeros((len(lengths), lengths.max(), batches[0].hidden.shape[-1]), np.float32)
        first = 0
        for batch in batches:
            rows, longest, _ = batch.hidden.shape
            hidden[first : first + rows, :longest] = batch.hidden
            first += rows
        return Batch(batches[0].stages, hidden, lengths, attention_mask(lengths))

    def is_finite(self) -> bool:
        return True  # `export` refuses other models

    def about(self) -> dict[str, Any]:
        return {
            "fingerprint": self.manifest.fingerprint,
            "runtime": f"onnxruntime {onnxruntime.__version__}, cpu",
            "shape": dict(self.manifest.shape),
        }


def session_options(threads: int | None) -> Any:
    if threads is not None and threads < 1:
        raise BadOption(f"threads={threads} must be at least 1.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or available_cpus()
    # Every graph has its own thread pool. Spinning between operations is faster than sleeping, but after the last one
    # the threads must stop, or they would take CPU time from the next graph and from torch.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def session(file: Path, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has one class per cause
        raise CannotLoad(f"{file} cannot be loaded ({error}); export the model again.") from error
