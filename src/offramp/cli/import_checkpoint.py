"""offramp import: convert a checkpoint of an older codebase."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from offramp.cli.command import Result
from offramp.cli.options import check_output, split_names
from offramp.errors import CannotLoad
from offramp.files import atomic_folder


def import_checkpoint(
    checkpoint: Annotated[Path, Argument(help="Checkpoint folder of the older codebase.")],
    out: Annotated[Path, Option(help="Folder to create.")],
    labels: Annotated[
        str | None, Option(help="Comma-separated label names, in the order of the logits.")
    ] = None,
    num_labels: Annotated[
        int | None, Option(help="Number of labels, for a checkpoint without a classifier.")
    ] = None,
    tokenizer: Annotated[
        str | None, Option(help="Folder or hub name of the tokenizer, if the checkpoint has none.")
    ] = None,
) -> Result:
    """Convert a checkpoint of an older codebase.

    These are DeeBERT, RomeBERT, PABEE, ELBERT and ElasticBERT, recognized by the names of their weights.

    \b
    Example:
        offramp import saved_models/bert-base/MRPC-two_stage --labels 0,1 --out mrpc
    """
    from offramp.folder import load_tokenizer
    from offramp.models import importers
    from offramp.reports.card import write_card

    check_output(out, force=None)
    imported = importers.import_checkpoint(checkpoint, num_labels, split_names(labels))
    config = imported.model.config
    try:
        loaded = load_tokenizer(tokenizer or checkpoint, config=config.encoder_config)
    except CannotLoad as error:
        raise CannotLoad(f"{error}; use --tokenizer, such as --tokenizer bert-base-uncased.") from error
    with atomic_folder(out) as draft:
        imported.model.save_pretrained(draft)
        loaded.save_pretrained(draft)
    write_card(out)
    values = {
        "model": str(out),
        "system": imported.system,
        "exits": config.exits,
        "dropped": imported.dropped,
        "fresh": imported.fresh,
    }
    lines = [f"{out}: {imported.system}, exits at layers {', '.join(map(str, config.exits))}"]
    lines += [f"unused weights: {', '.join(imported.dropped)}"] if imported.dropped else []
    lines += [f"newly initialized, to be trained: {', '.join(imported.fresh)}"] if imported.fresh else []
    return Result(values, "\n".join(lines))
