"""offramp train: exits on an encoder, trained by a recipe."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.card import write_card
from offramp.cli.command import Answer
from offramp.cli.data import Columns, find_task
from offramp.cli.models import is_path
from offramp.cli.progress import training_progress
from offramp.cli.settings import parse_recipe, parse_settings
from offramp.errors import BadOption, CannotLoad, did_you_mean
from offramp.problems import REGRESSION, SINGLE_LABEL

if TYPE_CHECKING:
    from offramp.tasks import Task


def train(
    encoder: Annotated[
        str, Argument(help="An encoder: a folder or a name on the hub; or a model that has exits.")
    ],
    out: Annotated[Path, Option(help="Folder of the run; the model comes to be in its folder `model`.")],
    columns: Columns,
    task: Annotated[str | None, Option(help="A known task, such as mrpc; `offramp list tasks`.")] = None,
    data: Annotated[
        Path | None, Option(help="The folder of the task's files; by default the hub is asked.")
    ] = None,
    hub: Annotated[str | None, Option(help="A data set of the hub, NAME or NAME:CONFIG.")] = None,
    train: Annotated[
        Path | None, Option(help="Own examples to learn from: csv, tsv, jsonl, parquet.")
    ] = None,
    validation: Annotated[Path | None, Option(help="Own examples to choose the best epoch by.")] = None,
    recipe: Annotated[
        str, Option(help="How to train, with settings if wanted: romebert:kind=ta,gamma=0.5")
    ] = "pabee",
    exits: Annotated[str, Option(help="Layers with an exit, such as 2,4,6; or k for every k-th.")] = "1",
    layers: Annotated[int | None, Option(help="Use only so many of the encoder's layers.")] = None,
    head: Annotated[
        str | None, Option(help="Settings of the heads: pooling=first,pooler=shared,classifier=shared")
    ] = None,
    epochs: Annotated[float | None, Option(help="Passes over the data; 3 by default.")] = None,
    learning_rate: Annotated[float | None, Option(help="5e-5 by default.")] = None,
    batch_size: Annotated[int | None, Option(help="Examples in a step; 32 by default.")] = None,
    seed: Annotated[int | None, Option(help="42 by default.")] = None,
    max_length: Annotated[int, Option(help="Longer texts are cut, in tokens.")] = 128,
    early_stopping: Annotated[
        int | None, Option(help="End after so many evaluations without a better one.")
    ] = None,
    argument: Annotated[
        list[str] | None, Option(help="Any of transformers' TrainingArguments, name=value.")
    ] = None,
) -> Answer:
    """Put exits on an encoder and train them.

    Stopped and started again, it goes on where it was. At the end it prints the score of every layer.

    \b
    Examples:
        offramp train bert-base-uncased --task mrpc --data glue --recipe pabee --out runs/mrpc
        offramp train distilbert-base-uncased --train train.csv --validation dev.csv --out runs/mine
        offramp train trained-classifier --train texts.csv --recipe fastbert:fine_tune=false --out runs/exits
    """
    from transformers import set_seed

    from offramp.tasks import Task
    from offramp.training import default_arguments
    from offramp.training import train as train_model

    config, method = find_config(encoder), parse_recipe(recipe)
    if train is None and validation is None:
        chosen = find_task(task, data, hub, columns)
    elif task or data or hub:
        raise BadOption("own files are one source, and --task, --data and --hub another; leave one out.")
    else:
        options = columns.options()
        if not any(phase.needs_labels for phase in method.phases):
            options |= {name: options[name] or value for name, value in answers_of(config).items()}
            options["unlabelled"] = ["train"]
        chosen = Task.from_files(train=train, validation=validation, **options, name=own_name(train))
    if "train" not in chosen.splits:
        raise BadOption(f"{chosen.name} has no examples to learn from; say --train FILE.")
    changes = {
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "seed": seed,
        "disable_tqdm": True,
        **known_arguments(argument or []),
    }
    args = default_arguments(out, **{name: value for name, value in changes.items() if value is not None})
    set_seed(args.seed)
    model, tokenizer = model_for(encoder, config.model_type, chosen, exits, layers, head)
    with training_progress() as callbacks:
        trained = train_model(
            model,
            chosen,
            method,
            args,
            tokenizer=tokenizer,
            max_length=max_length,
            early_stopping=early_stopping,
            callbacks=callbacks,
        )
    write_card(trained.folder)
    values = {
        "model": str(trained.folder),
        "task": chosen.name,
        "recipe": method.name,
        "layers": model.config.exits,
        "scores": trained.scores,
    }
    return Answer(values, f"{layer_table(model.config.exits, trained.scores)}\n\nmodel: {trained.folder}")


def own_name(file: Path | None) -> str:
    return "files" if file is None else file.stem


def answers_of(config: Any) -> dict[str, Any]:
    """What a trained model answers with, for examples that do not say it."""
    if config.problem_type == REGRESSION:
        return {"problem_type": config.problem_type}
    names = [name for _, name in sorted(config.id2label.items())]
    return {"labels": names, "problem_type": config.problem_type or SINGLE_LABEL}


def known_arguments(pairs: list[str]) -> dict[str, Any]:
    from transformers import TrainingArguments

    settings = parse_settings(pairs)
    names = [field.name for field in fields(TrainingArguments)]
    for name in settings:
        if name not in names:
            raise BadOption(f"TrainingArguments has no {did_you_mean(name, names)}")
    return settings


def find_config(encoder: str) -> Any:
    from transformers import AutoConfig

    if is_path(encoder) and not Path(encoder).is_dir():
        raise CannotLoad(f"{encoder}: there is no such folder.")
    try:
        return AutoConfig.from_pretrained(encoder)
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{encoder}: {error}") from error


def model_for(
    encoder: str, kind: str, task: "Task", exits: str, layers: int | None, head: str | None
) -> tuple[Any, Any]:
    """Exits on the encoder for this task, or the model itself if it has exits already; and its tokenizer."""
    from transformers import AutoTokenizer

    from offramp.model import ExitModel

    try:
        tokenizer = AutoTokenizer.from_pretrained(encoder)
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{encoder}: {error}") from error
    if kind == "offramp":
        if exits != "1" or head is not None:
            raise BadOption(f"{encoder} has exits and heads already; leave --exits and --head out.")
        model = ExitModel.from_pretrained(encoder)
    else:
        model = ExitModel.from_encoder(
            encoder,
            num_labels=len(task.labels) if task.labels else 1,
            exits=exit_layers(exits),
            head=parse_settings(head.split(",")) if head else None,
            problem_type=task.problem_type,
            labels=task.labels,
        )
    return (model if layers is None else model.truncate(layers)), tokenizer


def exit_layers(text: str) -> int | list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        raise BadOption(f"--exits {text}: expected layers such as 2,4,6, or one number k.") from None
    if any(number < 1 for number in numbers):
        raise BadOption(f"--exits {text}: layers are counted from 1.")
    return numbers if len(numbers) > 1 else numbers[0]


def layer_table(layers: list[int], scores: dict[str, list[float]]) -> str:
    """Each metric at each layer, in per cent."""
    from offramp.report.table import format_table, percent

    if not scores:
        return "no validation examples, so no scores"
    rows = [
        [str(layer), *(percent(values[exit]) for values in scores.values())]
        for exit, layer in enumerate(layers)
    ]
    return format_table([["layer", *scores], *rows])
