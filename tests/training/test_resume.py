"""A run that is started again: it resumes, returns a finished result, or is refused as a different run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainingArguments

from offramp import RECIPES, ExitModel, Task
from offramp.errors import BadOption
from offramp.policy import Policy
from offramp.training import Trained
from offramp.training.run_dir import ARGUMENTS_THAT_CHANGE_WEIGHTS, table_bytes

Make = Callable[..., ExitModel]
MakeTask = Callable[..., Task]
Fit = Callable[..., Trained]


def same(left: Trained, right: Trained) -> bool:
    first, second = left.model.state_dict(), right.model.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


class Interrupt(TrainerCallback):
    """Interrupts the run after this number of steps in all phases."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


EVALUATING = {
    "save_strategy": "steps",
    "save_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "load_best_model_at_end": True,
    "save_total_limit": 2,
}
STOPPING_EARLY = {"early_stopping": 2, "num_train_epochs": 8, "learning_rate": 0.0, "save_total_limit": 8}


@pytest.mark.parametrize(
    ("recipe", "after", "options"),
    [
        pytest.param("pabee", 4, {}, id="one phase"),
        pytest.param("deebert", 3, {}, id="first of two phases"),
        pytest.param("deebert", 10, {}, id="second of two phases"),
        pytest.param(RECIPES["romebert"](momentum=0.5), 4, {}, id="momentum teacher"),
        pytest.param("pabee", 1, {}, id="before the first checkpoint"),
        pytest.param("pabee", 6, STOPPING_EARLY, id="early stopping"),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    recipe: Any, after: int, options: dict[str, Any], fit: Fit, tiny_model: Make, tmp_path: Path
) -> None:
    options = {**EVALUATING, **options}
    whole = fit(recipe, tiny_model(dropout=0.3), folder="whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, tiny_model(dropout=0.3), callbacks=[Interrupt(after)], **options)
    assert same(fit(recipe, tiny_model(dropout=0.3), **options), whole)
    whole_steps, resumed_steps = (
        sorted(path.name for path in (tmp_path / run).glob("phase-*/checkpoint-*"))
        for run in ("whole", "run")
    )
    assert whole_steps == resumed_steps, "both ended at the same step"


KILLED = """
import os, signal, sys
from pathlib import Path
from transformers import BertTokenizer, TrainerCallback
from offramp import ExitModel, Task, train

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path({folder!r})
task = Task.from_files(train=folder / "train.jsonl", validation=folder / "validation.jsonl", text="text",
                       label="label", problem_type="single_label_classification", name="films")
train(ExitModel.from_pretrained(folder / "start"), task, "pabee", {{"output_dir": folder / "run", **{args!r}}},
      tokenizer=BertTokenizer(vocab=str(folder / "vocab.txt")), callbacks=[Kill()])
"""


def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(
    fit: Fit, tiny_model: Make, tiny_task: MakeTask, quick_options: dict[str, Any], tmp_path: Path
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    tiny_task()
    tiny_model(dropout=0.3).save_pretrained(tmp_path / "start")
    program = KILLED.format(folder=str(tmp_path), args={**quick_options, **saving})
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    (tmp_path / "run/phase-1/checkpoint-6").mkdir()  # as if killed while writing the next checkpoint
    resumed = fit(model=tiny_model(dropout=0.3), **saving)
    assert same(resumed, fit(model=tiny_model(dropout=0.3), folder="whole", **saving))


def test_an_interrupted_run_leaves_nothing_frozen(fit: Fit, tiny_model: Make) -> None:
    model = tiny_model()
    with pytest.raises(KeyboardInterrupt):
        fit(RECIPES["deebert"](fine_tune=False), model, callbacks=[Interrupt(1)])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_finished_run_is_loaded_without_training(fit: Fit) -> None:
    first = fit("deebert")
    second = fit("deebert", callbacks=[Interrupt(1)])
    assert same(first, second)
    assert second.scores == first.scores
    assert second.model.config.fine_tuned
    assert second.model.config.inner_exits_trained
    assert json.loads((second.folder / "scores.json").read_text())["layers"] == [0, 1, 2, 3]


def test_a_finished_run_keeps_a_policy_that_was_saved_later(fit: Fit) -> None:
    folder = fit().folder
    model = ExitModel.from_pretrained(folder)
    model.config.policy = Policy.parse("entropy:0.3").to_json()
    model.save_pretrained(folder)
    assert fit().model.config.policy == model.config.policy
    assert ExitModel.from_pretrained(folder).config.policy == model.config.policy


def test_a_folder_with_another_recipe_and_learning_rate_is_refused(fit: Fit) -> None:
    fit("pabee", max_steps=1)
    with pytest.raises(BadOption, match=r"differs in .*learning_rate, .*recipe"):
        fit("elbert", learning_rate=1.0, max_steps=1)


@pytest.mark.parametrize("other", ["head", "encoder", "data"])
def test_another_model_or_other_data_is_a_different_run(
    other: str, fit: Fit, tiny_model: Make, tiny_task: MakeTask
) -> None:
    fit(max_steps=1)
    model = tiny_model(head={"pooling": "first"} if other == "head" else {})
    if other == "encoder":
        model.backbone.embeddings.word_embeddings.weight.data[5, 0] += 1
    with pytest.raises(BadOption, match=f"differs in {other}"):
        fit(model=model, task=tiny_task(rows=16 if other == "data" else 24), max_steps=1)


@pytest.mark.parametrize(
    "change",
    [
        {"dataloader_drop_last": True},
        {"optim_args": "foreach=False"},
        {"neftune_noise_alpha": 5.0},
        {"eval_delay": 1.0},
        {"save_steps": 4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_argument_that_changes_the_weights_makes_a_different_run(change: dict[str, Any], fit: Fit) -> None:
    fit(max_steps=2, **EVALUATING)
    with pytest.raises(BadOption, match=f"differs in {next(iter(change))}\\)"):
        fit(max_steps=2, **{**EVALUATING, **change})


def test_a_run_may_be_resumed_with_other_logging_saving_and_memory_options(fit: Fit) -> None:
    run = partial(fit, max_steps=2)
    others = {"logging_steps": 1, "save_strategy": "steps", "per_device_eval_batch_size": 2}
    assert same(run(), run(gradient_checkpointing=True, **others))


HARMLESS = """
output_dir average_tokens_across_devices gradient_checkpointing gradient_checkpointing_kwargs use_cache
torch_empty_cache_steps logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id
trackio_bucket_id trackio_static_space_id per_device_eval_batch_size prediction_loss_only eval_do_concat_batches
eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id
hub_strategy hub_always_push hub_revision use_cpu dataloader_num_workers dataloader_pin_memory
dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context length_column_name
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout debug
skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank
label_smoothing_factor save_only_model remove_unused_columns restore_callback_states_from_checkpoint
save_strategy save_steps
""".split()
"""No effect on the weights; or refused or set by `train`; or (the last two) only with load_best_model_at_end."""


def test_every_training_argument_is_known_to_change_the_weights_or_not() -> None:
    names = {field.name for field in fields(TrainingArguments)}
    properties = {"world_size", "train_batch_size"}
    assert names == {*ARGUMENTS_THAT_CHANGE_WEIGHTS, *HARMLESS} - properties
    assert not {*ARGUMENTS_THAT_CHANGE_WEIGHTS} & {*HARMLESS}


def test_rows_made_by_another_version_of_the_code_are_the_same_data() -> None:
    rows = Dataset.from_dict({"number": [1, 2, 3, 4]})
    first = rows.map(lambda row: {"double": 2 * row["number"]})
    second = rows.map(lambda row: {"double": row["number"] + row["number"]}, writer_batch_size=2)
    assert table_bytes(first) == table_bytes(second)
    assert table_bytes(first) != table_bytes(rows)


def test_another_trained_classifier_is_a_different_run(fit: Fit, tiny_model: Make) -> None:
    first, second = tiny_model(), tiny_model()
    first.config.fine_tuned = second.config.fine_tuned = True
    second.heads.classifiers[-1].weight.data += 1  # type: ignore[operator]
    fit("frozen", first)
    with pytest.raises(BadOption, match="last_exit"):
        fit("frozen", second)
