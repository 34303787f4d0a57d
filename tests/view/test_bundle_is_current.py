"""The viewer's page that is committed is what its sources in `viewer/` give."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VIEWER = ROOT / "viewer"
STATIC = ROOT / "src/midstream/view/static"
AIM = 150_000  # bytes of the script, uncompressed: a page of one file holds it too

pytestmark = pytest.mark.skipif(not shutil.which("npm"), reason="no npm on PATH")


@pytest.mark.slow
def test_the_committed_page_is_built_from_the_sources(tmp_path):
    viewer = VIEWER
    if not (VIEWER / "node_modules/esbuild").exists():
        viewer = tmp_path / "viewer"
        shutil.copytree(VIEWER, viewer, ignore=shutil.ignore_patterns("node_modules"))
        install = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        if subprocess.run(install, cwd=viewer, capture_output=True).returncode:
            pytest.skip("npm cannot install viewer/package-lock.json here, as without a network")
    subprocess.run(["node", "build.js", str(tmp_path / "built")], cwd=viewer, check=True)
    built = {path.name: path.read_bytes() for path in (tmp_path / "built").iterdir()}
    committed = {path.name: path.read_bytes() for path in STATIC.iterdir()}
    assert built.keys() == committed.keys()
    stale = [name for name in built if built[name] != committed[name]]
    assert not stale, f"make view: {stale} differ from what viewer/ gives"


def test_the_page_is_small_and_names_its_libraries():
    script = (STATIC / "view.js").read_text(encoding="utf-8")
    assert len(script.encode()) < AIM
    assert script.startswith("/*! The page of midstream, with these libraries:")
    assert script.count("MIT License") + script.count("The MIT License") >= 2
