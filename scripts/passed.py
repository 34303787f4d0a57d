"""Say which tests with an environment of their own must run, because what they cover has changed since they passed.

    python scripts/passed.py              print the targets of make that have to run; on stderr, those left out
    python scripts/passed.py TARGET       record a pass; `make TARGET` does this, and the file is to be committed

`tests/servers/passed.json` names for each target the paths that it covers, and the digest of their files at its
last pass. A file counts with its name and content, if git tracks it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests/servers/passed.json"


def main() -> int:
    """Print what has to run, or record a pass; returns the exit code."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if target := sys.argv[1:]:
        record[target[0]]["passed"] = digest(record[target[0]]["covers"])
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return 0
    for name, entry in record.items():
        if digest(entry["covers"]) != entry["passed"]:
            print(name)
        else:
            print(f"NOT RUN: make {name}, unchanged since it passed: {', '.join(entry['covers'])}", file=sys.stderr)
    return 0


def digest(paths: list[str]) -> str:
    """The digest of all tracked files under some paths."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *paths], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    sums = hashlib.sha256()
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        # A file that was deleted and not yet committed is still tracked.
        content = (ROOT / name).read_bytes() if (ROOT / name).exists() else b""
        sums.update(f"{name}\n{hashlib.sha256(content).hexdigest()}\n".encode())
    return sums.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
