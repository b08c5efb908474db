"""How fast policies of a retrofit are, and the original."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from offramp.errors import Incompatible
from offramp.folder import is_exported
from offramp.inference import Classifier
from offramp.inference.reranker import Reranker
from offramp.inference.runner import Runner
from offramp.inference.tagger import Tagger
from offramp.measuring.speed import BATCH, Predict, Speed, compare_speed
from offramp.policy import Policy
from offramp.retrofits.arguments import Arguments
from offramp.retrofits.text_split import TextSet

TIMED_QUERIES = 10
"""The number of queries that are timed."""


def time_on(
    args: Arguments, part: TextSet, contenders: Mapping[str, Predict], seconds: float
) -> dict[str, Speed]:
    """The speed of each contender on texts of a part, measured for at most so many seconds."""
    examples = part.examples[: TIMED_QUERIES if part.by_query else BATCH]
    return compare_speed(contenders, examples, seconds=seconds, progress=args.progress)


def predictor(args: Arguments, folder: Path, policy: Policy) -> Predict:
    """What a user of a model folder would call."""
    runner = Runner.from_pretrained(folder, policy)
    if args.split.unit == "query":
        return Reranker(runner).rank_many
    compile_policy(runner, policy)
    return Tagger(runner).tag if args.original.tags else Classifier(runner).predict


def compile_policy(runner: Runner, policy: Policy) -> None:
    """Lets texts run through one graph, as they will in the finished model."""
    if runner.folder is not None and is_exported(runner.folder):
        from offramp.onnx_export.one_file import one_file

        with suppress(Incompatible):  # a rule that is not part of a graph
            runner.runtime.compile(one_file(runner.folder, policy).SerializeToString())  # type: ignore[attr-defined]


def predictor_of_original(args: Arguments) -> Predict:
    def predict(examples: Sequence[Any]) -> object:
        if args.original.tags:
            return args.original.tag_logits(
                [window for text in args.original.windows(examples) for window in text.windows]
            )
        if args.split.unit == "query":
            examples = [(query, document) for query, documents in examples for document in documents]
        return args.original.logits(examples)

    return predict
