"""From what was measured here to very many texts: core-hours, machines, money, and what that supposes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from offramp.cli.timing import Timing


@dataclass(frozen=True)
class Assumptions:
    """How many texts, and what the measuring here cannot tell of them or of the machines."""

    project: Annotated[
        float | None,
        Option(min=1, help="Reckon what so many texts would take, such as 1e9; best with --threads 1."),
    ] = None
    tokens: Annotated[
        float | None, Option(help="Mean tokens of those texts; by default as many as the given ones have.")
    ] = None
    hours: Annotated[float, Option(help="Within so many hours.")] = 24
    cores_per_machine: Annotated[int, Option(help="Cores of one machine.")] = 16
    price_per_core_hour: Annotated[
        float, Option(min=0, help="What a core costs in an hour; the default is made up, put yours.")
    ] = 0.05


def projected(
    timed: Sequence["Timing"], lengths: Sequence[int], cores: int, given: Assumptions
) -> dict[str, Any]:
    """What each policy that was timed on texts of these lengths would take for the texts asked about."""
    from offramp.cost import Measured, project

    mean_tokens = sum(lengths) / len(lengths)
    assumed: dict[str, Any] = {
        "mean_tokens": mean_tokens if given.tokens is None else given.tokens,
        "hours": given.hours,
        "cores_per_machine": given.cores_per_machine,
        "price_per_core_hour": given.price_per_core_hour,
    }
    runs = []
    for run in timed:
        measured = Measured(run.seconds, cores, len(lengths), run.mean_layer, mean_tokens)
        runs.append(
            {
                "policy": run.policy,
                "mean_layer": run.mean_layer,
                "microseconds_per_layer_and_token": 1e6 * measured.per_layer_and_token,
                **asdict(project(measured, given.project or 0, **assumed)),
            }
        )
    return {
        "texts": given.project,
        "assumed": assumed,
        "measured": {"texts": len(lengths), "mean_tokens": mean_tokens, "cores": cores},
        "runs": runs,
    }


def projection_table(found: dict[str, Any]) -> str:
    """For people: the answer, and beside it what it rests on."""
    from offramp.cli.timing import NEVER
    from offramp.report.table import format_table

    header = ["", "mean layer", "µs per layer and token", "core-hours", "machines", "money"]
    body = [
        [
            "full depth" if run["policy"] == NEVER else run["policy"],
            f"{run['mean_layer']:.2f}",
            f"{run['microseconds_per_layer_and_token']:.2f}",
            f"{run['core_hours']:,.1f}",
            f"{run['machines']:,}",
            f"{run['money']:,.2f}",
        ]
        for run in found["runs"]
    ]
    measured, assumed = found["measured"], found["assumed"]
    notes = [
        f"Measured here: {measured['texts']} texts of {measured['mean_tokens']:.1f} tokens on average, "
        f"on {measured['cores']} cores.",
        f"Assumed: {assumed['mean_tokens']:.1f} tokens on average, {assumed['hours']:g} hours, machines of "
        f"{assumed['cores_per_machine']} cores, {assumed['price_per_core_hour']:g} for a core-hour (no quote: "
        "--price-per-core-hour).",
        "Supposed: the texts leave where these left, cores are as fast as here and always busy, only busy cores "
        "are paid for.",
    ]
    return "\n".join([f"{found['texts']:,.0f} texts", "", format_table([header, *body]), "", *notes])
