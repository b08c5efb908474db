"""Measures a training step of each recipe with a single phase against plain fine-tuning of the same encoder.

    python benchmarks/training_cost.py ENCODER --length 32

Steps (forward, backward, clipping, AdamW; batch 32) of transformers' own classifier and of each recipe take turns, so
that load on the machine affects all of them. Prints medians and ratios as a Markdown table and as JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from shared import about, markdown
from transformers import AutoModelForSequenceClassification, TrainingArguments, set_seed

from offramp import RECIPES, ExitModel
from offramp.measuring.speed import time_in_turns
from offramp.training.trainer import PhaseTrainer

JOINT = ["pabee", "elbert", "elasticbert", "berxit", "romebert"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    set_seed(0)
    inputs = {
        "input_ids": torch.randint(1000, 20000, (options.batch, options.length)),
        "attention_mask": torch.ones(options.batch, options.length, dtype=torch.long),
        "labels": torch.randint(0, 2, (options.batch,)),
    }
    steps = {"plain": plain_step(options.encoder, inputs)}
    steps |= {name: recipe_step(options.encoder, name, inputs) for name in JOINT}
    time_in_turns(steps, repeats=2)  # warm-up
    medians = time_in_turns(steps, options.repeats)
    ratios = {name: round(median / medians["plain"], 3) for name, median in medians.items()}
    rows = [[name, f"{median:.3f}", f"{ratios[name]:.2f}"] for name, median in medians.items()]
    print(markdown(["recipe", "seconds per step", "times plain"], rows))
    settings = {name: getattr(options, name) for name in ("batch", "length", "repeats", "threads")}
    print(json.dumps({**about("torch", "transformers"), **settings, "seconds": medians, "ratio": ratios}))


def plain_step(encoder: str, inputs: dict[str, Any]) -> Callable[[], None]:
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2, dtype=torch.float32)
    return stepper(model, lambda: model(**inputs).loss.backward())


def recipe_step(encoder: str, name: str, inputs: dict[str, Any]) -> Callable[[], None]:
    recipe = RECIPES[name]()
    model = ExitModel.from_encoder(encoder, num_labels=2)
    if "weights" in recipe.needs:
        model.add_exit_weights()
    if "gate" in recipe.needs:
        model.add_gate()
    args = TrainingArguments(tempfile.mkdtemp(), report_to="none", use_cpu=True)
    trainer = PhaseTrainer(model, recipe.phases[0], "cola", args=args)
    trainer.current_gradient_accumulation_steps = 1
    trainer.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    return stepper(model, lambda: trainer.training_step(model, dict(inputs)))


def stepper(model: Any, backward: Callable[[], Any]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)

    def step() -> None:
        model.train()
        backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
