"""Splitting the texts of a retrofit into those to learn from, to fit a rule on, to calibrate on and to test on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

import numpy as np

from offramp.data.files import text_columns
from offramp.errors import BadData
from offramp.files import digest
from offramp.guarantees import LOSSES, Guarantee
from offramp.guarantees.bounds import BOUNDS
from offramp.guarantees.testing import Part
from offramp.inference.texts import Text
from offramp.problems import Array
from offramp.row_hashes import hash_rows, split_rows
from offramp.wording import plural

TEST, CALIBRATION, FIT = (0.05, 1000), (0.4, 13_000), (0.1, 2000)
"""Shares of the texts, and the most that are used; the rest, about half, is to learn from. The test part only shows
what the certificate promises, so most held-out texts certify: `benchmarks/certificate.py power`."""


@dataclass(frozen=True)
class TextSet:
    """Some of the texts, with their labels if there are any."""

    texts: list[Text]
    labels: Array | None
    groups: Array
    """A hash of each text, or of its group."""
    by_query: bool = False
    """Whether the pairs of a query, which are a group, are one example."""
    categories: Array | None = None
    """(texts,) the name of the category of each, within which a guarantee is to hold."""

    @property
    def examples(self) -> Sequence[Any]:
        """The texts, or each query with its documents."""
        if not self.by_query:
            return self.texts
        documents: dict[str, list[str]] = {}
        for pair in self.texts:
            documents.setdefault(pair[0], []).append(pair[1])
        return [*documents.items()]

    @property
    def rows(self) -> Sequence[Text]:
        """The texts in the order of a trace, in which documents of a query are consecutive."""
        if not self.by_query:
            return self.texts
        return [(query, document) for query, documents in self.examples for document in documents]

    def __len__(self) -> int:
        return len(self.texts)

    def columns(self) -> dict[str, list[Any]]:
        """As columns of a data set."""
        labels = {} if self.labels is None else {"label": self.labels.tolist()}
        return {**text_columns(self.texts), **labels}


@dataclass(frozen=True)
class TextSplit:
    learn: TextSet
    fit: TextSet
    """For rules that learn."""
    calibration: TextSet
    test: TextSet

    @property
    def unit(self) -> str:
        """What counts as one example."""
        return "query" if self.test.by_query else "text"

    def part(self, name: str) -> TextSet:
        part: TextSet = getattr(self, name)
        return part

    def sizes(self) -> dict[str, int]:
        """The number of examples of each part."""
        return {name: len(part.examples) for name, part in vars(self).items()}

    def before(self, part: str) -> Array:
        """The hashes of the texts in all parts that are used before this one."""
        names = [*vars(self)]
        return np.concatenate([self.part(name).groups for name in names[: names.index(part)]])

    def categories(self) -> set[str]:
        """The names of all categories."""
        return {
            str(name)
            for part in vars(self).values()
            if part.categories is not None
            for name in part.categories
        }

    def unseen(self, part: str) -> int:
        """The number of distinct texts of a part that are not among those used before."""
        return len(np.setdiff1d(self.part(part).groups, self.before(part)))


def split_texts(
    texts: Sequence[Text],
    labels: Array | None = None,
    groups: Sequence[Any] | None = None,
    by_query: bool = False,
    categories: Sequence[Any] | None = None,
    learn_from: Sequence[Text] = (),
) -> TextSplit:
    """A random split that is the same for the same texts. Rows of a group stay together. Rows with the same text do
    not: frequent texts might then all be learned from, and never be tested. With `by_query`, pairs of a query are a
    group. Texts of `learn_from` are added to those to learn from.
    """
    if by_query:
        groups = [text[0] for text in texts]
    keys = hash_rows(texts) if groups is None else hash_rows(map(str, groups))
    test, calibration, fit, learn = split_rows(keys, [TEST, CALIBRATION, FIT], together=groups is not None)

    names = None if categories is None else np.array([*map(str, categories)])

    def part(rows: Array) -> TextSet:
        return TextSet(
            [texts[row] for row in rows],
            None if labels is None else labels[rows],
            keys[rows],
            by_query,
            None if names is None else names[rows],
        )

    learned = TextSet(
        [*(texts[row] for row in learn), *learn_from],
        None,  # nothing is trained on labels
        np.concatenate([keys[learn], hash_rows(learn_from)]),
        by_query,
    )
    return TextSplit(learned, part(fit), part(calibration), part(test))


def check_enough(split: TextSplit, target: Guarantee, delta: float) -> None:
    """Too few texts to prove the guarantee at this delta, even without errors, are an error."""
    most, by_query = CALIBRATION[1], split.calibration.by_query
    units = plural(split.unit)
    smallest = {risk: min(target.bounds_by_group(risk).values()) for risk in target.risks}
    proof = max(
        sum(
            BOUNDS[loss.bound].examples_needed([0.0], bound, delta) or most
            for bound in target.bounds_by_group(risk).values()
        )
        for risk, loss in target.losses.items()
    )
    wanted = f"a bound of {min(smallest.values()):g} takes {proof} distinct {units} to calibrate on"
    if proof > most:
        raise BadData(f"{wanted}, and at most {most} are used. Allow a larger bound.")
    total, unseen = sum(split.sizes().values()), split.unseen("calibration")
    if unseen < proof:
        needed, repeated = ceil(proof / CALIBRATION[0]) + 1, 0 if by_query else repeated_share(split)
        distinct = (
            f"; {repeated:.0%} of the calibration texts repeat others and do not count" if repeated else ""
        )
        raise BadData(
            f"not enough {units} ({total}): {wanted}, so {needed} in all, and more if predictions change{distinct}. "
            f"Add {units}, or allow a larger bound."
        )
    part = split.calibration
    if part.categories is not None:
        new = first_of_each(part.groups) & ~np.isin(part.groups, split.before("calibration"))
        names = sorted(split.categories())
        check_parts(
            [
                Part(risk, bound, new & (part.categories == name), name)
                for risk in target.risks
                for name, bound in target.bounds_of(risk, names).items()
            ],
            target,
            delta,
            len(part) / total,
        )


def check_parts(parts: Sequence[Part], target: Guarantee, delta: float, share: float) -> None:
    """Groups with too few texts to prove their bounds are an error; `share` is that of the calibration texts."""
    lacking = []
    for part in [part for part in parts if part.unseen] or parts:
        loss, examples = LOSSES[part.risk], int(part.rows.sum())
        needed = BOUNDS[loss.bound].examples_needed([0.0], part.epsilon, delta)
        if needed is None or examples < needed:
            where = f" of the {target.by} {part.group!r}" if part.group else ""
            what = loss.examples.format(reference="the original").removeprefix(loss.units)
            in_all = (
                "no number is enough" if needed is None else f"{needed}, about {ceil(needed / share)} in all"
            )
            lacking.append(f"{examples} texts{what}{where} (needed: {in_all})")
    if lacking:
        raise BadData(
            f"not enough distinct calibration texts to prove the guarantee: {'; '.join(lacking)}. Add "
            "such texts, leave the group out of the file, or allow a larger bound."
        )


def first_of_each(keys: Array) -> Array:
    """A mask of the first row with each key."""
    mask = np.zeros(len(keys), bool)
    mask[np.unique(keys, return_index=True)[1]] = True
    return mask


def repeated_share(split: TextSplit) -> float:
    """The share of calibration texts that repeat another, or one that is used before."""
    return 1 - split.unseen("calibration") / max(1, len(split.calibration))


def describe_repeats(split: TextSplit) -> list[str]:
    """Lines for people about texts that repeat, or nearly do."""
    part, lines = split.calibration, []
    if part.by_query:
        return []
    if repeated := repeated_share(split):
        lines.append(
            f"{repeated:.0%} of the {len(part)} calibration rows repeat another row or one to learn from; "
            f"the bound must also be proven on the {split.unseen('calibration')} distinct unseen texts alone, as "
            "repeats prove little about new texts"
        )
    templates = {template(text) for text in chain(split.learn.texts, split.fit.texts)}
    new = ~np.isin(part.groups, split.before("calibration"))
    near = sum(template(text) in templates for text, is_new in zip(part.texts, new, strict=True) if is_new)
    if near:
        lines.append(
            f"{near / len(part):.0%} of the calibration rows differ from one to learn from only in numbers and "
            "names; they count as unseen. If such texts come in bursts, the bound may not hold for new ones: name "
            "the column of their source with --group"
        )
    return lines


def template(text: Text) -> str:
    """The text without what varies in copies of a template.

    >>> template("Order 66 of Alice Smith has shipped.") == template("Order 7 of Bob has shipped.")
    True
    """
    words = text if isinstance(text, str) else "\n".join(text)
    return re.sub(r"\d+", "0", re.sub(r"\b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*", "A", words)).lower()


def hash_texts(texts: Sequence[Text], labels: Array | None) -> str:
    """A hash of the texts and labels, to recognize an interrupted retrofit."""
    encoded = (repr(text).encode("utf-8", "surrogatepass") for text in texts)
    return digest(chain(encoded, [] if labels is None else [labels.tobytes()]))
