"""Options that several commands share."""

from typing import Annotated

from typer import Option

PolicyOption = Annotated[
    str | None, Option(help="When to exit, such as entropy:0.3; the model's own policy by default.")
]
MaxLayerOption = Annotated[int | None, Option(help="Every text exits at this layer at the latest.")]
TextOption = Annotated[str | None, Option(help="Column of the text; guessed from its name by default.")]
TextPairOption = Annotated[str | None, Option(help="Column of the second text, for pairs.")]
