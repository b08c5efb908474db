"""ExitConfig: all that is needed to rebuild a model with exits, saved as config.json beside its weights."""

from dataclasses import field
from typing import Any, ClassVar, Self, cast

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from offramp.backbones import backbone_for
from offramp.errors import BadConfig
from offramp.heads import HeadConfig
from offramp.problems import PROBLEM_TYPES, REGRESSION, SINGLE_LABEL

FORMAT = 1


@strict
class ExitConfig(PreTrainedConfig):
    """An encoder's config, where its exits are, what a head is, and the policy to run with."""

    model_type = "offramp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["logits", "exit_gates", "exit_weights"]
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "encoder_config": SubConfigSpec(AutoConfig, model_type="bert")
    }

    encoder_config: Any = None
    exits: list[int] = field(default_factory=list)
    """The layers that have an exit, counted from 1; the last layer always has one. Empty: every layer."""
    head: dict[str, Any] = field(default_factory=dict)
    """The fields of `HeadConfig`."""
    policy: dict[str, Any] | None = None
    """The JSON form of the policy that predictions use unless told otherwise."""
    learned_weights: bool = False
    """Whether the losses of the exits are weighed by parameters (ELBERT)."""
    initializer_range: float = 0.02
    format: int = FORMAT

    def __post_init__(self, **kwargs: Any) -> None:
        encoder = self.encoder_config
        if not isinstance(encoder, PreTrainedConfig) and "model_type" not in (encoder or {}):
            raise BadConfig(
                "encoder_config must be the config of a transformers encoder, with its model_type"
            )
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        family = backbone_for(self.encoder_config.model_type)
        self.head = HeadConfig.from_dict(self.head).filled(family.pooling).to_dict()
        self.exits = check_exits(self.exits, self.num_layers)
        if not self.num_labels:
            raise BadConfig("a model needs labels: num_labels must be 1 or more")
        self.label2id = {name: int(index) for index, name in (self.id2label or {}).items()}
        if self.problem_type is None:
            self.problem_type = REGRESSION if self.num_labels == 1 else SINGLE_LABEL
        if self.problem_type not in PROBLEM_TYPES:
            raise BadConfig(f"problem_type={self.problem_type!r}; choose one of {', '.join(PROBLEM_TYPES)}")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Self:
        """As transformers' own, for values that may come from a newer or a damaged file."""
        written = config_dict.get("format", FORMAT)
        if written not in range(1, FORMAT + 1):
            raise BadConfig(
                f"this config has format {written!r}, written by a newer offramp; this one reads up to "
                f"{FORMAT}. Upgrade offramp to load it."
            )
        try:
            return super().from_dict(config_dict, **options)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise BadConfig(f"this config cannot be read: {error}") from error

    @classmethod
    def _dict_from_json_file(cls, json_file: Any) -> dict[str, Any]:
        try:
            return dict(super()._dict_from_json_file(json_file))
        except (TypeError, ValueError) as error:
            raise BadConfig(
                f"{json_file} does not hold a JSON object ({error}); save the model again"
            ) from error

    def get_text_config(self, *_: Any, **__: Any) -> PreTrainedConfig:
        """Where transformers finds, and sets, the size of the vocabulary."""
        return cast(PreTrainedConfig, self.encoder_config)

    @property
    def num_layers(self) -> int:
        return int(self.encoder_config.num_hidden_layers)

    @property
    def head_config(self) -> HeadConfig:
        return HeadConfig.from_dict(self.head)


def check_exits(exits: list[int], layers: int) -> list[int]:
    wanted = sorted(set(exits)) or list(range(1, layers + 1))
    if wanted[0] < 1 or wanted[-1] != layers:
        raise BadConfig(f"exits={exits} of {layers} layers: count from 1 and end with {layers}")
    return wanted
