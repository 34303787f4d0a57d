"""Settings of the sandbox: its tier, and the limits of one piece of code."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from midstream.core.data import Settings

Library = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]


class SandboxConfig(Settings):
    """The sandbox that code runs in; docs/sandbox.md describes the tiers.

    "auto" takes the stronger of "strong" and "standard" that works on this machine. Where neither does, nothing runs
    (`fallback = "none"`), or arithmetic expressions alone do. "unsafe" also needs `--unsafe`, and never trains.

    Attributes:
        tier: `strong` (bubblewrap, Landlock, seccomp), `standard` (Landlock, seccomp), `remote` (Docker; no programs),
            `arithmetic` (expressions, any system), `unsafe` (nothing; needs `--unsafe`, never trains); `auto`:
            `strong`, else `standard`
        fallback: where `tier` does not work: `none` stops with what is missing, `arithmetic` evaluates expressions only
        image: the container image of `remote`: any with Python 3.11 or newer as `python`
    """

    tier: Literal["auto", "strong", "standard", "remote", "arithmetic", "unsafe"] = "auto"
    fallback: Literal["none", "arithmetic"] = "none"
    image: str = "python:3.12-slim"


class CodeLimits(Settings):
    """Limits of one piece of code, and how many run at once.

    Attributes:
        workers: codes at once
        timeout_s: CPU-seconds of one run, rounded up; five times that on the wall clock, the tool's time not included
        memory_mb: its memory beyond the worker's own (not enforced by macOS)
        disk_mb: what it may write to its scratch directory
        output_limit: the most characters that it may print
        libraries: imported before any code arrives; missing ones are left out
    """

    workers: int = Field(default=2, ge=1, le=1000)
    timeout_s: float = Field(default=2.0, ge=0.01, le=86_400)
    memory_mb: int = Field(default=512, ge=64, le=1_000_000)
    disk_mb: int = Field(default=64, ge=1, le=1_000_000)
    output_limit: int = Field(default=4000, ge=1, le=1_000_000)
    libraries: tuple[Library, ...] = ("numpy", "sympy")
