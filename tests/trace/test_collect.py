"""One pass over a data set, with a model whose answers can be told from its input, and with a real one."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from offramp.errors import BadData
from offramp.model import ExitModel
from offramp.trace import collect, collecting

PAD = 7


class Telling(torch.nn.Module):
    """Answers (sum of the real tokens, number of them) + 100 * exit, and remembers the batches it saw."""

    def __init__(self, gates: bool = False, problem_type: str = "single_label_classification") -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.max_length = 6
        self.gates = gates
        self.batches: list[tuple[int, int]] = []
        encoder = SimpleNamespace(
            hidden_size=8,
            intermediate_size=16,
            num_attention_heads=2,
            num_hidden_layers=4,
            pad_token_id=PAD,
        )
        self.config = SimpleNamespace(
            exits=[2, 4],
            problem_type=problem_type,
            id2label={0: "number"} if problem_type == "regression" else {1: "many", 0: "few"},
            encoder_config=encoder,
            head_config=SimpleNamespace(pooler="own"),
        )

    def fingerprint(self) -> str:
        return "telling"

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        assert not self.training
        assert not torch.is_grad_enabled()
        assert (input_ids[attention_mask == 0] == PAD).all()
        self.batches.append(tuple(input_ids.shape))
        total = (input_ids * attention_mask).sum(1)
        if token_type_ids is not None:
            total = total + 1000 * token_type_ids.sum(1)
        answer = torch.stack([total, attention_mask.sum(1)], -1).float()
        logits = answer[:, None] + 100 * torch.arange(2.0)[None, :, None]
        if self.config.problem_type == "regression":
            logits = logits[..., :1]
        return SimpleNamespace(exit_logits=logits, exit_gates=logits[..., 0] / 2 if self.gates else None)


class Words:
    """A tokenizer that gives each word its length, and the second sentence another type."""

    model_max_length = 10**30

    def __call__(
        self, text: list[str], pair: list[str] | None, truncation: bool, max_length: int
    ) -> dict[str, Any]:
        assert truncation
        first = [[len(word) for word in line.split()] for line in text]
        second = [[len(word) for word in line.split()] for line in pair] if pair else [[] for _ in text]
        return {
            "input_ids": [(a + b)[:max_length] for a, b in zip(first, second, strict=True)],
            "token_type_ids": [
                ([0] * len(a) + [1] * len(b))[:max_length] for a, b in zip(first, second, strict=True)
            ],
        }


def tokens(examples: int, **columns: Any) -> Dataset:
    random = np.random.default_rng(0)
    rows = [random.integers(1, 50, random.integers(1, 20)).tolist() for _ in range(examples)]
    return Dataset.from_dict({"input_ids": rows, **columns})


def expected(dataset: Dataset) -> np.ndarray:
    answers = np.array([[sum(ids), len(ids)] for ids in dataset["input_ids"]], np.float32)
    return answers[:, None] + np.array([0, 100])[:, None]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "CHUNK", 7)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("gates", [False, True])
def test_the_trace_has_every_answer_in_the_order_of_the_data(stream: bool, gates: bool) -> None:
    ids = [f"number {index}" for index in range(30)]
    dataset = tokens(30, label=[index % 2 for index in range(30)], id=ids)
    trace = collect(
        Telling(gates), dataset.to_iterable_dataset() if stream else dataset, batch_tokens=40, progress=False
    )
    np.testing.assert_array_equal(trace.logits, expected(dataset))
    np.testing.assert_array_equal(trace.lengths, [len(row) for row in dataset["input_ids"]])
    assert trace.ids.tolist() == ids
    assert trace.labels is not None
    assert trace.labels.tolist() == dataset["label"][:]
    assert (trace.gates is not None) == gates
    if trace.gates is not None:
        np.testing.assert_array_equal(trace.gates, expected(dataset)[..., 0] / 2)


def test_batches_hold_similar_lengths_within_the_budget() -> None:
    model, dataset = Telling(), tokens(200)
    collect(model, dataset, batch_tokens=40, progress=False)
    assert all(rows * width <= 40 for rows, width in model.batches)
    real = sum(len(row) for row in dataset["input_ids"])
    assert sum(rows * width for rows, width in model.batches) < 1.1 * real


def test_an_example_longer_than_the_budget_runs_alone() -> None:
    model = Telling()
    collect(model, Dataset.from_dict({"input_ids": [[1] * 9, [2] * 9]}), batch_tokens=4, progress=False)
    assert model.batches == [(1, 9), (1, 9)]


def test_the_trace_tells_of_model_and_data() -> None:
    trace = collect(Telling(), tokens(3), metrics=("accuracy",), data="made up", progress=False)
    assert (trace.layers, trace.label_names, trace.metrics) == ((2, 4), ("few", "many"), ("accuracy",))
    assert (trace.fingerprint, trace.data) == ("telling", "made up")
    assert trace.runtime.startswith("torch")
    assert dict(trace.shape) == {"hidden": 8, "intermediate": 16, "heads": 2, "layers": 4, "pooler": True}
    assert trace.ids.tolist() == [0, 1, 2]
    assert trace.labels is None


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_in_the_mode_it_was_in(training: bool) -> None:
    model = Telling().train(training)
    collect(model, tokens(2), progress=False)
    assert model.training == training
    with pytest.raises(BadData):
        collect(model, Dataset.from_dict({"sentence": ["a"]}), progress=False)
    assert model.training == training


def test_text_and_pairs_are_tokenised_and_cut_at_the_models_positions() -> None:
    dataset = Dataset.from_dict({"text": ["a bb", "a a a a a a a a a"], "text_pair": ["ccc", "b"]})
    trace = collect(Telling(), dataset, Words(), progress=False)
    assert trace.logits[:, 0].tolist() == [[1006.0, 3.0], [6.0, 6.0]]
    assert trace.lengths.tolist() == [3, 6]
    shorter = collect(Telling(), dataset, Words(), max_length=2, progress=False)
    assert shorter.lengths.tolist() == [2, 2]
    longer = collect(Telling(), dataset, Words(), max_length=100, progress=False)
    assert longer.lengths.tolist() == [3, 6]


def test_padding_in_the_data_is_no_part_of_an_example() -> None:
    dataset = Dataset.from_dict(
        {"input_ids": [[5, 6, 0, 0], [0, 0, 0, 9]], "attention_mask": [[1, 1, 0, 0], [0, 0, 0, 1]]}
    )
    trace = collect(Telling(), dataset, progress=False)
    assert trace.logits[:, 0].tolist() == [[11.0, 2.0], [9.0, 1.0]]


def test_hidden_labels_count_as_none() -> None:
    assert collect(Telling(), tokens(3, label=[-1, -1, -1]), progress=False).labels is None


def test_many_labels_keep_their_shape() -> None:
    model = Telling(problem_type="multi_label_classification")
    trace = collect(model, tokens(3, labels=[[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), progress=False)
    assert trace.labels is not None
    assert trace.labels.tolist() == [[0, 1], [1, 1], [0, 0]]


SINGLE_LABEL, MULTI_LABEL, NUMBER = "single_label_classification", "multi_label_classification", "regression"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("problem_type", "labels", "advice"),
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
        (NUMBER, [0.5, None, 1.5], "row 1 has no label"),
        (NUMBER, [0.5, 1.5, float("nan")], "row 2 has no label"),
        (NUMBER, [0.5, 1.5, float("inf")], "row 2 .* expected a number"),
    ],
)
def test_labels_that_cannot_be_are_named_before_the_model_runs(
    problem_type: str, labels: list[Any], advice: str, stream: bool
) -> None:
    model, dataset = Telling(problem_type=problem_type), tokens(3, label=labels)
    with pytest.raises(BadData, match=advice):
        collect(model, dataset.to_iterable_dataset() if stream else dataset, progress=False)
    assert model.batches == []


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("labels", [[0] * 7 + [None] * 5, [None] * 7 + [1] * 5])
def test_labels_that_end_or_begin_between_two_parts_are_named(labels: list[Any]) -> None:
    model, row = Telling(), labels.index(None)
    with pytest.raises(BadData, match=f"row {row} has no label"):
        collect(model, tokens(12, label=labels), progress=False)
    assert model.batches == []
    with pytest.raises(BadData, match=f"row {row} has no label"):
        collect(model, tokens(12, label=labels).to_iterable_dataset(), progress=False)


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [(SINGLE_LABEL, [None] * 3), (MULTI_LABEL, [[-1, -1]] * 3), (NUMBER, [-1.0] * 3), (NUMBER, [None] * 3)],
)
def test_labels_of_every_kind_may_be_hidden(problem_type: str, labels: list[Any]) -> None:
    model = Telling(problem_type=problem_type)
    assert collect(model, tokens(3, label=labels), progress=False).labels is None


def test_a_regression_may_have_the_value_that_hides_a_class() -> None:
    trace = collect(Telling(problem_type=NUMBER), tokens(3, label=[-1.0, 0.5, 2.0]), progress=False)
    assert trace.labels.tolist() == [-1.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ({"sentence": ["a"]}, "only sentence; rename"),
        ({"text": ["a"]}, "pass the model's tokenizer"),
        ({"input_ids": []}, "is empty"),
    ],
)
def test_data_that_can_not_be_run_is_refused_with_advice(columns: dict[str, Any], advice: str) -> None:
    with pytest.raises(BadData, match=advice):
        collect(Telling(), Dataset.from_dict(columns), progress=False)


def test_a_real_model_gives_the_logits_of_a_plain_run(tiny_encoder: Callable[..., PreTrainedModel]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=3, exits=2)
    random = np.random.default_rng(0)
    rows = [random.integers(2, 60, length).tolist() for length in (3, 9, 1, 5, 9, 2)]
    trace = collect(
        model, Dataset.from_dict({"input_ids": rows, "label": [0, 1, 2, 0, 1, 2]}), batch_tokens=20
    )
    assert trace.layers == (2, 4)
    assert trace.fingerprint == model.fingerprint()
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([row])).exit_logits[0].numpy() for row in rows]
    np.testing.assert_allclose(trace.logits, alone, atol=1e-5)
