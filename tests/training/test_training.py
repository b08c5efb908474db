"""train(): what moves, what is kept, what goes on after an interruption."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertTokenizer, TrainerCallback, TrainingArguments

from offramp import RECIPES, ExitModel, Phase, Recipe, Task, losses, train
from offramp.collector import collect
from offramp.errors import BadOption
from offramp.policy import Policy
from offramp.training.trainer import PhaseTrainer, anchor, freeze

Make = Callable[..., ExitModel]
MakeTask = Callable[..., Task]
Quick = Callable[..., TrainingArguments]
PROBLEM_TYPES = {"single_label_classification": 2, "multi_label_classification": 3, "regression": 1}


def weights(model: ExitModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def same(left: ExitModel, right: ExitModel) -> bool:
    return not moved(weights(left), weights(right))


@pytest.mark.parametrize("problem", PROBLEM_TYPES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_learns_every_kind_of_problem(
    recipe: str,
    problem: str,
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    task = tiny_task(problem)
    model = tiny_model(PROBLEM_TYPES[problem], problem_type=problem, exits=[1, 3])
    before = weights(model)
    args = quick(tmp_path / "run", num_train_epochs=40, learning_rate=5e-3)
    trained = train(model, task, recipe, args, tokenizer=tokenizer)
    assert moved(before, weights(model))
    assert list(trained.scores) == list(task.metrics)
    headline = trained.scores[task.headline]
    assert len(headline) == 2
    assert headline[-1] > 0.9, "good and bad films are told apart by their first word"
    if recipe != "final":
        assert headline[0] > 0.9


@pytest.mark.parametrize("kind", ["raw", "ta", "group", "bidir"])
@pytest.mark.parametrize("gradients", ["plain", "by_depth", "projected"])
def test_romebert_trains_in_every_variant(
    kind: str,
    gradients: str,
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    model = tiny_model(layers=4)
    before = weights(model)
    recipe = RECIPES["romebert"](kind=kind, gradients=gradients, momentum=0.9)
    train(model, tiny_task(), recipe, quick(tmp_path / "run", max_steps=2), tokenizer=tokenizer)
    after = weights(model)
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert "heads.classifiers.0.weight" in moved(before, after)


def test_deebert_leaves_the_last_exit_as_fine_tuning_made_it(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    train(tiny_model(), tiny_task(), "final", quick(tmp_path / "final"), tokenizer=tokenizer)
    train(tiny_model(), tiny_task(), "deebert", quick(tmp_path / "deebert"), tokenizer=tokenizer)
    plain = load_file(tmp_path / "final/model/model.safetensors")
    two_phases = load_file(tmp_path / "deebert/model/model.safetensors")
    assert moved(plain, two_phases) == {
        f"heads.{part}.{exit}.{name}"
        for exit in (0, 1)
        for part, name in [
            ("poolers", "dense.weight"),
            ("poolers", "dense.bias"),
            ("classifiers", "weight"),
            ("classifiers", "bias"),
        ]
    }


def test_a_model_in_production_keeps_its_answers_while_its_exits_learn(
    tiny_classifier: Callable[..., Any],
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    padded: dict[str, Tensor],
    tmp_path: Path,
) -> None:
    plain = tiny_classifier("bert", pad_token_id=0)
    model = ExitModel.from_encoder(plain)
    inner = weights(model)["heads.classifiers.0.weight"]
    recipe = RECIPES["fastbert"](fine_tune=False)
    train(model, tiny_task(labelled=False), recipe, quick(tmp_path / "run"), tokenizer=tokenizer)
    with torch.no_grad():
        assert torch.equal(model.eval()(**padded).logits, plain(**padded).logits)
    assert not torch.equal(weights(model)["heads.classifiers.0.weight"], inner)


def test_a_frozen_backbone_has_neither_dropout_nor_a_backward_pass(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model(dropout=0.5, head={"dropout": 0.0})
    phase = Phase(losses.inner, trainable="exits")
    trainer = PhaseTrainer(model, phase, "films", args=quick(tmp_path / "run"))
    batch = {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([1])}
    model.train()
    first = trainer.compute_loss(model, batch)
    assert torch.equal(trainer.compute_loss(model, batch), first)
    first.backward()
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    assert model.heads.classifiers[0].weight.grad is not None


@pytest.mark.parametrize("classifier", ["own", "shared"])
def test_a_frozen_teacher_says_in_training_what_it_says_afterwards(
    classifier: str, tiny_model: Make, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model(dropout=0.5, head={"classifier": classifier})
    trainer = PhaseTrainer(
        model, Phase(losses.inner, trainable="exits"), "films", args=quick(tmp_path / "run")
    )
    batch = {"input_ids": torch.tensor([[5, 6, 7]] * 8), "labels": torch.tensor([1] * 8)}
    model.train()
    _, taught = trainer.compute_loss(model, batch, return_outputs=True)
    with torch.no_grad():
        expected = model.eval()(input_ids=batch["input_ids"]).exit_logits
    torch.testing.assert_close(taught.exit_logits[:, -1], expected[:, -1])
    assert not torch.allclose(taught.exit_logits[:, 0], expected[:, 0]), "the learners keep their dropout"


@pytest.mark.parametrize("backbone", ["roberta", "mpnet"])
def test_texts_are_cut_where_positions_end_also_where_they_are_counted_from_behind_the_padding(
    backbone: str, make_model: Make, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    file = tmp_path / "long.csv"
    file.write_text("text,label\n" + "good film " * 60 + ",yes\n" + "bad film " * 60 + ",no\n")
    task = Task.from_files(train=file, validation=file)
    model = make_model(backbone, labels=task.labels)
    trained = train(model, task, "pabee", quick(tmp_path / "run"), tokenizer=tokenizer, max_length=512)
    assert len(trained.scores["acc"]) == len(model.config.exits)
    assert set(collect(model, task.load()["train"], tokenizer, progress=False).lengths) == {38}


@pytest.mark.parametrize(
    ("trainable", "head", "expected"),
    [
        ("all", {}, {"backbone", "poolers.0", "poolers.2", "classifiers.0", "classifiers.2"}),
        ("final", {}, {"backbone", "poolers.2", "classifiers.2"}),
        ("exits", {}, {"poolers.0", "classifiers.0"}),
        ("exits", {"pooler": "shared"}, {"classifiers.0"}),
        ("final", {"pooler": "shared"}, {"backbone", "poolers.0", "classifiers.2"}),
    ],
)
def test_only_what_the_phase_names_moves(
    trainable: str, head: dict[str, Any], expected: set[str], tiny_model: Make
) -> None:
    model = tiny_model(head=head)
    freeze(model, trainable)
    parts = {"backbone": model.backbone, **{f"heads.{n}": m for n, m in model.heads.named_modules()}}
    names = ["backbone", "poolers.0", "poolers.2", "classifiers.0", "classifiers.2"]
    moving = {
        name
        for name in names
        if (part := parts.get(name) or parts.get(f"heads.{name}")) is not None
        and all(parameter.requires_grad for parameter in part.parameters())
    }
    assert moving == expected


def test_training_drops_the_policy_of_the_weights_before(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model()
    model.config.policy = {"criterion": "entropy", "threshold": 0.3}
    trained = train(model, tiny_task(), "pabee", quick(tmp_path / "run", max_steps=1), tokenizer=tokenizer)
    assert ExitModel.from_pretrained(trained.folder).config.policy is None


def test_learned_weights_have_their_own_learning_rate_and_are_saved(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model()
    args = quick(tmp_path / "run", learning_rate=0.0, num_train_epochs=1)
    trained = train(model, tiny_task(), "elbert", args, tokenizer=tokenizer)
    assert model.exit_weights.tolist() != [4.0, 4.0]
    again = ExitModel.from_pretrained(trained.folder)
    assert torch.equal(again.exit_weights, model.exit_weights)
    assert torch.equal(model.heads.classifiers[0].weight, tiny_model().heads.classifiers[0].weight)


def test_one_seed_gives_identical_weights(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    models = [tiny_model(dropout=0.3) for _ in range(3)]
    for number, seed in enumerate((1, 1, 2)):
        args = quick(tmp_path / str(number), seed=seed)
        train(models[number], tiny_task(), "berxit", args, tokenizer=tokenizer)
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


class Stop(TrainerCallback):
    """Interrupts the run after so many steps in all phases."""

    def __init__(self, after: int, how: Callable[[], None]) -> None:
        self.left, self.how = after, how

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.how()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("recipe", "after"),
    [
        pytest.param("pabee", 4, id="joint"),
        pytest.param("deebert", 3, id="first of two phases"),
        pytest.param("deebert", 10, id="second of two phases"),
        pytest.param("slow teacher", 4, id="slow teacher"),
        pytest.param("pabee", 1, id="before the first checkpoint"),
        pytest.param("early stopping", 6, id="early stopping"),
    ],
)
def test_interrupted_and_started_again_it_ends_with_the_same_weights(
    recipe: str,
    after: int,
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    tmp_path: Path,
) -> None:
    method = {"slow teacher": RECIPES["romebert"](momentum=0.5), "early stopping": "pabee"}.get(
        recipe, recipe
    )
    patience = 2 if recipe == "early stopping" else None
    learn = partial(train, task=tiny_task(), recipe=method, tokenizer=tokenizer, early_stopping=patience)
    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"load_best_model_at_end": True, "save_total_limit": 2}
    whole, broken, resumed = (tiny_model(dropout=0.3) for _ in range(3))
    if patience:
        options |= {"num_train_epochs": 8, "learning_rate": 0.0, "save_total_limit": 8}
    learn(whole, args=quick(tmp_path / "whole", **options))
    with pytest.raises(KeyboardInterrupt):
        learn(broken, args=quick(tmp_path / "run", **options), callbacks=[Stop(after, interrupt)])
    learn(resumed, args=quick(tmp_path / "run", **options))
    assert same(resumed, whole)
    steps = [
        sorted(p.name for p in (tmp_path / run).glob("phase-*/checkpoint-*")) for run in ("whole", "run")
    ]
    assert steps[0] == steps[1], "both stopped at the same step"


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from transformers import BertTokenizer, TrainerCallback
from offramp import ExitModel, Task, train
from offramp.training import default_arguments

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path({folder!r})
task = Task.from_files(train=folder / "train.jsonl", validation=folder / "validation.jsonl", text="text",
                       label="label", problem_type="single_label_classification", name="films")
args = default_arguments(folder / "run", **{args!r})
train(ExitModel.from_pretrained(folder / "start"), task, "pabee", args,
      tokenizer=BertTokenizer(vocab=str(folder / "vocab.txt")), callbacks=[Kill()])
"""


def test_killed_and_started_again_it_ends_with_the_same_weights(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    task, start, resumed = tiny_task(), tiny_model(dropout=0.3), tiny_model(dropout=0.3)
    start.save_pretrained(tmp_path / "start")
    plain = quick(tmp_path / "run", **settings)
    values = {
        name: getattr(plain, name)
        for name in (
            "per_device_train_batch_size",
            "num_train_epochs",
            "learning_rate",
            "use_cpu",
            "save_steps",
        )
    }
    values |= {"save_strategy": "steps", "eval_strategy": "no", "load_best_model_at_end": False}
    values |= {"report_to": "none", "disable_tqdm": True}
    program = KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path), args=values)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    half = max((tmp_path / "run/phase-1").glob("checkpoint-*"))
    (half.with_name("checkpoint-6")).mkdir()  # as if the kill had come while the next one was written
    train(resumed, task, "pabee", quick(tmp_path / "run", **settings), tokenizer=tokenizer)
    train(start, task, "pabee", quick(tmp_path / "whole", **settings), tokenizer=tokenizer)
    assert same(resumed, start)


def test_a_finished_run_is_taken_over_without_training(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    first, second = tiny_model(), tiny_model()
    learn = partial(train, task=tiny_task(), recipe="deebert", tokenizer=tokenizer)
    scores = learn(first, args=quick(tmp_path / "run")).scores
    again = learn(second, args=quick(tmp_path / "run"), callbacks=[Stop(1, interrupt)])
    assert same(first, second)
    assert again.scores == scores
    assert json.loads((again.folder / "scores.json").read_text())["layers"] == [1, 2, 3]


def test_a_finished_run_started_again_keeps_the_policy_that_it_was_given(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    learn = partial(train, task=tiny_task(), args=quick(tmp_path / "run"), tokenizer=tokenizer)
    folder = learn(tiny_model()).folder
    given = ExitModel.from_pretrained(folder)
    given.config.policy = Policy.parse("entropy:0.3").to_json()
    given.save_pretrained(folder)
    again = learn(tiny_model())
    assert again.model.config.policy == given.config.policy
    assert ExitModel.from_pretrained(folder).config.policy == given.config.policy


def test_a_folder_with_another_run_is_left_alone(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    train(tiny_model(), tiny_task(), "pabee", quick(tmp_path / "run"), tokenizer=tokenizer)
    other = quick(tmp_path / "run", learning_rate=1.0)
    with pytest.raises(BadOption, match=r"differs in .*learning_rate, .*recipe"):
        train(tiny_model(), tiny_task(), "elbert", other, tokenizer=tokenizer)


def test_the_best_checkpoint_is_kept_and_stopping_is_early(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    class Spoil(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step >= 12:
                with torch.no_grad():
                    for classifier in model.heads.classifiers:
                        classifier.weight.neg_()

    args = quick(
        tmp_path / "run",
        num_train_epochs=20,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
    )
    model = tiny_model()
    trained = train(
        model, tiny_task(), "pabee", args, tokenizer=tokenizer, early_stopping=2, callbacks=[Spoil()]
    )
    logs = [
        json.loads(p.read_text()) for p in (tmp_path / "run/phase-1").glob("checkpoint-*/trainer_state.json")
    ]
    assert max(log["epoch"] for log in logs) < 20
    best = max(
        entry["eval_acc_mean"] for log in logs for entry in log["log_history"] if "eval_acc_mean" in entry
    )
    assert sum(trained.scores["acc"]) / 3 == pytest.approx(best)


def test_a_recipe_of_ones_own_is_a_few_lines(
    tiny_model: Make,
    tiny_task: MakeTask,
    tokenizer: BertTokenizer,
    quick: Quick,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def first_only(logits: Tensor, labels: Tensor, **_: Any) -> tuple[Tensor, ...]:
        return (torch.nn.functional.cross_entropy(logits[:, 0], labels),)

    monkeypatch.setitem(RECIPES, "mine", lambda: Recipe("mine", (Phase(first_only),)))
    model = tiny_model()
    before = weights(model)
    train(model, tiny_task(), "mine", quick(tmp_path / "run", weight_decay=0.0), tokenizer=tokenizer)
    changed = moved(before, weights(model))
    assert "heads.classifiers.0.weight" in changed
    assert "heads.classifiers.1.weight" not in changed


@pytest.mark.parametrize("other", ["head", "encoder", "data"])
def test_another_model_or_other_data_is_another_run(
    other: str, tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    args = quick(tmp_path / "run", max_steps=1)
    train(tiny_model(), tiny_task(), "pabee", args, tokenizer=tokenizer)
    model, task = tiny_model(head={"pooling": "first"}) if other == "head" else tiny_model(), tiny_task()
    if other == "encoder":
        model.backbone.embeddings.word_embeddings.weight.data[5, 0] += 1
    if other == "data":
        task = tiny_task(rows=16)
    with pytest.raises(BadOption, match=f"differs in {other}"):
        train(model, task, "pabee", args, tokenizer=tokenizer)


@pytest.mark.parametrize("recipe", ["pabee", "deebert"])
def test_the_trained_model_is_ready_to_answer(
    recipe: str, tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    task = tiny_task()
    blind = replace(task, splits={"train": task.splits["train"]})
    model = tiny_model(dropout=0.5)
    trained = train(model, blind, recipe, quick(tmp_path / "run", max_steps=1), tokenizer=tokenizer)
    assert trained.scores == {}
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_interrupted_run_leaves_nothing_frozen(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    model, stop = tiny_model(), [Stop(1, interrupt)]
    recipe = RECIPES["deebert"](fine_tune=False)
    with pytest.raises(KeyboardInterrupt):
        train(model, tiny_task(), recipe, quick(tmp_path / "run"), tokenizer=tokenizer, callbacks=stop)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Object:
    """A loss may be any callable."""

    def __call__(self, logits: Tensor, labels: Tensor, **_: Any) -> tuple[Tensor, ...]:
        return (torch.nn.functional.cross_entropy(logits[:, -1], labels),)


def test_a_loss_may_be_any_callable_on_any_number_of_exits(
    tiny_model: Make, tiny_task: MakeTask, tokenizer: BertTokenizer, quick: Quick, tmp_path: Path
) -> None:
    recipe = Recipe("mine", (Phase(Object()),))
    model = tiny_model(exits=[3])
    before = weights(model)
    train(model, tiny_task(), recipe, quick(tmp_path / "run", max_steps=3), tokenizer=tokenizer)
    assert moved(before, weights(model))


@pytest.mark.parametrize(
    "recipe", [RECIPES["berxit"](), RECIPES["elasticbert"](groups=2)], ids=lambda r: r.name
)
def test_the_loss_of_evaluation_does_not_depend_on_when_it_is_asked(
    recipe: Recipe, tiny_model: Make, quick: Quick, tmp_path: Path
) -> None:
    model = tiny_model()
    if "gate" in recipe.needs:
        model.add_gate()
    trainer = PhaseTrainer(model, recipe.phases[0], "films", args=quick(tmp_path / "run"))
    inputs = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "labels": torch.tensor([0, 1])}
    model.train(False)
    found = []
    for trainer.state.global_step in (0, 1):
        found.append(trainer.compute_loss(model, inputs).item())
    assert found[0] == found[1]


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
def test_the_anchor_of_the_projection_is_romeberts_or_chosen(choice: str, task: str, expected: str) -> None:
    assert anchor(choice, task) == expected
