"""What README.md shows."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_its_block_of_python_runs(capsys):
    [block] = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(block, {})
    assert capsys.readouterr().out.count("->") == 3
