"""ModelInfo: what a model is, as config.json says."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from offramp.errors import BadConfig, BadPolicy, CannotLoad, Incompatible, UnknownName
from offramp.files import finish_writes, read_json
from offramp.guarantees.operating_point import OperatingPoint
from offramp.policy import Policy
from offramp.problems import TOKENS, Problem, problem_named, problem_of

CONFIG = "config.json"
SIZES = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}
"""Sizes of an encoder, and DistilBERT's names of them."""
MOST_LAYERS = 1000


@dataclass(frozen=True)
class ModelInfo:
    """The contents of config.json, read without torch, in a form that is checked."""

    exits: tuple[int, ...]
    """The layer of each exit; 0 is before the first layer."""
    labels: tuple[str, ...]
    """In the order of the logits."""
    problem: Problem
    head: Mapping[str, Any]
    encoder: Mapping[str, Any]
    """The config of the encoder."""
    policy: Policy | None
    policy_target: Mapping[str, Any] | None = None
    """The target that the policy was calibrated for, such as {"max_loss": 0.5}; None if unknown."""
    trained_length: int | None = None
    """The number of tokens that texts were truncated to in training; None if unknown."""
    trained_on_pairs: bool | None = None
    """Whether training had pairs of texts; None if unknown."""
    decide: OperatingPoint = field(default_factory=OperatingPoint)
    """How its scores become decisions."""

    @classmethod
    def read(cls, folder: str | PathLike[str], replaces_policy: bool = False) -> Self:
        """The info of a model folder. A stored policy that cannot run is an error, or left out if the caller replaces
        it."""
        file = Path(folder) / CONFIG
        finish_writes(file.parent)
        config = read_json(file)
        if "offramp" in config:
            if replaces_policy:
                raise Incompatible(
                    f"{folder} is a portable folder, whose policy is part of its graph; change that of the folder it "
                    "was made from, and then use `offramp export --portable`."
                )
            with explain_config(file):
                config = portable_config(config)
        if config.get("model_type") != "offramp":
            raise no_exits(folder, config)
        with explain_config(file):
            info = cls.from_dict(config | {"policy": None})
            try:
                return info.with_policy(config["policy"])
            except (BadPolicy, Incompatible, UnknownName) as error:
                if replaces_policy:
                    return info
                replace_it = f"Replace it with `offramp calibrate {folder} --policy never`."
                raise CannotLoad(f"{file}: the stored policy: {error} {replace_it}") from error

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """The info in the fields of an `ExitConfig`; an error if they contradict each other."""
        info = cls(
            exits=tuple(config["exits"]),
            labels=read_labels(config),
            problem=problem_named(config["problem_type"]),
            head=config["head"],
            encoder=config["encoder_config"],
            policy=None,
            policy_target=config.get("policy_target"),
            trained_length=config.get("trained_length"),
            trained_on_pairs=config.get("trained_on_pairs"),
            decide=OperatingPoint.parse(config.get("decide") or ""),
        )
        info.check()
        return info.with_policy(config["policy"])

    def check(self) -> None:
        """Refuse values that contradict each other or have the wrong type."""
        for name in SIZES:
            self.size(name)
        exits, layers = self.exits, self.size("num_hidden_layers")
        if layers > MOST_LAYERS:  # they are made before the weights are read
            raise BadConfig(f"num_hidden_layers={layers} is more than {MOST_LAYERS}")
        if not all(type(layer) is int and layer >= 0 for layer in exits) or not exits:
            raise BadConfig(f"exits={[*exits]} are not layers")
        if list(exits) != sorted({*exits}) or exits[-1] != layers:
            raise BadConfig(f"exits={[*exits]} must increase up to the last of {layers} layers")
        if not self.labels:
            raise BadConfig("num_labels must be 1 or more")
        if not isinstance(self.encoder["model_type"], str) or type(self.head["gate"]) is not bool:
            raise BadConfig("encoder_config has no model_type, or head no gate")
        padding = self.encoder.get("pad_token_id")
        if isinstance(padding, int) and padding < 0:
            raise BadConfig(f"pad_token_id={padding} is not a token")
        length = self.trained_length
        if not (length is None or (type(length) is int and length > 0)):
            raise BadConfig(f"trained_length={length!r} is not a number of tokens")
        if self.trained_on_pairs not in (None, True, False):
            raise BadConfig(f"trained_on_pairs={self.trained_on_pairs!r} is neither true nor false")
        self.decide.decisions(self.problem, self.labels)
        if not isinstance(self.policy_target, Mapping | None):
            raise BadConfig(f"policy_target={self.policy_target!r} is not a target")

    def with_policy(self, record: Mapping[str, Any] | None) -> Self:
        """With a stored policy; an error if the model cannot run it."""
        if record is None:
            return self
        policy = Policy.from_json(record)
        info = replace(self, policy=policy)
        info.check_policy(policy)
        return info

    @property
    def decisions(self) -> Problem:
        """What is decided, and compared with a reference: the problem, at its operating point."""
        return self.decide.decisions(self.problem, self.labels)

    @property
    def backbone(self) -> str:
        return str(self.encoder["model_type"])

    @property
    def has_gate(self) -> bool:
        """Whether exits have learned gate scores."""
        return bool(self.head["gate"])

    @property
    def reads_types(self) -> bool:
        """Whether a head tells the texts of a pair apart."""
        return "pair" in (self.head.get("pooling"), self.head.get("final_pooling"))

    @property
    def shape(self) -> dict[str, int]:
        """Sizes of the backbone and the heads, from which MACs are counted."""
        pooler = 0 if self.head["pooler"] == "none" else 4 if self.head["pooling"] == "pair" else 1
        return {
            "hidden": self.size("hidden_size"),
            "intermediate": self.size("intermediate_size"),
            "heads": self.size("num_attention_heads"),
            "layers": self.size("num_hidden_layers"),
            "pooler": pooler,
            "head_hidden": self.head["hidden"],
            "correction": self.head.get("correction", 0),
        }

    def size(self, name: str) -> int:
        """A size of the encoder."""
        size = self.encoder.get(name, self.encoder.get(SIZES[name]))
        if type(size) is not int or size < 1:
            raise BadConfig(f"{name}={size!r} is not a size")
        return size

    def check_policy(self, policy: Policy | str) -> Policy:
        """The policy, with its classes resolved and, if its rule learns, fitted as the stored one.

        A policy that this model cannot run is an error.
        """
        policy = Policy.resolve(policy, self.policy)
        policy.check(self.exits, self.decisions, self.has_gate, len(self.labels))
        return policy


def portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `ExitConfig`, from the config of a portable folder: a plain classifier's, with ours apart."""
    ours = config["offramp"]
    return {**config, **ours, "model_type": "offramp", "exits": ours["layers"], "encoder_config": config}


@contextmanager
def explain_config(file: Path) -> Iterator[None]:
    """`CannotLoad` for a config that is incomplete or contradicts itself."""
    try:
        yield
    except KeyError as missing:
        raise CannotLoad(f"{file} has no {missing}; save or export the model again.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise CannotLoad(f"{file}: {error}; save or export the model again.") from error


def read_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the labels, in the order of the logits."""
    # transformers leaves out the names of two labels that have none
    names = config.get("id2label", {0: "LABEL_0", 1: "LABEL_1"})
    if not isinstance(names, Mapping) or {*map(str, names)} != {*map(str, range(len(names)))}:
        raise BadConfig(f"id2label={names} does not name the outputs 0, 1 and so on")
    names = {str(index): name for index, name in names.items()}
    labels = tuple(names[str(index)] for index in range(len(names)))
    indices = config.get("label2id") or {label: index for index, label in enumerate(labels)}
    if not all(isinstance(label, str) for label in labels) or indices.keys() != {*labels}:
        raise BadConfig(f"id2label={names} and label2id={indices} disagree")
    return labels


def problem_in(config: Mapping[str, Any]) -> Problem:
    """The problem of a plain classifier or tagger."""
    if "ForTokenClassification" in str(config.get("architectures")):
        return TOKENS
    return problem_of(len(read_labels(config)), config.get("problem_type"))


def no_exits(path: str | PathLike[str], config: Mapping[str, Any]) -> CannotLoad:
    kind, architectures = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str):
        return CannotLoad(f"{path}/{CONFIG} has no model_type; save or copy the model again.")
    for head, name in ("ForSequenceClassification", "classifier"), ("ForTokenClassification", "tagger"):
        if head in str(architectures):
            return CannotLoad(
                f"{path} is a {kind} {name} without exits; add them with `offramp retrofit {path} --texts FILE --out "
                "FOLDER`, which needs no labels."
            )
    return CannotLoad(
        f"{path} is a {kind} model without exits; add exits and train them, with `offramp train` or "
        "ExitModel.from_encoder."
    )
