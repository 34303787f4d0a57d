"""A strategy is a component that a package brings: its text names it, and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.components import kinds
from midstream.components.component import ComponentConfig, StrategyConfig
from midstream.components.tables import parse_strategy
from midstream.core.agent import Agent
from support.errors import raises


class Twice(StrategyConfig):
    """Runs an agent twice, and takes the first answer."""

    example = '"twice:apart=1"'

    apart: int = 0

    def __str__(self) -> str:
        return f"twice:apart={self.apart}"

    @property
    def agent_runs(self) -> int:
        return 2

    def wrap(self, agent: Agent, *, max_attempts: int, kept: Path | None) -> Agent:
        return agent


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds._REGISTRY, "strategy", {"twice": Twice, "none": ComponentConfig})


@pytest.mark.parametrize(("text", "written"), [("twice", "twice:apart=0"), (" twice : apart = 3 ", "twice:apart=3")])
def test_a_text_names_a_strategy_and_its_settings(text: str, written: str):
    assert str(parse_strategy(text)) == written


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("thrice:apart=1", "did you mean 'twice'"),
        ("twice:apart=x", 'write "twice:apart=1"'),
        ("twice:apart=1,apart=2", 'write "twice:apart=1"'),
        ("twice:far=1", 'write "twice:apart=1"'),
    ],
)
def test_another_text_is_refused_with_what_is_installed(text: str, fix: str):
    with raises("strategy-invalid", repr(text)) as caught:
        parse_strategy(text)
    assert fix in caught.value.fix


def test_what_is_no_strategy_is_refused():
    with raises("component-invalid", "StrategyConfig"):
        parse_strategy("none")


def test_without_a_package_nothing_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(kinds._REGISTRY, "strategy", {})
    monkeypatch.setattr(kinds, "installed", lambda kind: {})
    with raises("strategy-invalid") as caught:
        parse_strategy("twice")
    assert "no installed package has one" in caught.value.fix
