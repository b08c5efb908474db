"""export(): writes a model, its tokenizer and its policy to a folder that ONNX Runtime runs without torch."""

import copy
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import offramp
from offramp.atomic import atomic_folder
from offramp.classifier.texts import BatchTokenizer
from offramp.errors import Incompatible
from offramp.model import ExitModel
from offramp.onnx_export.graphs import graphs
from offramp.onnx_export.int8 import quantize
from offramp.onnx_export.weights import WeightsFile
from offramp.policy import Policy, check_certificate
from offramp.stages import Tokens
from offramp.stages.onnx import OnnxStages
from offramp.stages.torch import TorchStages, backbone_shape
from offramp.store import Manifest, load_model
from offramp.store.manifest import CONFIG, TOKENIZER

PRECISIONS = ("fp32", "int8")
EMBEDDING, STAGE, WEIGHTS = "embedding.onnx", "stage-{:02}.onnx", "weights.bin"
TOLERANCE = 1e-3
"""The largest difference of fp32 logits from PyTorch's, relative to the largest logit."""


def export(
    model: ExitModel | str | os.PathLike[str],
    path: str | os.PathLike[str],
    precision: str = "fp32",
    tokenizer: Any = None,
) -> Path:
    """Export a model to ONNX: one graph for the embedding and one for each stage. The folder is written atomically.

    `Classifier.from_pretrained(path)` runs it. Logits in int8 differ from those in fp32, so calibrate the policy
    again on a trace of the exported model.

    Args:
        model: an `ExitModel`, or the folder or hub name of one. It is not changed.
        path: the folder to create.
        precision: "fp32" or "int8".
        tokenizer: the model's fast tokenizer; by default the one saved with the model.
    """
    if precision not in PRECISIONS:
        raise Incompatible(f"precision={precision!r}; choose one of {', '.join(PRECISIONS)}.")
    if not isinstance(model, ExitModel):
        model, tokenizer = load_model(model, tokenizer)
    elif tokenizer is None:
        raise Incompatible("pass the model's tokenizer too: export(model, path, tokenizer=tokenizer)")
    if not model.is_finite():
        raise Incompatible("the model has weights that are NaN or infinite; train it again.")
    plain = plain_copy(model)
    policy = plain.config.policy
    if policy is not None:
        check_certificate(Policy.from_json(policy), model.fingerprint(), precision)
    with atomic_folder(Path(path)) as folder:
        embedding, *stage_files = write_graphs(plain, folder, precision)
        plain.config.to_json_file(folder / CONFIG, use_diff=False)
        stages = TorchStages(plain)
        batch_tokenizer = BatchTokenizer(tokenizer, stages.max_length)
        batch_tokenizer.rust.save(str(folder / TOKENIZER))
        Manifest(
            precision=precision,
            embedding=embedding,
            stages=tuple(stage_files),
            max_length=stages.max_length,
            padding=stages.padding,
            shape=backbone_shape(plain.config),
            fingerprint=model.fingerprint(),
            tokenizer=batch_tokenizer.settings(),
            made_with=versions(),
        ).save(folder)
        check_graphs(stages, OnnxStages(folder), plain.config.encoder_config.vocab_size)
    return Path(path)


def plain_copy(model: ExitModel) -> ExitModel:
    """A copy in float32 on the CPU with eager attention, which gives the smallest graphs."""
    plain = copy.deepcopy(model)
    nn.Module.to(plain, "cpu", torch.float32)
    nn.Module.eval(plain)
    plain.backbone.set_attn_implementation("eager")
    return plain


def write_graphs(model: ExitModel, folder: Path, precision: str) -> list[str]:
    """The file names of the embedding and of each stage; graphs that are equal, weights included, share a file."""
    names: list[str] = []
    written: dict[bytes, str] = {}
    with (folder / WEIGHTS).open("wb") as file:
        weights = WeightsFile(file)
        for index, graph in enumerate(graphs(model)):
            graph = quantize(graph) if precision == "int8" else graph
            content = weights.move_from(graph).SerializeToString()
            digest = hashlib.sha256(content).digest()
            if digest not in written:
                written[digest] = STAGE.format(index) if index else EMBEDDING
                (folder / written[digest]).write_bytes(content)
            names.append(written[digest])
    return names


def versions() -> dict[str, str]:
    return {module.__name__: module.__version__ for module in (offramp, torch, onnx, onnxruntime)}


def check_graphs(expected: TorchStages, found: OnnxStages, vocabulary: int) -> None:
    """Runs a padded batch through both runtimes: fp32 logits must agree, int8 logits must be finite."""
    draw = np.random.default_rng(0)
    lengths = (5, 2, min(17, found.max_length))
    texts = [Tokens(draw.integers(0, vocabulary, length).tolist()) for length in lengths]
    torch_batch, onnx_batch = expected.embed(texts), found.embed(texts)
    for exit, layer in enumerate(found.layers):
        torch_batch, truth, _ = expected.run(exit, torch_batch)
        onnx_batch, logits, _ = found.run(exit, onnx_batch)
        difference = float(np.abs(logits - truth).max() / max(1.0, np.abs(truth).max()))
        if not np.isfinite(logits).all() or (found.precision == "fp32" and difference > TOLERANCE):
            raise Incompatible(
                f"the exported logits differ from the model's at layer {layer}, by {difference:.2g} of the largest; "
                "run this model in PyTorch, and please report it."
            )
