"""Measures a training step of each recipe with a single phase against plain fine-tuning of the same encoder.

    python benchmarks/training_cost.py ENCODER --length 32

Steps (forward, backward, clipping, AdamW; batch 32) of transformers' own classifier and of each recipe take turns, so
that load on the machine affects all of them. Prints medians and ratios as a Markdown table and as JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, TrainingArguments, set_seed

from offramp import RECIPES, ExitModel
from offramp.training.preflight import add_needs
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
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times[2:]) for name, times in seconds.items()}
    print("| recipe | seconds per step | times plain |\n|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median:.3f} | {median / medians['plain']:.2f} |")
    settings = {name: getattr(options, name) for name in ("batch", "length", "repeats", "threads")}
    ratios = {name: round(median / medians["plain"], 3) for name, median in medians.items()}
    print(json.dumps({"date": str(date.today()), **settings, "seconds": medians, "ratio": ratios}))


def plain_step(encoder: str, inputs: dict[str, Any]) -> Callable[[], None]:
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2, dtype=torch.float32)
    return stepper(model, lambda: model(**inputs).loss.backward())


def recipe_step(encoder: str, name: str, inputs: dict[str, Any]) -> Callable[[], None]:
    recipe = RECIPES[name]()
    model = ExitModel.from_encoder(encoder, num_labels=2)
    add_needs(model, recipe)
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
