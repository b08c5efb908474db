"""What all exits of a classifier say about a data set, on whatever runs it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.stages import Array, Tokens
from offramp.trace import Trace
from offramp.trace.collecting import Columns, Progress, gather, text_columns, unpadded_rows

if TYPE_CHECKING:
    from offramp.classifier.classifier import Classifier


def collect(
    classifier: "Classifier", dataset: Any, metrics: tuple[str, ...], data: str, progress: bool
) -> Trace:
    stages, engine = classifier.stages, classifier.engine

    def answer(columns: Columns, done: Progress) -> dict[str, Array]:
        tokens, said = tokens_of(columns, classifier), []
        for first in range(0, len(tokens), engine.window):
            said.append(engine.trace(tokens[first : first + engine.window]))
            done(len(said[-1][0]))
        logits, gates = zip(*said, strict=True)
        arrays = {
            "lengths": np.array([len(example.ids) for example in tokens]),
            "logits": np.concatenate(logits),
        }
        return arrays if gates[0] is None else arrays | {"gates": np.concatenate(gates)}

    return Trace(
        **gather(dataset, answer, stages.problem_type, len(stages.labels), progress),
        layers=stages.layers,
        problem_type=stages.problem_type,
        label_names=stages.labels,
        metrics=metrics,
        data=data,
        precision=stages.precision,
        **stages.about(),
    )


def tokens_of(columns: Columns, classifier: "Classifier") -> list[Tokens]:
    if "input_ids" in columns:
        return [Tokens(row["input_ids"], row.get("token_type_ids")) for row in unpadded_rows(columns)]
    texts, pairs = text_columns(columns)
    return classifier.tokenizer(texts if pairs is None else [*zip(texts, pairs, strict=True)])
