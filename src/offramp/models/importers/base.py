"""Shared by all importers: a checkpoint, the plan to import it, and the model built by the plan."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig

from offramp.data.checks import has_default_names
from offramp.data.task import NLI_OF_ROBERTA, ROBERTAS
from offramp.errors import CannotLoad
from offramp.models.config import ExitConfig
from offramp.models.exit_model import ExitModel, check_weights, label_names
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


@dataclass(frozen=True)
class Imported:
    model: ExitModel
    system: str
    """A key of `SYSTEMS`. RomeBERT is "deebert": its names are the same."""
    dropped: list[str]
    """Weights of the checkpoint that the model does not need."""
    fresh: list[str]
    """Weights of the model that the checkpoint lacks: random, still to be trained."""


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


def head_dropout(encoder: Any) -> float:
    """The dropout before a classifier, for which ALBERT has a separate value."""
    return float(getattr(encoder, "classifier_dropout_prob", encoder.hidden_dropout_prob))
