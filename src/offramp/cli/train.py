"""offramp train: add exits to an encoder and train them with a recipe."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.data import HUB, TASK, ColumnOptions, find_task
from offramp.cli.options import check_writable
from offramp.cli.progress import heartbeat, in_terminal, training_progress
from offramp.cli.rows import read_rows
from offramp.errors import BadOption
from offramp.wording import did_you_mean

if TYPE_CHECKING:
    from offramp.data import Task


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
        Path | None, Option(help="File of training examples: csv, tsv, jsonl, parquet, or for taggers conll.")
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
        str | None,
        Option(
            help="Layers with an exit, such as 1-12 or 0,2,4,6 (0 is before the first layer), or k for every k-th. "
            "By default all, but 0 only if the recipe is not a published one."
        ),
    ] = None,
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
    from offramp.reports.card import write_card
    from offramp.reports.table import format_table, layer_rows
    from offramp.training import train as train_model
    from offramp.training.recipes import parse_key_values
    from offramp.training.start import Origin

    if out.is_file():
        raise BadOption(f"--out {out} is a file; choose a folder.")
    check_writable(out)
    check_device(device)
    origin = Origin.find(encoder)
    method = origin.choose_recipe(recipe, layers)
    if train is None and validation is None:
        # --text may be about the file of --unlabelled
        others = columns if unlabelled is None or hub else replace(columns, text=None, text_pair=None)
        chosen = find_task(task, data, hub, others)
    elif task or data or hub:
        raise BadOption("use either --train and --validation, or --task, --data and --hub, not both.")
    else:
        chosen = task_from_files(train, validation, columns, origin.label_options(method))
    if "train" not in chosen.splits:
        raise BadOption(f"{chosen.name} has no training examples; use --train FILE.")
    flags = {
        "output_dir": out,
        "disable_tqdm": True,
        "use_cpu": True if device == "cpu" else None,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "seed": seed,
    }
    named = {name: value for name, value in flags.items() if value is not None}
    with training_progress() as callbacks, heartbeat("training"):
        trained = train_model(
            encoder,
            chosen,
            method,
            named | parse_training_arguments(argument or []),
            exits=None if exits is None else parse_exits(exits),
            head=parse_key_values(head.split(",")) if head else None,
            layers=layers,
            max_length=max_length,
            early_stopping=early_stopping,
            unlabelled=None if unlabelled is None else read_unlabelled(unlabelled, columns),
            callbacks=callbacks,
            progress=in_terminal(),
            log=lambda summary: print(summary, file=sys.stderr),
        )
    write_card(trained.folder)
    layers_with_exits = trained.model.config.exits
    values = {
        "model": str(trained.folder),
        "task": chosen.name,
        "recipe": method.name,
        "layers": layers_with_exits,
        "scores": trained.scores,
    }
    table = "no scores: there are no validation examples"
    if trained.scores:
        table = format_table(layer_rows(layers_with_exits, trained.scores))
    return Result(values, f"{table}\n\nmodel: {trained.folder}")


def check_device(device: str | None) -> None:
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    available = "cpu" if accelerator is None else accelerator.type
    if device not in (None, "cpu", available):
        raise BadOption(f"--device {device} is not available here; PyTorch would use {available}.")


def task_from_files(
    train: Path | None, validation: Path | None, columns: ColumnOptions, of_model: Mapping[str, Any]
) -> "Task":
    """The labels are those of the model where the recipe needs none, unless the command names them."""
    from offramp.data import Task

    named = {name: value for name, value in columns.options().items() if value is not None}
    name = "files" if train is None else train.stem
    return Task.from_files(train=train, validation=validation, **{**of_model, **named}, name=name)


def read_unlabelled(file: Path, columns: ColumnOptions) -> Any:
    from datasets import Dataset

    from offramp.data.files import text_columns

    texts = [row.text for row in read_rows(file, columns.text, columns.text_pair)]
    if not texts:
        raise BadOption(f"--unlabelled {file}: no texts.")
    return Dataset.from_dict(text_columns(texts))


def parse_training_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Fields of transformers' TrainingArguments, each converted to the type of the field.

    >>> parse_training_arguments(["save_strategy=no", "tf32=no", "save_total_limit=none"])
    {'save_strategy': 'no', 'tf32': False, 'save_total_limit': None}
    """
    from transformers import TrainingArguments

    from offramp.training.recipes import split_pairs

    types = {field.name: field.type for field in fields(TrainingArguments)}
    arguments = {}
    for name, text in split_pairs(pairs):
        if name not in types:
            raise BadOption(f"--argument: TrainingArguments has no {did_you_mean(name, types)}")
        arguments[name] = convert(name, text, types[name])
    return arguments


def convert(name: str, text: str, hint: Any) -> Any:
    """The text as one of the types of the hint; unchanged if it is none of them and the hint includes `str`."""
    from offramp.training.recipes import parse_value

    allowed = {get_origin(kind) or kind for kind in get_args(hint) or (hint,)}
    value = parse_value(text)
    if float in allowed and type(value) is int:
        return float(value)
    if int in allowed and type(value) is float and value.is_integer():
        return int(value)
    if type(value) in allowed:
        return value
    if str in allowed:
        return text
    if NoneType in allowed and text.lower() == "none":
        return None
    raise BadOption(f"--argument {name}={text}: expected {getattr(hint, '__name__', hint)}")


def parse_exits(text: str) -> int | list[int]:
    """Layers, or one number k for every k-th.

    >>> parse_exits("1-4,6"), parse_exits("2")
    ([1, 2, 3, 4, 6], 2)
    """
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise BadOption(f"--exits {text}: expected layers such as 2,4,6 or 1-6, or one number.")
        layers += range(int(first), int(last or first) + 1)
    if not layers or text.strip() == "0":
        raise BadOption(f"--exits {text}: expected layers from 0, or every k-th with k from 1.")
    return layers[0] if text.strip().isdecimal() else layers
