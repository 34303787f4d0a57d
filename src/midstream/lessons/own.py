"""A proposer of your own: an `async def` that gets the update's `work`, or a class with `propose`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from midstream.components.component import ComponentConfig, Context, Kind, ProposerConfig
from midstream.components.own_settings import OwnFunction, class_or_object
from midstream.lessons.proposer import Proposer


def own_proposer(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """The settings of a proposer of your own (`lessons.proposers = ["mine.py:shorter"]`)."""
    if made := class_or_object(kind, ProposerConfig, reference, value, Proposer, "propose"):
        return made
    function = OwnFunction(kind, reference, value, ("work",), "a function of `work` that returns operations")

    def build(settings: ComponentConfig, context: Context) -> Any:
        return SimpleNamespace(propose=lambda work: function.called(settings, {"work": work}))

    return function.settings(ProposerConfig, build=build)
