"""Names on disk: a run's id, and an arm's name made safe for a file system without losing a letter of it."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

#: Longest quoted arm name, in bytes. File systems allow 255 for one name; ordinal, attempt and the longest ending of
#: ours take under 40, and an arm's private cache folder needs room for what engines put below it.
LONGEST: Final = 120
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}\Z")


def draw_run_id(moment: datetime, token: str | None = None) -> str:
    """`20261201T120000Z-3fa9c1`: UTC for people, six random digits against two runs of one second."""
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}-{token or secrets.token_hex(3)}"


def is_run_id(text: str) -> bool:
    """Whether `text` looks like a run's id."""
    return _RUN_ID.match(text) is not None


def quote_arm(name: str) -> str:
    """A file name for an arm: everything but letters, digits, `_`, `-` and inner dots becomes `%XX` of its UTF-8.

    Different names get different file names. A name too long for a file is cut and told apart by 16 hexadecimal digits
    of its SHA-256 behind a `~`, which no shorter name can hold.
    """
    quoted = quote(name, safe="", errors="surrogatepass").replace("~", "%7E") or "%"
    if quoted.startswith("."):  # `.` and `..` are folders, and a leading dot hides a file
        quoted = "%2E" + quoted[1:]
    if len(quoted) <= LONGEST:
        return quoted
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{quoted[: LONGEST - 17]}~{digest}"


def unquote_arm(quoted: str, names: Iterable[str] = ()) -> str:
    """The arm's name again. `names`: the experiment's arms, needed for a name that was cut.

    Raise `ValueError` if a name was cut and none of `names` is the one.
    """
    if "~" in quoted:
        found = next((name for name in names if quote_arm(name) == quoted), None)
        if found is None:
            raise ValueError(f"{quoted!r} is a shortened arm name and no arm of the experiment has it")
        return found
    return "" if quoted == "%" else unquote(quoted, errors="surrogatepass")


def trial_stem(ordinal: int, arm: str, attempt: int = 1, probe: int = 0) -> str:
    """`0007-both%20layouts`, and `0007-both%20layouts~a2` for a second attempt: no attempt overwrites another's files.

    `0007-a~p3` is the third probe before it (`survival_limit`). Neither ending can be taken for a shortened name, which
    always ends in 16 hexadecimal digits.
    """
    return f"{ordinal:04d}-{quote_arm(arm)}{f'~a{attempt}' if attempt > 1 else ''}{f'~p{probe}' if probe else ''}"


_STEM = re.compile(r"(\d{4,})-(.*?)(?:~a(\d{1,6}))?(?:~p\d{1,6})?\Z")
_FILE = re.compile(r"(\d{4,})-[^~]*(?:~[0-9a-f]{16})?(?:~a(\d{1,6}))?(?:~p\d{1,6})?(?:\.[a-z.]+)?\Z")


def read_stem(stem: str) -> tuple[int, str, int]:
    """`(ordinal, quoted arm, attempt)` of a stem. Raise `ValueError` for any other name."""
    match = _STEM.match(stem)
    if match is None:
        raise ValueError(f"{stem!r} is no trial's file")
    return int(match.group(1)), match.group(2), int(match.group(3) or 1)


def attempt_of_file(name: str) -> tuple[int, int] | None:
    """`(ordinal, attempt)` of any file of a trial, whatever its ending; None for a file that is no trial's."""
    match = _FILE.match(name)
    return (int(match.group(1)), int(match.group(2) or 1)) if match else None
