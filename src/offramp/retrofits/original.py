"""The user's model before the retrofit: loading it, checking it, and its predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedModel

from offramp.errors import Incompatible
from offramp.files import explain_damage
from offramp.folder import find_source, is_exported, load_tokenizer
from offramp.inference.texts import BatchTokenizer, Text
from offramp.inference.windows import WindowTokenizer
from offramp.models.backbones import backbone_for
from offramp.models.exit_model import ExitModel, classifier_kind, count_positions, load_encoder
from offramp.problems import TOKENS, Array, Problem, problem_of
from offramp.runtimes import Tokens, attention_mask, pad, token_types
from offramp.training.data import batches

BATCH = 32


@dataclass(frozen=True)
class Original:
    """A fine-tuned classifier or tagger of transformers, in fp32 on the CPU, and its tokenizer."""

    name: str
    """As people call it: the name of its folder, or its name on the hub."""
    model: PreTrainedModel
    tokenizer: Any
    max_length: int

    @property
    def problem(self) -> Problem:
        return TOKENS if self.tags else problem_of(self.outputs, self.model.config.problem_type)

    @property
    def tags(self) -> bool:
        """Whether it is a tagger."""
        return classifier_kind([type(self.model).__name__]) == "ForTokenClassification"

    @property
    def outputs(self) -> int:
        return self.model.config.num_labels or 1

    @cached_property
    def windows(self) -> WindowTokenizer:
        """Reads texts for a tagger."""
        return WindowTokenizer(BatchTokenizer(self.tokenizer, self.max_length))

    def logits(self, texts: Sequence[Text], progress: bool = False) -> Array:
        """(texts, outputs), in batches of similar length."""
        outputs = np.empty((len(texts), len(self.model.config.id2label or {})), np.float32)
        for rows in batches([*map(length, texts)], BATCH, "original model", progress):
            outputs[rows] = self.run(self.inputs([texts[row] for row in rows]))
        return outputs

    def tag_logits(self, windows: Sequence[Tokens], progress: bool = False) -> list[Array]:
        """(tokens, tags) of each window of texts, in batches of similar length."""
        lengths, outputs = [len(window.ids) for window in windows], dict[int, Array]()
        for rows in batches(lengths, BATCH, "original model", progress):
            logits = self.run(self.padded([windows[row] for row in rows]))
            outputs |= {row: tags[: lengths[row]] for row, tags in zip(rows.tolist(), logits, strict=True)}
        return [outputs[row] for row in range(len(windows))]

    @torch.no_grad()
    def run(self, inputs: dict[str, torch.Tensor]) -> Array:
        """The logits of a batch."""
        logits: Array = self.model(**inputs).logits.float().numpy()
        return logits

    def padded(self, windows: Sequence[Tokens]) -> dict[str, torch.Tensor]:
        """A batch of windows, padded on the right."""
        lengths = np.array([len(window.ids) for window in windows])
        arrays = {
            "input_ids": pad([window.ids for window in windows], self.model.config.pad_token_id or 0),
            "attention_mask": attention_mask(lengths),
        }
        if windows[0].types is not None:
            arrays["token_type_ids"] = token_types(windows)
        return {name: torch.from_numpy(values) for name, values in arrays.items()}

    def inputs(self, texts: Sequence[Text]) -> dict[str, torch.Tensor]:
        """A padded batch."""
        pairs = isinstance(texts[0], tuple)
        parts = [list(part) for part in zip(*texts, strict=True)] if pairs else [list(texts)]
        options = {"truncation": True, "max_length": self.max_length, "padding": True, "return_tensors": "pt"}
        return dict(self.tokenizer(*parts, **options))


def load_original(path: str | PathLike[str]) -> Original:
    """Loads a fine-tuned classifier that can get exits; anything else is an error that says what to do instead."""
    path = find_source(str(path))
    config = read_config(path)
    has_exits = config.model_type == "offramp"
    if has_exits or is_exported(path):  # a portable folder has the config of a classifier
        calibrate = "set its policy with `offramp calibrate`, or " if has_exits else ""
        raise Incompatible(
            f"{path} has exits already; {calibrate}retrofit the model that it was made from, with the same output "
            "folder for another guarantee."
        )
    backbone_for(config.model_type)
    return load_fine_tuned(path)


def load_fine_tuned(path: str | PathLike[str]) -> Original:
    """Loads a fine-tuned classifier of any architecture."""
    config = read_config(path)
    if classifier_kind(config.architectures or []) is None:
        kind = (config.architectures or [config.model_type])[0]
        raise Incompatible(
            f"{path} is a {kind}, not a classifier of texts or tokens, so it has no predictions to keep; fine-tune "
            "it first, or use `offramp train`."
        )
    tokenizer = load_tokenizer(path)
    model = load_encoder(str(path), {})
    limit = min(tokenizer.model_max_length, count_positions(model.base_model))
    name = Path(path).resolve().name if Path(path).exists() else str(path)
    return Original(name, model.eval(), tokenizer, limit)


def read_config(path: str | PathLike[str]) -> Any:
    with explain_damage(path):
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


def length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


@torch.no_grad()
def is_bit_equal(original: Original, model: ExitModel, texts: Sequence[Text]) -> bool:
    """Whether full depth gives the same bits as the original on the same batches."""
    for start in range(0, len(texts), BATCH):
        inputs = original.inputs(texts[start : start + BATCH])
        if not torch.equal(original.model(**inputs).logits, model(**inputs).logits):
            return False
    return True
