"""export(): a model, its tokenizer and its policy -> a folder that ONNX Runtime runs without torch."""

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
from offramp.export.graphs import graphs
from offramp.export.int8 import quantised
from offramp.export.weights import Weights
from offramp.model import ExitModel
from offramp.policy import Policy, check_certificate
from offramp.stages import Tokens
from offramp.stages.onnx import OnnxStages
from offramp.stages.torch import TorchStages
from offramp.store import Manifest, load_model
from offramp.store.manifest import CONFIG, TOKENIZER
from offramp.trace.collecting import sizes

PRECISIONS = ("fp32", "int8")
EMBEDDING, STAGE, WEIGHTS = "embedding.onnx", "stage-{:02}.onnx", "weights.bin"
TOLERANCE = 1e-3
"""How far logits in fp32 may be from PyTorch's, as a share of the largest."""


def export(
    model: ExitModel | str | os.PathLike[str],
    path: str | os.PathLike[str],
    precision: str = "fp32",
    tokenizer: Any = None,
) -> Path:
    """Write a model as ONNX graphs, one for the embedding and one for each stage, whole or not at all.

    `Classifier.from_pretrained(path)` runs them. The logits of int8 differ from those of fp32, so a policy
    should be calibrated again, on a trace of the exported model: `Classifier.collect`.

    Args:
        model: an `ExitModel`, or the folder or hub name of one. It is left as it is.
        path: the folder to make.
        precision: "fp32" or "int8".
        tokenizer: the model's fast tokenizer; by default the one that lies beside the model.
    """
    if precision not in PRECISIONS:
        raise Incompatible(f"precision={precision!r}; choose one of {', '.join(PRECISIONS)}")
    if not isinstance(model, ExitModel):
        model, tokenizer = load_model(model, tokenizer)
    elif tokenizer is None:
        raise Incompatible("pass the model's tokenizer too: export(model, path, tokenizer=tokenizer)")
    if not model.is_finite():
        raise Incompatible("some of the model's weights are NaN or infinite; train it again.")
    plain = prepared(model)
    policy = plain.config.policy
    if policy is not None:
        check_certificate(Policy.from_json(policy), model.fingerprint(), precision)
    with atomic_folder(Path(path)) as folder:
        embedding, *stages = write_graphs(plain, folder, precision)
        plain.config.to_json_file(folder / CONFIG, use_diff=False)
        limit = TorchStages(plain).max_length
        batch_tokenizer = BatchTokenizer(tokenizer, limit)
        batch_tokenizer.rust.save(str(folder / TOKENIZER))
        Manifest(
            precision=precision,
            embedding=embedding,
            stages=tuple(stages),
            max_length=limit,
            padding=plain.config.encoder_config.pad_token_id or 0,
            shape=sizes(plain.config),
            fingerprint=model.fingerprint(),
            tokenizer=batch_tokenizer.settings(),
            made_with=versions(),
        ).save(folder)
        check(plain, OnnxStages(folder))
    return Path(path)


def prepared(model: ExitModel) -> ExitModel:
    """A copy that computes in float32 on the CPU, with attention written out: its graphs are the smallest."""
    plain = copy.deepcopy(model)
    nn.Module.to(plain, "cpu", torch.float32)
    nn.Module.eval(plain)
    plain.backbone.set_attn_implementation("eager")
    return plain


def write_graphs(model: ExitModel, folder: Path, precision: str) -> list[str]:
    """The file of the embedding and of each stage; graphs that are the same, weights included, share one."""
    names: list[str] = []
    written: dict[bytes, str] = {}
    with Weights(folder / WEIGHTS) as weights:
        for index, graph in enumerate(graphs(model)):
            content = weights.take(quantised(graph) if precision == "int8" else graph).SerializeToString()
            digest = hashlib.sha256(content).digest()
            if digest not in written:
                written[digest] = STAGE.format(index) if index else EMBEDDING
                (folder / written[digest]).write_bytes(content)
            names.append(written[digest])
    return names


def versions() -> dict[str, str]:
    return {module.__name__: module.__version__ for module in (offramp, torch, onnx, onnxruntime)}


def check(model: ExitModel, stages: OnnxStages) -> None:
    """Runs a padded batch through the graphs: in fp32 they must say what the model says."""
    vocabulary = model.config.encoder_config.vocab_size
    draw = np.random.default_rng(0)
    texts = [
        Tokens(draw.integers(0, vocabulary, length).tolist()) for length in (5, 2, min(17, stages.max_length))
    ]
    truth, found = TorchStages(model), stages
    expected, have = truth.embed(texts), found.embed(texts)
    for exit, layer in enumerate(stages.layers):
        expected, logits, _ = truth.run(exit, expected)
        have, answers, _ = found.run(exit, have)
        difference = float(np.abs(answers - logits).max() / max(1.0, np.abs(logits).max()))
        if not np.isfinite(answers).all() or (stages.manifest.precision == "fp32" and difference > TOLERANCE):
            raise Incompatible(
                f"the graphs say something else than the model at layer {layer} (by {difference:.2g} of the "
                "largest logit); run it in PyTorch, and please report this model."
            )
