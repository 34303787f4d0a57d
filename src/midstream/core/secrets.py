"""Secrets among settings and words of a command line, which are written into run directories and reports.

Two rules, both made to be right about ordinary recipes rather than complete: values of a known form (keys of well-known
services, JSON Web Tokens, `Bearer ...`, private keys, addresses with a password), and values that look random under a
name such as `api_key` or `password`. A password of plain words is not recognized. A library for this
(detect-secrets) searches source code for many more forms, and takes any quoted text after such a name for a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from midstream.core.errors import RecipeError

T = TypeVar("T")

HIDDEN = "***"
# Repetitions are bounded, so that the time is linear in the text.
_NAME = r"(?:(?:api|access|secret)[_-]?key|authorization|passw(?:or)?d|passphrase|secret|token|cookie)"
# At least 8 characters, one of which no word or identifier has; not a path, a special token or the name of a variable.
_RANDOM = r"(?:(?:Bearer|Basic|Token)\s+)?(?![./~<$])(?=\S{0,200}[0-9@!\#%^&*+=])\S{8,}"
# Base64 of NAME:PASSWORD, also without a digit; "Basic authentication" and "basic knowledge of" are prose.
_BASIC = r"(?-i:(?!basic\s[a-z]+\s))Basic\s+(?!auth)[A-Za-z0-9+/]{6,}={0,2}"
_NAMED = re.compile(rf"[\w.-]{{0,40}}{_NAME}", re.IGNORECASE)
_LOOKS_RANDOM = re.compile(rf"{_RANDOM}|{_BASIC}", re.IGNORECASE)
_NO_VARIABLE = re.compile(r"(?=[A-Z0-9]*[a-z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}")
_KNOWN_FORM = re.compile(
    rf"""
      \bsk-[\w-]{{0,40}}?(?=[A-Za-z]{{0,11}}[0-9])[A-Za-z0-9]{{12}}             # OpenAI, Anthropic, DeepSeek
    | \b(?:hf|gsk|gh[pousr]|github_pat)_[A-Za-z0-9]{{20}}                       # Hugging Face, Groq, GitHub
    | \b(?:xox[a-z]|glpat)-(?=[\w-]{{0,40}}[0-9])[\w-]{{16}}                   # Slack, GitLab
    | \b(?:nvapi|tvly|xai|pplx)-(?:dev-)?(?=[A-Za-z]{{0,19}}[0-9])\w{{20}}      # NVIDIA, Tavily, xAI, Perplexity
    | \btgp_v\d_[\w-]{{20}} | \b[A-Za-z0-9]{{52}}JQQJ9[A-Za-z0-9]{{20}}          # Together; Azure
    | \b(?:AKIA|ASIA)[A-Z0-9]{{16}}\b | \bAIza[\w-]{{35}}                       # AWS; Google
    | \beyJ[\w-]{{8,200}}\.eyJ[\w-]{{8}} | -----BEGIN\ [A-Z ]*PRIVATE\ KEY      # JSON Web Token; PEM
    | (?i:\bbearer\s+(?=\S*[0-9])\S{{16,}})
    | (?i:\bauthorization["']?\s*[=:]\s*["']?{_BASIC})
    | ://[^/\s@:]*:[^/\s@]+@                                                    # an address with a password
    | (?i:{_NAME}["']?\s*[=:]\s*["']?{_RANDOM})                               # of a query, a header, an option
    """,
    re.VERBOSE,
)


def refuse_secrets(table: Mapping[str, object]) -> None:
    """Raise a `RecipeError` if a value of a recipe's table looks like a secret; it names the setting, not the value."""
    place = next(_places(table, "", ""), None)
    if place is not None:
        raise RecipeError(
            f"{place or 'a key of the recipe'} looks like a key or a password",
            code="secret-in-recipe",
            cause="a recipe is written into run directories and reports, where no secret belongs",
            fix='export NAME=<its value>, and name the variable: api_key_env = "NAME" of an engine or tool, '
            'env_pass = ["NAME"] or headers_env = { Authorization = "NAME" } of an MCP server',
        )


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line, with what looks like a secret replaced."""
    return tuple(HIDDEN if _is_secret(name, word) else word for name, word in _with_names(words, ""))


def _places(value: object, where: str, name: str) -> Iterator[str]:
    """The places of secrets in a value at `where`, the setting `name`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            # The key itself is the secret, so the place is the table.
            if _is_secret("", str(key)):
                yield where
            yield from _places(inner, f"{where}.{key}".lstrip("."), str(key))
    elif isinstance(value, list | tuple):
        for option, item in _with_names(value, name):
            yield from _places(item, where, option)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        if any(part.endswith(("_env", "env_pass")) for part in where.split(".")):
            # The key is there in place of its name.
            if _NO_VARIABLE.fullmatch(str(value)) or _is_secret("", str(value)):
                yield where
        elif _is_secret(name, str(value)):
            yield where


def _with_names(words: Sequence[T], name: str) -> Iterator[tuple[str, T]]:
    """Each word with its name: the option before it, as in ["--token", "abc"], otherwise `name`."""
    for before, word in zip(["", *words], words, strict=False):
        yield before.lstrip("-") if isinstance(before, str) and before.startswith("-") else name, word


def _is_secret(name: str, value: str) -> bool:
    named = _NAMED.fullmatch(name) is not None and _LOOKS_RANDOM.fullmatch(value) is not None
    return named or _KNOWN_FORM.search(value) is not None
