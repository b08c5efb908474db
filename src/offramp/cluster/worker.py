"""Predictor: runs in each worker. Tables of texts in, tables of predictions out."""

import os
from typing import Any

import pyarrow

from offramp.inference import Classifier, Prediction
from offramp.policy import Policy

TEXTS = ("text", "text_pair")


class Predictor:
    """A classifier limited to the worker's cores."""

    def __init__(
        self,
        model: str,
        policy: Policy | str | None,
        max_layer: int | None,
        threads: int,
        max_length: int | None = None,
        device: str | None = None,
    ) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # for the tokenizer, which reads it when it starts
        self.classifier = Classifier.from_pretrained(
            model, policy, device=device, threads=threads, max_length=max_length
        )
        self.max_layer = max_layer

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        names = [name for name in TEXTS if name in table.column_names]
        columns = [table[name].to_pylist() for name in names]
        texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        predictions = self.classifier.predict(texts, max_layer=self.max_layer)
        multi_label = self.classifier.runner.runtime.info.problem.multi_label
        label = pyarrow.list_(pyarrow.string()) if multi_label else pyarrow.string()
        added: dict[str, tuple[list[Any], Any]] = {
            **self.decisions(predictions),
            "label": ([prediction.label for prediction in predictions], label),
            "score": ([prediction.score for prediction in predictions], pyarrow.float32()),
            "layer": ([prediction.layer for prediction in predictions], pyarrow.int16()),
        }
        table = table.drop_columns(names)
        for name, (values, kind) in added.items():
            table = table.append_column(name, pyarrow.array(values, kind))
        return table

    def decisions(self, predictions: list[Prediction]) -> dict[str, tuple[list[Any], Any]]:
        """A column, if the model has an operating point."""
        thresholds = len(self.classifier.runner.runtime.info.decide.thresholds)
        kind = pyarrow.bool_() if thresholds == 1 else pyarrow.list_(pyarrow.string())
        return {"decision": ([each.decision for each in predictions], kind)} if thresholds else {}
