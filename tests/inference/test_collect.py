"""One pass over a data set, with stages whose logits follow from their input, and with a real model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from fakes import FakeRuntime, make_info
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadData, BadOption
from offramp.inference import Classifier, Runner
from offramp.inference.collect import collect
from offramp.model_info import ModelInfo
from offramp.models.exit_model import ExitModel
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from offramp.runtimes import Tokens
from offramp.trace import Trace


@dataclass
class SumRuntime(FakeRuntime):
    """Logits are (sum of the tokens + 1000 per token of the second text, number of tokens) + 100 * exit."""

    info: ModelInfo = field(default_factory=lambda: sum_info(SINGLE_LABEL))
    gated: bool = False
    max_length: int = 6
    batch_tokens: int = 40
    overhead: int = 0

    def outputs(self, example: Tokens, exit: int) -> tuple[np.ndarray, Any]:
        sums = [sum(example.ids) + 1000 * sum(example.types or []), len(example.ids)]
        logits = np.array(sums, np.float32)[: len(self.info.labels)] + 100 * exit
        return logits, logits[0] / 2 if self.gated else None


def sum_info(problem: Problem) -> ModelInfo:
    return make_info((2, 4), ("number",) if problem == REGRESSION else ("few", "many"), problem)


def rows(examples: int, **columns: Any) -> Dataset:
    random = np.random.default_rng(0)
    ids = [random.integers(1, 50, random.integers(1, 20)).tolist() for _ in range(examples)]
    return Dataset.from_dict({"input_ids": ids, **columns})


def expected(dataset: Dataset) -> np.ndarray:
    sums = np.array([[sum(ids), len(ids)] for ids in dataset["input_ids"]], np.float32)
    return sums[:, None] + np.array([0, 100])[:, None]


def collect_quietly(model: Any, dataset: Any, *args: Any, **options: Any) -> Trace:
    return collect(model, dataset, *args, progress=False, **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_trace_has_the_logits_of_every_exit_in_the_order_of_the_data(
    tokenizer: PreTrainedTokenizerFast, stream: bool, gated: bool
) -> None:
    ids = [f"number {index}" for index in range(30)]
    dataset = rows(30, label=[index % 2 for index in range(30)], id=ids)
    classifier = Classifier(Runner(SumRuntime(gated=gated), tokenizer, window=7))
    trace = collect_quietly(classifier, dataset.to_iterable_dataset() if stream else dataset)
    np.testing.assert_array_equal(trace.logits, expected(dataset))
    np.testing.assert_array_equal(trace.lengths, [len(row) for row in dataset["input_ids"]])
    assert trace.ids.tolist() == ids
    assert trace.labels is not None
    assert trace.labels.tolist() == dataset["label"][:]
    assert (trace.gates is not None) == gated
    if trace.gates is not None:
        np.testing.assert_array_equal(trace.gates, expected(dataset)[..., 0] / 2)


def test_micro_batches_hold_at_most_batch_tokens() -> None:
    runtime = SumRuntime()
    collect_quietly(runtime, rows(200), batch_tokens=60)
    assert max(len(lengths) * max(lengths) for _, lengths in runtime.batches) in range(41, 61)


def test_the_trace_describes_model_and_data() -> None:
    trace = collect_quietly(SumRuntime(), rows(3), metrics=("accuracy",), data="made up")
    assert (trace.layers, trace.label_names, trace.metrics) == ((2, 4), ("few", "many"), ("accuracy",))
    assert (trace.fingerprint, trace.runtime, trace.precision) == ("fake", "numpy", "fp32")
    assert trace.data == "made up"
    assert trace.ids.tolist() == [0, 1, 2]
    assert trace.labels is None


@pytest.mark.parametrize("training", [False, True])
def test_the_model_keeps_its_mode(make_model: Callable[..., ExitModel], training: bool) -> None:
    model = make_model().train(training)
    collect_quietly(model, rows(2))
    assert model.training == training
    with pytest.raises(BadData):
        collect_quietly(model, Dataset.from_dict({"sentence": ["a"]}))
    assert model.training == training


def test_texts_and_pairs_are_tokenized_and_truncated(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = Dataset.from_dict({"text": ["a b", "a a a a a a a a a"]})
    trace = collect_quietly(SumRuntime(), texts, tokenizer)
    assert trace.logits[:, 0].tolist() == [[2 + 4 + 5 + 3, 4], [2 + 4 * 4 + 3, 6]]
    longer = SumRuntime(max_length=20)
    assert collect_quietly(longer, texts, tokenizer, max_length=8).lengths.tolist() == [4, 8]
    assert collect_quietly(SumRuntime(), texts, tokenizer, max_length=100).lengths.tolist() == [4, 6]
    pairs = Dataset.from_dict({"text": ["a"], "text_pair": ["b"]})
    pair = collect_quietly(SumRuntime(), pairs, tokenizer)
    assert pair.logits[:, 0].tolist() == [[2 + 4 + 3 + 5 + 3 + 2000, 5]]


def test_texts_are_not_truncated_further_than_in_predictions(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(BadOption, match="max_length=3 must be at least 8"):
        collect_quietly(SumRuntime(), {"text": ["a"]}, tokenizer, max_length=3)


def test_a_classifier_uses_its_own_tokenizer_and_limits(tokenizer: PreTrainedTokenizerFast) -> None:
    classifier = Classifier(Runner(SumRuntime(max_length=20), tokenizer, window=1, max_length=8))
    texts = Dataset.from_dict({"text": ["a b", "a a a a a a a a a"]})
    assert collect_quietly(classifier, texts).lengths.tolist() == [4, 8]
    batches: Any = classifier.runner.runtime.batches  # type: ignore[attr-defined]
    assert [lengths.tolist() for exit, lengths in batches if exit == 0] == [[4], [8]]
    for option in ({"tokenizer": tokenizer}, {"batch_tokens": 9}, {"max_length": 9}):
        with pytest.raises(BadOption, match="runner has its own"):
            collect_quietly(classifier, texts, **option)


def test_padding_in_the_data_is_removed() -> None:
    dataset = Dataset.from_dict(
        {
            "input_ids": [[5, 6, 0, 0], [0, 0, 0, 9]],
            "token_type_ids": [[0, 1, 0, 0], [1, 1, 1, 0]],
            "attention_mask": [[1, 1, 0, 0], [0, 0, 0, 1]],
        }
    )
    assert collect_quietly(SumRuntime(), dataset).logits[:, 0].tolist() == [[1011.0, 2.0], [9.0, 1.0]]


def test_multi_labels_keep_their_shape() -> None:
    dataset = rows(3, labels=[[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    trace = collect_quietly(SumRuntime(sum_info(MULTI_LABEL)), dataset)
    assert trace.labels is not None
    assert trace.labels.tolist() == [[0, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("problem_type", "labels", "message"),
    [
        (SINGLE_LABEL, [0, 1, None], "row 2 has no label"),
        (SINGLE_LABEL, [0, -1, 1], "row 1 has no label"),
        (SINGLE_LABEL, [0, 1, 2], "row 2 has the label 2, expected 0 to 1"),
        (SINGLE_LABEL, [0.0, 1.0, 0.7], "row 0 has the label 0.0"),
        (SINGLE_LABEL, ["few", "many", "few"], "row 0 has the label 'few'"),
        (SINGLE_LABEL, [[0], [1], [0]], r"row 0 has the label \[0\]"),
        (MULTI_LABEL, [[0, 1], [1, 1], None], "row 2 has no label"),
        (MULTI_LABEL, [[0, 1], [1, 1], [1]], "row 2 .* a list of 2 zeros and ones"),
        (MULTI_LABEL, [[0, 1], [1, 2], [1, 0]], "row 1 .* zeros and ones"),
        (MULTI_LABEL, [0, 1, 1], "row 0 .* zeros and ones"),
        (REGRESSION, [0.5, None, 1.5], "row 1 has no label"),
        (REGRESSION, [0.5, 1.5, float("nan")], "row 2 has no label"),
        (REGRESSION, [0.5, 1.5, float("inf")], "row 2 .* expected a number"),
    ],
)
def test_invalid_labels_are_named_before_the_model_runs(
    problem_type: Problem, labels: list[Any], message: str, stream: bool
) -> None:
    runtime, dataset = SumRuntime(sum_info(problem_type)), rows(3, label=labels)
    with pytest.raises(BadData, match=message):
        collect_quietly(runtime, dataset.to_iterable_dataset() if stream else dataset)
    assert runtime.batches == []


@pytest.mark.parametrize("labels", [[0] * 7 + [None] * 5, [None] * 7 + [1] * 5])
def test_labels_missing_from_a_whole_window_are_named(
    tokenizer: PreTrainedTokenizerFast, labels: list[Any]
) -> None:
    runtime, row = SumRuntime(), labels.index(None)
    classifier = Classifier(Runner(runtime, tokenizer, window=7))
    with pytest.raises(BadData, match=f"row {row} has no label"):
        collect_quietly(classifier, rows(12, label=labels))
    assert runtime.batches == []
    with pytest.raises(BadData, match=f"row {row} has no label"):
        collect_quietly(classifier, rows(12, label=labels).to_iterable_dataset())


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        (SINGLE_LABEL, [-1] * 3),
        (SINGLE_LABEL, [None] * 3),
        (MULTI_LABEL, [[-1, -1]] * 3),
        (REGRESSION, [-1.0] * 3),
        (REGRESSION, [None] * 3),
    ],
)
def test_hidden_labels_count_as_unlabelled(problem_type: Problem, labels: list[Any]) -> None:
    assert collect_quietly(SumRuntime(sum_info(problem_type)), rows(3, label=labels)).labels is None


def test_a_regression_may_have_the_value_that_hides_a_class() -> None:
    trace = collect_quietly(SumRuntime(sum_info(REGRESSION)), rows(3, label=[-1.0, 0.5, 2.0]))
    assert trace.labels is not None
    assert trace.labels.tolist() == [-1.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"sentence": ["a"]}, "needs a column text or input_ids; it has sentence"),
        ({"text": ["a"]}, "pass the model's tokenizer"),
        ({"input_ids": []}, "is empty"),
        ({"input_ids": [[1], []]}, "row 1 has no tokens"),
    ],
)
def test_data_that_cannot_run_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        collect_quietly(SumRuntime(), Dataset.from_dict(columns))


def test_a_real_model_gives_the_logits_of_its_forward(make_model: Callable[..., ExitModel]) -> None:
    model = make_model(num_labels=3, exits=2)
    random = np.random.default_rng(0)
    ids = [random.integers(2, 60, length).tolist() for length in (3, 9, 1, 5, 9, 2)]
    trace = collect(model, Dataset.from_dict({"input_ids": ids, "label": [0, 1, 2, 0, 1, 2]}))
    assert trace.layers == (0, 2, 4)
    assert trace.fingerprint == model.fingerprint()
    assert trace.runtime.startswith("torch ")
    sizes = {
        "hidden": 16,
        "intermediate": 24,
        "heads": 2,
        "layers": 4,
        "pooler": 1,
        "head_hidden": 0,
        "correction": 0,
    }
    assert dict(trace.shape) == sizes
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([row])).exit_logits[0].numpy() for row in ids]
    np.testing.assert_allclose(trace.logits, alone, atol=1e-5)
