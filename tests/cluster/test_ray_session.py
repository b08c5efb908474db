"""A local cluster is stopped afterwards; an unreachable one fails at once."""

import logging
import os
import subprocess
import sys

import psutil
import pytest
import ray

from offramp.cluster.ray_session import LOCAL_VARIABLES, connect
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
        stranger = {**os.environ, **LOCAL_VARIABLES, "RAY_AUTH_MODE": "disabled"}
        stranger["RAY_NUM_REDIS_GET_RETRIES"] = "1"  # it does not ask again for 20 seconds
        client = subprocess.run(command, env=stranger, capture_output=True, text=True, check=False)
    assert client.returncode
    assert "token is missing or incorrect" in client.stderr


DRIVER = """
import ray, time
from offramp.cluster.ray_session import connect

with connect(None, cores=1):
    ray.get(ray.remote(lambda: 0).remote())  # starts a worker
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_local_cluster_listens_on_loopback_alone_and_dies_with_its_driver() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        processes = psutil.Process(driver.pid).children(recursive=True)
        names = {process.name() for process in processes}
        assert {"gcs_server", "raylet"} <= names
        listening = [
            connection.laddr.ip.removeprefix("::ffff:")
            for process in [psutil.Process(driver.pid), *processes]
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {*listening} == {"127.0.0.1"}
    finally:
        driver.kill()
        driver.wait()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []


def variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in LOCAL_VARIABLES}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
def test_an_address_where_nothing_listens_is_refused(address: str) -> None:
    with (
        pytest.raises(BadOption, match=f"cannot connect to a Ray cluster at {address}"),
        connect(address, cores=1),
    ):
        pass
