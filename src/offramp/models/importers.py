"""Checkpoints of DeeBERT, RomeBERT, PABEE, ELBERT and ElasticBERT -> ExitModel.

Each system has a function that maps our names of weights to its own, and is recognized by the names in the
checkpoint. Every weight that the model needs must be present. A weight that it does not need is listed in the
result if it is known, and an error if not.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig

from offramp.data.checks import has_default_names
from offramp.data.task import NLI_OF_ROBERTA, ROBERTAS
from offramp.errors import CannotLoad
from offramp.files import read_json
from offramp.models.config import ExitConfig
from offramp.models.exit_model import ExitModel, check_weights, label_names, list_some
from offramp.models.heads import HeadConfig

# The values of a checkpoint's config.json that are used. Not `pad_token_id`: older RoBERTa files have 0 or null, but
# their code had 1 hard-coded and numbered positions from there.
ENCODER_KEYS = """
vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob
attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range layer_norm_eps
""".split()
ALBERT_KEYS = "embedding_size num_hidden_groups inner_group_num classifier_dropout_prob".split()

BUFFERS = r".*\bembeddings\.(position|token_type)_ids$"
"""Position and segment ids, which some versions of transformers saved with the weights."""
FILES = ("model.safetensors", "pytorch_model.bin")
"""The weights of a checkpoint, whole or in shards; the first is preferred."""


@dataclass(frozen=True)
class Imported:
    model: ExitModel
    system: str
    """A key of `SYSTEMS`. RomeBERT is "deebert": its names are the same."""
    dropped: list[str]
    """Weights of the checkpoint that the model does not need."""
    fresh: list[str]
    """Weights of the model that the checkpoint lacks: random, still to be trained."""


def import_checkpoint(
    folder: str | Path, num_labels: int | None = None, labels: Sequence[str] | None = None
) -> Imported:
    """The model in a folder written by DeeBERT, RomeBERT, PABEE, ELBERT or ElasticBERT.

    The folder has a `config.json` and a `model.safetensors` or `pytorch_model.bin`, whole or in shards. The tokenizer
    is not imported: load it with transformers' `AutoTokenizer`.

        imported = import_checkpoint("sst2-two_stage")
        imported.model.save_pretrained("sst2")
        print(imported.system, imported.dropped)

    Args:
        folder: the checkpoint.
        num_labels: the number of outputs, only for a checkpoint without classifiers (ElasticBERT's pretraining).
        labels: label names; by default those in `config.json`.
    """
    return import_weights(
        read_weights(Path(folder)), read_json(Path(folder) / "config.json"), num_labels, labels
    )


def import_weights(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    num_labels: int | None = None,
    labels: Sequence[str] | None = None,
) -> Imported:
    """Like `import_checkpoint`, from a state dict and the values of its `config.json`."""
    checkpoint = Checkpoint.of(weights, config)
    system, plan = recognize(checkpoint)
    return build(system, plan, checkpoint, num_labels, labels)


def read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= read_file(file)
    return weights


def weight_files(folder: Path) -> list[Path]:
    """One file, or the shards in an index; safetensors if both formats are present."""
    if not folder.is_dir():
        raise CannotLoad(
            f"no folder at {folder}; download a checkpoint from the hub first: hf download NAME --local-dir DIR"
        )
    for name in FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return shards(index)
    raise CannotLoad(f"{folder} has no weights, expected {' or '.join(FILES)}, whole or in shards")


def shards(index: Path) -> list[Path]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in files.values()
    ):
        raise CannotLoad(
            f"{index} is not an index of weights: weight_map must map names to files in the same folder"
        )
    return [index.parent / name for name in sorted(set(files.values()))]


def read_file(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CannotLoad(f"{file} is missing")
    weights = read_safetensors(file) if file.suffix == ".safetensors" else read_pickle(file)
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise CannotLoad(f"{file} is not a dict of tensors; save the model's state_dict()")
    return weights


def read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise CannotLoad(f"{file} is damaged: {error}") from error


def read_pickle(file: Path) -> Any:
    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged pickle can raise anything
        raise CannotLoad(
            f"{file} is damaged, or contains more than tensors: loading such a pickle can run any code. If you "
            "trust it, load it with the code that wrote it and save its state_dict() as model.safetensors."
        ) from error


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and the values of config.json."""

    weights: dict[str, Tensor]
    config: Mapping[str, Any]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """Gives weights their current names; where both exist, the old one stays and is reported as unknown."""
        # checkpoints converted from TensorFlow call a norm's weight gamma and its bias beta
        current = {
            name: name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
                "LayerNorm.beta", "LayerNorm.bias"
            )
            for name in weights
        }
        return cls({name if new in weights else new: weights[name] for name, new in current.items()}, config)

    def find(self, pattern: str) -> re.Match[str] | None:
        """The match of the first weight whose name starts with the pattern."""
        return next((match for name in self.weights if (match := re.match(pattern, name))), None)

    def encoder(self, model_type: str) -> Any:
        """The encoder's config. Missing values are defaults, as in the older code."""
        keys = ENCODER_KEYS + ALBERT_KEYS if model_type == "albert" else ENCODER_KEYS
        try:
            return AutoConfig.for_model(
                model_type, **{key: self.config[key] for key in keys if key in self.config}
            )
        except StrictDataclassError as error:
            raise CannotLoad(f"config.json: {error}") from error


@dataclass(frozen=True)
class ImportPlan:
    """How to turn a checkpoint into a model."""

    encoder: PreTrainedConfig
    exits: list[int]
    head: HeadConfig
    sources: dict[str, str | None]
    """Prefixes of our names -> prefixes of theirs; None for weights that the checkpoint lacks."""
    dropped: Sequence[str] = ()
    """Patterns of their names that are not needed."""

    def source(self, name: str) -> str | None:
        ours, theirs = next(pair for pair in self.sources.items() if name.startswith(pair[0]))
        return None if theirs is None else theirs + name.removeprefix(ours)

    def drops(self, name: str) -> bool:
        return any(re.match(pattern, name) for pattern in (*self.dropped, BUFFERS))


def recognize(checkpoint: Checkpoint) -> tuple[str, ImportPlan]:
    for system, make_plan in SYSTEMS.items():
        plan = make_plan(checkpoint)
        if plan is not None:
            return system, plan
    if checkpoint.find(r"heads\.classifiers\."):
        raise CannotLoad("this is an offramp model already; it needs no import")
    if checkpoint.find(r"(\w+\.)?embeddings\."):
        raise CannotLoad(
            "this is a plain transformers model; add exits with `offramp train` or ExitModel.from_encoder"
        )
    raise CannotLoad(
        "the names of the weights match no known system. Expected DeeBERT or RomeBERT "
        "(bert. or roberta.encoder.highway.*), PABEE (bert. or albert.* with classifiers.*), ELBERT "
        "(albert.encoder.exit_out_layer*) or ElasticBERT (elasticbert.encoder.pooler.*), "
        f"found {list_some(checkpoint.weights)}"
    )


def build(
    system: str,
    plan: ImportPlan,
    checkpoint: Checkpoint,
    num_labels: int | None,
    labels: Sequence[str] | None,
) -> Imported:
    count = count_labels(plan, checkpoint, num_labels, labels)
    names = label_names(labels or saved_labels(plan, checkpoint.config, count), None, count)
    model = build_empty(plan, names)
    sources = {name: plan.source(name) for name in model.state_dict()}
    used = {theirs for theirs in sources.values() if theirs is not None}
    unused = sorted(set(checkpoint.weights) - used)
    weights = checkpoint.weights
    needed = {theirs: tensor for ours, tensor in model.state_dict().items() if (theirs := sources[ours])}
    check_weights(
        missing=[name for name in needed if name not in weights],
        unknown=[name for name in unused if not plan.drops(name)],
        shapes=[
            (name, weights[name].shape, tensor.shape)
            for name, tensor in needed.items()
            if name in weights and weights[name].shape != tensor.shape
        ],
    )
    state = {ours: weights[theirs] for ours, theirs in sources.items() if theirs is not None}
    model.load_state_dict(state, strict=False)
    nn.Module.eval(model)
    fresh = [ours for ours, theirs in sources.items() if theirs is None]
    return Imported(model, system, dropped=unused, fresh=fresh)


def count_labels(
    plan: ImportPlan, checkpoint: Checkpoint, num_labels: int | None, labels: Sequence[str] | None
) -> int:
    """The classifier's number of outputs; num_labels in older configs can be wrong."""
    classifier = plan.source("heads.classifiers.0.weight")
    if classifier is None:
        count = num_labels or len(labels or ())
        if count < 1:
            raise CannotLoad("the checkpoint has no classifier; pass num_labels=... or labels=...")
        return count
    if classifier not in checkpoint.weights:
        raise CannotLoad(f"the checkpoint has no {classifier}; is the file complete?")
    count = len(checkpoint.weights[classifier])
    if num_labels not in (None, count):
        raise CannotLoad(f"num_labels={num_labels}, but the classifiers have {count} outputs; omit it")
    return count


def saved_labels(plan: ImportPlan, config: Mapping[str, Any], count: int) -> list[str] | None:
    """The names in config.json if their number is right; or the usual ones of a RoBERTa trained on MNLI."""
    saved = config.get("id2label")
    by_index = {str(index): str(name) for index, name in saved.items()} if isinstance(saved, dict) else {}
    indices = [str(index) for index in range(count)]
    names = [by_index[index] for index in indices] if set(by_index) == set(indices) else None
    mnli = str(config.get("finetuning_task")).lower().startswith("mnli") and count == len(NLI_OF_ROBERTA)
    if mnli and plan.encoder.model_type in ROBERTAS and (names is None or has_default_names(names)):
        return list(NLI_OF_ROBERTA)
    return names


def build_empty(plan: ImportPlan, names: dict[int, str]) -> ExitModel:
    trained = plan.source("heads.classifiers.0.weight") is not None
    config = ExitConfig(
        encoder_config=plan.encoder,
        exits=plan.exits,
        head=plan.head.to_dict(),
        initializer_range=plan.encoder.initializer_range,
        id2label=names,
        fine_tuned=trained,
        inner_exits_trained=trained,
    )
    try:
        return ExitModel(config)
    except (KeyError, ValueError) as error:
        raise CannotLoad(f"config.json describes an encoder that cannot be built: {error}") from error


def deebert(checkpoint: Checkpoint) -> ImportPlan | None:
    mark = checkpoint.find(r"(bert|roberta)\.encoder\.highway\.")
    if mark is None:
        return None
    family = mark[1]
    encoder = checkpoint.encoder(family)
    last = encoder.num_hidden_layers - 1
    sources: dict[str, str | None] = {"backbone.": f"{family}."}
    for exit in range(last):
        sources[f"heads.poolers.{exit}."] = f"{family}.encoder.highway.{exit}.pooler."
        sources[f"heads.classifiers.{exit}."] = f"{family}.encoder.highway.{exit}.classifier."
    sources[f"heads.poolers.{last}."] = f"{family}.pooler."
    sources[f"heads.classifiers.{last}."] = "classifier."
    return ImportPlan(
        encoder,
        exits=list(range(1, last + 2)),
        head=HeadConfig(pooling="first", dropout=head_dropout(encoder)),
        sources=sources,
        # RomeBERT's momentum teacher is a second encoder, needed only for training
        dropped=(rf"{family}\.encoder\.highway\.{last}\.", rf"slow_{family}\.", r"slow_classifier\."),
    )


def elasticbert(checkpoint: Checkpoint) -> ImportPlan | None:
    mark = checkpoint.find(r"(elasticbert\.)?encoder\.pooler\.\d")
    if mark is None:
        return None
    prefix = mark[1] or ""  # a bare encoder is saved without a prefix
    encoder = checkpoint.encoder("bert")
    layers = encoder.num_hidden_layers
    static = checkpoint.find(r"classifier\.") is not None
    first = layers - (1 if static else checkpoint.config.get("num_output_layers", layers))
    sources: dict[str, str | None] = {"backbone.": prefix}
    for exit, layer in enumerate(range(first, layers)):
        sources[f"heads.poolers.{exit}."] = f"{prefix}encoder.pooler.{layer}."
    if static:
        sources["heads.classifiers.0."] = "classifier."
    else:
        sources["heads.classifiers."] = "classifiers." if checkpoint.find(r"classifiers\.") else None
    return ImportPlan(
        encoder,
        exits=list(range(first + 1, layers + 1)),
        head=HeadConfig(pooling="first", dropout=head_dropout(encoder)),
        sources=sources,
        dropped=(r"predictions\.", r"sop_classifier\."),  # heads of the pretraining tasks
    )


def elbert(checkpoint: Checkpoint) -> ImportPlan | None:
    if not checkpoint.find(r"albert\.encoder\.exit_out_layer"):
        return None
    pooled = checkpoint.config.get("pooler_input", "cls")
    if pooled != "cls":
        raise CannotLoad(
            f"pooler_input={pooled!r} cannot be imported, only 'cls': ELBERT's mean and maximum include the padding, "
            "so that a prediction depends on how far its text is padded"
        )
    encoder = checkpoint.encoder("albert")
    layers = encoder.num_hidden_layers
    heads = head_names(checkpoint)
    if layers % len(heads):
        raise CannotLoad(
            f"{len(heads)} heads (num_exit_layers) do not divide {layers} layers evenly. "
            "Was config.json saved with these weights?"
        )
    hidden = checkpoint.weights.get(f"{heads[0]}classifier1.weight")
    pooler = checkpoint.weights.get(f"{heads[0]}pooler.weight")
    if pooler is not None and pooler.shape[0] != pooler.shape[1]:
        raise CannotLoad(
            f"fc_size1={pooler.shape[0]} cannot be imported, only {pooler.shape[1]}, the encoder's hidden size"
        )
    sources: dict[str, str | None] = {"backbone.": "albert."}
    for index, head in enumerate(heads):
        sources[f"heads.hidden.{index}."] = f"{head}classifier1."
        sources[f"heads.classifiers.{index}."] = f"{head}classifier{'' if hidden is None else 2}."
    for exit in range(layers):
        head = heads[exit // (layers // len(heads))]
        sources[f"heads.poolers.{exit}.dense."] = f"{'albert.' if pooler is None else head}pooler."
    return ImportPlan(
        encoder,
        exits=list(range(1, layers + 1)),
        head=HeadConfig(
            pooling="first",
            # our pooler is shared by all exits or by none: with several, each exit gets a copy
            pooler="shared" if pooler is None or len(heads) == 1 else "own",
            classifier={1: "shared", layers: "own"}.get(len(heads), layers // len(heads)),
            hidden=0 if hidden is None else len(hidden),
            dropout=head_dropout(encoder),
        ),
        sources=sources,
        dropped=(r"albert\.pooler\.",),  # ALBERT's own, if the heads have theirs
    )


def head_names(checkpoint: Checkpoint) -> list[str]:
    """The prefix of each head's weights."""
    matches = (re.match(r"albert\.encoder\.exit_out_layers?\.(\d+\.)?", name) for name in checkpoint.weights)
    return sorted({match[0] for match in matches if match}, key=lambda name: (len(name), name))


def pabee(checkpoint: Checkpoint) -> ImportPlan | None:
    mark = checkpoint.find(r"(bert|albert)\.")
    if mark is None or not checkpoint.find(r"classifiers\.\d"):
        return None
    family = mark[1]
    encoder = checkpoint.encoder(family)
    return ImportPlan(
        encoder,
        exits=list(range(1, encoder.num_hidden_layers + 1)),
        head=HeadConfig(pooling="first", pooler="shared", dropout=head_dropout(encoder)),
        sources={
            "backbone.": f"{family}.",
            "heads.poolers.0.dense.": "albert.pooler." if family == "albert" else "bert.pooler.dense.",
            "heads.classifiers.": "classifiers.",
        },
    )


def head_dropout(encoder: Any) -> float:
    """The dropout before a classifier, for which ALBERT has a separate value."""
    return float(getattr(encoder, "classifier_dropout_prob", encoder.hidden_dropout_prob))


SYSTEMS: dict[str, Callable[[Checkpoint], ImportPlan | None]] = {
    "deebert": deebert,
    "pabee": pabee,
    "elbert": elbert,
    "elasticbert": elasticbert,
}
