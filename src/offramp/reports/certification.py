"""The result of `certify` for people: lines of text, a page, and a badge."""

import math
from urllib.parse import quote

from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.certificate import percent
from offramp.guarantees.certify import UNDECIDED, Certification, Claim, Evidence
from offramp.guarantees.losses import LOSSES
from offramp.guarantees.sequential import HOPELESS, PROVEN, REFUTED
from offramp.reports.page import document, opening_html
from offramp.reports.table import Block, format_table, shortened
from offramp.wording import count

SHOWN = 5
"""Rows with differences in the text; a page has all that were kept."""
LONGEST_TEXT = 80
COLOURS = {PROVEN: "brightgreen", REFUTED: "red", HOPELESS: "orange", UNDECIDED: "orange"}


def certification_text(made: Certification) -> str:
    tables = [
        format_table(rows) for rows in (class_rows(made), difference_rows(made, SHOWN)) if len(rows) > 1
    ]
    return "\n\n".join(["\n".join([*claim_lines(made), *note_lines(made)]), *tables])


def claim_lines(made: Certification) -> list[str]:
    return [
        line for claim in made.claims for line in (verdict_line(made, claim), *evidence_lines(made, claim))
    ]


def verdict_line(made: Certification, claim: Claim) -> str:
    confidence = percent(1 - made.delta)
    if claim.certificate is not None:
        return f"proven: {claim.certificate.summary}"
    if claim.verdict == REFUTED:
        return f"refuted: with {confidence} confidence it is false that {claim.claim}."
    given_up = ", and the rows left cannot prove it" if claim.verdict == HOPELESS else ""
    return f"not proven with {confidence} confidence{given_up}: {claim.claim}."


def evidence_lines(made: Certification, claim: Claim) -> list[str]:
    lines = [evidence_line(made, claim, evidence) for evidence in claim.evidence]
    more = ""
    if claim.more_rows:
        more = f"; a verdict on {percent(claim.epsilon)} needs about {count(claim.more_rows, 'more row')} like these"
    elif claim.more_rows is None:
        more = "; no number of rows like these would decide it"
    return [*lines, f"smallest provable bound: {rounded_up(claim.provable)}{more}"]


def evidence_line(made: Certification, claim: Claim, evidence: Evidence) -> str:
    low, high = evidence.interval
    seen = f"{evidence.examples} {evidence.sample}"
    if BOUNDS[LOSSES[claim.risk].bound].lowest == 0:
        seen = f"{evidence.observed * evidence.examples:.4g} of {seen}"
    return (
        f"observed: {seen}, {percent(evidence.observed, 3)} "
        f"({percent(1 - made.delta)} interval {rounded_down(low)} to {rounded_up(high)})"
    )


def note_lines(made: Certification) -> list[str]:
    """The conditions of the proof."""
    notes = []
    if made.examined < made.rows:
        notes.append(f"examined {made.examined} of {count(made.rows, 'row')}, in random order")
    if made.finite:
        notes.append("the claim is about these rows alone")
    elif made.repeated is None:
        notes.append("rows are taken as independent; without texts, repeated ones cannot be seen")
    elif made.repeated:
        share = percent(made.repeated / made.rows, 2)
        notes.append(
            f"{made.repeated} rows ({share}) repeat a text, so the claim is tested on all rows and on distinct texts"
        )
    return notes


def class_rows(made: Certification) -> list[list[str]]:
    rows = [
        [group.name, str(group.rows), str(group.different), share(group.different, group.rows)]
        for group in made.by_class
    ]
    return [[made.old, "rows", "different", "%"], *rows]


def share(part: int, total: int) -> str:
    return f"{100 * part / total:.2f}" if total else "-"


def difference_rows(made: Certification, most: int) -> list[list[str]]:
    """The rows that differ most, counted from 1; columns without any content are left out."""
    rows = [
        [
            str(difference.row + 1),
            difference.old,
            difference.new,
            "" if difference.distance is None else f"{difference.distance:.3f}",
            shortened(difference.text or "", LONGEST_TEXT),
        ]
        for difference in made.differences[:most]
    ]
    header = ["row", made.old, made.new, "distance", "text"]
    kept = [index for index in range(len(header)) if any(row[index] for row in rows)]
    return [[row[index] for index in kept] for row in [header, *rows]]


def rounded_up(bound: float) -> str:
    """A bound in per cent that is not below it.

    >>> rounded_up(0.01986), rounded_up(0.1), rounded_down(0.01986)
    ('1.99%', '10%', '1.98%')
    """
    return f"{math.ceil(round(bound * 1e4, 6)) / 100:g}%"


def rounded_down(bound: float) -> str:
    return f"{math.floor(round(bound * 1e4, 6)) / 100:g}%"


def certification_badge(made: Certification) -> str:
    """Markdown of an image that shields.io draws, with the claims as its text."""
    left = "certified" if made.proven else "not certified"
    right = ", ".join(dict.fromkeys(f"{claim.risk} ≤ {percent(claim.epsilon)}" for claim in made.claims))
    pieces = "-".join(quote(part.replace("-", "--").replace("_", "__"), safe="") for part in (left, right))
    claims = "; ".join(claim.claim for claim in made.claims).replace("[", "(").replace("]", ")")
    return f"![{left}: {claims}](https://img.shields.io/badge/{pieces}-{COLOURS[made.verdict]})"


def certification_page(made: Certification) -> str:
    """One HTML page that opens offline: it makes no requests, and all text from data is escaped."""
    promises = [claim.certificate.promise for claim in made.claims if claim.certificate is not None]
    title = f"{made.new} against {made.old}"
    blocks = [Block(title, [*claim_lines(made), *note_lines(made), *promises])]
    tables = {
        "Differences by class": class_rows(made),
        "Rows that differ most": difference_rows(made, len(made.differences)),
    }
    blocks += [Block(heading, rows=rows) for heading, rows in tables.items() if len(rows) > 1]
    return document(title, opening_html(blocks))
