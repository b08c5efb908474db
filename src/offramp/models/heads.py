"""Heads: the hidden states of a layer -> the logits of its exit.

A head pools the tokens into one vector, then applies a pooler (dense layer, activation) and a classifier; heads that
tag tokens do the same with each token instead. The published systems differ in which of the two the exits share:

| system             | pooler | classifier |
|--------------------|--------|------------|
| DeeBERT, RomeBERT  | own    | own        |
| PABEE              | shared | own        |
| ELBERT             | shared | shared     |
| ElasticBERT        | own    | own        |
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from offramp.errors import BadOption
from offramp.wording import did_you_mean

POOLINGS = ("first", "mean", "pair", "tokens")
POOLERS = ("own", "shared", "none")


@dataclass(frozen=True)
class HeadConfig:
    """The architecture of the heads, saved in config.json."""

    pooling: str | None = None
    """"first" token; "mean" over the tokens that are not padding; or "pair": the means q and d of the two texts of a
    pair, with q * d and |q - d|; or "tokens": none, every token has logits. The default depends on the backbone."""
    final_pooling: str | None = None
    """Pooling of the last exit if it differs, e.g. because a fine-tuned classifier keeps its own."""
    embedding_pooling: str | None = None
    """Pooling of the exit before the first layer if it differs: the first token is the same there for every text."""
    pooler: str = "own"
    """Dense layer and activation: "own" for each exit, one "shared" by all, or "none"."""
    final_pooler: bool = True
    """Whether the last exit has a pooler too; most fine-tuned taggers have none."""
    activation: str | None = None
    """Activation of the pooler, as named in transformers; tanh by default, or that of a fine-tuned classifier."""
    norm: bool = False
    """Layer norm after the activation, as in ModernBERT's head."""
    norm_eps: float = 1e-5
    classifier: str | int = "own"
    """Linear layer: "own" for each exit, one "shared" by all, or k: one for every k consecutive exits."""
    hidden: int = 0
    """Width of a tanh layer between pooler and classifier; 0 for no such layer."""
    correction: int = 0
    """Width of a tanh layer beside the classifier of each inner exit, whose output is added to the logits; 0: none.
    Such heads start as their classifiers."""
    final_correction: bool = False
    """Whether the last exit has one too, because it was an inner exit of a deeper model."""
    dropout: float = 0.1
    gate: bool = False
    """One linear layer, shared by all exits, that predicts whether an exit is correct (BERxiT)."""

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, (None, *POOLINGS))
        check_choice("final_pooling", self.final_pooling, (None, *POOLINGS[:3]))
        check_choice("embedding_pooling", self.embedding_pooling, (None, "mean"))
        check_choice("pooler", self.pooler, POOLERS)
        check_choice("final_pooler", self.final_pooler, (True, False))
        if "pair" in (self.pooling, self.final_pooling) and self.pooler != "own":
            raise BadOption(f"pooler={self.pooler!r}; with pooling='pair' choose 'own'")
        check_choice("activation", self.activation, (None, *ACT2FN))
        check_choice("norm", self.norm, (False, True))
        check_choice("gate", self.gate, (False, True))
        if not (self.classifier in ("own", "shared") or (is_count(self.classifier) and self.classifier != 0)):
            raise BadOption(
                f"classifier={self.classifier!r}; choose 'own', 'shared' or a number of exits that share one"
            )
        check_choice("final_correction", self.final_correction, (False, True))
        for name in ("hidden", "correction"):
            if not is_count(getattr(self, name)):
                raise BadOption(f"{name}={getattr(self, name)!r}; choose a width, or 0 for none")
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise BadOption(f"dropout={self.dropout!r}; choose a number from 0 to below 1")
        if not (isinstance(self.norm_eps, int | float) and self.norm_eps > 0):
            raise BadOption(f"norm_eps={self.norm_eps!r}; choose a number above 0")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        options = [field.name for field in fields(cls)]
        for name in values:
            if name not in options:
                raise BadOption(f"heads have no option {did_you_mean(name, options)}")
        return cls(**values)

    def with_defaults(self, pooling: str) -> Self:
        """Fills in the backbone's `pooling` and tanh where none was chosen."""
        return replace(self, pooling=self.pooling or pooling, activation=self.activation or "tanh")

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        for name in ("embedding_pooling", "final_pooler", "correction", "final_correction"):
            # so that models saved before these existed keep their fingerprint
            if values[name] == getattr(HeadConfig, name):
                del values[name]
        return values


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise BadOption(f"{name}={value!r}; choose one of {', '.join(map(repr, choices))}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Pooler(nn.Module):
    """Dense layer, activation and optional norm: (examples, pooled width) -> (examples, width)."""

    def __init__(self, head: HeadConfig, pooled: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(pooled, width)
        self.activation = ACT2FN[cast(str, head.activation)]
        self.norm = nn.LayerNorm(width, eps=head.norm_eps) if head.norm else None

    def forward(self, pooled: Tensor) -> Tensor:
        out: Tensor = self.activation(self.dense(pooled))
        return out if self.norm is None else self.norm(out)


class Correction(nn.Module):
    """What a tanh layer adds to the logits: (..., width) -> (..., labels)."""

    def __init__(self, width: int, inner: int, labels: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, inner)
        self.out = nn.Linear(inner, labels)

    def forward(self, vector: Tensor) -> Tensor:
        added: Tensor = self.out(self.hidden(vector).tanh())
        return added


class Heads(nn.Module):
    """The heads of all exits; modules that exits share exist once."""

    def __init__(
        self, head: HeadConfig, exits: int, width: int, labels: int, at_embeddings: bool = False
    ) -> None:
        super().__init__()
        pooling = cast(str, head.pooling)
        self.poolings = [pooling] * (exits - 1) + [head.final_pooling or pooling]
        if at_embeddings:
            self.poolings[0] = head.embedding_pooling or self.poolings[0]
        self.sharing = {"own": 1, "shared": exits}.get(str(head.classifier)) or int(head.classifier)
        own_poolers = exits if head.final_pooler else exits - 1
        poolers = {"own": own_poolers, "shared": min(1, own_poolers), "none": 0}[head.pooler]
        self.without_pooler = [] if head.final_pooler else [exits - 1]
        self.widths = [pooled_width(how, width) for how in self.poolings]
        self.poolers = nn.ModuleList(Pooler(head, pooled, width) for pooled in self.widths[:poolers])
        # one for each exit, so that a frozen exit can be put into eval mode while the others train
        self.dropouts = nn.ModuleList(nn.Dropout(head.dropout) for _ in range(exits))
        classifiers = -(-exits // self.sharing)
        self.hidden = nn.ModuleList(nn.Linear(width, head.hidden) for _ in range(classifiers) if head.hidden)
        self.classifiers = nn.ModuleList(nn.Linear(head.hidden or width, labels) for _ in range(classifiers))
        corrected = 0 if not head.correction else exits if head.final_correction else exits - 1
        self.corrections = nn.ModuleList(Correction(width, head.correction, labels) for _ in range(corrected))
        self.gate = nn.Linear(width, 1) if head.gate else None

    def forward(
        self,
        exit: int,
        hidden: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (examples, labels) and, with a gate, its probability (examples,) that they are correct; for heads
        that tag tokens, (examples, tokens, labels) and (examples, tokens)."""
        return self.head_of(exit)(hidden, attention_mask, token_type_ids)

    def head_of(self, exit: int) -> "Head":
        """The head of one exit. Inference keeps it, to look up the modules only once."""
        which = exit // self.sharing
        return Head(
            pooling=self.poolings[exit],
            pooler=self.poolers[min(exit, len(self.poolers) - 1)]
            if self.poolers and exit not in self.without_pooler
            else None,
            dropout=self.dropouts[exit],
            hidden=self.hidden[which] if self.hidden else None,
            classifier=self.classifiers[which],
            correction=self.corrections[exit] if exit < len(self.corrections) else None,
            gate=self.gate,
        )

    def parts(self, exit: int) -> list[nn.Module]:
        """The modules with parameters that compute an exit's logits."""
        head = self.head_of(exit)
        parts = head.pooler, head.hidden, head.classifier, head.correction
        return [part for part in parts if part is not None]


class Head(NamedTuple):
    """The modules of one exit's head."""

    pooling: str
    pooler: nn.Module | None
    dropout: nn.Module
    hidden: nn.Module | None
    classifier: nn.Module
    correction: nn.Module | None
    gate: nn.Module | None

    def __call__(
        self, hidden: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return self.classify(pool(hidden, attention_mask, self.pooling, token_type_ids))

    def classify(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and gate from a pooled vector (examples, pooled width)."""
        if self.pooler is not None:
            vector = self.pooler(vector)
        # detached: training the gate must not change the exits
        gate = None if self.gate is None else self.gate(vector.detach()).sigmoid().squeeze(-1)
        if self.dropout.training:
            vector = self.dropout(vector)
        added = None if self.correction is None else self.correction(vector)
        if self.hidden is not None:
            vector = self.hidden(vector).tanh()
        logits = self.classifier(vector)
        return logits if added is None else logits + added, gate


def pooled_width(pooling: str, width: int) -> int:
    """The width of what `pool` returns."""
    return 4 * width if pooling == "pair" else width


def pool(
    hidden: Tensor, attention_mask: Tensor | None, how: str, token_type_ids: Tensor | None = None
) -> Tensor:
    """(examples, length, width) -> (examples, pooled width), without padding; unchanged for "tokens"."""
    if how == "tokens":
        return hidden
    if how == "first":
        return hidden[:, 0]
    if how == "pair":
        mask = hidden.new_ones(hidden.shape[:2]) if attention_mask is None else attention_mask
        second = torch.zeros_like(mask) if token_type_ids is None else mask * token_type_ids
        return compare(mean_of(hidden, mask - second), mean_of(hidden, second))
    return hidden.mean(dim=1) if attention_mask is None else mean_of(hidden, attention_mask)


def compare(first: Tensor, second: Tensor) -> Tensor:
    """Two vectors (examples, width) and how they relate: (examples, 4 * width)."""
    return torch.cat([first, second, first * second, (first - second).abs()], dim=-1)


def mean_of(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean of the tokens with a mask of 1; zeros if there are none, such as those of a second text."""
    return (hidden * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
