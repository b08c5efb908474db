"""train(): which parameters change, what is saved, what the loss and the trainer do."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertTokenizer, TrainerCallback, TrainingArguments

from offramp import RECIPES, ExitModel, Phase, Recipe, Task
from offramp.inference.collect import collect
from offramp.training import Trained, losses
from offramp.training.run import check_last_exit
from offramp.training.trainer import PhaseTrainer, anchor_for, freeze

Make = Callable[..., ExitModel]
MakeTask = Callable[..., Task]
Quick = Callable[..., TrainingArguments]
Fit = Callable[..., Trained]
PROBLEM_TYPES = {"single_label_classification": 2, "multi_label_classification": 3, "regression": 1}


def weights(model: ExitModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("problem", PROBLEM_TYPES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_learns_every_problem_type(
    recipe: str, problem: str, fit: Fit, tiny_model: Make, tiny_task: MakeTask
) -> None:
    task = tiny_task(problem)
    model = tiny_model(PROBLEM_TYPES[problem], problem_type=problem, exits=[1, 3])
    if recipe == "frozen":  # the inner exits of a fine-tuned model
        model = fit("final", model, task, folder="fine-tuned", num_train_epochs=40).model
    # heads have a number of epochs of their own, too few for 24 examples
    method = RECIPES["frozen"](epochs=40, rate=5e-3) if recipe == "frozen" else recipe
    trained = fit(method, model, task, num_train_epochs=40)
    assert list(trained.scores) == list(task.metrics)
    inner, last = trained.scores[task.headline]
    assert last > 0.9, "the first word tells good films from bad ones"
    if recipe != "final":
        assert inner > 0.9


def test_new_exits_of_a_regression_start_at_the_mean_label(
    fit: Fit, tiny_model: Make, tiny_task: MakeTask
) -> None:
    model = tiny_model(1, problem_type="regression", exits=[1, 2, 3])
    torch.nn.init.constant_(model.heads.classifiers[1].bias, 5.0)  # has learned something already
    fit("elasticbert", model, tiny_task("regression"), learning_rate=0.0)
    assert [each.bias.item() for each in model.heads.classifiers] == [1.0, 5.0, 1.0]


@pytest.mark.parametrize("kind", ["raw", "ta", "group", "bidir"])
@pytest.mark.parametrize("gradients", ["plain", "by_depth", "projected"])
def test_romebert_trains_in_every_variant(kind: str, gradients: str, fit: Fit, tiny_model: Make) -> None:
    model = tiny_model(layers=4)
    before = weights(model)
    fit(RECIPES["romebert"](kind=kind, gradients=gradients, momentum=0.9), model, max_steps=2)
    assert model.is_finite()
    assert "heads.classifiers.0.weight" in changed(before, weights(model))


def test_deebert_keeps_the_last_exit_of_plain_fine_tuning(fit: Fit) -> None:
    plain, two_phases = (
        load_file(fit(recipe, folder=recipe).folder / "model.safetensors") for recipe in ("final", "deebert")
    )
    names = (
        "poolers.{}.dense.weight",
        "poolers.{}.dense.bias",
        "classifiers.{}.weight",
        "classifiers.{}.bias",
    )
    inner = {f"heads.{name.format(exit)}" for exit in (0, 1, 2) for name in names}
    assert changed(plain, two_phases) == inner


def test_a_trained_model_keeps_its_logits_while_inner_exits_learn(
    fit: Fit, tiny_classifier: Callable[..., Any], tiny_task: MakeTask, padded: dict[str, Tensor]
) -> None:
    plain = tiny_classifier("bert", pad_token_id=0)
    model = ExitModel.from_encoder(plain)
    before = weights(model)
    fit(RECIPES["fastbert"](fine_tune=False), model, tiny_task(labelled=False))
    with torch.no_grad():
        assert torch.equal(model(**padded).logits, plain(**padded).logits)
    assert "heads.classifiers.0.weight" in changed(before, weights(model))


def test_a_frozen_backbone_has_neither_dropout_nor_gradients(
    tiny_model: Make, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model(dropout=0.5, head={"dropout": 0.0})
    trainer = PhaseTrainer(model, Phase(losses.inner, trainable="exits"), "films", args=quick(tmp_path))
    batch = {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([1])}
    model.train()
    loss = trainer.compute_loss(model, batch)
    assert torch.equal(trainer.compute_loss(model, batch), loss)
    loss.backward()
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    assert model.heads.classifiers[0].weight.grad is not None


@pytest.mark.parametrize("classifier", ["own", "shared"])
def test_a_frozen_last_exit_has_no_dropout_and_the_inner_exits_have(
    classifier: str, tiny_model: Make, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model(dropout=0.5, head={"classifier": classifier})
    trainer = PhaseTrainer(model, Phase(losses.inner, trainable="exits"), "films", args=quick(tmp_path))
    batch = {"input_ids": torch.tensor([[5, 6, 7]] * 8), "labels": torch.tensor([1] * 8)}
    model.train()
    _, training = trainer.compute_loss(model, batch, return_outputs=True)
    with torch.no_grad():
        expected = model.eval()(input_ids=batch["input_ids"]).exit_logits
    torch.testing.assert_close(training.exit_logits[:, -1], expected[:, -1])
    assert not torch.allclose(training.exit_logits[:, 0], expected[:, 0])


def test_the_last_exit_has_dropout_again_after_a_phase_that_froze_it(
    fit: Fit, tiny_model: Make, padded: dict[str, Tensor]
) -> None:
    model = tiny_model(head={"dropout": 0.5})
    fit("deebert", model, max_steps=1)
    model.train()
    assert not torch.equal(model(**padded).logits, model(**padded).logits)


@pytest.mark.parametrize("backbone", ["roberta", "mpnet"])
def test_texts_are_truncated_to_positions_that_start_after_the_padding_index(
    backbone: str, fit: Fit, make_model: Make, tokenizer: BertTokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "long.csv"
    file.write_text("text,label\n" + "good film " * 60 + ",yes\n" + "bad film " * 60 + ",no\n")
    task = Task.from_files(train=file, validation=file)
    model = make_model(backbone, labels=task.labels)
    trained = fit("pabee", model, task, max_length=512)
    assert len(trained.scores["acc"]) == len(model.config.exits)
    assert set(collect(model, task.load()["train"], tokenizer, progress=False).lengths) == {38}


@pytest.mark.parametrize(
    ("trainable", "head", "expected"),
    [
        ("all", {}, {"backbone", "poolers.0", "poolers.3", "classifiers.0", "classifiers.3"}),
        ("final", {}, {"backbone", "poolers.3", "classifiers.3"}),
        ("exits", {}, {"poolers.0", "classifiers.0"}),
        ("exits", {"pooler": "shared"}, {"classifiers.0"}),
        ("final", {"pooler": "shared"}, {"backbone", "poolers.0", "classifiers.3"}),
    ],
)
def test_only_the_parameters_of_the_phase_are_trainable(
    trainable: str, head: dict[str, Any], expected: set[str], tiny_model: Make
) -> None:
    model = tiny_model(head=head)
    freeze(model, trainable)
    parts = {"backbone": model.backbone, **dict(model.heads.named_modules())}
    names = {"backbone", "poolers.0", "poolers.3", "classifiers.0", "classifiers.3"} & parts.keys()
    trained = {name for name in names if all(p.requires_grad for p in parts[name].parameters())}
    assert trained == expected


def test_training_removes_the_policy(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model()
    model.config.policy = {"rule": "entropy", "threshold": 0.3}
    assert ExitModel.from_pretrained(fit(model=model, max_steps=1).folder).config.policy is None


def test_learned_weights_have_their_own_learning_rate_and_are_saved(fit: Fit, tiny_model: Make) -> None:
    trained = fit("elbert", learning_rate=0.0, num_train_epochs=1)
    model, loaded = trained.model, ExitModel.from_pretrained(trained.folder)
    assert model.exit_weights.tolist() != [4.0, 4.0]
    assert torch.equal(loaded.exit_weights, model.exit_weights)
    assert torch.equal(model.heads.classifiers[0].weight, tiny_model().heads.classifiers[0].weight)


def test_one_seed_gives_identical_weights(fit: Fit, tiny_model: Make) -> None:
    first, second, third = (
        weights(fit("berxit", tiny_model(dropout=0.3), folder=str(run), seed=seed).model)
        for run, seed in enumerate((1, 1, 2))
    )
    assert not changed(first, second)
    assert changed(first, third)


class Spoil(TrainerCallback):
    """Makes the classifiers worse in every step from step 12 on."""

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step >= 12:
            with torch.no_grad():
                for classifier in model.heads.classifiers:
                    classifier.weight.neg_()


def test_early_stopping_ends_training_with_the_best_checkpoint(fit: Fit, tmp_path: Path) -> None:
    evaluating = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trained = fit(num_train_epochs=20, early_stopping=2, callbacks=[Spoil()], **evaluating)
    states = (tmp_path / "run/phase-1").glob("checkpoint-*/trainer_state.json")
    logs = [json.loads(state.read_text()) for state in states]
    assert max(log["epoch"] for log in logs) < 20
    means = [
        entry["eval_acc_mean"] for log in logs for entry in log["log_history"] if "eval_acc_mean" in entry
    ]
    assert sum(trained.scores["acc"]) / 4 == pytest.approx(max(means))


def test_a_recipe_of_your_own_is_a_few_lines(
    fit: Fit, tiny_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_only(logits: Tensor, labels: Tensor, **_: Any) -> tuple[Tensor, ...]:
        return (torch.nn.functional.cross_entropy(logits[:, 0], labels),)

    monkeypatch.setitem(RECIPES, "mine", lambda: Recipe("mine", (Phase(first_only),)))
    model = tiny_model()
    before = weights(model)
    fit("mine", model, weight_decay=0.0)
    names = changed(before, weights(model))
    assert "heads.classifiers.0.weight" in names
    assert "heads.classifiers.1.weight" not in names


class LastExitLoss:
    def __call__(self, logits: Tensor, labels: Tensor, **_: Any) -> tuple[Tensor, ...]:
        return (torch.nn.functional.cross_entropy(logits[:, -1], labels),)


def test_a_loss_may_be_any_callable_and_a_model_may_have_one_exit(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model(exits=[3])
    before = weights(model)
    fit(Recipe("mine", (Phase(LastExitLoss()),)), model, max_steps=3)
    assert changed(before, weights(model))


def test_a_full_disk_names_the_folder_of_the_run(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PhaseTrainer, "save_model", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        fit(max_steps=1)
    assert caught.value.filename == str(tmp_path / "run")


@pytest.mark.parametrize("recipe", ["pabee", "deebert"])
def test_a_trained_model_is_in_eval_mode_with_nothing_frozen(
    recipe: str, fit: Fit, tiny_model: Make, tiny_task: MakeTask
) -> None:
    task = tiny_task()
    without_validation = replace(task, splits={"train": task.splits["train"]})
    model = tiny_model(dropout=0.5)
    assert fit(recipe, model, without_validation, max_steps=1).scores == {}
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    "recipe", [RECIPES["berxit"](), RECIPES["elasticbert"](groups=2)], ids=lambda recipe: recipe.name
)
def test_the_evaluation_loss_does_not_depend_on_the_step(
    recipe: Recipe, tiny_model: Make, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model()
    model.add_gate()  # which berxit needs
    trainer = PhaseTrainer(model, recipe.phases[0], "films", args=quick(tmp_path))
    inputs = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "labels": torch.tensor([0, 1])}
    model.train(False)
    values = []
    for trainer.state.global_step in (0, 1):
        values.append(trainer.compute_loss(model, inputs).item())
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("choice", "task", "expected"),
    [
        ("task", "mnli", "final"),
        ("task", "mnli-mm", "final"),
        ("task", "qqp", "final"),
        ("task", "rte", "inner"),
        ("inner", "mnli", "inner"),
        ("final", "rte", "final"),
    ],
)
def test_the_anchor_is_chosen_by_option_or_as_in_romebert(choice: str, task: str, expected: str) -> None:
    assert anchor_for(choice, task) == expected


@pytest.mark.parametrize(
    ("scores", "examples"),
    [
        ([0.73, 0.77, 0.79, 0.80, 0.84, 0.86, 0.86], 1000),
        ([0.73, 0.77, 0.79, 0.80, 0.84, 0.86, 0.84], 1000),
        ([0.73, 0.77, 0.79, 0.80, 0.84, 0.86, 0.56], 4),
        ([0.90, 0.77, 0.79, 0.80, 0.84, 0.86, 0.86], 1000),  # there is no model of no layers
        ([0.56], 1000),
    ],
)
def test_a_last_exit_that_is_as_good_as_others_is_no_reason_to_warn(
    scores: list[float], examples: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_last_exit([*range(len(scores))], scores, examples, "acc")


def test_an_inner_exit_that_is_clearly_better_is_reported_with_what_to_do() -> None:
    message = r"layer 5 is clearly better than the last one \(acc 86.0 and 56.0\).*more epochs.*layers=5"
    with pytest.warns(UserWarning, match=message):
        check_last_exit([*range(7)], [0.73, 0.77, 0.79, 0.80, 0.84, 0.86, 0.56], 1000, "acc")


def test_training_compares_the_exits_of_the_validation_split(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("offramp.training.run.check_last_exit", lambda *given: seen.append(given))
    trained = fit("pabee")
    assert seen == [([0, 1, 2, 3], trained.scores["acc"], 24, "acc")]
