"""export(): writes a model, its tokenizer and its policy to a folder that ONNX Runtime runs without torch."""

import copy
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto
from torch import nn
from tqdm.auto import tqdm

import offramp
from offramp.errors import BadData, Incompatible, NoSampleTexts
from offramp.files import atomic_folder
from offramp.folder import find_model, load_model
from offramp.folder.manifest import EMBEDDING, STAGES, TOKENIZER, Manifest
from offramp.inference.texts import BatchTokenizer, Text, check_texts
from offramp.model_info import CONFIG
from offramp.models.exit_model import ExitModel
from offramp.onnx_export.graphs import graphs
from offramp.onnx_export.int8 import Arrays, observe, quantize
from offramp.onnx_export.sample import PAIRS, SENTENCES
from offramp.onnx_export.stages import join, write_graphs
from offramp.policy import Policy
from offramp.row_hashes import load_hashes, save_hashes
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import OnnxRuntime, embedding_inputs, token_weights
from offramp.runtimes.torch import TorchRuntime

PRECISIONS = ("fp32", "int8")
TOLERANCE = 1e-3
"""The largest difference of fp32 logits from PyTorch's, relative to the largest logit."""
SAMPLE_TEXTS, SAMPLE_TOKENS = 256, 8192
"""The most texts and tokens that scales are found on; more take longer and change little."""


def export(
    model: ExitModel | str | os.PathLike[str],
    path: str | os.PathLike[str],
    precision: str = "fp32",
    tokenizer: Any = None,
    texts: Iterable[Text] | None = None,
) -> Path:
    """Export a model to ONNX: a graph for the embedding and one for all stages. The folder is written atomically.

    `Classifier.from_pretrained(path)` or `Tagger.from_pretrained(path)` runs it. Logits in int8 differ from those in
    fp32, so calibrate the policy again on a trace of the exported model.

    Args:
        model: an `ExitModel`, or the folder or hub name of one. It is not changed.
        path: the folder to create.
        precision: "fp32" or "int8".
        tokenizer: the model's fast tokenizer; by default the one saved with the model.
        texts: for int8, texts or pairs like those that the model will run on, without those that its policy will be
            calibrated on. The scales of its activations are found on up to 256 of them; by default on built-in
            English sentences, with a warning.
    """
    if precision not in PRECISIONS:
        raise Incompatible(f"precision={precision!r}; choose one of {', '.join(PRECISIONS)}.")
    hashes = None
    if not isinstance(model, ExitModel):
        source = find_model(os.fspath(model))
        model, tokenizer = load_model(source, tokenizer)
        hashes = load_hashes(source)
    elif tokenizer is None:
        raise Incompatible("pass the model's tokenizer too: export(model, path, tokenizer=tokenizer)")
    if not model.is_finite():
        raise Incompatible("the model has weights that are NaN or infinite; train it again.")
    plain, fingerprint = plain_copy(model), model.fingerprint()
    runtime = TorchRuntime(plain)
    batch_tokenizer = BatchTokenizer(tokenizer, runtime.max_length)
    tags = plain.config.problem.of_tokens
    sample = sample_tokens(batch_tokenizer, texts, tags) if precision == "int8" else None
    with atomic_folder(Path(path)) as folder:
        branches = write_stages(plain, folder, sample)
        plain.config.to_json_file(folder / CONFIG, use_diff=False)
        batch_tokenizer.rust.save(str(folder / TOKENIZER))
        if hashes is not None:
            save_hashes(folder, hashes)
        manifest = Manifest(
            precision=precision,
            branches=branches,
            max_length=runtime.max_length,
            padding=runtime.padding,
            fingerprint=fingerprint,
            tokenizer=batch_tokenizer.settings(),
            made_with=versions(),
        ).save(folder)
        if plain.config.policy is not None:
            plain.config.policy = manifest.bind(Policy.from_json(plain.config.policy)).to_json()
            plain.config.to_json_file(folder / CONFIG, use_diff=False)
        check_graphs(runtime, OnnxRuntime(folder), plain.config.encoder_config.vocab_size)
    return Path(path)


def plain_copy(model: ExitModel) -> ExitModel:
    """A copy in float32 on the CPU with eager attention, which gives the smallest graphs."""
    plain = copy.deepcopy(model)
    nn.Module.to(plain, "cpu", torch.float32)
    nn.Module.eval(plain)
    plain.backbone.set_attn_implementation("eager")
    return plain


def sample_tokens(
    tokenizer: BatchTokenizer, texts: Iterable[Text] | None, tags: bool = False
) -> list[Tokens]:
    """The tokens of texts from all over a data set, or of built-in ones; a model that tags them reads no pairs."""
    if texts is None:
        warnings.warn(
            "the scales of int8 come from built-in English sentences; pass texts=... with texts like your own to "
            "keep predictions closer to those of fp32.",
            NoSampleTexts,
            stacklevel=3,
        )
        return [*tokenizer(SENTENCES), *([] if tags else tokenizer(PAIRS))]
    checked = [*check_texts(texts, pairs=False if tags else None)]
    if not checked:
        raise BadData("there are no texts to find the scales of int8 on.")
    sample = tokenizer(checked[:: -(-len(checked) // SAMPLE_TEXTS)])
    total = np.cumsum([len(example.ids) for example in sample])
    return sample[: max(1, int((total <= SAMPLE_TOKENS).sum()))]


def write_stages(model: ExitModel, folder: Path, sample: Sequence[Tokens] | None) -> tuple[int, ...]:
    """Writes the graphs, in int8 if there is a sample, and returns the branch of each stage."""
    # one text at a time: padding must not affect the scales
    inputs: Sequence[Arrays] = [embedding_inputs([example], padding=0) for example in sample or ()]
    reads_types = model.config.info.reads_types
    converted: list[ModelProto] = []
    for graph in tqdm(graphs(model), "exporting", 1 + len(model.config.exits), disable=None):
        if sample is not None:
            activations, outputs = observe(graph, inputs)
            inputs = [
                next_inputs(before, after, reads_types) for before, after in zip(inputs, outputs, strict=True)
            ]
            graph = quantize(graph, activations)
        converted.append(graph)
    embedding, *stages = converted
    joined, branches = join(stages)
    write_graphs(folder, {EMBEDDING: embedding, STAGES: joined})
    return branches


def next_inputs(inputs: Arrays, outputs: Arrays, reads_types: bool) -> Arrays:
    """The inputs of the graph after this one."""
    arrays = {**inputs, **outputs}
    if "token_weights" not in arrays:
        types = arrays["token_type_ids"] if reads_types else None
        arrays["token_weights"] = token_weights(arrays["attention_mask"], types)
    return arrays | {"hidden": arrays.get("hidden_after", arrays["hidden"])}


def versions() -> dict[str, str]:
    return {module.__name__: module.__version__ for module in (offramp, torch, onnx, onnxruntime)}


def check_graphs(original: TorchRuntime, exported: OnnxRuntime, vocabulary: int) -> None:
    """Runs a padded batch through both runtimes: fp32 logits must agree, int8 logits must be finite."""
    draw = np.random.default_rng(0)
    lengths = (5, 2, min(17, exported.max_length))
    texts = [Tokens(draw.integers(0, vocabulary, length).tolist()) for length in lengths]
    if exported.info.reads_types:
        texts = [Tokens(text.ids, [index % 2 for index in range(len(text.ids))]) for text in texts]
    torch_batch, onnx_batch = original.embed(texts), exported.embed(texts)
    for exit, layer in enumerate(exported.info.exits):
        torch_batch, truth, _ = original.run(exit, torch_batch)
        onnx_batch, logits, _ = exported.run(exit, onnx_batch)
        difference = float(np.abs(logits - truth).max() / max(1.0, np.abs(truth).max()))
        if not np.isfinite(logits).all() or (exported.precision == "fp32" and difference > TOLERANCE):
            raise Incompatible(
                f"the exported logits differ from the model's at layer {layer}, by {difference:.2g} of the largest; "
                "run this model in PyTorch, and please report it."
            )
