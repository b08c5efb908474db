"""MomentumTeacher: RomeBERT's teacher, a moving average of the model that is trained."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from offramp.model import ExitModel


class MomentumTeacher(TrainerCallback):
    """Its last exit is the teacher; after each step it moves towards the model by 1 - momentum."""

    def __init__(self, model: ExitModel, momentum: float) -> None:
        self.model = copy.deepcopy(model)
        nn.Module.eval(self.model.requires_grad_(False))
        self.momentum = momentum

    @torch.no_grad()
    def logits(self, inputs: dict[str, Any]) -> Tensor:
        logits: Tensor = self.model.to(inputs["input_ids"].device)(**inputs).logits
        return logits

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        for slow, fast in zip(self.model.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.to(slow.device), 1 - self.momentum)
