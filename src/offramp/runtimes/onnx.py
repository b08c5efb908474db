"""Runs exported models in ONNX Runtime on the CPU, without torch or transformers.

The stages of an exported folder are branches of one graph, so that they share threads and memory, and hidden states
pass from one to the next without copying. A portable folder has one graph with the exits and their policy inside.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime

from offramp.cpus import available_cpus
from offramp.errors import BadConfig, BadOption, CannotLoad, Incompatible
from offramp.folder.manifest import EMBEDDING, GRAPH, STAGES, WEIGHTS, Manifest
from offramp.model_info import ModelInfo
from offramp.policy import Policy
from offramp.problems import Array
from offramp.runtimes import Tokens, attention_mask, pad, token_types


@dataclass(frozen=True)
class Batch:
    """A micro-batch between two stages."""

    stages: int  # how many have run
    hidden: Array  # (rows, longest, width)
    lengths: Array  # (rows,)
    types: Array | None  # (rows, longest) of tokens, None if no head reads them
    mask: Array  # (rows, longest)
    weights: Array  # (rows, means, longest), see `token_weights`


class ExportedModel:
    """What a folder says about its model; shared by the runtimes below."""

    batch_tokens, overhead = 1024, 16  # as measured for PyTorch

    def __init__(self, folder: Path, threads: int | None) -> None:
        self.manifest = Manifest.load(folder)
        self.info = self.manifest.check(ModelInfo.read(folder))
        self.name = f"onnxruntime {onnxruntime.__version__}, cpu"
        self.precision, self.max_length = self.manifest.precision, self.manifest.max_length
        self.threads = threads
        self.compiled: OneGraph | None = None

    def compile(self, graph: Path | bytes) -> "OneGraph":
        """Runs texts through this graph (`onnx_export/one_file.py`) where its policy is the one wanted."""
        self.compiled = OneGraph(graph, self.manifest, self.info, self.threads)
        return self.compiled

    def is_finite(self) -> bool:
        return True  # `export` refuses other models

    def fingerprint(self) -> str:
        return self.manifest.fingerprint


class OnnxRuntime(ExportedModel):
    """The stages in a folder written by `export`; `threads` is the number of CPUs used for one, by default all."""

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        folder = Path(folder)
        super().__init__(folder, threads)
        with without_links(folder) as graphs:
            self.graph = Graph(graphs / STAGES, session_options(threads))
            # so little work that waking other threads would cost more than they save
            self.embedding = Graph(graphs / EMBEDDING, session_options(1))
        if GRAPH in self.manifest.digests:
            self.compile(folder / GRAPH)
        self.branches = [np.array(branch) for branch in self.manifest.branches]
        self.check(folder)

    def check(self, folder: Path) -> None:
        """Refuse graphs that contradict config.json."""
        exits, labels = self.info.exits, self.info.labels
        if len(self.branches) != len(exits):
            raise CannotLoad(f"{folder}: {len(self.branches)} stages do not fit exits={[*exits]}.")
        outputs = self.graph.outputs
        if outputs.get("logits", [None])[-1] != len(labels) or ("gate" in outputs) != self.info.has_gate:
            raise CannotLoad(
                f"{folder}: the outputs of the stages, {outputs}, do not fit {len(labels)} labels."
            )

    def embed(self, tokens: Sequence[Tokens]) -> Batch:
        inputs = embedding_inputs(tokens, self.manifest.padding)
        hidden, types = self.embedding(inputs)["hidden"], inputs["token_type_ids"]
        return make_batch(
            0, hidden, inputs["attention_mask"].sum(-1), types if self.info.reads_types else None
        )

    def run(self, exit: int, batch: Batch) -> tuple[Batch, Array, Array | None]:
        arrays = {"hidden": batch.hidden, "attention_mask": batch.mask, "token_weights": batch.weights}
        for branch in self.branches[batch.stages : exit + 1]:
            outputs = self.graph(arrays | {"branch": branch})
            arrays["hidden"] = outputs["hidden_after"]
        state = replace(batch, stages=exit + 1, hidden=arrays["hidden"])
        logits, gate = outputs["logits"], outputs.get("gate")
        if self.info.problem.of_tokens:  # without padding
            real = batch.mask.astype(bool)
            logits, gate = logits[real], None if gate is None else gate[real]
        return state, logits, gate

    def keep(self, batch: Batch, rows: Array) -> Batch:
        lengths = batch.lengths[rows]
        longest = lengths.max()
        types = None if batch.types is None else batch.types[rows, :longest]
        return make_batch(batch.stages, batch.hidden[rows, :longest], lengths, types)

    def merge(self, batches: Sequence[Batch]) -> Batch:
        lengths = np.concatenate([batch.lengths for batch in batches])
        hidden = stack([batch.hidden for batch in batches])
        types = [batch.types for batch in batches if batch.types is not None]
        return make_batch(batches[0].stages, hidden, lengths, stack(types) if types else None)


class PortableRuntime(ExportedModel):
    """A portable folder: one graph, which decides by its own policy.

    Where something else needs the exits one by one, such as a trace, another rule or a deadline, all layers before an
    exit run again.
    """

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        super().__init__(Path(folder), threads)
        self.graph = self.compile(Path(folder) / GRAPH)

    def embed(self, tokens: Sequence[Tokens]) -> Sequence[Tokens]:
        return tokens

    def run(self, exit: int, batch: Sequence[Tokens]) -> tuple[Sequence[Tokens], Array, Array | None]:
        policy = self.graph.policy
        if not policy.rule.keeps_logits:
            raise Incompatible(
                f"the graph of a portable folder returns what its policy {policy} makes of the logits, "
                "and runs no other; use the exported folder that it was made from."
            )
        _, logits = self.graph.run(batch, None, self.info.exits[exit])
        return batch, logits, None

    def keep(self, batch: Sequence[Tokens], rows: Array) -> Sequence[Tokens]:
        return [batch[row] for row in rows]

    def merge(self, batches: Sequence[Sequence[Tokens]]) -> Sequence[Tokens]:
        return [example for batch in batches for example in batch]


def open_folder(folder: Path, threads: int | None = None) -> OnnxRuntime | PortableRuntime:
    """The runtime of an exported or portable folder."""
    return (OnnxRuntime if (folder / STAGES).is_file() else PortableRuntime)(folder, threads)


@contextmanager
def without_links(folder: Path) -> Iterator[Path]:
    """A folder with the graphs and their weights; a temporary copy if the weights are behind a link, as in the cache
    of the hub, which ONNX Runtime refuses."""
    weights = folder / WEIGHTS
    if not weights.exists() or not (weights.is_symlink() or weights.stat().st_nlink > 1):
        yield folder
        return
    with TemporaryDirectory(prefix="offramp-", ignore_cleanup_errors=True) as copy:
        for name in (STAGES, EMBEDDING, WEIGHTS):
            shutil.copyfile(folder / name, Path(copy) / name)
        yield Path(copy)


class OneGraph:
    """The whole model in one graph with the exits inside (`onnx_export/one_file.py`), as other languages run it.

    It decides by the policy that it was made with, at any threshold and `max_layer`. One call decides for all rows of
    a micro-batch, with no Python between the exits: faster for one text, and as fast in batches.
    """

    def __init__(self, graph: Path | bytes, manifest: Manifest, info: ModelInfo, threads: int | None) -> None:
        self.graph = Graph(graph, session_options(threads))
        self.padding = manifest.padding
        try:
            about = json.loads(self.graph.session.get_modelmeta().custom_metadata_map["offramp"])
            self.policy, self.layers = Policy.from_json(about["policy"]), tuple(about["layers"])
            self.exits = {layer: exit for exit, layer in enumerate(self.layers)}
            self.defaults = self.policy.threshold, self.policy.last_layer(self.layers)
            self.same_point = about["decide"] == str(info.decide)
            if about["weights"] != manifest.stage_weights:
                raise BadConfig("it is of another model")
        except (KeyError, TypeError, ValueError) as error:
            name = graph if isinstance(graph, Path) else "a graph"
            raise CannotLoad(f"{name} cannot be used ({error}); export the model again.") from error

    def runs(self, policy: Policy) -> bool:
        """Whether this is the policy inside, at any threshold and `max_layer`; or `never`."""
        if not self.same_point:  # another operating point was stored after the export
            return False
        if policy.rule.reads == "nothing":
            return self.policy.rule.keeps_logits
        inside = self.policy
        return (policy.rule, policy.min_layer, type(policy.threshold)) == (
            inside.rule,
            inside.min_layer,
            type(inside.threshold),
        )

    def decide(self, tokens: Sequence[Tokens], policy: Policy) -> tuple[Array, Array]:
        threshold = None if policy.rule.reads == "nothing" else policy.threshold
        return self.run(tokens, threshold, policy.last_layer(self.layers))

    def run(self, tokens: Sequence[Tokens], threshold: Any, max_layer: int) -> tuple[Array, Array]:
        """Like `decide`; without a threshold, all rows exit at `max_layer`."""
        inputs = embedding_inputs(tokens, self.padding)
        if (threshold, max_layer) != self.defaults:
            if threshold is None:  # NaN is never reached
                threshold = np.full(np.shape(self.policy.threshold), np.nan)
            inputs |= {"threshold": np.asarray(threshold, np.float64), "max_layer": np.asarray(max_layer)}
        outputs = self.graph(inputs)
        logits = outputs["logits"]
        if logits.ndim > 2:
            logits = logits[inputs["attention_mask"].astype(bool)]
        return np.array([self.exits[layer] for layer in outputs["layer"].tolist()], np.int64), logits


def make_batch(stages: int, hidden: Array, lengths: Array, types: Array | None) -> Batch:
    mask = attention_mask(lengths)
    return Batch(stages, hidden, lengths, types, mask, token_weights(mask, types))


def token_weights(mask: Array, types: Array | None) -> Array:
    """(rows, means, longest) what heads multiply tokens by: for the mean of all, then of each text of a pair.

    Without types, the first is repeated: ONNX Runtime adds up products with a single vector in another order.
    """
    parts = [mask, mask] if types is None else [mask, mask * (1 - types), mask * types]
    chosen = np.stack(parts, axis=1).astype(np.float32)
    chosen /= np.maximum(chosen.sum(-1, keepdims=True), 1)
    return chosen


def stack(parts: Sequence[Array]) -> Array:
    """(rows of all, longest, ...), padded with zeros."""
    longest = max(part.shape[1] for part in parts)
    stacked = np.zeros((sum(map(len, parts)), longest, *parts[0].shape[2:]), parts[0].dtype)
    first = 0
    for part in parts:
        stacked[first : first + len(part), : part.shape[1]] = part
        first += len(part)
    return stacked


def embedding_inputs(tokens: Sequence[Tokens], padding: int) -> dict[str, Array]:
    return {
        "input_ids": pad([example.ids for example in tokens], padding),
        "attention_mask": pad([[1] * len(example.ids) for example in tokens], 0),
        "token_type_ids": token_types(tokens),
    }


def session_options(threads: int | None) -> Any:
    if threads is not None and threads < 1:
        raise BadOption(f"threads={threads} must be at least 1.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or available_cpus()
    options.log_severity_level = 3  # it warns of inputs that have defaults
    # Spinning between operations, and between stages, is faster than sleeping, but only briefly: on a busy machine, a
    # spinning thread holds the CPU that the thread it waits for needs.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "50")
    return options


class Graph:
    """A graph in ONNX Runtime: named arrays in, named arrays out. Inputs that it does not have are ignored."""

    def __init__(self, graph: Path | bytes, options: Any) -> None:
        try:
            self.session = onnxruntime.InferenceSession(
                graph,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],  # the fused operation is slower
            )
        except Exception as error:  # ONNX Runtime has one class per cause
            name = graph if isinstance(graph, Path) else "a graph"
            raise CannotLoad(f"{name} cannot be loaded ({error}); export the model again.") from error
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.optional = [value.name for value in self.session.get_overridable_initializers()]
        self.outputs = {value.name: value.shape for value in self.session.get_outputs()}

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        names = [*self.inputs, *(name for name in self.optional if name in arrays)]
        results = self.session.run(None, {name: arrays[name] for name in names})
        return dict(zip(self.outputs, results, strict=True))
