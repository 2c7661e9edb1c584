"""The image by itself: which user it runs as, how it is told its settings, how it ends, what it weighs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import docker
import pytest

from tests.containers.fleet import PAUSE_S, Fleet
from tests.containers.images import Images
from tests.support.waiting import eventually

pytestmark = pytest.mark.containers
SIZE_MAX_MB = 350
COMPRESSED_MAX_MB = 130
WRITES = """
import os, pathlib
for path in ("/opt/x", "/var/lib/fleetlog/x", "/tmp/x"):
    try:
        pathlib.Path(path).touch()
        print("written")
    except OSError as error:
        print(os.strerror(error.errno))
"""


@pytest.fixture
def client(images: Images) -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


def run(client: docker.DockerClient, images: Images, **environment: str) -> tuple[int, str]:
    """Start the image alone, without a network; its exit code and what it said."""
    container = client.containers.run(images.broker, environment=environment, network_mode="none", detach=True)
    try:
        return int(container.wait(timeout=60)["StatusCode"]), container.logs().decode()
    finally:
        container.remove(force=True, v=True)


def said(fleet: Fleet, name: str, command: list[str]) -> tuple[int, bytes]:
    """Run it in a container. On a busy machine the engine may lose what a short program says."""
    return eventually(
        lambda: fleet.container(name).exec_run(command), "a program in a container says something",
        good=lambda done: done[1], pause_s=PAUSE_S,
    )  # fmt: skip


def python(fleet: Fleet, program: str) -> tuple[int, bytes]:
    """Run it in the first broker's container."""
    return said(fleet, "broker-1", ["python3", "-c", program])


def test_it_is_small_and_not_root(
    client: docker.DockerClient, images: Images, fleet: Fleet, say: Callable[[str], None]
) -> None:
    image = client.images.get(images.broker)
    assert image.attrs["Size"] < SIZE_MAX_MB * 10**6, f"{image.attrs['Size'] / 10**6:.0f} MB"
    packed = zlib.compressobj(1)
    size = sum(len(packed.compress(part)) for part in image.save()) + len(packed.flush())
    say(f"the image has {size / 10**6:.0f} MB compressed")
    assert size <= COMPRESSED_MAX_MB * 10**6, f"{size / 10**6:.0f} MB compressed"
    assert image.attrs["Config"]["User"] == "10001:10001"
    code, output = python(fleet, "import os; print(os.getuid(), os.access('/opt/fleetlog', os.W_OK))")
    assert (code, output.decode().split()) == (0, ["10001", "False"]), output


def test_a_broker_cannot_write_outside_its_volume(fleet: Fleet) -> None:
    config = fleet.container("broker-1").attrs["HostConfig"]
    assert config["ReadonlyRootfs"]
    assert config["CapDrop"] == ["ALL"]
    assert config["SecurityOpt"] == ["no-new-privileges:true"]
    code, output = python(fleet, WRITES)
    assert (code, output.decode().splitlines()) == (0, ["Read-only file system", "written", "written"]), output


def test_the_kernels_in_it_are_the_compiled_ones(fleet: Fleet) -> None:
    code, output = python(fleet, "from fleetlog import _native; print(_native.IMPLEMENTATION)")
    assert (code, output.decode().strip()) == (0, "cython"), output


def test_what_is_missing_or_wrong_is_said(client: docker.DockerClient, images: Images) -> None:
    code, words = run(client, images)
    assert code == 2
    assert "advertised.listeners" in words or "broker.id" in words
    code, words = run(client, images, FLEETLOG_CONFIG_BROKER_ID="one")
    assert code == 2
    assert "FLEETLOG_CONFIG_BROKER_ID" in words


def test_a_stop_is_clean_and_the_volume_stays(fleet: Fleet) -> None:
    assert fleet.stop("broker-2") == 0, fleet.log("broker-2")
    fleet.start_again("broker-2")
    fleet.wait_ready("broker-2")
    code, output = said(fleet, "broker-2", ["ls", "/var/lib/fleetlog/data"])
    assert code == 0, output
    assert b"meta.properties" in output


def test_a_broker_that_is_killed_is_started_again(fleet: Fleet) -> None:
    """The file's restart policy, when the process ends by itself: here by a signal from the host."""
    broker = fleet.container("broker-3")
    before = broker.attrs["RestartCount"]
    code, output = broker.exec_run(["python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)"])
    assert code == 0, output
    eventually(
        lambda: fleet.container("broker-3").attrs["RestartCount"],
        "the engine starts it again",
        good=lambda count: count > before,
        pause_s=PAUSE_S,
    )
    fleet.wait_ready("broker-3")
