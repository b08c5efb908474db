"""A transformers Trainer that follows one phase: its loss over all exits, what it freezes, what it does to gradients.

Everything else (loop, schedule, checkpoints, mixed precision, processes, loggers) is Trainer's own.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback

from offramp.errors import BadOption, Incompatible
from offramp.gradients import by_depth, conflicting, equilibrium, without_conflict
from offramp.losses import in_group
from offramp.model import ExitModel
from offramp.recipes import Phase

TEACHER = "teacher.safetensors"
"""In a checkpoint, where there is a slow teacher."""


class PhaseTrainer(Trainer):
    loss_is_scaled_for_ga = False

    def __init__(self, model: ExitModel, phase: Phase, task: str, **options: Any) -> None:
        freeze(model, phase.trainable)
        super().__init__(model=model, **options)
        self.phase = phase
        self.anchor_first = anchor(phase.anchor, task) == "final"
        self.anchored = conflicting(model) if phase.gradients == "projected" else []
        self.anchor_gradients: list[Tensor] = []
        self.teacher = SlowTeacher(model, phase.momentum) if phase.momentum is not None else None
        if self.teacher:
            self.add_callback(self.teacher)
        if self.anchored and self.accelerator.scaler is not None:
            raise BadOption("gradient projection needs fp32 or bf16; fp16 scales one of the gradients")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        plain = cast(ExitModel, self.accelerator.unwrap_model(model))
        inputs = dict(inputs)
        labels = inputs.pop("labels", None)
        step = self.state.global_step if model.training else None
        tap = None
        if self.phase.gradients == "equilibrium":
            tap = equilibrium(in_group(len(plain.config.exits), self.phase.groups, step))
        if self.phase.trainable == "exits":
            plain.backbone.eval()  # frozen: no dropout either
        outputs = model(**inputs, tap=tap)
        logits = outputs.exit_logits
        terms = self.phase.loss(
            by_depth(logits) if self.phase.gradients == "by_depth" else logits,
            labels,
            problem_type=plain.config.problem_type,
            weights=outputs.exit_weights,
            gates=outputs.exit_gates,
            teacher=self.teacher.answer(inputs) if self.teacher and model.training else None,
            step=step,
        )
        if self.anchored and model.training:
            self.keep_anchor_gradients(terms)
        loss = torch.stack(terms).sum()
        return (loss, outputs) if return_outputs else loss

    def keep_anchor_gradients(self, terms: tuple[Tensor, ...]) -> None:
        """Adds up the anchor's own gradients until the next update, as the total's are added up in `.grad`."""
        chosen = terms[:1] if self.anchor_first else terms[1:]
        loss = torch.stack(chosen).sum() / self.current_gradient_accumulation_steps
        found = torch.autograd.grad(loss, self.anchored, retain_graph=True, allow_unused=True)
        new = [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.anchored, strict=True)]
        before = self.anchor_gradients or [torch.zeros_like(p) for p in self.anchored]
        self.anchor_gradients = [a + b for a, b in zip(before, new, strict=True)]

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        loss = super().training_step(*args, **options)
        if self.anchored and self.accelerator.sync_gradients:
            self.project()
        return loss

    def project(self) -> None:
        # `.grad` is already the mean over processes, and only means may be compared
        anchor = [cast(Tensor, self.accelerator.reduce(g, "mean")) for g in self.anchor_gradients]
        total = [cast(Tensor, p.grad) for p in self.anchored]
        for parameter, gradient in zip(self.anchored, without_conflict(total, anchor), strict=True):
            parameter.grad = gradient
        self.anchor_gradients = []

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        lengths: Any = cast(Any, self.train_dataset)["length"]
        together = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return LengthGrouped(torch.tensor(list(lengths)), together, seed)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.teacher and self.is_world_process_zero():
            save_model(self.teacher.model, str(Path(output_dir) / TEACHER))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.teacher and checkpoint is not None:
            load_model(self.teacher.model, Path(checkpoint) / TEACHER)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        named = dict(cast(nn.Module, self.model).named_parameters())
        for beginning, rate in self.phase.learning_rates.items():
            own = [p for name, p in named.items() if name.startswith(beginning) and p.requires_grad]
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if not any(p is other for other in own)]
            optimizer.add_param_group({"params": own, "lr": rate, "weight_decay": 0.0})
        return optimizer


class LengthGrouped(Sampler[int]):
    """Batches of similar length in random order, each epoch another.

    transformers' own sampler draws its order from the global state, which a resumed run does not have, and runs
    through its batches from long to short.
    """

    def __init__(self, lengths: Tensor, batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed, self.epoch = lengths, batch, seed, 0

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        random = torch.Generator().manual_seed(self.seed + self.epoch)
        pools = torch.randperm(len(self), generator=random).split(50 * self.batch)
        ordered = torch.cat([pool[self.lengths[pool].argsort(stable=True)] for pool in pools])
        full = len(self) // self.batch * self.batch
        batches = ordered[:full].view(-1, self.batch)
        shuffled = batches[torch.randperm(len(batches), generator=random)]
        return iter([*shuffled.flatten().tolist(), *ordered[full:].tolist()])


class SlowTeacher(TrainerCallback):
    """A copy of the model that follows it slowly, and teaches with its last exit (RomeBERT's momentum teacher)."""

    def __init__(self, model: ExitModel, momentum: float) -> None:
        self.model = copy.deepcopy(model)
        nn.Module.eval(self.model.requires_grad_(False))
        self.momentum = momentum

    @torch.no_grad()
    def answer(self, inputs: dict[str, Any]) -> Tensor:
        logits: Tensor = self.model.to(inputs["input_ids"].device)(**inputs).logits
        return logits

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        for slow, fast in zip(self.model.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.to(slow.device), 1 - self.momentum)


def freeze(model: ExitModel, trainable: str) -> None:
    """Lets move what a phase says, and nothing else."""
    last = len(model.config.exits) - 1
    of_last = parameters(model.heads.parts(last))
    if trainable == "all":
        moving = parameters([model])
    elif trainable == "final":
        moving = parameters([model.backbone]) | of_last
    else:
        moving = parameters(part for exit in range(last) for part in model.heads.parts(exit)) - of_last
        if not moving:
            raise Incompatible(
                "this recipe freezes the backbone and the last exit, and no inner exit has anything else to learn "
                "with; take a joint recipe (pabee, elbert, elasticbert), 'final' where there are no inner exits, "
                "or give each exit a classifier of its own"
            )
    model.heads.frozen = frozenset([last]) if trainable == "exits" else frozenset()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in moving)


def parameters(modules: Any) -> set[nn.Parameter]:
    return {parameter for module in modules for parameter in module.parameters()}


def anchor(choice: str, task: str) -> str:
    """Whose gradient the projection keeps; by task as RomeBERT's training script chose it."""
    if choice != "task":
        return choice
    return "final" if task in ("mnli", "mnli-mm", "qqp") else "inner"
