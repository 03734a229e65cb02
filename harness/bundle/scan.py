"""Looks for what must not leave the host: secrets and home folders. Pure.

A pattern that is too eager costs a person a look; one that is too shy costs a token. Names that merely hold the word
(`TOKENIZERS_PARALLELISM`, `tokens_in`) are no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HOME = "home folder"

_NAME_OF_IT = (
    r"(?:[A-Za-z0-9_]*[_-])?(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key"
    r"|credentials?)"
)
#: What is looked for, by kind. Where a pattern has a group, the group alone is the finding.
_PATTERNS: Final = {
    "private key": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]{0,9000}?-----END [A-Z ]*PRIVATE KEY-----)?"
    ),
    "access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "access token": re.compile(
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
        r"|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|pypi-[\w-]{40,})"
    ),
    "signed token": re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"),
    "password in an address": re.compile(r"://[^/\s:@\"']+:([^/\s:@\"']+)@"),
    "bearer token": re.compile(r"(?i)\bbearer\s+([\w.~+/-]{16,}=*)"),
    # NAME: value, NAME=value, "NAME": "value"; a value that is a number, a word for nothing or a reference is none
    "value of a secret's name": re.compile(
        rf"(?i)(?<![A-Za-z0-9_]){_NAME_OF_IT}\\?[\"']?\s*[:=]\s*\\?[\"']?"
        r"((?!null\b|none\b|true\b|false\b|-?[\d.]+(?:[,\s}\]\"']|$))[^\s\"'\\,}\]]{4,})"
    ),
    # --NAME value, and "--NAME", "value" in a list of arguments; another option in its place is no value
    "argument of a secret's name": re.compile(
        rf"(?i)(?<![\w-])--?{_NAME_OF_IT}(?![\w-])\\?[\"']?\s*,?\s*\\?[\"']?"
        r"((?!-|null\b|none\b|true\b|false\b|[\d.]+(?:[,\s}\]\"']|$))[^\s\"'\\,}\]]{4,})"
    ),
}
#: What JSON writes for a line's end, a tab and other control characters, and what colours a terminal: the letter that
#: each ends in would pass for a part of the word behind it (`\\n/home/ann`).
_ESCAPES: Final = re.compile(r"(?:\\u001b|\x1b)\[[0-9;]*[A-Za-z]|\\[nrtbf]|\\u00[01][0-9a-f]")
#: A home folder and its owner's name; root's own has no name in it, and is one all the same.
_HOMES: Final = re.compile(r"(?<![\w.-])(?:/(?:home|Users)/[^/\s\"'\\:,;(){}\[\]<>]+|/root(?![\w.-]))")


@dataclass(frozen=True)
class Finding:
    """Something at `start` to `end` of a text, in its line `line` (from 1). `text`: the finding itself."""

    kind: str
    start: int
    end: int
    line: int
    text: str

    @property
    def shown(self) -> str:
        """What may be printed of it: a home folder as it is, of a secret nothing."""
        return self.text if self.kind == HOME else f"{len(self.text)} characters"


def findings(text: str, homes: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Everything in a text that must not leave, in no order. `homes`: home folders of this host beyond the usual."""
    text = _ESCAPES.sub(lambda escape: " " * len(escape[0]), text)  # as long as before: places stay what they are
    for kind, pattern in (*_PATTERNS.items(), (HOME, _HOMES)):
        for match in pattern.finditer(text):
            if not match[match.lastindex or 0].startswith("[redacted"):
                yield _finding(kind, text, *match.span(match.lastindex or 0))
    for home in homes:
        if len(home) > 1:
            for match in re.finditer(re.escape(home) + r"(?![\w.-])", text):
                yield _finding(HOME, text, *match.span())


def _finding(kind: str, text: str, start: int, end: int) -> Finding:
    return Finding(kind, start, end, text.count("\n", 0, start) + 1, text[start:end])


def redacted(text: str, found: Iterator[Finding] | list[Finding]) -> str:
    """The text with `~` for each home folder and `[redacted]` for each secret."""
    pieces, last = [], 0
    for finding in sorted(found, key=lambda finding: (finding.start, -finding.end)):
        if finding.start < last:
            continue  # inside one that was replaced already
        pieces += [text[last : finding.start], "~" if finding.kind == HOME else "[redacted]"]
        last = finding.end
    return "".join([*pieces, text[last:]])
