"""What the importers share: a checkpoint, the plan for it, and how the plan becomes a model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig

from offramp.config import ExitConfig
from offramp.errors import CannotLoad
from offramp.heads import HeadConfig
from offramp.model import ExitModel, label_names
from offramp.tasks.base import NLI_OF_ROBERTA, ROBERTAS, has_default_names

# The values of a foreign config.json that reach the encoder. Not `pad_token_id`: older files give RoBERTa 0,
# or null, while its code had 1 written into it, and counts positions from there.
ENCODER_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)
ALBERT_KEYS = ("embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob")

BUFFERS = r".*\bembeddings\.(position|token_type)_ids$"
"""Counted, not learned: some versions of transformers saved them."""


@dataclass(frozen=True)
class Imported:
    """What came out of a checkpoint."""

    model: ExitModel
    system: str
    """Which of `SYSTEMS`; "deebert" stands for RomeBERT too, whose names are the same."""
    dropped: list[str]
    """Weights of the checkpoint that the model has no use for."""
    fresh: list[str]
    """Weights of the model that the checkpoint does not have: random, to be trained."""


@dataclass(frozen=True)
class Checkpoint:
    """What an older codebase has saved: tensors by name, and the values of config.json."""

    weights: dict[str, Tensor]
    config: Mapping[str, Any]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """Under modern names, except where one is taken: then the old name is left over, and an error."""
        return cls(
            {name if modern(name) in weights else modern(name): weights[name] for name in weights}, config
        )

    def find(self, pattern: str) -> re.Match[str] | None:
        """How the first name that begins with the pattern matches it."""
        return next((match for name in self.weights if (match := re.match(pattern, name))), None)

    def encoder(self, model_type: str) -> Any:
        """The encoder's config. A value that is not there is the default, as it was in the older code."""
        keys = ENCODER_KEYS + ALBERT_KEYS if model_type == "albert" else ENCODER_KEYS
        try:
            return AutoConfig.for_model(
                model_type, **{key: self.config[key] for key in keys if key in self.config}
            )
        except StrictDataclassError as error:
            raise CannotLoad(f"config.json: {error}") from error


def modern(name: str) -> str:
    """Checkpoints that go back to TensorFlow call a norm's weight gamma and its bias beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


@dataclass(frozen=True)
class Plan:
    """How a checkpoint becomes a model."""

    encoder: PreTrainedConfig
    exits: list[int]
    head: HeadConfig
    sources: dict[str, str | None]
    """How our names begin -> how theirs begin; None for weights that start anew."""
    dropped: Sequence[str] = ()
    """Patterns of names that are known and of no use."""

    def source(self, name: str) -> str | None:
        ours, theirs = next(pair for pair in self.sources.items() if name.startswith(pair[0]))
        return None if theirs is None else theirs + name.removeprefix(ours)

    def drops(self, name: str) -> bool:
        return any(re.match(pattern, name) for pattern in (*self.dropped, BUFFERS))


def build(
    system: str,
    plan: Plan,
    checkpoint: Checkpoint,
    num_labels: int | None,
    labels: Sequence[str] | None,
) -> Imported:
    count = count_labels(plan, checkpoint, num_labels, labels)
    names = label_names(labels or saved_labels(plan, checkpoint.config, count), None, count)
    model = empty(plan, names)
    sources = {name: plan.source(name) for name in model.state_dict()}
    used = {theirs for theirs in sources.values() if theirs is not None}
    left = sorted(set(checkpoint.weights) - used)
    check(model, sources, checkpoint, unknown=[name for name in left if not plan.drops(name)])
    placed = {ours: checkpoint.weights[theirs] for ours, theirs in sources.items() if theirs is not None}
    model.load_state_dict(placed, strict=False)
    nn.Module.eval(model)
    fresh = [ours for ours, theirs in sources.items() if theirs is None]
    return Imported(model, system, dropped=left, fresh=fresh)


def count_labels(
    plan: Plan, checkpoint: Checkpoint, num_labels: int | None, labels: Sequence[str] | None
) -> int:
    """As many as the classifier has outputs, which older configs do not always say right."""
    classifier = plan.source("heads.classifiers.0.weight")
    if classifier is None:
        count = num_labels or len(labels or ())
        if count < 1:
            raise CannotLoad(
                "these weights have no classifier; say how many labels: pass num_labels or labels"
            )
        return count
    if classifier not in checkpoint.weights:
        raise CannotLoad(f"the checkpoint has no {classifier}; is the file whole?")
    count = len(checkpoint.weights[classifier])
    if num_labels not in (None, count):
        raise CannotLoad(f"its classifiers have {count} outputs, not {num_labels}; leave num_labels out")
    return count


def saved_labels(plan: Plan, config: Mapping[str, Any], count: int) -> list[str] | None:
    """The names in config.json, unless they are of another task than the weights; those of MNLI, where a RoBERTa was
    trained on it and does not say."""
    saved = config.get("id2label")
    by_index = {str(index): str(name) for index, name in saved.items()} if isinstance(saved, dict) else {}
    wanted = [str(index) for index in range(count)]
    names = [by_index[index] for index in wanted] if set(by_index) == set(wanted) else None
    mnli = str(config.get("finetuning_task")).lower().startswith("mnli") and count == len(NLI_OF_ROBERTA)
    if mnli and plan.encoder.model_type in ROBERTAS and (names is None or has_default_names(names)):
        return list(NLI_OF_ROBERTA)
    return names


def empty(plan: Plan, names: dict[int, str]) -> ExitModel:
    config = ExitConfig(
        encoder_config=plan.encoder,
        exits=plan.exits,
        head=plan.head.to_dict(),
        initializer_range=plan.encoder.initializer_range,
        id2label=names,
    )
    try:
        return ExitModel(config)
    except (KeyError, ValueError) as error:
        raise CannotLoad(f"config.json describes an encoder that cannot be built: {error}") from error


def check(
    model: ExitModel, sources: Mapping[str, str | None], checkpoint: Checkpoint, unknown: Sequence[str]
) -> None:
    """All that is wrong, in one message."""
    weights = checkpoint.weights
    needed = {theirs: tensor for ours, tensor in model.state_dict().items() if (theirs := sources[ours])}
    missing = [name for name in needed if name not in weights]
    misshapen = [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in needed.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    faults = [
        f"{fault}: {some(names)}"
        for fault, names in [
            ("missing weights", missing),
            ("unknown weights", unknown),
            ("weights of another shape than config.json says", misshapen),
        ]
        if names
    ]
    if faults:
        raise CannotLoad(f"{'; '.join(faults)}. Is config.json the one that was saved with these weights?")


def some(names: Iterable[str]) -> str:
    first, *rest = sorted(names) or ["none"]
    more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
    return ", ".join([first, *rest[:4]]) + more


def head_dropout(encoder: Any) -> float:
    """How much is dropped before a classifier; ALBERT has a value of its own for it."""
    return float(getattr(encoder, "classifier_dropout_prob", encoder.hidden_dropout_prob))
