"""Models, tasks, recipes and arguments that do not fit together are refused before any work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import BertTokenizer

from offramp import RECIPES, ExitModel, Phase, Recipe, Task
from offramp.errors import BadData, BadOption, Incompatible, UnknownName
from offramp.training import Trained, losses
from offramp.training.preflight import match_labels

Make = Callable[..., ExitModel]
MakeTask = Callable[..., Task]
Fit = Callable[..., Trained]


def test_freezing_every_parameter_is_refused_with_other_recipes_to_use(
    fit: Fit, tiny_model: Make, tmp_path: Path
) -> None:
    model = tiny_model(head={"pooler": "shared", "classifier": "shared"})
    with pytest.raises(Incompatible, match="pabee"):
        fit("deebert", model)
    assert not (tmp_path / "run").exists()


def test_a_model_without_inner_exits_needs_the_recipe_final(fit: Fit, tiny_model: Make) -> None:
    with pytest.raises(Incompatible, match="'final'"):
        fit("deebert", tiny_model(exits=[3]))


@pytest.mark.parametrize(
    ("model_options", "cause"),
    [
        ({"num_labels": 3}, "needs 2 outputs and the model has 3"),
        ({"problem_type": "multi_label_classification"}, "is single_label_classification"),
    ],
)
def test_a_model_for_another_task_is_refused_with_the_difference(
    model_options: dict[str, Any], cause: str, fit: Fit, tiny_model: Make
) -> None:
    with pytest.raises(BadOption, match=cause):
        fit(model=tiny_model(**model_options))


@pytest.mark.parametrize("recipe", ["pabee", "fastbert"])
def test_a_task_without_a_train_split_is_refused(recipe: str, fit: Fit, tiny_task: MakeTask) -> None:
    task = tiny_task()
    with pytest.raises(BadOption, match="no train split"):
        fit(recipe, task=replace(task, splits={"validation": task.splits["validation"]}))


@pytest.mark.parametrize("max_length", [-1, 0, 4])
def test_a_max_length_without_room_for_text_is_refused(max_length: int, fit: Fit) -> None:
    with pytest.raises(BadOption, match="at least 5 tokens"):
        fit(max_length=max_length)


def test_unlabelled_text_needs_a_recipe_without_labels(fit: Fit, tiny_task: MakeTask) -> None:
    with pytest.raises(Incompatible, match="the recipe frozen"):
        fit("pabee", task=tiny_task(labelled=False))


@pytest.mark.parametrize(
    ("recipe", "rows", "message"),
    [
        ("pabee", {"text": ["a film"]}, "pabee has no use for text without labels"),
        ("frozen", {"text": ["a film"], "text_pair": ["a plot"]}, "has text and text_pair; films has text"),
        ("frozen", {"sentence": ["a film"]}, "no column text"),
        ("frozen", {"text": []}, "no rows"),
    ],
)
def test_further_text_that_could_not_be_used_is_refused(
    recipe: str, rows: dict[str, list[str]], message: str, fit: Fit
) -> None:
    with pytest.raises(BadOption, match=message):
        fit(recipe, unlabelled=Dataset.from_dict(rows))
    with pytest.raises(BadOption, match=r"must be a datasets\.Dataset"):
        fit("frozen", unlabelled=["a film"])


@pytest.mark.parametrize("teacher", [{"momentum": 0.9}, {"frozen_teacher": True}])
def test_a_phase_on_stored_features_has_no_other_teacher(teacher: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="taught by the last exit"):
        Phase(losses.teacher_loss, trainable="exits", **teacher)


def test_a_missing_tokenizer_is_reported_with_the_argument_to_pass(fit: Fit) -> None:
    with pytest.raises(BadOption, match="tokenizer="):
        fit(tokenizer=None)


def test_a_misspelt_recipe_suggests_the_nearest(fit: Fit) -> None:
    with pytest.raises(UnknownName, match="romebert"):
        fit("rombert")


def test_a_model_with_label_names_keeps_their_order(
    fit: Fit, tiny_classifier: Callable[..., Any], tiny_task: MakeTask, tokenizer: BertTokenizer
) -> None:
    model = ExitModel.from_encoder(tiny_classifier("bert", pad_token_id=0, labels=["yes", "no"]))
    assert tiny_task().labels == ("no", "yes")
    trained = fit(RECIPES["deebert"](fine_tune=False), model, num_train_epochs=30)
    assert model.config.label_names == ["yes", "no"]
    assert trained.scores["acc"][1] > 0.9, "inner exits learned in the model's order"
    with torch.no_grad():
        tokens = tokenizer("a very good film", return_tensors="pt")
        assert model(**tokens).exit_logits[0, 1].argmax() == 0


def test_labels_that_the_model_does_not_have_are_refused(fit: Fit, tiny_model: Make) -> None:
    with pytest.raises(BadData, match="ham, spam; films has no, yes"):
        fit(model=tiny_model(labels=["ham", "spam"]))


def test_a_new_roberta_gets_the_labels_of_mnli(make_model: Make) -> None:
    model, task = make_model("roberta", num_labels=3), Task.named("mnli")
    assert match_labels(model, task).labels == task.labels
    assert [*model.config.id2label.values()] == [*(task.labels or ())]


def test_numeric_labels_get_the_names_of_the_model(tiny_model: Make, tiny_task: MakeTask) -> None:
    model = tiny_model(labels=["ham", "spam"])
    task = replace(tiny_task(), labels=("0", "1"))
    assert match_labels(model, task).labels == ("0", "1")
    assert model.config.id2label == {0: "ham", 1: "spam"}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"save_only_model": True}, "save_only_model"),
        ({"num_train_epochs": 0}, "num_train_epochs=0"),
        ({"early_stopping": 2}, "validation split"),
        ({"early_stopping": -1}, "early_stopping=-1"),
    ],
)
def test_unsupported_arguments_are_refused(options: dict[str, Any], cause: str, fit: Fit) -> None:
    with pytest.raises(BadOption, match=cause):
        fit(**options)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Recipe("empty", ()), "no phases"),
        (lambda: Phase(losses.final, trainable="heads"), "trainable='heads'"),
        (lambda: RECIPES["romebert"](kind="rwa"), "'raw', 'ta'"),
        (lambda: RECIPES["elbert"](weights="equall"), "'equal'"),
        (lambda: RECIPES["elasticbert"](groups=0), "groups=0"),
        (lambda: RECIPES["elasticbert"](groups=1.5), "whole number"),
        (lambda: RECIPES["elasticbert"](groups="two"), "groups='two'"),
        (lambda: RECIPES["elbert"](rate="fast"), "rate of exit_weights='fast'"),
        (lambda: RECIPES["romebert"](gamma=1.1), "gamma=1.1"),
        (lambda: RECIPES["romebert"](temperature=0), "temperature=0"),
        (lambda: RECIPES["romebert"](beta=-1), "beta=-1"),
        (lambda: RECIPES["romebert"](span=0), "span=0"),
        (lambda: RECIPES["romebert"](momentum=5), "momentum=5"),
        (lambda: RECIPES["fastbert"](temperature=float("nan")), "temperature=nan"),
        (lambda: RECIPES["deebert"](fine_tune="maybe"), "fine_tune='maybe'"),
        (lambda: Phase(losses.final, epochs=0), "epochs=0"),
        (lambda: Recipe("mine", (Phase(losses.final),), needs=("weight",)), "needs='weight'"),
    ],
)
def test_a_recipe_option_out_of_range_is_refused(make: Callable[[], Any], cause: str) -> None:
    with pytest.raises(BadOption, match=cause):
        make()


def not_a_tuple(logits: Tensor, labels: Tensor, **_: Any) -> Any:
    return logits.sum()


@pytest.mark.parametrize(
    ("phase", "error", "cause"),
    [
        (Phase(not_a_tuple), Incompatible, "tuple"),
        (Phase(losses.total, gradients="projected"), Incompatible, "two terms"),
        (Phase(losses.learned_weighted), AttributeError, "sigmoid"),  # without needs=("weights",)
    ],
)
def test_a_loss_that_cannot_work_fails_before_any_work(
    phase: Phase, error: type[Exception], cause: str, fit: Fit, tmp_path: Path
) -> None:
    with pytest.raises(error, match=cause):
        fit(Recipe("mine", (phase,)))
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_the_model_unchanged(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model()
    before = model.config.to_dict()
    with pytest.raises(Incompatible):
        fit(Recipe("mine", (Phase(not_a_tuple),), needs=("gate", "weights")), model)
    assert model.config.to_dict() == before
    assert model.heads.gate is None
