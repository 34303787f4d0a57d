"""Each kind of name, misspelt: the fix begins with the name that is meant."""

from __future__ import annotations

import pytest

from midstream.cli.main import main
from midstream.core.errors import did_you_mean
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from support.errors import printed

TINY = ("train", "flow-grpo-tiny", "--dry-run", "--set")
DIRECT = ("eval", "direct", "--dry-run")
NAMES = {
    "recipe": (("train", "flow-grpo-tinny"), "flow-grpo-tiny"),
    "tool": (("solve", "q", "--tools", "pyton"), "python"),
    "benchmark": ((*DIRECT, "--benchmark", "bambogle"), "bamboogle"),
    "provider": (("solve", "q", "--provider", "olama", "--model", "m", "--dry-run"), "ollama"),
    "server": (("solve", "q", "--serve-with", "vlm", "--model", "m", "--dry-run"), "vllm"),
    "reward": ((*DIRECT, "--benchmark", "bamboogle", "--reward", "exactmatch"), "exact_match"),
    "setting": ((*TINY, "agent.max_turn=3"), "max_turns"),
    "setting's value": ((*TINY, "training.credit=brodcast"), "broadcast"),
    "type of agent": ((*TINY, "agent.type=agent_flow"), "agentflow"),
    "type of component": ((*TINY, "tasks.type=gazeteer"), "gazetteer"),
    "engine": ((*TINY, "agent.planner.engine=polcy"), "policy"),
    "variant": ((*TINY, "training.variant=dr-grp"), "dr_grpo"),
    "template": ((*DIRECT, "--set", "agent.template=nativ"), "native"),
    "study": (("study", "control"), "controls"),
    "split": ((*TINY, "evaluation.sets=[{name='a',split='tst'}]"), "test"),
    "family": (("train", "flow-grpo-tiny", "--set", "tasks.families=['looku']"), "lookup"),
    "tracker": (("train", "flow-grpo-tiny", "--track", "wandbb"), "wandb"),
}


@pytest.mark.parametrize(("words", "meant"), NAMES.values(), ids=NAMES)
def test_the_fix_begins_with_what_is_meant(words, meant, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert printed(capsys.readouterr().err).fix.startswith(f"did you mean {meant!r}? ")


@pytest.mark.parametrize("command", ["show", "view", "eval", "resume", "compare"])
def test_a_run_directory(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/mine", "runs/yours"):
        RunDirectory.create(tmp_path / name, collect_info("mine", 0, {}), "")
    rest = {"compare": ["runs/yours"], "view": ["--file"]}.get(command, [])
    for wrong, meant in (("rnus/mine", "runs/mine"), (f"{tmp_path}/runs/mime", f"{tmp_path}/runs/mine")):
        assert main([command, wrong, *rest]) in (1, 2)
        assert printed(capsys.readouterr().err).fix.startswith(f"did you mean {meant!r}? ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("trian", "flow-grpo-tiny"), "train"),
        (("lessons", "shwo", "runs/a"), "show"),
        (("train", "flow-grpo-tiny", "--dryrun"), "--dry-run"),
        (("lessons", "validate", "runs/a", "--recipee=direct"), "--recipe"),
    ],
)
def test_commands_and_options(words, meant, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_nothing_is_suggested_for_a_name_that_is_like_no_other():
    assert did_you_mean("zebra", ["train", "eval"]) == did_you_mean("", []) == ""
    assert did_you_mean("AIME24", ["aime24", "aime25"]) == "did you mean 'aime24'? "
