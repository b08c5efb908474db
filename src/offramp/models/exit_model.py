"""ExitModel: a transformers encoder with a classification head after chosen layers, for texts or for their tokens.

`forward` always runs all layers and all exits, so that Trainer, DDP, compile and export work with it. Early
exit is implemented in `engine.py`. A call stores nothing on the model, so threads can share one.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from offramp.errors import BadConfig, BadOption, CannotLoad
from offramp.files import digest, explain_damage, use_umask
from offramp.models.backbones import Backbone, FinalHead, backbone_for
from offramp.models.config import ExitConfig
from offramp.models.heads import HeadConfig, Heads, is_count
from offramp.problems import TOKENS, UNLABELLED
from offramp.wording import count

GradientHook = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(exit, hidden) -> (input of its head, input of the next layer): lets a recipe change the backward pass."""

CLASSIFIERS: dict[str, Any] = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
}
"""Endings of the names of fine-tuned models that can get exits, and how transformers loads them."""

LEARNED_WEIGHT_START = 4.0
"""Initial value of ELBERT's learned exit weights, before the sigmoid."""
CORRECTION = 256
"""The width of the corrections of a tagger's inner exits."""


@dataclass
class ExitOutput(ModelOutput):
    """The logits of every exit. `logits` are those of the last one, as in any transformers classifier.

    Where tokens are tagged, the arrays below have an axis of tokens after that of examples.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    exit_logits: Tensor | None = None
    """(examples, exits, labels)"""
    exit_gates: Tensor | None = None
    """(examples, exits): the gate's probability that the exit is correct, if there is a gate."""
    exit_weights: Tensor | None = None
    """(exits - 1,), if they are learned. They are part of the output so that DDP sees that they are used."""


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
        config = copy.deepcopy(config)  # changed by `add_gate`, `resize_token_embeddings` and others
        super().__init__(config)
        self.backbone = AutoModel.from_config(config.encoder_config, trust_remote_code=False)
        if hasattr(self.backbone, "pooler"):
            self.backbone.pooler = None  # the heads have their own
        self.heads = Heads(
            config.head_config,
            len(config.exits),
            config.encoder_config.hidden_size,
            cast(int, config.num_labels),
            at_embeddings=config.exits[0] == 0,
        )
        if config.learned_weights:
            self.exit_weights = empty_exit_weights(config, self.device)
            self._keep_in_fp32_modules_strict = {"exit_weights"}
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all weights except `exit_weights`, whose updates are too small for half precision."""
        return cast(torch.dtype, self.backbone.dtype)

    @property
    def adapter(self) -> Backbone:
        return backbone_for(self.config.encoder_config.model_type)

    @property
    def max_length(self) -> int:
        """The number of tokens that have a position."""
        return count_positions(self.backbone)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        gradient_hook: GradientHook | None = None,
        features: Tensor | None = None,
    ) -> ExitOutput:
        """Runs every layer and every exit. `loss` is the mean over exits.

        With `features`, the pooled hidden states (examples, exits, widest) of an earlier pass, only the heads run.
        """
        outputs: list[tuple[Tensor, Any]]
        if features is not None:
            outputs = [
                self.heads.head_of(exit).classify(features[:, exit, :width].to(self.dtype))
                for exit, width in enumerate(self.heads.widths)
            ]
        else:
            states = self.exit_states(cast(Tensor, input_ids), attention_mask, token_type_ids, gradient_hook)
            outputs = [
                self.heads(exit, hidden, attention_mask, token_type_ids) for exit, hidden in enumerate(states)
            ]
        exit_logits = torch.stack([logits for logits, _ in outputs], dim=-2)
        losses = None
        if labels is not None:
            labelled = labels != UNLABELLED if self.config.problem.of_tokens else slice(None)
            losses = self.config.problem.loss(exit_logits[labelled], labels[labelled])
        return ExitOutput(
            loss=None if losses is None else losses.mean(),
            logits=exit_logits[..., -1, :],
            exit_logits=exit_logits,
            exit_gates=torch.stack([gate for _, gate in outputs], dim=-1) if self.heads.gate else None,
            exit_weights=self.exit_weights.clone() if self.config.learned_weights else None,
        )

    def exit_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        gradient_hook: GradientHook | None = None,
    ) -> Iterator[Tensor]:
        """The input of each head in turn: hidden states (examples, length, width)."""
        adapter, backbone = self.adapter, self.backbone
        hidden = adapter.embed(backbone, input_ids, attention_mask, token_type_ids)
        context = adapter.context(backbone, hidden, attention_mask)
        for layer in range(self.config.num_layers + 1):
            if layer:
                hidden = adapter.layer(backbone, layer - 1, hidden, context)
            if layer in self.config.exits:
                exit = self.config.exits.index(layer)
                to_head, hidden = gradient_hook(exit, hidden) if gradient_hook else (hidden, hidden)
                if layer == 0:  # a bag of words, which the embeddings should not be trained for
                    to_head = to_head.detach()
                yield adapter.norm(backbone, to_head)

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
        """Adds exits to a pretrained encoder, or to a fine-tuned classifier or tagger, which becomes the last exit.

        Args:
            encoder: a name on the Hugging Face Hub, a folder, or a loaded transformers model.
            num_labels: the number of outputs; by default that of `labels` or of the fine-tuned classifier.
            exits: layers, or k for every k-th; 0 is before the first layer, and the last layer always has one.
                Empty: every layer, 0 included.
            head: options of the heads; by default the backbone's pooling and a pooler for each exit.
            problem_type: as named in transformers, or "token_classification"; by default as the model was fine-tuned,
                or derived from `num_labels`.
            labels: names of the classes.
            options: passed to transformers' `from_pretrained`, such as `revision`.
        """
        source = load_encoder(encoder, options)
        base: Any = source.base_model
        adapter = adapter_of(source.config)
        kind = classifier_kind(kind.__name__ for kind in type(source).mro())
        tags = problem_type == TOKENS if problem_type else kind == "ForTokenClassification"
        final = None
        if kind is not None and tags == (kind == "ForTokenClassification"):
            final = adapter.final_token_head(source) if tags else adapter.final_head(source)
        if num_labels is None:
            num_labels = len(labels) if labels else int(source.config.num_labels or 2)
        if final is not None and final.classifier.out_features != num_labels:
            final = None  # fine-tuned for another task: only its encoder is used
        if tags and head is None:
            pooler = "none" if final is None or final.pooler is None else "own"
            head = HeadConfig(pooler=pooler, correction=CORRECTION)
        heads = head_config(head, final)
        layers = place_exits(exits, base.config.num_hidden_layers)
        if tags:
            heads = replace(heads, final_pooler=final is not None and final.pooler is not None)
        if (heads.pooling or adapter.pooling) == "first" and (not layers or 0 in layers):
            heads = replace(heads, embedding_pooling="mean")
        values = {
            "encoder_config": copy.deepcopy(base.config),
            "exits": layers,
            "head": heads.to_dict(),
            "problem_type": TOKENS
            if tags
            else problem_type or (source.config.problem_type if final else None),
            "fine_tuned": final is not None,
            "initializer_range": getattr(base.config, "initializer_range", 0.02),
            "id2label": label_names(labels, source.config if final else None, num_labels),
        }
        model = cls(ExitConfig.from_dict(values, attn_implementation=base.config._attn_implementation))
        weights = {
            name: tensor for name, tensor in base.state_dict().items() if not name.startswith("pooler.")
        }
        model.backbone.load_state_dict(weights)
        model.init_heads(final, adapter.pooler(base))
        nn.Module.to(model, source.dtype)
        nn.Module.eval(model)
        return model

    @torch.no_grad()
    def init_heads(self, final: FinalHead | None, pretrained: nn.Linear | None) -> None:
        """Copies the pretrained pooler to all exits, and the fine-tuned classifier to the last.

        All exits of a tagger start as its classifier, which reads much the same a few layers earlier.
        """
        tags = self.config.problem.of_tokens
        dense = final.pooler if final else None if tags else pretrained
        for exit, pooler in enumerate(self.heads.poolers if dense is not None else ()):
            if self.heads.poolings[exit] == "pair":
                continue  # it reads wider vectors
            copy_weights(pooler.dense, dense)
            if final and final.norm is not None:
                copy_weights(pooler.norm, final.norm)
        if final:
            for classifier in self.heads.classifiers[0 if tags else -1 :]:
                copy_weights(classifier, final.classifier)
        corrections: Any = self.heads.corrections
        for correction in corrections:
            correction.out.weight.zero_()

    def add_exit_weights(self) -> None:
        """Adds a learned weight for the loss of each exit but the last (ELBERT)."""
        if not self.config.learned_weights:
            self.config.learned_weights = True
            self.exit_weights = empty_exit_weights(self.config, self.device)
            self._init_weights(self)

    def add_gate(self) -> None:
        """Adds a gate that learns to predict whether an exit is correct (BERxiT)."""
        if self.heads.gate is None:
            self.config.head["gate"] = True
            width = self.config.encoder_config.hidden_size
            self.heads.gate = nn.Linear(width, 1).to(self.device, self.dtype)
            self._init_weights(self.heads.gate)

    def truncate(self, layers: int) -> Self:
        """A copy of the first layers, whose last exit is this model's exit at that layer.

        The policy is not copied: its thresholds and its certificate are valid only for the deeper model.
        """
        if layers < 1:
            raise BadConfig(f"layers={layers}; keep at least one layer")
        if layers not in self.config.exits:
            raise BadConfig(f"layer {layers} has no exit; there are exits at {self.config.exits}")
        kept = [layer for layer in self.config.exits if layer <= layers]
        values = self.config.to_dict() | {"exits": kept, "policy": None}
        values["encoder_config"] |= self.adapter.truncation(self.config.encoder_config, layers)
        if kept != self.config.exits:
            values["fine_tuned"] = self.config.fine_tuned and self.config.inner_exits_trained
            pooling = self.heads.poolings[len(kept) - 1]
            values["head"] |= {
                "final_pooling": None if pooling == "tokens" else pooling,
                "final_pooler": True,
                "final_correction": bool(self.heads.corrections),
            }
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
        """A hash of weights, exits and head options. Traces and certificates store it to identify the model."""
        return hash_weights(self, repr((self.config.exits, self.config.head)))

    def is_finite(self) -> bool:
        return all(bool(weight.isfinite().all()) for weight in self.state_dict().values())

    @classmethod
    def from_pretrained(cls, path: str | Path, *args: Any, **options: Any) -> Self:  # type: ignore[override]
        """As in transformers, but strict: weights that are missing, unexpected or of another shape are an error.

        Safetensors only: pickled weights can contain code.
        """
        as_given = {"use_safetensors": True, **options}
        report = {"output_loading_info": True, "ignore_mismatched_sizes": True, "trust_remote_code": False}
        with explain_damage(path):
            loaded: Any = super().from_pretrained(path, *args, **as_given | report)
        model, info = loaded
        # transformers would leave them random
        shapes = () if options.get("ignore_mismatched_sizes") else info["mismatched_keys"]
        check_weights(info["missing_keys"], info["unexpected_keys"], shapes, path)
        return loaded if options.get("output_loading_info") else model  # type: ignore[no-any-return]

    def save_pretrained(self, path: str | Path, **options: Any) -> None:  # type: ignore[override]
        super().save_pretrained(path, **options)
        for file in Path(path).glob("*.safetensors"):
            use_umask(file)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if module is self and self.config.learned_weights:
            init.constant_(self.exit_weights, LEARNED_WEIGHT_START)


def count_positions(backbone: Any) -> int:
    """The size of the table of positions, or the config's where there is none."""
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return int(backbone.config.max_position_embeddings)
    # RoBERTa's positions start after the padding token's index
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def empty_exit_weights(config: ExitConfig, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(len(config.exits) - 1, dtype=torch.float32, device=device))


def load_encoder(encoder: str | Path | PreTrainedModel, options: dict[str, Any]) -> PreTrainedModel:
    """Loads an encoder, with its classifier if it has one, without a pooler that is not in the checkpoint."""
    if isinstance(encoder, PreTrainedModel):
        if options:
            raise BadConfig(f"the model is already loaded; pass {', '.join(options)} where you load it")
        return encoder
    with explain_damage(encoder):
        config = AutoConfig.from_pretrained(encoder, trust_remote_code=False, **options)
        adapter_of(config)
        classifier = classifier_kind(config.architectures or [])
        auto = CLASSIFIERS[classifier] if classifier else AutoModel
        options = {"dtype": torch.float32, "use_safetensors": True, **options}
        model, info = auto.from_pretrained(
            encoder, output_loading_info=True, trust_remote_code=False, **options
        )
    missing = sorted(info["missing_keys"])
    if not classifier and any(key.startswith("pooler.") for key in missing):
        model.pooler = None
        missing = [key for key in missing if not key.startswith("pooler.")]
    if missing:
        raise CannotLoad(
            f"{encoder} lacks {count(len(missing), 'weight')} of a {type(model).__name__}, such as "
            f"{', '.join(missing[:3])}. Fix the checkpoint, or load the part you need with "
            "transformers and pass that model."
        )
    return cast(PreTrainedModel, model)


def check_weights(
    missing: Iterable[str],
    unknown: Iterable[str],
    shapes: Iterable[tuple[str, Any, Any]],
    path: str | Path = "",
) -> None:
    """Raise one error with all weights that do not fit the model; `shapes` are (name, actual, expected)."""
    misshapen = [
        f"{name} is {tuple(actual)}, expected {tuple(expected)}" for name, actual, expected in shapes
    ]
    faults = [
        f"{fault}: {list_some(names)}"
        for fault, names in [
            ("missing weights", missing),
            ("unknown weights", unknown),
            ("weights whose shape contradicts config.json", misshapen),
        ]
        if names
    ]
    if faults:
        where = f"{path}: " if path else ""
        raise CannotLoad(f"{where}{'; '.join(faults)}. Was config.json saved with these weights?")


def list_some(names: Iterable[str]) -> str:
    first, *rest = sorted(names) or ["none"]
    more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
    return ", ".join([first, *rest[:4]]) + more


def adapter_of(config: Any) -> Backbone:
    if config.model_type == ExitConfig.model_type:
        raise BadConfig("this model already has exits; load it with ExitModel.from_pretrained")
    return backbone_for(config.model_type)


def classifier_kind(architectures: Iterable[str]) -> str | None:
    """The ending in `CLASSIFIERS` of a fine-tuned model's architecture; None for any other model."""
    return next((kind for name in architectures for kind in CLASSIFIERS if name.endswith(kind)), None)


def place_exits(exits: int | Sequence[int], layers: int) -> list[int]:
    if is_count(exits) and 1 <= cast(int, exits) <= layers:
        return [*range(0, layers, cast(int, exits)), layers]
    chosen: list[Any] = list(exits) if isinstance(exits, Iterable) else [-1]
    if not all(is_count(layer) and layer <= layers for layer in chosen):
        raise BadConfig(
            f"exits={exits!r} of {layers} layers: choose layers from 0 to {layers}, or every k-th with k from 1"
        )
    return [*chosen, layers] if chosen else []


def head_config(head: HeadConfig | dict[str, Any] | None, final: FinalHead | None) -> HeadConfig:
    """The head options, adapted to the fine-tuned classifier that becomes the last exit, if any."""
    if not isinstance(head, HeadConfig):
        head = HeadConfig.from_dict(head or {})
    if final is None:
        return head
    fixed: dict[str, Any] = {"hidden": 0}
    fixed |= {"pooling": "tokens"} if final.pooling == "tokens" else {"final_pooling": final.pooling}
    if final.pooler is not None:
        fixed |= {"activation": final.activation, "norm": final.norm is not None}
    clash = [name for name in fixed if getattr(head, name) not in (fixed[name], getattr(HeadConfig, name))]
    if head.pooler == "none" and final.pooler is not None:
        clash.append("pooler")
    if clash:
        raise BadOption(
            f"the fine-tuned classifier becomes the last exit and determines {', '.join(clash)} of the heads; "
            "omit this option, or pass the encoder without its classifier"
        )
    return replace(head, norm_eps=final.norm.eps if final.norm else head.norm_eps, **fixed)


def label_names(labels: Sequence[str] | None, source: Any, num_labels: int) -> dict[int, str]:
    if not is_count(num_labels) or num_labels < 1:
        raise BadConfig(f"num_labels={num_labels!r}; choose a whole number from 1")
    if labels is None:
        return dict(source.id2label) if source else {i: f"LABEL_{i}" for i in range(num_labels)}
    if len(labels) != num_labels:
        raise BadConfig(f"{count(len(labels), 'label name')} for num_labels={num_labels}")
    return dict(enumerate(labels))


def hash_weights(model: nn.Module, more: str = "") -> str:
    """A hash of `more` and of all weights, in the order of their names."""
    weights = sorted(model.state_dict().items())
    parts = (part for name, tensor in weights for part in (name.encode(), tensor_bytes(tensor)))
    return digest(chain([more.encode()], parts))


def tensor_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def copy_weights(target: Any, source: Any) -> None:
    """Copies weight and bias; without a bias in the source, the target's is set to zero."""
    target.weight.copy_(source.weight)
    if source.bias is None:
        target.bias.zero_()
    else:
        target.bias.copy_(source.bias)


AutoConfig.register(ExitConfig.model_type, ExitConfig, exist_ok=True)
for auto_class in CLASSIFIERS.values():
    auto_class.register(ExitConfig, ExitModel, exist_ok=True)
