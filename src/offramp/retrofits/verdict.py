"""The result of a retrofit in a few lines that can be pasted into a message."""

from collections.abc import Mapping
from typing import Any

from offramp.policy import Certificate
from offramp.reports.table import format_table, percent, short


def verdict(results: Mapping[str, Any]) -> list[str]:
    """The verdict in words, as lines; `comparison_table` has the numbers of all contenders."""
    row, texts, size = results["comparison"][-1], results["texts"]["test"], results["megabytes"]
    times, (low, high) = row["times_faster"], results["changed_interval"]
    audit = f", and {size['reference']:.0f} MB for the server's audit" if size["reference"] else ""
    lines = [
        f"{times['one_text']:.1f} times faster than {results['original']} in transformers for one text, "
        f"{times['in_batches']:.1f} times in batches",
        f"predictions changed: {row['changed']} of {texts} test texts, {100 * row['changed'] / texts:.1f} % "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %)",
        f"certificate: {Certificate.from_json(results['certificate']).summary}",
        f"exits: {exit_text(results)}; {row['mean_layer']:.2f} of {results['layers'][-1]} layers on average",
        f"policy: {short(results['policy'])} in {results['precision']}; {results['kept_because']}",
        f"size: {size['offramp']:.0f} MB{audit}; the original's weights are {size['original']:.0f} MB",
    ]
    if results["static_cut"] is not None:
        lines.append(f"a static cut at layer {results['static_cut']:g} is as good: consider --rule layer")
    if results["full_depth_bit_equal"] is not None:
        lines.append(
            f"full depth in PyTorch is {'' if results['full_depth_bit_equal'] else 'NOT '}bit-equal to "
            f"{results['original']}"
        )
    return lines


def comparison_table(results: Mapping[str, Any]) -> str:
    rows, texts = results["comparison"], results["texts"]["test"]
    metrics = list(rows[0]["scores"])
    header = ["", *metrics, "changed %", "mean layer", "ms, one text", "times", "ms, batches", "times"]
    body = [
        [
            row["name"],
            *(percent(row["scores"][metric]) for metric in metrics),
            f"{100 * row['changed'] / texts:.1f}",
            f"{row['mean_layer']:.2f}",
            f"{row['milliseconds']['one_text']:.2f}",
            f"{row['times_faster']['one_text']:.1f}",
            f"{row['milliseconds']['in_batches']:.2f}",
            f"{row['times_faster']['in_batches']:.1f}",
        ]
        for row in rows
    ]
    return format_table([header, *body])


def exit_text(results: Mapping[str, Any]) -> str:
    """Where texts left, without exits that fewer than one in a hundred took."""
    shares = zip(results["layers"], results["exits"], strict=True)
    return ", ".join(f"{100 * share:.0f} % at layer {layer}" for layer, share in shares if share >= 0.01)
