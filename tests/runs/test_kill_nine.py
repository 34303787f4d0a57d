import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.matrix(1)
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("mode", ["checkpoint", "journal"])
def test_kill_nine_at_any_moment_loses_nothing_confirmed(tmp_path, mode):
    script = Path(__file__).with_name("kill_nine.py")
    done = subprocess.run(
        [sys.executable, str(script), mode, str(tmp_path), "8"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["confirmed"] >= 1
