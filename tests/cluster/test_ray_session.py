"""A local cluster is stopped afterwards; an unreachable one fails at once."""

import logging
import os
import subprocess
import sys

import pytest
import ray

from offramp.cluster.ray_session import RAY_VARIABLES, connect
from offramp.errors import BadOption


def test_a_local_cluster_is_stopped_and_leaves_no_setting_behind() -> None:
    before, level = variables(), logging.getLogger("ray.data").handlers[-1].level
    with connect(None, cores=1):
        node = ray.nodes()[0]
        assert node["Resources"]["CPU"] == 1
        with connect(None, cores=5):  # reuses the session, and leaves it open
            pass
        assert ray.is_initialized()
        with pytest.raises(BadOption, match="already"), connect("auto", cores=1):
            pass
    assert not ray.is_initialized()
    assert not os.path.exists(node["RayletSocketName"])
    assert (variables(), logging.getLogger("ray.data").handlers[-1].level) == (before, level)


def test_a_local_cluster_refuses_clients_without_its_token() -> None:
    code = "import sys, ray; ray.init(sys.argv[1])"
    with connect(None, cores=1):
        command = [sys.executable, "-c", code, ray.get_runtime_context().gcs_address]
        stranger = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        client = subprocess.run(command, env=stranger, capture_output=True, text=True, check=False)
    assert client.returncode
    assert "token is missing or incorrect" in client.stderr


def variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in RAY_VARIABLES}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
def test_an_address_where_nothing_listens_is_refused(address: str) -> None:
    with (
        pytest.raises(BadOption, match=f"cannot connect to a Ray cluster at {address}"),
        connect(address, cores=1),
    ):
        pass
