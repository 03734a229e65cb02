"""Texts that quality is scored on: one that a package of the arms' environment ships, or a file of the user's own."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.models.store import ModelError

#: Says where a package lies without importing it (gensim alone would want scipy, which the arms' environment lacks).
_FIND: Final = "import importlib.util, sys; s = importlib.util.find_spec(sys.argv[1]); print(s.origin if s else '')"


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A text inside a package. `file`: within the package's folder. `digest`: SHA-256 (hex) of the file: another
    version of the package may ship another text under the same name.
    """

    package: str
    file: str
    digest: str
    description: str


#: Named texts. Lee, Pincombe and Welsh, "An empirical evaluation of models of text document similarity" (2005).
SHIPPED: Final = {
    "lee": Shipped(
        package="gensim",
        file="test/test_data/lee_background.cor",
        digest="5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb",
        description="300 news articles of 2000 to 2002, 360 kB of plain English (about 75,000 tokens)",
    )
}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text on this host. `name`: as the experiment says it. `path`: absolute. `digest`: SHA-256, hex."""

    name: str
    path: Path
    digest: str


def find(name: str, *, relative_to: Path, python: Path) -> Text:
    """The text that an experiment names: a shipped one, or a file (relative to the experiment file's folder). `python`:
    the arms' interpreter, asked for a shipped one only. Raise `ModelError` for one that cannot be had.
    """
    if name in SHIPPED:
        return _shipped(name, SHIPPED[name], python)
    path = (relative_to / Path(name).expanduser()).resolve()
    if not path.is_file():
        raise ModelError(
            f"text {name!r}: there is no file {path}, and no text has that name; texts: {', '.join(SHIPPED)}"
        )
    return Text(name=name, path=path, digest=_digest(path))


def _shipped(name: str, text: Shipped, python: Path) -> Text:
    path = _folder(text.package, python) / text.file
    if not path.is_file():
        raise ModelError(
            f"text {name!r}: {text.package} has no {text.file}; `make setup` installs the version that has"
        )
    if (found := _digest(path)) != text.digest:
        raise ModelError(
            f"text {name!r}: {path} has SHA-256 {found}, not {text.digest}: it is not the text of that name"
        )
    return Text(name=name, path=path, digest=found)


def _folder(package: str, python: Path) -> Path:
    if not python.exists():
        raise ModelError(f"{python} does not exist; `make setup` makes the environment that ships the text")
    # -I: neither the current folder nor PYTHONPATH may stand in for the package
    done = subprocess.run([str(python), "-I", "-c", _FIND, package], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise ModelError(f"the package {package} is missing in {python.parent.parent}: `make setup` installs it")
    return Path(done.stdout.strip()).parent


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
