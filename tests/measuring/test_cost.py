"""Costs, checked against figures that the older systems print and against hand-computed numbers."""

import numpy as np
import pytest

from offramp.errors import BadOption
from offramp.measuring.cost import cost, macs

TINY = {"hidden": 8, "intermediate": 16, "heads": 2}
BASE = {"hidden": 768, "intermediate": 3072, "heads": 12}


def taken(counter: dict[int, int], depth: int) -> list[int]:
    return [counter.get(layer, 0) for layer in range(1, depth + 1)]


@pytest.mark.parametrize(
    ("counter", "depth", "fraction"),
    [
        ({10: 49, 11: 62, 12: 297}, 12, 0.9673202614379085),  # DeeBERT on MRPC, entropy 0.05
        ({6: 4, 8: 1, 9: 10, 10: 110, 11: 58, 12: 225}, 12, 0.9313725490196079),  # the same, entropy 0.1
        ({3: 1, 8: 2, 24: 1}, 24, 43 / 96),  # ELBERT prints 0.4479
    ],
)
def test_executed_fraction_is_what_deebert_calls_expected_saving_and_elbert_computation_cost(
    counter: dict[int, int], depth: int, fraction: float
) -> None:
    spent = cost(taken(counter, depth), range(1, depth + 1))
    assert spent.executed_fraction == pytest.approx(fraction, abs=1e-12)


def test_pabee_prints_the_saved_fraction_and_elasticbert_the_ratio_of_the_same_run() -> None:
    spent = cost(taken({6: 5, 12: 5}, 12), range(1, 13))  # 90 layers for 10 examples
    assert spent.mean_layer == 9
    assert spent.saved_fraction == pytest.approx(0.25)
    assert round(spent.layer_ratio, 2) == 1.33


@pytest.mark.parametrize(
    ("shape", "layers", "length", "total", "per_layer"),
    [(TINY, 2, 5, 6_600, 3_220), (BASE, 6, 128, 5_592_319_488, 931_921_920)],
)
def test_macs_are_those_elasticbert_counts(
    shape: dict[str, int], layers: int, length: int, total: int, per_layer: int
) -> None:
    assert macs(shape, 2, length, layers) == total
    assert macs(shape, 2, length, 2) - macs(shape, 2, length, 1) == per_layer


def test_twelve_layers_of_base_are_22367_megaflops() -> None:
    spent = cost([1], [12], macs=float(macs(BASE, 2, 128, 12)))
    assert spent.macs == 11_183_851_008
    assert spent.flops == pytest.approx(22367.7e6, abs=0.05e6)


def test_every_head_evaluated_is_counted() -> None:
    assert macs(TINY, 3, 5, 2, heads=2) - macs(TINY, 3, 5, 2, heads=1) == 8 * 8 + 8 * 3
    bare = {"hidden": 8, "intermediate": 16, "heads": 2, "pooler": 0}
    assert macs(bare, 3, 5, 2, heads=2) - macs(bare, 3, 5, 2, heads=1) == 8 * 3


def test_a_head_that_reads_four_vectors_of_a_pair_pays_for_all() -> None:
    shape = {"hidden": 8, "intermediate": 16, "heads": 2}
    one, four = (macs(shape | {"pooler": vectors}, 2, length=5, layers=2, heads=3) for vectors in (1, 4))
    assert four - one == 3 * 3 * 8 * 8


def test_the_hidden_layer_of_a_head_is_counted() -> None:
    shape = {"hidden": 8, "intermediate": 16, "heads": 2, "pooler": 1}
    plain, deeper = (
        int(macs({**shape, "head_hidden": width}, classes=3, length=5, layers=0)) for width in (0, 4)
    )
    assert plain == 2 * 5 * 8 + 8 * 8 + 8 * 3
    assert deeper == 2 * 5 * 8 + 8 * 8 + 8 * 4 + 4 * 3


def test_macs_grow_with_the_padded_length() -> None:
    real = macs(TINY, 2, [3, 5], 2)
    assert real.tolist() == [int(macs(TINY, 2, 3, 2)), 6_600]
    assert real.sum() < 2 * macs(TINY, 2, 5, 2)


def test_a_histogram_without_examples_is_refused() -> None:
    with pytest.raises(BadOption, match="at least one example"):
        cost([0, 0], [1, 2])


def test_macs_of_long_texts_do_not_overflow() -> None:
    huge = {"hidden": 4096, "intermediate": 16384, "heads": 32}
    assert macs(huge, 2, np.array([8192], np.int32), 48)[0] > 1e12
