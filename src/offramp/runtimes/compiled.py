"""Runs a portable folder: one graph in ONNX Runtime, with the exits and their policy inside."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from offramp.errors import Incompatible
from offramp.folder import Manifest
from offramp.folder.manifest import GRAPH
from offramp.model_info import ModelInfo
from offramp.problems import Array
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import BATCH_TOKENS, OVERHEAD, CompiledPolicy

Batch = Sequence[Tokens]
"""A micro-batch: the graph keeps nothing between exits."""


class CompiledRuntime:
    """The graph decides by its own policy. Where something else needs the exits one by one, such as a trace, another
    rule or a deadline, all layers before an exit run again."""

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        folder = Path(folder)
        self.manifest = Manifest.load(folder)
        self.info = self.manifest.check(ModelInfo.read(folder))
        self.name = f"onnxruntime {onnxruntime.__version__}, cpu"
        self.precision, self.max_length = self.manifest.precision, self.manifest.max_length
        self.batch_tokens, self.overhead = BATCH_TOKENS, OVERHEAD
        self.compiled = CompiledPolicy(folder / GRAPH, self.manifest, self.info, threads)

    def embed(self, tokens: Sequence[Tokens]) -> Batch:
        return tokens

    def run(self, exit: int, batch: Batch) -> tuple[Batch, Array, Array | None]:
        if not self.compiled.policy.rule.keeps_logits:
            raise Incompatible(
                f"the graph of a portable folder returns what its policy {self.compiled.policy} makes of the logits, "
                "and runs no other; use the exported folder that it was made from."
            )
        threshold = np.full(np.shape(self.compiled.policy.threshold), np.nan)
        _, logits = self.compiled.run(batch, threshold, self.info.exits[exit])
        return batch, logits, None

    def keep(self, batch: Batch, rows: Array) -> Batch:
        return [batch[row] for row in rows]

    def merge(self, batches: Sequence[Batch]) -> Batch:
        return [example for batch in batches for example in batch]

    def is_finite(self) -> bool:
        return True  # `export` refuses other models

    def fingerprint(self) -> str:
        return self.manifest.fingerprint
