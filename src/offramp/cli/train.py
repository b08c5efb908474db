"""offramp train: add exits to an encoder and train them with a recipe."""

import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.cli.data import HUB, TASK, ColumnOptions, find_task
from offramp.cli.key_values import parse_key_values, parse_recipe, parse_training_arguments
from offramp.cli.options import check_writable
from offramp.cli.progress import in_terminal, training_progress
from offramp.cli.rows import read_rows
from offramp.errors import BadOption
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.data import Task
    from offramp.training.recipes import Recipe


def train(
    encoder: Annotated[
        str, Argument(help="Folder or hub name of an encoder, of a classifier, or of a model with exits.")
    ],
    out: Annotated[Path, Option(help="Folder of the run; the model is saved in OUT/model.")],
    columns: ColumnOptions,
    task: Annotated[str | None, Option(help=TASK)] = None,
    data: Annotated[
        Path | None, Option(help="Folder with the files of --task; by default they are downloaded.")
    ] = None,
    hub: Annotated[str | None, Option(help=HUB)] = None,
    train: Annotated[
        Path | None, Option(help="File of training examples: csv, tsv, jsonl or parquet.")
    ] = None,
    validation: Annotated[
        Path | None, Option(help="File of validation examples, which select the best epoch.")
    ] = None,
    unlabelled: Annotated[
        Path | None,
        Option(
            help="File of further texts without labels, for recipes that use them (joint, frozen, mixed)."
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(
            help="Recipe, with or without options: romebert:kind=ta,gamma=0.5; by default joint, or frozen for a "
            "model that is fine-tuned already."
        ),
    ] = None,
    exits: Annotated[
        str,
        Option(
            help="Layers with an exit, such as 0,2,4,6 (0 is before the first layer), or k for every k-th."
        ),
    ] = "1",
    layers: Annotated[int | None, Option(help="Keep only the first LAYERS layers of the encoder.")] = None,
    head: Annotated[
        str | None, Option(help="Options of the heads: pooling=first,pooler=shared,classifier=shared")
    ] = None,
    epochs: Annotated[
        float | None, Option(help="Epochs of each phase that does not set its own; 3 by default.")
    ] = None,
    learning_rate: Annotated[float | None, Option("--learning-rate", "--lr", help="5e-5 by default.")] = None,
    batch_size: Annotated[int | None, Option(help="32 by default.")] = None,
    seed: Annotated[int | None, Option(help="42 by default.")] = None,
    max_length: Annotated[int, Option(help="Truncate texts to this many tokens.")] = 128,
    device: Annotated[
        str | None,
        Option(help="cpu, or an accelerator such as cuda; by default the accelerator if there is one."),
    ] = None,
    early_stopping: Annotated[
        int | None, Option(help="Stop a phase after this many evaluations without improvement.")
    ] = None,
    argument: Annotated[
        list[str] | None,
        Option(help="Any other of transformers' TrainingArguments, as name=value; repeatable."),
    ] = None,
) -> Result:
    """Add exits to an encoder and train them.

    Prints the validation scores of every layer. Run the same command again to resume an interrupted run.

    \b
    Examples:
        offramp train bert-base-uncased --task mrpc --data glue --recipe pabee --out runs/mrpc
        offramp train distilbert-base-uncased --train train.csv --validation dev.csv --out runs/mine
        offramp train trained-classifier --train texts.csv --out runs/exits
    """
    from transformers import set_seed

    from offramp.reports.card import write_card
    from offramp.reports.table import format_table, layer_rows
    from offramp.training import train as train_model
    from offramp.training.recipes import default_recipe

    if out.is_file():
        raise BadOption(f"--out {out} is a file; choose a folder.")
    check_writable(out)
    config = load_config(encoder)
    keeps_last = is_fine_tuned(config) and (layers is None or getattr(config, "inner_exits_trained", False))
    method = parse_recipe(recipe or default_recipe(keeps_last))
    trains_backbone = any(phase.trainable != "exits" for phase in method.phases)
    if train is None and validation is None:
        # --text may be about the file of --unlabelled
        others = columns if unlabelled is None or hub else replace(columns, text=None, text_pair=None)
        chosen = find_task(task, data, hub, others)
    elif task or data or hub:
        raise BadOption("use either --train and --validation, or --task, --data and --hub, not both.")
    else:
        chosen = task_from_files(train, validation, columns, method, config)
    if "train" not in chosen.splits:
        raise BadOption(f"{chosen.name} has no training examples; use --train FILE.")
    flags = {
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "seed": seed,
    }
    flags |= parse_training_arguments(argument or [])
    if all(phase.epochs is not None for phase in method.phases):
        refuse_training_arguments(method.name, flags)
    args = training_arguments(out, device, flags)
    set_seed(args.seed)
    if not trains_backbone:
        check_classifier(encoder, config.num_labels if keeps_last else None, chosen)
    model, tokenizer = load_or_add_exits(
        encoder, config, chosen, exits, head, keeps_labels=not trains_backbone
    )
    if layers is not None:
        model = model.truncate(layers)
    if recipe is None and keeps_last:
        log(f"{encoder} is fine-tuned: its backbone stays as it is (--recipe joint trains it too)")
    more = None if unlabelled is None else read_unlabelled(unlabelled, columns)
    print(describe(chosen, more, method, args, model.config.exits, max_length), file=sys.stderr)
    with training_progress() as callbacks:
        trained = train_model(
            model,
            chosen,
            method,
            args,
            tokenizer=tokenizer,
            max_length=max_length,
            early_stopping=early_stopping,
            unlabelled=more,
            callbacks=callbacks,
            progress=in_terminal(),
        )
    write_card(trained.folder)
    values = {
        "model": str(trained.folder),
        "task": chosen.name,
        "recipe": method.name,
        "layers": model.config.exits,
        "scores": trained.scores,
    }
    table = "no scores: there are no validation examples"
    if trained.scores:
        table = format_table(layer_rows(model.config.exits, trained.scores))
    return Result(values, f"{table}\n\nmodel: {trained.folder}")


def refuse_training_arguments(recipe: str, given: Mapping[str, Any]) -> None:
    """Of a recipe whose phases all set their own."""
    for name in ("num_train_epochs", "learning_rate", "per_device_train_batch_size"):
        if given.get(name) is not None:
            raise BadOption(
                f"{name}={given[name]} has no effect: {recipe} sets its own. Its options are written as "
                f"--recipe {recipe}:epochs=20,rate=0.001"
            )


def training_arguments(out: Path, device: str | None, changes: dict[str, Any]) -> Any:
    """The default arguments with those of the changes that are not None."""
    from offramp.training import default_arguments

    changes = {"disable_tqdm": True, "use_cpu": device == "cpu" or None} | changes
    args = default_arguments(out, **{name: value for name, value in changes.items() if value is not None})
    if device is not None and args.device.type != device:
        raise BadOption(f"--device {device} is not available here; PyTorch would use {args.device.type}.")
    return args


def describe(
    task: "Task", unlabelled: Any, recipe: "Recipe", args: Any, exits: list[int], max_length: int
) -> str:
    """What the command understood, to be shown before it starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training loads the rows again, and warns then
        rows = {name: rows for name, rows in task.load().items() if name != "test"}
    columns, train = task.splits["train"].columns.roles(), rows["train"]
    sizes = {name: len(each) for name, each in rows.items()}
    if unlabelled is not None:
        sizes["unlabelled"] = len(unlabelled)
    lines = {
        "rows": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "columns": ", ".join(f"{role} {column!r}" for role, column in columns.items()),
        "labels": class_counts(task, train),
        "recipe": f"{recipe.name}: {', '.join(phase_steps(recipe, args, sizes))}",
        "exits": f"at layers {', '.join(map(str, exits))}",
        "texts": f"up to {max_length} tokens",
    }
    return "\n".join(f"{name:9}{value}" for name, value in lines.items())


def class_counts(task: "Task", rows: Any) -> str:
    if "label" not in rows.column_names or task.labels is None:
        return "numbers" if "label" in rows.column_names else "none in the training examples"
    import numpy as np

    labels = np.asarray(rows["label"])
    counts = labels.sum(0) if labels.ndim > 1 else np.bincount(labels, minlength=len(task.labels))
    return ", ".join(f"{name} {int(number)}" for name, number in zip(task.labels, counts, strict=True))


def phase_steps(recipe: "Recipe", args: Any, sizes: Mapping[str, int]) -> Iterator[str]:
    for phase in recipe.phases:
        rows = sizes["train"]
        if phase.unlabelled and phase.epochs is not None:  # other phases have no more updates with more text
            rows += sizes.get("unlabelled", 0)
        size = phase.batch_size or args.per_device_train_batch_size
        epochs = args.num_train_epochs if phase.epochs is None else phase.epochs
        updates = math.ceil(rows / (size * args.gradient_accumulation_steps))
        steps = args.max_steps if args.max_steps > 0 else math.ceil(updates * epochs)
        yield f"{count(steps, 'step')} of {size} rows ({phase.trainable})"


def load_config(encoder: str) -> Any:
    from transformers import AutoConfig

    from offramp.files import explain_damage
    from offramp.folder import check_reachable

    check_reachable(encoder)
    with explain_damage(encoder):
        return AutoConfig.from_pretrained(encoder, trust_remote_code=False)


def is_fine_tuned(config: Any) -> bool:
    from offramp.models.exit_model import is_classifier

    return bool(getattr(config, "fine_tuned", False)) or is_classifier(config.architectures or [])


def check_classifier(encoder: str, trained_outputs: int | None, task: "Task") -> None:
    """A model whose last exit stays as it is must be trained, and for this task."""
    outputs = len(task.labels) if task.labels else 1
    if trained_outputs is None:
        raise BadOption(
            f"{encoder} has no trained classifier that could stay as it is; use --recipe joint to train one."
        )
    if trained_outputs != outputs:
        raise BadOption(
            f"the model has {trained_outputs} outputs and {task.name} needs {outputs}; use --recipe joint to train "
            "it for this task."
        )


def read_unlabelled(file: Path, columns: ColumnOptions) -> Any:
    from datasets import Dataset

    from offramp.data.files import text_columns

    texts = [row.text for row in read_rows(file, columns.text, columns.text_pair)]
    if not texts:
        raise BadOption(f"--unlabelled {file}: no texts.")
    return Dataset.from_dict(text_columns(texts))


def task_from_files(
    train: Path | None, validation: Path | None, columns: ColumnOptions, recipe: "Recipe", config: Any
) -> "Task":
    """Recipes that need no labels also accept unlabelled files; the labels are then those of the model."""
    from offramp.data import Task

    options = columns.options()
    if not any(phase.needs_labels for phase in recipe.phases):
        options |= {name: options[name] or value for name, value in labels_of(config).items()}
        options["unlabelled"] = ["train"]
    name = "files" if train is None else train.stem
    return Task.from_files(train=train, validation=validation, **options, name=name)


def labels_of(config: Any) -> dict[str, Any]:
    """Labels and problem type of a trained model, as arguments of `Task.from_files`."""
    from offramp.models.config import names_in_order
    from offramp.problems import problem_of

    problem = problem_of(config.num_labels, config.problem_type)
    return {"problem_type": problem} | ({"labels": names_in_order(config)} if problem.has_classes else {})


def load_or_add_exits(
    encoder: str, config: Any, task: "Task", exits: str, head: str | None, keeps_labels: bool
) -> tuple[Any, Any]:
    """A model with exits, loaded or made from an encoder, and its tokenizer.

    With `keeps_labels`, a classifier keeps the names of its labels; otherwise it gets those of the task, unless they
    are the same in another order.
    """
    from offramp.data.checks import has_default_names
    from offramp.folder import load_model, load_tokenizer
    from offramp.models.config import names_in_order
    from offramp.models.exit_model import ExitModel

    if config.model_type == "offramp":
        if exits != "1" or head is not None:
            raise BadOption(f"{encoder} already has exits; leave out --exits and --head.")
        return load_model(encoder)
    tokenizer = load_tokenizer(encoder)
    outputs = len(task.labels) if task.labels else 1
    names = names_in_order(config) if is_fine_tuned(config) and config.num_labels == outputs else []
    same_names = {*names} == {*(task.labels or ())} or (keeps_labels and not has_default_names(names))
    model = ExitModel.from_encoder(
        encoder,
        num_labels=outputs,
        exits=parse_exits(exits),
        head=parse_key_values(head.split(",")) if head else None,
        problem_type=task.problem,
        labels=None if names and same_names else task.labels,
    )
    return model, tokenizer


def parse_exits(text: str) -> int | list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        raise BadOption(f"--exits {text}: expected layers such as 2,4,6, or one number.") from None
    if any(number < 0 for number in numbers) or numbers == [0]:
        raise BadOption(f"--exits {text}: expected layers from 0, or every k-th with k from 1.")
    return numbers if len(numbers) > 1 else numbers[0]
