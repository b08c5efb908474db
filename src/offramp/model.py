"""ExitModel: any supported encoder with a classifier behind chosen layers, at home in transformers.

`forward` always runs all layers and all exits, so that Trainer, DDP, compile and export work on it. Leaving
early is the engine's business, and nothing here counts or remembers: two threads may use one model.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from offramp.backbones import Backbone, FinalHead, backbone_for
from offramp.config import ExitConfig
from offramp.errors import BadConfig, BadOption, CannotLoad
from offramp.heads import HeadConfig, Heads, is_count
from offramp.problems import REGRESSION, SINGLE_LABEL

Tap = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(exit, hidden) -> (what its head sees, what the next layer sees): a recipe's way into the backward pass."""

LEARNED_WEIGHT_START = 4.0
"""Where ELBERT's learned weights of the exits start, before their sigmoid."""


@dataclass
class ExitOutput(ModelOutput):
    """What every exit says. `logits` are the last exit's, as other transformers classifiers give them."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    exit_logits: Tensor | None = None
    """(examples, exits, labels)"""
    exit_gates: Tensor | None = None
    """(examples, exits), with a gate: the belief that the exit is right."""
    exit_weights: Tensor | None = None
    """(exits - 1,), where they are learned: a copy, from which data-parallel training sees that they are used."""


class ExitModel(PreTrainedModel):
    config_class = ExitConfig
    config: ExitConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: ExitConfig) -> None:
        config = copy.deepcopy(config)  # a model may change its own: `add_gate`, `resize_token_embeddings`
        super().__init__(config)
        self.backbone = AutoModel.from_config(config.encoder_config)
        if hasattr(self.backbone, "pooler"):
            self.backbone.pooler = None  # the heads hold it
        self.heads = Heads(
            config.head_config,
            len(config.exits),
            config.encoder_config.hidden_size,
            cast(int, config.num_labels),
        )
        if config.learned_weights:
            self.exit_weights = empty_exit_weights(config, self.device)
            self._keep_in_fp32_modules_strict = {"exit_weights"}
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def dtype(self) -> torch.dtype:
        """Of all weights but `exit_weights`, which learn in small steps and stay in float32."""
        return cast(torch.dtype, self.backbone.dtype)

    @property
    def adapter(self) -> Backbone:
        return backbone_for(self.config.encoder_config.model_type)

    @property
    def max_length(self) -> int:
        """How many tokens the table of positions has room for; without such a table, what the config says."""
        table = getattr(getattr(self.backbone, "embeddings", None), "position_embeddings", None)
        if not isinstance(table, nn.Embedding):
            return int(self.backbone.config.max_position_embeddings)
        # RoBERTa's kind counts places from behind the padding token's
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        tap: Tap | None = None,
    ) -> ExitOutput:
        """Runs every layer and every exit; `loss` is the mean of the exits' losses."""
        adapter, backbone = self.adapter, self.backbone
        hidden = adapter.embed(backbone, input_ids, attention_mask, token_type_ids)
        context = adapter.context(backbone, hidden, attention_mask)
        answers: list[tuple[Tensor, Any]] = []
        for index in range(self.config.num_layers):
            hidden = adapter.layer(backbone, index, hidden, context)
            if index + 1 in self.config.exits:
                seen, hidden = tap(len(answers), hidden) if tap else (hidden, hidden)
                answers.append(self.heads(len(answers), adapter.norm(backbone, seen), attention_mask))
        exit_logits = torch.stack([logits for logits, _ in answers], dim=1)
        return ExitOutput(
            loss=None
            if labels is None
            else task_loss(exit_logits, labels, str(self.config.problem_type)).mean(),
            logits=exit_logits[:, -1],
            exit_logits=exit_logits,
            exit_gates=torch.stack([gate for _, gate in answers], dim=1) if self.heads.gate else None,
            exit_weights=self.exit_weights.clone() if self.config.learned_weights else None,
        )

    @classmethod
    def from_encoder(
        cls,
        encoder: str | Path | PreTrainedModel,
        num_labels: int | None = None,
        exits: int | Sequence[int] = 1,
        head: HeadConfig | dict[str, Any] | None = None,
        problem_type: str | None = None,
        labels: Sequence[str] | None = None,
        **options: Any,
    ) -> Self:
        """Exits on a pretrained encoder, or on a fine-tuned classifier, which becomes the last exit.

        Args:
            encoder: a hub name, a folder, or a loaded transformers model.
            num_labels: how many outputs; by default as many as `labels`, or as the fine-tuned classifier has.
            exits: layers from 1, or k for every k-th layer; the last layer always has one. Empty: every layer.
            head: settings of the heads; by default the family's pooling with a pooler for each exit.
            problem_type: as transformers names it; guessed from `num_labels` by default.
            labels: names of the classes.
            options: go to transformers' `from_pretrained`, such as `revision`.
        """
        source = load(encoder, options)
        base: Any = source.base_model
        adapter = adapter_of(source.config)
        kinds = [kind.__name__ for kind in type(source).mro()]
        final = adapter.final_head(source) if is_classifier(kinds) else None
        if num_labels is None:
            num_labels = len(labels) if labels else int(source.config.num_labels or 2)
        if final is not None and final.classifier.out_features != num_labels:
            final = None  # another task: its encoder is taken, its answers are not
        values = {
            "encoder_config": copy.deepcopy(base.config),
            "exits": place_exits(exits, base.config.num_hidden_layers),
            "head": head_settings(head, final).to_dict(),
            "problem_type": problem_type or (source.config.problem_type if final else None),
            "initializer_range": getattr(base.config, "initializer_range", 0.02),
            "id2label": label_names(labels, source.config if final else None, num_labels),
        }
        model = cls(ExitConfig.from_dict(values, attn_implementation=base.config._attn_implementation))
        model.backbone.load_state_dict(without_pooler(base.state_dict()))
        model.start_heads(final, adapter.pooler(base))
        nn.Module.to(model, source.dtype)
        nn.Module.eval(model)
        return model

    @torch.no_grad()
    def start_heads(self, final: FinalHead | None, pretrained: nn.Linear | None) -> None:
        """Poolers start as copies of the pretrained one, the last exit as the fine-tuned classifier."""
        dense = final.pooler if final else pretrained
        for pooler in self.heads.poolers if dense is not None else ():
            fill(pooler.dense, dense)
            if final and final.norm is not None:
                fill(pooler.norm, final.norm)
        if final:
            fill(self.heads.classifiers[-1], final.classifier)

    def add_exit_weights(self) -> None:
        """Weights of the exits' losses that learn, saved with the model."""
        if not self.config.learned_weights:
            self.config.learned_weights = True
            self.exit_weights = empty_exit_weights(self.config, self.device)
            self._init_weights(self)

    def add_gate(self) -> None:
        """A gate that learns when an exit is right, saved with the model."""
        if self.heads.gate is None:
            self.config.head["gate"] = True
            width = self.config.encoder_config.hidden_size
            self.heads.gate = nn.Linear(width, 1).to(self.device, self.dtype)
            self._init_weights(self.heads.gate)

    def truncate(self, layers: int) -> Self:
        """A shorter model of its own, whose answers are those of this one's exit at that layer.

        A policy is not carried over: its thresholds and its certificate speak of the deeper model.
        """
        if layers not in self.config.exits:
            raise BadConfig(f"no exit at layer {layers} to end with; there are exits at {self.config.exits}")
        kept = [layer for layer in self.config.exits if layer <= layers]
        values = self.config.to_dict() | {"exits": kept, "policy": None}
        values["encoder_config"] |= self.adapter.truncated(self.config.encoder_config, layers)
        values["head"]["final_pooling"] = self.heads.poolings[len(kept) - 1]
        attention = self.backbone.config._attn_implementation
        shorter = type(self)(ExitConfig.from_dict(values, attn_implementation=attention))
        weights = self.state_dict()
        needed = {name: weights[name] for name in shorter.state_dict()}
        if "exit_weights" in needed:
            needed["exit_weights"] = needed["exit_weights"][: len(kept) - 1]
        shorter.load_state_dict(needed)
        nn.Module.to(shorter, self.device)
        for part in (shorter.backbone, shorter.heads):
            nn.Module.to(part, self.dtype)
        nn.Module.train(shorter, self.training)
        return shorter

    def fingerprint(self) -> str:
        """Names these weights and this shape: traces and certificates say with it whom they speak of."""
        digest = hashlib.sha256(repr((self.config.exits, self.config.head)).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return all(bool(weight.isfinite().all()) for weight in self.state_dict().values())

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Self:
        """As transformers' own; safetensors only, as pickled weights can hold code."""
        return super().from_pretrained(*args, **{"use_safetensors": True, **options})

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if module is self and self.config.learned_weights:
            init.constant_(self.exit_weights, LEARNED_WEIGHT_START)


def empty_exit_weights(config: ExitConfig, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(len(config.exits) - 1, dtype=torch.float32, device=device))


def task_loss(exit_logits: Tensor, labels: Tensor, problem_type: str) -> Tensor:
    """The mean loss of each exit: (examples, exits, labels) -> (exits,)."""
    exits = exit_logits.shape[1]
    if problem_type == SINGLE_LABEL:
        every = labels.view(-1, 1).expand(-1, exits)  # (examples, exits)
        return functional.cross_entropy(exit_logits.transpose(1, 2), every, reduction="none").mean(dim=0)
    every = labels.view(len(labels), 1, -1).expand_as(exit_logits).to(exit_logits.dtype)
    if problem_type == REGRESSION:
        return functional.mse_loss(exit_logits, every, reduction="none").mean(dim=(0, 2))
    return functional.binary_cross_entropy_with_logits(exit_logits, every, reduction="none").mean(dim=(0, 2))


def load(encoder: str | Path | PreTrainedModel, options: dict[str, Any]) -> PreTrainedModel:
    """An encoder, with its classifier where it has one, and without a pooler that was never trained."""
    if isinstance(encoder, PreTrainedModel):
        if options:
            raise BadConfig(f"{', '.join(options)}: the model is loaded already; say this where it is loaded")
        return encoder
    try:
        config = AutoConfig.from_pretrained(encoder, **options)
        adapter_of(config)
        classifier = is_classifier(config.architectures or [])
        auto = AutoModelForSequenceClassification if classifier else AutoModel
        options = {"dtype": torch.float32, "use_safetensors": True, **options}
        model, info = auto.from_pretrained(encoder, output_loading_info=True, **options)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise CannotLoad(f"{encoder}: {error}") from error
    missing = sorted(info["missing_keys"])
    if not classifier and any(key.startswith("pooler.") for key in missing):
        model.pooler = None
        missing = [key for key in missing if not key.startswith("pooler.")]
    if missing:
        raise CannotLoad(
            f"{encoder} lacks {len(missing)} weights of a {type(model).__name__}, such as {', '.join(missing[:3])}. "
            "Mend it, or load the part that it has with transformers and pass that model."
        )
    return cast(PreTrainedModel, model)


def adapter_of(config: Any) -> Backbone:
    if config.model_type == ExitConfig.model_type:
        raise BadConfig("this model already has exits; load it with ExitModel.from_pretrained")
    return backbone_for(config.model_type)


def is_classifier(architectures: Iterable[str]) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in architectures)


def place_exits(exits: int | Sequence[int], layers: int) -> list[int]:
    asked: list[Any] = list(exits) if isinstance(exits, Iterable) else [exits]
    if not all(is_count(layer) and 1 <= layer <= layers for layer in asked):
        raise BadConfig(f"exits={exits!r} of {layers} layers: choose whole numbers from 1 to {layers}")
    if isinstance(exits, int):
        asked = list(range(exits, layers + 1, exits))
    return [*asked, layers] if asked else []


def head_settings(head: HeadConfig | dict[str, Any] | None, final: FinalHead | None) -> HeadConfig:
    if not isinstance(head, HeadConfig):
        head = HeadConfig.from_dict(head or {})
    if final is None:
        return head
    fixed: dict[str, Any] = {"activation": final.activation, "final_pooling": final.pooling}
    fixed |= {"norm": final.norm is not None, "hidden": 0}
    clash = [name for name in fixed if getattr(head, name) not in (fixed[name], getattr(HeadConfig, name))]
    if head.pooler == "none":
        clash.append("pooler")
    if clash:
        raise BadOption(
            f"the fine-tuned classifier becomes the last exit and keeps its own {', '.join(clash)}; "
            "leave that out, or pass the plain encoder"
        )
    return replace(head, norm_eps=final.norm.eps if final.norm else head.norm_eps, **fixed)


def label_names(labels: Sequence[str] | None, source: Any, count: int) -> dict[int, str]:
    if not is_count(count) or count < 1:
        raise BadConfig(f"num_labels={count!r}; choose a whole number from 1")
    if labels is None:
        return dict(source.id2label) if source else {i: f"LABEL_{i}" for i in range(count)}
    if len(labels) != count:
        raise BadConfig(f"{len(labels)} label names for num_labels={count}")
    return dict(enumerate(labels))


def without_pooler(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}


def fill(target: Any, source: Any) -> None:
    """Copies weight and bias; a source without bias is one whose bias is zero."""
    target.weight.copy_(source.weight)
    if source.bias is None:
        target.bias.zero_()
    else:
        target.bias.copy_(source.bias)


AutoConfig.register(ExitConfig.model_type, ExitConfig, exist_ok=True)
AutoModelForSequenceClassification.register(ExitConfig, ExitModel, exist_ok=True)
