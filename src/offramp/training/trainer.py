"""PhaseTrainer: transformers' Trainer with the loss, the frozen parameters and the gradients of one phase.

Everything else (loop, schedule, checkpoints, mixed precision, processes, loggers) is Trainer's.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback

from offramp.errors import BadOption, Incompatible
from offramp.models.exit_model import ExitModel, GradientHook
from offramp.problems import UNLABELLED
from offramp.training.gradients import equilibrium, projected_parameters, remove_conflict, scale_by_depth
from offramp.training.losses import group_members
from offramp.training.recipes import Phase

TEACHER = "teacher.safetensors"
"""The momentum teacher's weights in a checkpoint."""


class PhaseTrainer(Trainer):
    loss_is_scaled_for_ga = False

    def __init__(self, model: ExitModel, phase: Phase, task: str, **options: Any) -> None:
        freeze(model, phase.trainable)
        super().__init__(model=model, **options)
        self.phase = phase
        self.anchor = anchor_for(phase.anchor, task)
        self.projected = projected_parameters(model) if phase.gradients == "projected" else []
        self.anchor_gradients = [torch.zeros_like(p) for p in self.projected]
        self.teacher = MomentumTeacher(model, phase.momentum) if phase.momentum is not None else None
        if self.teacher:
            self.add_callback(self.teacher)
        if self.projected and self.accelerator.scaler is not None:
            raise BadOption("gradient projection needs fp32 or bf16: fp16 scales only some of the gradients")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        plain = cast(ExitModel, self.accelerator.unwrap_model(model))
        inputs = dict(inputs)
        labels, teacher = inputs.pop("labels", None), inputs.pop("teacher", None)
        step = self.state.global_step if model.training else None
        if self.phase.trainable == "exits":  # no dropout where frozen; Trainer calls train() before each step
            plain.backbone.eval()
            plain.heads.dropouts[-1].eval()
        outputs = model(**inputs, gradient_hook=self.gradient_hook(plain.config.exits, step))
        teacher = self.teacher.logits(inputs) if self.teacher and model.training else teacher
        logits, gates = outputs.exit_logits, outputs.exit_gates
        if logits.ndim == 4:  # of tokens, which count as examples
            chosen = learned_tokens(labels, inputs["attention_mask"])
            logits, labels, gates, teacher = (
                None if values is None else values[chosen] for values in (logits, labels, gates, teacher)
            )
        terms = self.phase.loss(
            scale_by_depth(logits) if self.phase.gradients == "by_depth" else logits,
            labels,
            problem=plain.config.problem,
            weights=outputs.exit_weights,
            gates=gates,
            teacher=teacher,
            step=step,
        )
        if self.projected and model.training:
            self.accumulate_anchor_gradients(terms)
        loss = torch.stack(terms).sum()
        return (loss, outputs) if return_outputs else loss

    def gradient_hook(self, exits: Sequence[int], step: int | None) -> GradientHook | None:
        if self.phase.gradients != "equilibrium":
            return None
        active = group_members(len(exits), self.phase.groups, step)
        if exits[0] == 0:  # it sends no gradient to the embeddings
            active[0] = False
        return equilibrium(active)

    def accumulate_anchor_gradients(self, terms: tuple[Tensor, ...]) -> None:
        """Adds up the gradients of the anchor until the next update, as `.grad` does for the total."""
        anchor = terms[:1] if self.anchor == "final" else terms[1:]
        loss = torch.stack(anchor).sum() / self.current_gradient_accumulation_steps
        gradients = torch.autograd.grad(loss, self.projected, retain_graph=True, allow_unused=True)
        for total, gradient in zip(self.anchor_gradients, gradients, strict=True):
            if gradient is not None:
                total.add_(gradient)

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        loss = super().training_step(*args, **options)
        if self.projected and self.accelerator.sync_gradients:
            self.project_gradients()
        return loss

    def project_gradients(self) -> None:
        # `.grad` is already the mean over processes
        anchor = [cast(Tensor, self.accelerator.reduce(g, "mean")) for g in self.anchor_gradients]
        total = [cast(Tensor, p.grad) for p in self.projected]
        for parameter, gradient in zip(self.projected, remove_conflict(total, anchor), strict=True):
            parameter.grad = gradient
        self.anchor_gradients = [torch.zeros_like(p) for p in self.projected]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "teacher" not in cast(list[str], self._signature_columns):
            cast(list[str], self._signature_columns).append("teacher")

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        lengths: Any = cast(Any, self.train_dataset)["length"]
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return LengthGroupedSampler(torch.tensor(list(lengths)), batch, seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return SequentialSampler(eval_dataset)  # Trainer's own would look for tokens to group by length

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
        for prefix, rate in self.phase.learning_rates.items():
            chosen = [p for name, p in named.items() if name.startswith(prefix) and p.requires_grad]
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if p not in set(chosen)]
            optimizer.add_param_group({"params": chosen, "lr": rate, "weight_decay": 0.0})
        return optimizer


def learned_tokens(labels: Tensor | None, attention_mask: Tensor) -> Tensor:
    """(examples, tokens) those that have a tag; in texts without tags, and in a batch without any, all tokens."""
    if labels is None:
        return attention_mask.bool()
    labelled = labels != UNLABELLED
    return labelled | (~labelled.any(1, keepdim=True) & attention_mask.bool())


def freeze(model: ExitModel, trainable: str) -> None:
    """Freezes all parameters that a phase does not train."""
    chosen = trainable_parameters(model, trainable)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in chosen)


def trainable_parameters(model: ExitModel, trainable: str) -> set[nn.Parameter]:
    if trainable == "all":
        return set(model.parameters())
    *inner, last = (
        {parameter for part in model.heads.parts(exit) for parameter in part.parameters()}
        for exit in range(len(model.config.exits))
    )
    if trainable == "final":
        return {*model.backbone.parameters(), *last}
    chosen = set[nn.Parameter]().union(*inner) - last
    if not chosen:
        raise Incompatible(
            "this recipe trains only the inner exits, and they have no parameters that the last exit does not share; "
            "use a recipe without such a phase (pabee, elbert, elasticbert), 'final' if there are no inner exits, "
            "or heads with the option classifier=own"
        )
    return chosen


def anchor_for(choice: str, task: str) -> str:
    """Whose gradient the projection keeps: "final" or "inner"; for choice "task" as in RomeBERT's training script."""
    if choice != "task":
        return choice
    return "final" if task in ("mnli", "mnli-mm", "qqp") else "inner"


class LengthGroupedSampler(Sampler[int]):
    """Batches of similar length in random order, different in each epoch.

    Unlike transformers' sampler, the order depends only on seed and epoch, so that a resumed run has the same
    batches, and long batches do not all come first.
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


class MomentumTeacher(TrainerCallback):
    """Its last exit is the teacher; after each step it moves towards the model by 1 - momentum."""

    def __init__(self, model: ExitModel, momentum: float) -> None:
        self.model = copy.deepcopy(model)
        nn.Module.eval(self.model.requires_grad_(False))
        self.momentum = momentum

    @torch.no_grad()
    def logits(self, inputs: dict[str, Any]) -> Tensor:
        logits: Tensor = self.model.to(inputs["input_ids"].device)(**inputs).logits
        return logits

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        for slow, fast in zip(self.model.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.to(slow.device), 1 - self.momentum)
