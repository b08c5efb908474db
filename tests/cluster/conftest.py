"""A Ray cluster of two cores."""

from collections.abc import Iterator

import pytest

from offramp.cluster.ray_session import connect


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with connect(None, cores=2):
        yield
