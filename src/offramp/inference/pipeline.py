"""The transformers pipeline task "early-exit-classification". Importing this module registers it.

from transformers import pipeline
import offramp.inference.pipeline

pipeline("early-exit-classification", model=path)("a text")  # [{"label": ..., "score": ..., "layer": 4}]
"""

# mypy: disable-error-code="override, no-untyped-call"
# transformers' pipelines are only partly typed

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, TextClassificationPipeline
from transformers.pipelines import PIPELINE_REGISTRY

from offramp.inference.collect import unpad
from offramp.inference.runner import Runner
from offramp.policy import Policy

TASK = "early-exit-classification"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class ExitPipeline(TextClassificationPipeline):
    """Like "text-classification", with the additional option `policy` and `layer` in the results."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.runner = Runner(self.model, self.tokenizer)

    def _sanitize_parameters(self, policy: Policy | str | None = None, **options: Any) -> Any:
        preprocess, _, postprocess = super()._sanitize_parameters(**options)
        return preprocess, {} if policy is None else {"policy": policy}, postprocess

    def preprocess(self, inputs: Any, **options: Any) -> Any:
        truncation = {"truncation": True, "max_length": self.runner.tokenizer.max_length}
        return super().preprocess(inputs, **truncation | options)

    def _forward(self, model_inputs: Any, policy: Policy | str | None = None) -> dict[str, Tensor]:
        runtime = self.runner.runtime
        batch = {name: model_inputs[name].tolist() for name in INPUTS if name in model_inputs}
        decision = self.runner.engine.run(unpad(batch), self.runner.resolve_policy(policy))
        layers = torch.tensor(runtime.info.exits)[torch.from_numpy(decision.exits)]
        return {"logits": torch.from_numpy(decision.logits), "layer": layers}

    def postprocess(self, model_outputs: Any, **options: Any) -> Any:
        result = super().postprocess(model_outputs, **options)
        for record in result if isinstance(result, list) else [result]:
            record["layer"] = int(model_outputs["layer"])
            if not torch.isfinite(model_outputs["logits"]).all():
                record.update(label=None, score=float("nan"))
        return result


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=ExitPipeline, pt_model=AutoModelForSequenceClassification, type="text"
)
