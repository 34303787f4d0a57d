"""Build the documentation as a site in `site/`: `python scripts/docs_site.py`, with the extra `docs` (`make docs`).

A dead link, a missing anchor, or a docstring whose arguments are not those of its signature ends the build with 1.
mkdocs.yml names `fence`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def fence(source: str, *_: Any, **__: Any) -> str:
    """Return a fenced block `math`, LaTeX, as MathML: browsers draw it without a script."""
    from latex2mathml.converter import convert  # of the extra `docs`

    return convert(source, display="block")


def main() -> int:
    """Build; returns 1 if the builder or the reader of docstrings warned."""
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "scripts"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = re.sub(r"\x1b\[[\d;]*m", "", built.stdout).partition("Traceback (most recent call last)")[0]
    print(output.strip())
    return int(built.returncode != 0 or "griffe: " in output)  # the builder itself lets griffe's warnings pass


if __name__ == "__main__":
    sys.exit(main())
