"""Clusters that are started are gone afterwards, and those that are not there are missed at once."""

import logging
import os

import pytest
import ray

from offramp.cluster.ray_session import SETTINGS, joined
from offramp.errors import BadOption


def test_a_cluster_of_our_own_runs_no_longer_than_it_is_needed() -> None:
    before, level = settings(), logging.getLogger("ray.data").handlers[-1].level
    with joined(None, cores=1):
        node = ray.nodes()[0]
        assert node["Resources"]["CPU"] == 1
        with joined(None, cores=5):  # it is in touch already, and stays so
            pass
        assert ray.is_initialized()
        with pytest.raises(BadOption, match="already"), joined("auto", cores=1):
            pass
    assert not ray.is_initialized()
    assert not os.path.exists(node["RayletSocketName"])
    assert (settings(), logging.getLogger("ray.data").handlers[-1].level) == (before, level)


def settings() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in SETTINGS}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
def test_where_nobody_listens_there_is_no_cluster(address: str) -> None:
    with pytest.raises(BadOption, match=f"no cluster can be joined at {address}"), joined(address, cores=1):
        pass
