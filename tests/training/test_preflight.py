"""What does not go together is said before any work: model, task, recipe, arguments."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertTokenizer, TrainingArguments

from offramp import RECIPES, ExitModel, Phase, Recipe, Task, losses, train
from offramp.errors import BadData, BadOption, Incompatible, UnknownName
from offramp.training.preflight import in_order

Make = Callable[..., ExitModel]
MakeTask = Callable[..., Task]
Quick = Callable[..., TrainingArguments]


def test_freezing_everything_is_refused_with_another_recipe(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model(head={"pooler": "shared", "classifier": "shared"})
    with pytest.raises(Incompatible, match="pabee"):
        train(model, tiny_task(), "deebert", quick(tmp_path / "run"), tokenizer=tokenizer)
    assert not (tmp_path / "run").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("model_options", "cause"),
    [
        ({"num_labels": 3}, "needs 2 outputs and the model has 3"),
        ({"problem_type": "multi_label_classification"}, "problem_type='single_label_classification'"),
    ],
)
def test_a_model_that_does_not_fit_the_task_is_told_how_to_make_one(
    model_options: dict[str, Any],
    cause: str,
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    with pytest.raises(BadOption, match=cause):
        train(tiny_model(**model_options), tiny_task(), args=quick(tmp_path / "run"), tokenizer=tokenizer)


@pytest.mark.parametrize("recipe", ["pabee", "fastbert"])
def test_a_task_without_examples_to_learn_from_is_refused(
    recipe: str, tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    whole = tiny_task()
    task = replace(whole, splits={"validation": whole.splits["validation"]})
    with pytest.raises(BadOption, match="no split to learn from"):
        train(tiny_model(), task, recipe, quick(tmp_path / "run"), tokenizer=tokenizer)
    assert not (tmp_path / "run").exists(), "nothing was begun"


@pytest.mark.parametrize("max_length", [-1, 0, 4])
def test_texts_cannot_be_cut_to_nothing(
    max_length: int,
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    args = quick(tmp_path / "run")
    with pytest.raises(BadOption, match="at least 5 tokens"):
        train(tiny_model(), tiny_task(), args=args, tokenizer=tokenizer, max_length=max_length)


def test_unlabelled_text_needs_a_recipe_that_can_do_without(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    with pytest.raises(Incompatible, match="fastbert"):
        train(tiny_model(), tiny_task(labelled=False), "pabee", quick(tmp_path / "run"), tokenizer=tokenizer)


def test_a_model_without_inner_exits_is_for_the_recipe_final(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    with pytest.raises(Incompatible, match="'final'"):
        train(tiny_model(exits=[3]), tiny_task(), "deebert", quick(tmp_path / "run"), tokenizer=tokenizer)
    assert not (tmp_path / "run").exists(), "nothing was begun"


def test_no_tokenizer_is_said_plainly(
    tiny_model: Make, tiny_task: MakeTask, quick: Quick, tmp_path: Path
) -> None:
    with pytest.raises(BadOption, match="tokenizer="):
        train(tiny_model(), tiny_task(), "pabee", quick(tmp_path / "run"))


def test_a_misspelt_recipe_names_the_nearest(tiny_model: Make, tiny_task: MakeTask) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'romebert'"):
        train(tiny_model(), tiny_task(), "rombert")


def test_a_model_that_names_its_labels_keeps_their_order(
    tiny_classifier: Callable[..., Any],
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    plain = tiny_classifier(
        "bert", pad_token_id=0, id2label={0: "yes", 1: "no"}, label2id={"yes": 0, "no": 1}
    )
    model = ExitModel.from_encoder(plain)
    task = tiny_task()
    assert task.labels == ("no", "yes")
    recipe = RECIPES["deebert"](fine_tune=False)
    trained = train(model, task, recipe, quick(tmp_path / "run", num_train_epochs=30), tokenizer=tokenizer)
    assert model.config.id2label == {0: "yes", 1: "no"}
    assert trained.scores["acc"][0] > 0.9, "inner exits learned in the model's order"
    with torch.no_grad():
        tokens = tokenizer("a very good film", return_tensors="pt")
        assert model(**tokens).exit_logits[0, 0].argmax() == 0


def test_labels_that_the_model_does_not_know_are_refused(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model(labels=["ham", "spam"])
    with pytest.raises(BadData, match="ham, spam; films has no, yes"):
        train(model, tiny_task(), "pabee", quick(tmp_path / "run"), tokenizer=tokenizer)


def test_a_fresh_roberta_takes_the_labels_of_mnli(make_model: Make) -> None:
    model, task = make_model("roberta", num_labels=3), Task.named("mnli")
    assert in_order(model, task).labels == task.labels
    assert [*model.config.id2label.values()] == [*(task.labels or ())]


def test_labels_that_are_numbers_take_the_models_names(tiny_model: Make, tiny_task: MakeTask) -> None:
    model = tiny_model(labels=["ham", "spam"])
    task = replace(tiny_task(), labels=("0", "1"))
    assert in_order(model, task).labels == ("0", "1")
    assert model.config.id2label == {0: "ham", 1: "spam"}


@pytest.mark.parametrize(
    ("changes", "early_stopping", "cause"),
    [
        ({"label_smoothing_factor": 0.1}, None, "smooth"),
        ({"num_train_epochs": 0}, None, "num_train_epochs=0"),
        ({}, 2, "validation split"),
        ({}, -1, "early_stopping=-1"),
    ],
)
def test_arguments_that_would_do_nothing_are_refused(
    changes: dict[str, Any],
    early_stopping: int | None,
    cause: str,
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    args = quick(tmp_path / "run", **changes)
    with pytest.raises(BadOption, match=cause):
        train(tiny_model(), tiny_task(), args=args, tokenizer=tokenizer, early_stopping=early_stopping)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Recipe("empty", ()),
        lambda: Phase(losses.final, trainable="heads"),
        lambda: RECIPES["romebert"](kind="rwa"),
        lambda: RECIPES["elbert"](weights="equall"),
        lambda: RECIPES["elasticbert"](groups=0),
        lambda: RECIPES["elasticbert"](groups=1.5),
        lambda: RECIPES["elasticbert"](groups="two"),
        lambda: RECIPES["elbert"](rate="fast"),
        lambda: RECIPES["romebert"](gamma=1.1),
        lambda: RECIPES["romebert"](temperature=0),
        lambda: RECIPES["romebert"](beta=-1),
        lambda: RECIPES["romebert"](span=0),
        lambda: RECIPES["romebert"](momentum=5),
        lambda: RECIPES["fastbert"](temperature=float("nan")),
        lambda: RECIPES["deebert"](fine_tune="maybe"),
        lambda: Phase(losses.final, epochs=0),
        lambda: Recipe("mine", (Phase(losses.learned),), needs=("weight",)),
    ],
)
def test_a_setting_of_a_recipe_that_means_nothing_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(Incompatible):
        make()


def one_number(logits: Tensor, labels: Tensor, **_: Any) -> Any:
    return logits.sum()


@pytest.mark.parametrize(
    ("recipe", "error"),
    [
        (Recipe("mine", (Phase(one_number),)), Incompatible),
        (Recipe("mine", (Phase(losses.learned),)), AttributeError),  # without needs=("weights",)
    ],
)
def test_a_loss_that_cannot_work_fails_before_anything_is_begun(
    recipe: Recipe,
    error: type[Exception],
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    with pytest.raises(error):
        train(tiny_model(), tiny_task(), recipe, quick(tmp_path / "run"), tokenizer=tokenizer)
    assert not (tmp_path / "run").exists()


def test_a_projection_needs_two_terms(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    recipe = Recipe("mine", (Phase(losses.total, gradients="projected"),))
    with pytest.raises(Incompatible, match="one term"):
        train(tiny_model(), tiny_task(), recipe, quick(tmp_path / "run"), tokenizer=tokenizer)
