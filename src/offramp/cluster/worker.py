"""What runs in a worker: pieces of texts in, pieces of answers out."""

import os
from typing import Any

import pyarrow

from offramp.classifier import Classifier
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL

TEXTS = ("text", "text_pair")


class Answering:
    """A classifier that keeps to its own cores."""

    def __init__(self, model: str, policy: Policy | str | None, max_layer: int | None, threads: int) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's; read when it starts
        self.classifier = Classifier.from_pretrained(model, policy, threads=threads)
        self.max_layer = max_layer

    def __call__(self, piece: pyarrow.Table) -> pyarrow.Table:
        columns = [piece[name].to_pylist() for name in TEXTS if name in piece.column_names]
        texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        answers = self.classifier.predict(texts, max_layer=self.max_layer)
        several = self.classifier.stages.problem_type == MULTI_LABEL
        label = pyarrow.list_(pyarrow.string()) if several else pyarrow.string()
        said: dict[str, tuple[list[Any], Any]] = {
            "label": ([answer.label for answer in answers], label),
            "score": ([answer.score for answer in answers], pyarrow.float32()),
            "layer": ([answer.layer for answer in answers], pyarrow.int16()),
        }
        kept = piece.drop_columns([name for name in TEXTS if name in piece.column_names])
        for name, (values, kind) in said.items():
            kept = kept.append_column(name, pyarrow.array(values, kind))
        return kept
