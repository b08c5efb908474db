"""The whole model in one graph: embedding, stages, and the exit rule between them.

    input_ids, attention_mask (, token_type_ids) -> logits (rows, labels) or (rows, tokens, tags), layer (rows,)
    (, exit_logits (rows, exits, labels) or (rows, exits, tokens, tags), NaN for exits that a row did not reach)

After each stage the policy decides which rows exit, and an `If` runs the rest of the model on the others only. So
every row exits at its own layer, and a batch takes as long as the rows that stay. The arithmetic of the rule is its
own `step`, run on symbols.

For a single text, the many small nodes of a rule take as long as a layer, so their number counts. Hidden states are
compressed to the rows that stay, but the rule goes on over all rows: logits are scattered into those of the exit
before, and what it decides for rows that have exited is ignored.

`threshold` and `max_layer` are inputs with defaults, those of the policy. A threshold of NaN is never reached.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, TensorProto

import offramp
from offramp.engine import count_tokens
from offramp.errors import Incompatible
from offramp.folder.manifest import EMBEDDING, STAGES, Manifest, SavedTokenizer
from offramp.model_info import ModelInfo
from offramp.onnx_export.stages import branches_of
from offramp.onnx_export.symbolic import Recorder, Symbol, new
from offramp.policy import Policy
from offramp.policy.decide import Step, advance, check_rule, first_state, of_examples, reached
from offramp.problems import Problem
from offramp.rules.rank import Rank
from offramp.runtimes.onnx import token_weights
from offramp.tags import token_kinds

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LARGEST = 2**31 - 1
"""Bytes that a protobuf message may have."""
SHARED = 1024
"""Bytes of a weight from which on copies are worth avoiding."""

Array = Any
"""A `Symbol`, used like an array of numpy."""
Rows = dict[str, Array]
"""What a stage reads, with one row for each example that has not exited."""


def one_file(folder: Path, policy: Policy, exit_logits: bool = False) -> ModelProto:
    """The model in an exported folder as one graph that exits as the policy says; with `exit_logits`, it also
    returns those of all exits on the way."""
    info, manifest = ModelInfo.read(folder), Manifest.load(folder)
    if isinstance(policy.rule, Rank):
        raise Incompatible("the rule rank compares the documents of a query, and one file runs single texts.")
    policy.check(info.exits, info.decisions, info.has_gate)
    embedding = onnx.load(folder / EMBEDDING)
    branches = [*branches_of(onnx.load(folder / STAGES).graph)]
    stages = [branches[branch] for branch in manifest.branches]
    reads_types = info.reads_types or "token_type_ids" in {value.name for value in embedding.graph.input}
    recorder = Recorder()
    weights = Weights(recorder, [embedding.graph, *stages])
    names = INPUTS if reads_types else INPUTS[:2]
    inputs = {name: int64_input(recorder, name) for name in names}
    kinds = None
    if info.problem.of_tokens:
        tokenizer = SavedTokenizer.load(folder, manifest.tokenizer)
        kinds = token_kinds(tokenizer.backend_tokenizer, tokenizer.unk_token_id)
    rows, ends, tokens = first_rows(
        recorder, weights, embedding.graph, inputs, manifest, info.reads_types, kinds
    )
    shape = (None,) if tokens is None else (None, None)

    def stage(exit: int, rows: Rows) -> Output:
        outputs = weights.splice(stages[exit], {name: symbol.value for name, symbol in rows.items()})
        hidden = outputs.get("hidden_after", rows["hidden"].value)
        gate = outputs.get("gate")
        return Output(
            Symbol(recorder, outputs["logits"], np.float32, (*shape, len(info.labels))),
            None if gate is None else Symbol(recorder, gate, np.float32, shape),
            rows | {"hidden": Symbol(recorder, hidden, np.float32, (None, None, None))},
        )

    nest = Nest(policy, info.exits, info.decisions, stage, recorder, ends, tokens, exit_logits)
    opsets = {opset.domain: opset.version for opset in embedding.opset_import}
    model = nest.model(nest.level(0, rows), [symbol.value for symbol in inputs.values()], opsets)
    model.metadata_props["offramp"] = as_json(metadata(info, manifest, policy), policy)
    proto: ModelProto = ir.to_proto(model)
    check_size(proto)
    return proto


def check_size(proto: ModelProto) -> None:
    try:
        too_large = proto.ByteSize() > LARGEST
    except EncodeError:  # protobuf cannot even count so many
        too_large = True
    if too_large:
        raise Incompatible(
            f"the graph has more than {LARGEST:,} bytes, which one file cannot have; try int8."
        )


def as_json(about: dict[str, Any], policy: Policy) -> str:
    try:
        return json.dumps(about, allow_nan=False)
    except ValueError:  # Python writes and reads Infinity, other languages refuse the whole file
        raise Incompatible(
            f"{policy} has an infinite number, which JSON cannot represent; give a large one, such as 1e300."
        ) from None


def metadata(info: ModelInfo, manifest: Manifest, policy: Policy) -> dict[str, Any]:
    """What a host may want to know, as JSON in the file; and the rest of `ModelInfo`."""
    return {
        "version": offramp.__version__,
        "labels": [*info.labels],
        "problem_type": str(info.problem),
        "decide": str(info.decide),
        "layers": [*info.exits],
        "max_length": text_length(info, manifest),
        "truncation_side": manifest.tokenizer["truncation_side"],
        "precision": manifest.precision,
        "fingerprint": manifest.fingerprint,
        "weights": manifest.stage_weights,
        "policy": policy.to_json(),
        "policy_target": info.policy_target,
        "head": info.head,
        "trained_length": info.trained_length,
        "trained_on_pairs": info.trained_on_pairs,
    }


def text_length(info: ModelInfo, manifest: Manifest) -> int:
    """The number of tokens at which `Classifier` truncates a text."""
    limits = [info.trained_length, manifest.max_length, manifest.tokenizer["model_max_length"]]
    return min(int(limit) for limit in limits if limit is not None)


def int64_input(recorder: Recorder, name: str) -> Symbol:
    shape = ir.Shape(["rows", "tokens"])
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.INT64))
    return Symbol(recorder, value, np.int64, (None, None))


class PaddedTokens:
    """The tokens of texts where rows are padded: what `Lists` is to rules and policies elsewhere.

    Values of tokens are (rows, tokens), or (rows, 1, tokens), where `Lists` has (tokens of all, ...).
    `mask` (rows, tokens) is false for padding, `kinds` (rows, tokens) what each token is to words.
    """

    sizes, numbers = np.ones(1), np.zeros(1, int)  # before the first exit, one token stands for all

    def __init__(self, mask: Array, kinds: Array | None = None) -> None:
        self.mask = self.counts = mask
        self.length: Array = new(mask.recorder, "Shape", [mask], np.int64, (1,), start=1, end=2)
        if kinds is not None:
            before: Array = new(
                mask.recorder, "Pad", [kinds, np.array([0, 1, 0, -1])], kinds.dtype, kinds.shape
            )
            self.counts = count_tokens(kinds, before, self) & mask

    def least(self, values: Array) -> Array:
        counts = self.counts if values.ndim == 2 else self.counts[:, None]
        return np.where(counts, values, np.inf).min(-1)

    def total(self, values: Array, counted: bool = True) -> Array:
        values = np.where(self.counts if counted else self.mask, values, 0)
        if not np.issubdtype(values.dtype, np.floating):
            return values.sum(-1)
        # ReduceSum adds in an order that depends on padding
        running: Symbol = new(values.recorder, "CumSum", [values, np.array(1)], values.dtype, values.shape)
        return running[:, -1]

    def spread(self, values: Array) -> Array:
        return values[..., None]


def first_rows(
    recorder: Recorder,
    weights: "Weights",
    embedding: GraphProto,
    inputs: dict[str, Symbol],
    manifest: Manifest,
    reads_types: bool,
    kinds: Any = None,
) -> tuple[Rows, Array, PaddedTokens | None]:
    """What the first stage reads; the place of the last token of each row, from 1; and, if tokens are tagged, which
    of them count, by what each token of the vocabulary is (`kinds`).

    A row of padding only is one token of padding, as an empty text is elsewhere.
    """
    padding_mask: Array = inputs["attention_mask"]
    one = if_length_fits(padding_mask, manifest.max_length)
    ones = np.where(padding_mask > 0, one, one)
    places = new(recorder, "CumSum", [ones, np.array(1)], np.int64, (None, None))
    ends: Array = (places * padding_mask).max(-1)
    mask: Array = np.maximum(padding_mask, (places + ends[:, None] <= 1).astype(np.int64))
    types: Array = inputs.get("token_type_ids")
    arrays = {
        "attention_mask": mask,
        "token_type_ids": types,
        "input_ids": np.where(mask > 0, inputs["input_ids"], manifest.padding),
    }
    needed = {value.name: arrays[value.name].value for value in embedding.input}
    hidden = weights.splice(embedding, needed)["hidden"]
    rows = {"hidden": Symbol(recorder, hidden, np.float32, (None, None, None)), "attention_mask": mask}
    if kinds is not None:
        kind = new(recorder, "Gather", [kinds.astype(np.uint8), arrays["input_ids"]], np.uint8, mask.shape)
        return rows, np.maximum(ends, 1), PaddedTokens(mask > 0, kind.astype(np.int64))
    weights_of_heads = token_weights(mask, types if reads_types else None)
    return rows | {"token_weights": weights_of_heads}, np.maximum(ends, 1), None


def if_length_fits(mask: Symbol, most: int) -> Symbol:
    """1 if there are from 1 to `most` tokens (one more if that is odd), or an error with the name of the node.

    Gather takes indices from -n up to n - 1 in a table of n numbers, and ONNX has no other way to raise an error.
    """
    half = -(-most // 2)
    tokens: Array = new(mask.recorder, "Shape", [mask], np.int64, (1,), start=1, end=2)
    table = np.ones(half, np.int64)
    one = new(mask.recorder, "Gather", [table, tokens - (half + 1)], np.int64, (1,))
    mask.recorder.blocks[-1].nodes[-1].name = f"rows_have_from_1_to_{most}_tokens"
    return one


def trimmed(rows: Rows, end: Array) -> Rows:
    """Rows without the padding after this place."""

    def cut(name: str, x: Array) -> Symbol:
        axis = np.array([2 if name == "token_weights" else 1])
        return new(end.recorder, "Slice", [x, np.array([0]), end, axis], x.dtype, x.shape)

    return {name: cut(name, x) for name, x in rows.items()}


class Weights:
    """The weights of all stages. A stage keeps its own, because ONNX Runtime does less with constants from outside of
    a branch. The weights of layers that several stages share, as in ALBERT, are stored once, outside."""

    def __init__(self, recorder: Recorder, graphs: Sequence[GraphProto]) -> None:
        self.recorder = recorder
        digests = Counter(digest(tensor) for graph in graphs for tensor in of_layers(graph))
        self.repeated = {key for key, number in digests.items() if number > 1}
        self.outside: dict[bytes, ir.Value] = {}
        self.spliced = 0

    def splice(self, proto: GraphProto, inputs: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """The nodes of a graph, added to the innermost block with these inputs; its outputs by their plain names."""
        block, prefix = self.recorder.blocks[-1], f"stage_{self.spliced}."
        self.spliced += 1
        graph = ir.serde.deserialize_graph(proto)
        repeated = (tensor for tensor in of_layers(proto) if digest(tensor) in self.repeated)
        outside = {tensor.name: self.store(tensor) for tensor in repeated}
        replaced = inputs | outside
        outputs = {str(value.name).rpartition(".")[2]: value for value in graph.outputs}
        nodes = [*graph]
        graph.outputs.clear()
        graph.remove(nodes)
        for number, node in enumerate(nodes):
            node.name = f"{prefix}{node.op_type}_{number}"
            for index, value in enumerate(node.inputs):
                if value is not None and value.producer() is None and value.name in replaced:
                    node.replace_input_with(index, replaced[value.name])
            for value in node.outputs:
                value.name = f"{prefix}{value.name}"
        inside = [value for name, value in graph.initializers.items() if name not in outside]
        graph.initializers.clear()
        for value in inside:
            value.name = f"{prefix}{value.name}"
        block.nodes.extend(nodes)
        block.initializers.extend(inside)
        return outputs

    def store(self, tensor: TensorProto) -> ir.Value:
        key = digest(tensor)
        if key not in self.outside:
            content = ir.serde.deserialize_tensor(tensor)
            self.outside[key] = ir.Value(
                name=f"shared_{len(self.outside)}",
                shape=ir.Shape([*tensor.dims]),
                type=ir.TensorType(content.dtype),
                const_value=content,
            )
            self.recorder.blocks[0].initializers.append(self.outside[key])
        return self.outside[key]


def of_layers(graph: GraphProto) -> Iterator[TensorProto]:
    """The large weights of a stage, without those of its head.

    ONNX Runtime multiplies a single row by a constant from outside of a branch in another order than several rows. A
    head, whose products are `Gemm`, has one row for a text; a layer has one for each of its tokens.
    """
    of_heads = {name for node in graph.node if node.op_type == "Gemm" for name in node.input}
    for tensor in graph.initializer:
        if len(tensor.raw_data) >= SHARED and tensor.name not in of_heads:
            yield tensor


def digest(tensor: TensorProto) -> bytes:
    content = hashlib.sha256(tensor.raw_data)
    content.update(repr((tensor.data_type, [*tensor.dims])).encode())
    return content.digest()


class Output(NamedTuple):
    """What the stage before an exit returns."""

    logits: Array
    gate: Array | None
    rows: Rows
    """What the next stage reads."""


class Results(NamedTuple):
    """What the graph returns."""

    logits: Array
    layer: Array
    exit_logits: Array = None
    """None, unless they are asked for."""

    @property
    def named(self) -> dict[str, Array]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class Past(NamedTuple):
    """All rows after an exit, also those that took it or an earlier one."""

    logits: Array
    gate: Array | None
    state: Any
    """The rule's state."""
    stay: Array
    """(rows,) which of them go on."""
    places: Array
    """(staying rows, 1) where they are among all."""
    results: "Results"
    """If none went on."""
    end: Array | None
    """(1,) after how many tokens rows are cut, if they are."""


class Nest:
    """Levels of `If`, one for each exit.

    `stage` maps an exit and the rows that reach it to its output; `ends` are the places of their last tokens, if rows
    may be padded. `tokens` are there if they are tagged: logits are then (rows, tokens, tags), and arbitrary for
    padding.
    """

    def __init__(
        self,
        policy: Policy,
        layers: Sequence[int],
        problem: Problem,
        stage: Callable[[int, Rows], Output],
        recorder: Recorder,
        ends: Array | None = None,
        tokens: PaddedTokens | None = None,
        exit_logits: bool = False,
    ) -> None:
        self.policy, self.layers, self.problem, self.stage = policy, layers, problem, stage
        self.recorder, self.ends, self.tokens, self.exit_logits = recorder, ends, tokens, exit_logits
        self.threshold = self.default("threshold", np.asarray(policy.threshold, np.float64))
        self.max_layer = self.default("max_layer", np.asarray(policy.last_layer(layers), np.int64))

    def default(self, name: str, value: Any) -> Array:
        """An input of the graph that has a value where none is given."""
        kind = ir.TensorType(ir.DataType.from_numpy(value.dtype))
        content = ir.tensor(value, name=name)
        symbol = ir.Value(name=name, shape=ir.Shape(value.shape), type=kind, const_value=content)
        return Symbol(self.recorder, symbol, value.dtype, value.shape)

    def model(self, results: Results, inputs: Sequence[ir.Value], opsets: dict[str, int]) -> ir.Model:
        """The graph with these inputs, which returns the results."""
        block = self.recorder.blocks[0]
        for name, output in results.named.items():
            output.value.name = name
            output.value.type = ir.TensorType(ir.DataType.from_numpy(output.dtype))
            output.value.shape = ir.Shape(["rows", *output.shape[1:]])
        block.outputs = [output.value for output in results.named.values()]
        block.initializers += [self.threshold.value, self.max_layer.value]
        graph = block.graph("offramp", [*inputs, self.threshold.value, self.max_layer.value])
        graph.opset_imports.update(opsets)
        return ir.Model(graph, ir_version=10)

    def level(self, exit: int, rows: Rows, past: Past | None = None) -> Results:
        """The results of all rows, of which these have not exited before this exit."""
        rule, layer = self.policy.rule, self.layers[exit]
        output = self.stage(exit, rows)
        logits, gate = output.logits, output.gate
        if past is None:
            check_rule(rule, logits.shape[-1], self.problem, gate is not None)
            shape = self.problem.choices(logits).shape[1:-1] if rule.reads == "logits" else (1,)
            # one row, or one of its tokens, stands for all
            shape = (1, *(size or 1 for size in shape))
            state = first_state(rule, shape, self.problem, self.tokens)
        else:
            state = past.state
            logits = self.scatter(past.logits, past, logits)
            gate = None if gate is None else self.scatter(past.gate, past, gate)
        seen = advance(rule, state, exit, logits, gate, layer, self.problem, self.tokens)
        readiness, finite = of_examples(seen, self.problem, self.tokens)
        results = self.results(seen, finite, exit, logits, past)
        if exit == len(self.layers) - 1:
            return results
        threshold = self.threshold[exit] if self.threshold.ndim else self.threshold
        exits = reached(rule, readiness, threshold).all(-1)
        if layer < (self.policy.min_layer or 0):
            exits = exits & False
        stay = ~(exits | (self.max_layer <= layer))
        if past is not None:
            stay = stay & past.stay
        with self.recorder.branch() as then:
            kept, places = self.keep(output.rows, stay, past)
            end = None if past is None else past.end
            if self.ends is not None and exit % 2 == 0:  # a copy: every second level is enough
                end = np.where(stay, self.ends, 0).max(0, keepdims=True)
                kept = trimmed(kept, end)
            deeper = self.level(exit + 1, kept, Past(logits, gate, seen.state, stay, places, results, end))
            then.outputs += [result.value for result in deeper.named.values()]
        with self.recorder.branch() as otherwise:
            for result in results.named.values():
                copy = new(self.recorder, "Identity", [result], result.dtype, result.shape)
                otherwise.outputs.append(copy.value)
        outputs = self.recorder.choose(stay.any(0).value, then, otherwise)
        return Results(
            *(
                Symbol(self.recorder, value, result.dtype, result.shape)
                for value, result in zip(outputs, results.named.values(), strict=True)
            )
        )

    def results(self, seen: Step, finite: Array, exit: int, own: Array, past: Past | None) -> Results:
        """The results if no row goes on; rows that have exited keep theirs. `own` are the logits of the exit."""
        layer = self.layers[exit]
        logits: Array = seen.logits.astype(np.float32)
        every = self.with_those_before(exit, own, past) if self.exit_logits else None
        if past is None:
            return Results(logits, np.full_like(finite, layer, dtype=np.int64), every)
        if not self.policy.rule.keeps_logits:  # an exit's own are scattered already
            logits = np.where(self.of_rows(past.stay), logits, past.results.logits)
        return Results(logits, np.where(past.stay, np.int64(layer), past.results.layer), every)

    def with_those_before(self, exit: int, own: Array, past: Past | None) -> Array:
        """(rows, exits, ...) the logits of this exit and those before; NaN for those after, and for rows that have
        exited before."""
        reached = own if past is None else np.where(self.of_rows(past.stay), own, np.float32(np.nan))
        later = np.full_like(own, np.nan)
        after = [later[:, None]] * (len(self.layers) - exit - 1)
        before = [] if past is None else [past.results.exit_logits[:, :exit]]
        every: Array = np.concatenate([*before, reached[:, None], *after], axis=1)
        return every

    def of_rows(self, values: Array) -> Array:
        """(rows,) values in the shape of logits."""
        return values[:, None] if self.tokens is None else values[:, None, None]

    def keep(self, rows: Rows, stay: Array, past: Past | None) -> tuple[Rows, Array]:
        """The rows that stay, and their places among all."""
        if past is None:
            indices = new(self.recorder, "NonZero", [stay], np.int64, (1, None))
            places = new(self.recorder, "Transpose", [indices], np.int64, (None, 1), perm=[1, 0])
            return {name: value[stay] for name, value in rows.items()}, places
        here = new(self.recorder, "GatherND", [stay, past.places], np.bool_, (None,))
        return {name: value[here] for name, value in rows.items()}, past.places[here]

    def scatter(self, above: Array, past: Past, values: Array) -> Array:
        """Values of the rows that stay among those of all; tokens that were cut off get zeros."""
        if self.tokens is not None and past.end is not None:
            ends = np.arange(2 * above.ndim) == above.ndim + 1  # of the axis of tokens
            missing = self.tokens.length - past.end
            values = new(self.recorder, "Pad", [values, missing * ends], values.dtype, values.shape)
        return new(self.recorder, "ScatterND", [above, past.places, values], above.dtype, above.shape)
