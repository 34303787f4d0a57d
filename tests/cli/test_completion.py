"""`midstream --print-completion`: a script that the shell itself reads, and what bash then offers."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from midstream.cli.main import main


def _printed(shell: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", shell])
    return end.value.code


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_recipes_and_runs(tmp_path, capsys):
    assert _printed("bash") == 0
    (tmp_path / "midstream.bash").write_text(capsys.readouterr().out)
    (tmp_path / "runs/mine").mkdir(parents=True)

    def offered(*words: str) -> list[str]:
        asked = f"COMP_WORDS=(midstream {' '.join(words)}); COMP_CWORD={len(words)}; _shtab_midstream"
        script = f"source midstream.bash; {asked}; echo ${{COMPREPLY[@]}}"
        return subprocess.check_output(["bash", "-c", script], cwd=tmp_path, text=True).split()

    assert offered("li") == ["list"]
    assert offered("train", "x", "--dry") == ["--dry-run"]
    assert offered("train", "flow-grpo-t") == ["flow-grpo-tiny", "flow-grpo-tiny-lessons"]
    assert offered("eval", "runs/m") == ["runs/mine"]
    assert offered("lessons", "va") == ["validate"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_command(shell, capsys):
    assert _printed(shell) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("midstream", "lessons", "tool-calling"))
