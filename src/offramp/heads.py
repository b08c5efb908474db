"""Hidden state of a layer -> logits of its exit.

A head pools the tokens, passes the vector through a pooler (dense, activation) and a classifier. Which of
these an exit has for itself and which it shares is what the published systems differ in:

| system             | pooler | classifier |
|--------------------|--------|------------|
| DeeBERT, RomeBERT  | own    | own        |
| PABEE              | shared | own        |
| ELBERT             | shared | shared     |
| ElasticBERT        | own    | own        |
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Self, cast

from torch import Tensor, nn
from transformers.activations import ACT2FN

from offramp.errors import BadOption

POOLINGS = ("first", "mean")
POOLERS = ("own", "shared", "none")


@dataclass(frozen=True)
class HeadConfig:
    """What stands between a layer's hidden states and its logits."""

    pooling: str | None = None
    """Which tokens an exit sees: "first", or "mean" over the real ones; by default as the backbone's family does."""
    final_pooling: str | None = None
    """Pooling of the last exit where it differs, as when a fine-tuned classifier keeps its own."""
    pooler: str = "own"
    """Dense layer and activation: "own" for each exit, one "shared", or "none"."""
    activation: str | None = None
    """Activation of the pooler, by transformers' name; by default tanh, or that of a fine-tuned classifier."""
    norm: bool = False
    """A layer norm behind the activation, as ModernBERT's head has."""
    norm_eps: float = 1e-5
    classifier: str | int = "own"
    """Linear layer: "own" for each exit, a single "shared" one, or k: one for every k consecutive exits."""
    hidden: int = 0
    """Width of a tanh layer between pooler and classifier; 0 for none."""
    dropout: float = 0.1
    gate: bool = False
    """One linear layer for all exits that learns to say whether an exit's answer is right (BERxiT)."""

    def __post_init__(self) -> None:
        check("pooling", self.pooling, (None, *POOLINGS))
        check("final_pooling", self.final_pooling, (None, *POOLINGS))
        check("pooler", self.pooler, POOLERS)
        check("activation", self.activation, (None, *ACT2FN))
        check("norm", self.norm, (False, True))
        check("gate", self.gate, (False, True))
        if not (self.classifier in ("own", "shared") or (is_count(self.classifier) and self.classifier != 0)):
            raise BadOption(
                f"classifier={self.classifier!r}; choose 'own', 'shared' or a number of exits that share one"
            )
        if not is_count(self.hidden):
            raise BadOption(f"hidden={self.hidden!r}; choose a width, or 0 for none")
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise BadOption(f"dropout={self.dropout!r}; choose a number from 0 to below 1")
        if not (isinstance(self.norm_eps, int | float) and self.norm_eps > 0):
            raise BadOption(f"norm_eps={self.norm_eps!r}; choose a number above 0")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise BadOption(f"a head has no setting {', '.join(sorted(unknown))}")
        return cls(**values)

    def filled(self, pooling: str) -> Self:
        """Nothing left open: the family's pooling and tanh where none was chosen."""
        return replace(self, pooling=self.pooling or pooling, activation=self.activation or "tanh")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise BadOption(f"{name}={value!r}; choose one of {', '.join(map(repr, choices))}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Pooler(nn.Module):
    """One pooled vector -> one vector of the same width."""

    def __init__(self, head: HeadConfig, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACT2FN[cast(str, head.activation)]
        self.norm = nn.LayerNorm(width, eps=head.norm_eps) if head.norm else None

    def forward(self, pooled: Tensor) -> Tensor:
        out: Tensor = self.activation(self.dense(pooled))
        return out if self.norm is None else self.norm(out)


class Heads(nn.Module):
    """The heads of all exits, those they share held once."""

    def __init__(self, head: HeadConfig, exits: int, width: int, labels: int) -> None:
        super().__init__()
        pooling = cast(str, head.pooling)
        self.poolings = [pooling] * (exits - 1) + [head.final_pooling or pooling]
        self.sharing = {"own": 1, "shared": exits}.get(str(head.classifier)) or int(head.classifier)
        poolers = {"own": exits, "shared": 1, "none": 0}[head.pooler]
        self.poolers = nn.ModuleList(Pooler(head, width) for _ in range(poolers))
        self.dropout = nn.Dropout(head.dropout)
        classifiers = -(-exits // self.sharing)
        self.hidden = nn.ModuleList(nn.Linear(width, head.hidden) for _ in range(classifiers) if head.hidden)
        self.classifiers = nn.ModuleList(nn.Linear(head.hidden or width, labels) for _ in range(classifiers))
        self.gate = nn.Linear(width, 1) if head.gate else None
        self.frozen: frozenset[int] = frozenset()
        """Exits that do not learn now, and so answer without dropout in training, too."""

    def forward(
        self, exit: int, hidden: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (examples, labels) and, with a gate, its belief (examples,) that they are right."""
        return self.head_of(exit)(hidden, attention_mask)

    def head_of(self, exit: int) -> "Head":
        """The head of one exit, for a caller that asks it often."""
        which = exit // self.sharing
        return Head(
            pooling=self.poolings[exit],
            pooler=self.poolers[min(exit, len(self.poolers) - 1)] if self.poolers else None,
            dropout=None if exit in self.frozen else self.dropout,
            hidden=self.hidden[which] if self.hidden else None,
            classifier=self.classifiers[which],
            gate=self.gate,
        )

    def parts(self, exit: int) -> list[nn.Module]:
        """The modules that an exit's logits go through."""
        head = self.head_of(exit)
        return [part for part in (head.pooler, head.hidden, head.classifier) if part is not None]


class Head(NamedTuple):
    """The parts of one exit's head, looked up."""

    pooling: str
    pooler: nn.Module | None
    dropout: nn.Module | None
    hidden: nn.Module | None
    classifier: nn.Module
    gate: nn.Module | None

    def __call__(self, hidden: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        vector = pool(hidden, attention_mask, self.pooling)
        if self.pooler is not None:
            vector = self.pooler(vector)
        # the gate judges the exits, it does not move them
        gate = None if self.gate is None else self.gate(vector.detach()).sigmoid().squeeze(-1)
        if self.dropout is not None and self.dropout.training:
            vector = self.dropout(vector)
        if self.hidden is not None:
            vector = self.hidden(vector).tanh()
        return self.classifier(vector), gate


def pool(hidden: Tensor, attention_mask: Tensor | None, how: str) -> Tensor:
    """(examples, length, width) -> (examples, width), over the first or over all real tokens."""
    if how == "first":
        return hidden[:, 0]
    if attention_mask is None:
        return hidden.mean(dim=1)
    return (hidden * attention_mask.unsqueeze(-1)).sum(dim=1) / attention_mask.sum(dim=1, keepdim=True)
