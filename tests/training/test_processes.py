"""Two processes under `accelerate launch` make the same steps as one process with the combined batch."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertTokenizer

from offramp import RECIPES, ExitModel, Task
from offramp.training import Trained

PROGRAM = """
import gc
import sys
from pathlib import Path
from dataclasses import replace
from transformers import BertTokenizer
from offramp import RECIPES, ExitModel, Task, train
from offramp.training.start import training_arguments

gc.freeze()  # as in conftest.py

folder, out, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
task = Task.from_files(train=folder / "train.jsonl", text="text", label="label", name="films")
for name in RECIPES:
    recipe = RECIPES[name](gradients="projected") if name == "romebert" else RECIPES[name]()
    recipe = replace(recipe, phases=tuple(replace(phase, batch_size=None) for phase in recipe.phases))
    args = training_arguments(dict(
        output_dir=folder / out / name, per_device_train_batch_size=batch,
        max_steps=2, optim="sgd", learning_rate=0.5,
        weight_decay=0.0, lr_scheduler_type="constant", warmup_steps=0, train_sampling_strategy="sequential",
        use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", eval_strategy="no", load_best_model_at_end=False,
    ))
    model = ExitModel.from_pretrained(folder / "start")
    model.config.fine_tuned |= not recipe.trains_backbone
    train(model, task, recipe, args,
          tokenizer=BertTokenizer(vocab=str(folder / "vocab.txt")))
"""


# accelerate's --cpu needs MPI; --multi_gpu just starts processes, and use_cpu=True makes them use gloo
def launch(folder: Path, out: str, processes: int, batch: int) -> None:
    script = folder / "learn.py"
    script.write_text(PROGRAM, encoding="utf-8")
    how = ["--multi_gpu", "--num_machines=1", f"--num_processes={processes}", "--mixed_precision=no"]
    how += ["--dynamo_backend=no", "--num_cpu_threads_per_process=1", "--main_process_port=0"]
    launcher = ["-m", "accelerate.commands.launch", *how] if processes > 1 else []
    command = [sys.executable, *launcher, str(script), str(folder), out, str(batch)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_processes_equal_one_with_the_combined_batch(
    tiny_model: Callable[..., ExitModel],
    tiny_task: Callable[..., Task],
    tokenizer: BertTokenizer,
    tmp_path: Path,
) -> None:
    tiny_task()
    tiny_model().save_pretrained(tmp_path / "start")
    launch(tmp_path, "one", processes=1, batch=8)
    launch(tmp_path, "two", processes=2, batch=4)
    start = load_file(tmp_path / "start/model.safetensors")
    for run in sorted((tmp_path / "one").iterdir()):
        one = load_file(run / "model/model.safetensors")
        two = load_file(tmp_path / "two" / run.name / "model/model.safetensors")
        changed = [name for name, tensor in start.items() if not torch.allclose(tensor, one[name], atol=1e-5)]
        assert changed, f"{run.name} learned nothing"
        for name, tensor in one.items():
            torch.testing.assert_close(two[name], tensor, atol=2e-6, rtol=1e-4, msg=f"{run.name}: {name}")


@pytest.mark.parametrize("anchor", ["final", "inner"])
def test_projection_after_accumulation_equals_projection_of_the_whole_batch(
    anchor: str, fit: Callable[..., Trained]
) -> None:
    options = {"optim": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "warmup_steps": 0, "max_steps": 2}
    options |= {"train_sampling_strategy": "sequential"}
    whole, accumulated = (
        fit(
            RECIPES["romebert"](anchor=anchor),
            folder=str(parts),
            per_device_train_batch_size=8 // parts,
            gradient_accumulation_steps=parts,
            **options,
        ).model.state_dict()
        for parts in (1, 4)
    )
    for name, tensor in whole.items():
        torch.testing.assert_close(accumulated[name], tensor, atol=2e-6, rtol=1e-4, msg=name)
