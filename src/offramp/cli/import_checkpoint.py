"""offramp import: a checkpoint of an older codebase becomes a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from offramp.atomic import atomic_folder
from offramp.cli.card import write_card
from offramp.cli.command import Answer
from offramp.errors import CannotLoad


def import_checkpoint(
    checkpoint: Annotated[Path, Argument(help="The folder that the older code has written.")],
    out: Annotated[Path, Option(help="The folder of the model.")],
    labels: Annotated[
        str | None, Option(help="Names of the labels with commas, in the model's order.")
    ] = None,
    num_labels: Annotated[int | None, Option(help="Needed only where there is no classifier yet.")] = None,
    tokenizer: Annotated[
        str | None, Option(help="Folder or hub name of the tokenizer, if not beside the weights.")
    ] = None,
) -> Answer:
    """Take over a checkpoint of an older codebase.

    Of DeeBERT, RomeBERT, PABEE, ELBERT or ElasticBERT, recognised by the names of its weights.

    \b
    Example:
        offramp import saved_models/bert-base/MRPC-two_stage --labels 0,1 --out mrpc
    """
    from offramp import importers

    imported = importers.import_checkpoint(checkpoint, num_labels, names(labels))
    words = find_tokenizer(tokenizer or str(checkpoint), imported.model.config.encoder_config)
    with atomic_folder(out) as half:
        imported.model.save_pretrained(half)
        words.save_pretrained(half)
    write_card(out)
    values = {
        "model": str(out),
        "system": imported.system,
        "exits": imported.model.config.exits,
        "dropped": imported.dropped,
        "fresh": imported.fresh,
    }
    lines = [f"{out}: from {imported.system}, {len(imported.model.config.exits)} exits"]
    lines += [f"not taken over: {', '.join(imported.dropped)}"] if imported.dropped else []
    lines += [f"new, still to be trained: {', '.join(imported.fresh)}"] if imported.fresh else []
    return Answer(values, "\n".join(lines))


def names(labels: str | None) -> Sequence[str] | None:
    return labels.split(",") if labels else None


def find_tokenizer(place: str, encoder: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, config=encoder)
    except (OSError, ValueError, ImportError) as error:
        raise CannotLoad(
            f"no tokenizer in {place}; name one with --tokenizer, such as bert-base-uncased ({error})"
        ) from error
