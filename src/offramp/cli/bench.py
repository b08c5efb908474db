"""offramp bench: full depth against a policy, on this machine, for this model."""

from dataclasses import asdict
from datetime import date
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Answer
from offramp.cli.data import Columns, Data, texts_in
from offramp.cli.models import find_model, known
from offramp.cli.timing import Truth, machine, side_by_side, timing_table
from offramp.errors import BadOption


def bench(
    model: Annotated[str, Argument(help="A model with exits.")],
    data: Data,
    columns: Columns,
    policy: Annotated[str | None, Option(help="The policy to time; the model's own by default.")] = None,
    repeats: Annotated[int, Option(min=1, help="How often each is timed; the median counts.")] = 5,
    limit: Annotated[int, Option(min=1, help="At most so many texts.")] = 1000,
    one_by_one: Annotated[
        bool, Option("--one-by-one", help="A call for each text, as when requests come singly.")
    ] = False,
    threads: Annotated[int | None, Option(help="Threads of PyTorch on the CPU.")] = None,
) -> Answer:
    """Time full depth and a policy on this machine.

    Both run in turns on the same texts; with labels, both are scored.

    \b
    Examples:
        offramp bench runs/mrpc --task mrpc --data glue
        offramp bench runs/mine --data dev.csv --policy entropy:0.3 --one-by-one
    """
    from offramp.classifier import Classifier

    folder = find_model(model)
    answers = known(folder)
    task = data.task_for(answers, columns)
    rows = task.load(data.part)[data.part]
    rows = rows.select(range(min(limit, len(rows))))
    texts = texts_in(rows)
    classifier = Classifier.from_pretrained(folder, policy, threads=threads)
    if classifier.policy.criterion.reads == "nothing":
        raise BadOption(f"{model} has no policy to time; say --policy, or calibrate one: offramp calibrate.")
    labels = rows["label"] if "label" in rows.column_names else None
    truth = Truth(labels, answers.problem_type, task.metrics)
    timed = side_by_side(classifier, texts, classifier.policy, repeats, truth, one_by_one)
    values = {
        "examples": len(texts),
        "layers": classifier.stages.layers[-1],
        "repeats": repeats,
        "one_by_one": one_by_one,
        "date": str(date.today()),
        **machine(),
        "runs": [asdict(row) for row in timed],
    }
    return Answer(values, f"{len(texts)} texts, median of {repeats}\n\n{timing_table(timed)}")
