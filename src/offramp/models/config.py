"""ExitConfig: the config.json of a model with exits."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Self, cast

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from offramp.errors import BadConfig, OfframpError
from offramp.model_info import ModelInfo
from offramp.models.backbones import backbone_for
from offramp.models.heads import HeadConfig
from offramp.problems import Problem, problem_of

FORMAT = 1


@strict
class ExitConfig(PreTrainedConfig):
    """The config of the encoder, the layers with an exit, the head options and the default policy."""

    model_type = "offramp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["logits", "exit_gates", "exit_weights"]
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "encoder_config": SubConfigSpec(AutoConfig, model_type="bert")
    }

    encoder_config: Any = None
    problem_type: str | None = None  # type: ignore[assignment]
    """A name in `PROBLEMS`; by default it follows from the number of labels."""
    exits: list[int] = field(default_factory=list)
    """Layers with an exit; 0 is before the first layer, and the last layer always has one. Empty: every layer."""
    head: dict[str, Any] = field(default_factory=dict)
    """The fields of `HeadConfig`."""
    policy: dict[str, Any] | None = None
    """The default policy of predictions, as JSON."""
    policy_target: dict[str, Any] | None = None
    """The target that the policy was calibrated for, such as {"max_loss": 0.5}; None if unknown."""
    fine_tuned: bool = False
    """Whether the last exit is a trained classifier, which training keeps unless a recipe is named."""
    inner_exits_trained: bool = False
    """Whether the other exits are trained too."""
    trained_length: int | None = None
    """The number of tokens that texts were truncated to in training; None if unknown."""
    trained_on_pairs: bool | None = None
    """Whether training had pairs of texts; None if unknown."""
    decide: str = ""
    """The operating point, such as "spam>=0.7"; empty: the most likely class."""
    learned_weights: bool = False
    """Whether the loss of each exit has a learned weight (ELBERT)."""
    initializer_range: float = 0.02
    format: int = FORMAT

    def __post_init__(self, **kwargs: Any) -> None:
        encoder = self.encoder_config
        if not isinstance(encoder, PreTrainedConfig) and "model_type" not in (encoder or {}):
            raise BadConfig(
                "encoder_config must be the config of a transformers encoder, including its model_type"
            )
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        family = backbone_for(self.encoder_config.model_type)
        pooling = "tokens" if self.problem.of_tokens else family.pooling
        self.head = HeadConfig.from_dict(self.head).with_defaults(pooling).to_dict()
        if "pair" in (self.head["pooling"], self.head["final_pooling"]) and not family.has_token_types:
            kind = self.encoder_config.model_type
            raise BadConfig(f"pooling='pair' needs token types, and {kind} does not have them; choose 'mean'")
        self.exits = sorted(set(self.exits)) or [*range(self.num_layers + 1)]
        self.label2id = {name: int(index) for index, name in (self.id2label or {}).items()}
        self.problem_type = str(self.problem)
        if (self.head["pooling"] == "tokens") != self.problem.of_tokens:
            raise BadConfig(
                f"pooling={self.head['pooling']!r} does not fit problem_type={self.problem_type!r}; heads that tag "
                "tokens have pooling='tokens', and no others"
            )
        ModelInfo.from_dict(self.to_dict() | {"policy": None})

    @property
    def info(self) -> ModelInfo:
        return ModelInfo.from_dict(self.to_dict())

    @property
    def problem(self) -> Problem:
        return problem_of(self.num_labels or 1, self.problem_type)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Self:
        """As in transformers, with errors for files that are damaged or too new."""
        written = config_dict.get("format", FORMAT)
        if written not in range(1, FORMAT + 1):
            raise BadConfig(
                f"this config has format {written!r} and was written by a newer offramp (this version reads "
                f"formats up to {FORMAT}). Upgrade offramp to load it."
            )
        try:
            return super().from_dict(config_dict, **options)
        except OfframpError:
            raise
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise BadConfig(f"cannot read this config: {error}") from error

    @classmethod
    def _dict_from_json_file(cls, json_file: Any) -> dict[str, Any]:
        try:
            return dict(super()._dict_from_json_file(json_file))
        except (TypeError, ValueError) as error:
            raise BadConfig(
                f"{json_file} does not hold a JSON object ({error}); save the model again"
            ) from error

    def get_text_config(self, *_: Any, **__: Any) -> PreTrainedConfig:
        """Where transformers reads and sets the vocabulary size."""
        return cast(PreTrainedConfig, self.encoder_config)

    @property
    def num_layers(self) -> int:
        return int(self.encoder_config.num_hidden_layers)

    @property
    def label_names(self) -> list[str]:
        """In the order of the logits."""
        return names_in_order(self)

    def rename_labels(self, names: Sequence[str]) -> None:
        if len(names) != len(self.label_names):
            raise BadConfig(f"{len(names)} label names for {len(self.label_names)} outputs")
        self.id2label = dict(enumerate(names))
        self.label2id = {name: index for index, name in enumerate(names)}

    @property
    def head_config(self) -> HeadConfig:
        return HeadConfig.from_dict(self.head)


def names_in_order(config: PreTrainedConfig) -> list[str]:
    """The label names in the order of the logits; transformers saves them in the order of "0", "1", "10", "2"."""
    numbers = config.id2label or {}
    names = [name for _, name in sorted(numbers.items())]
    are_names = all(isinstance(name, str) for name in names) and len({*names}) == len(names)
    if not are_names or {*numbers} != {*range(len(names))}:
        raise BadConfig(
            f"id2label={numbers} does not name the outputs 0, 1 and so on, each by a name of its own; fix config.json"
        )
    return names
