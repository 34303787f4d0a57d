"""Interpreters that have a library: `make test-environments` makes them; elsewhere these tests are skipped."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def interpreter():
    """The interpreter of an environment by name: games, verifiers, openenv, inspect."""

    def find(name: str) -> Path:
        root = os.environ.get("MIDSTREAM_ENVIRONMENTS", "")
        python = Path(root, name, "bin", "python")
        if not root or not python.exists():
            pytest.skip("needs a library of environments: make test-environments")
        return python

    return find
