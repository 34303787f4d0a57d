"""The weights that a recipe trains: the engine that samples from them, the learner that updates them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from midstream.core.component import config_class, registered
from midstream.core.errors import UnsupportedError
from midstream.core.protocols import Engine, TrainableWorld
from midstream.engines.openai import adapters
from midstream.engines.openai.engine import OpenAICompatibleEngine

if TYPE_CHECKING:
    from midstream.recipe.build import Build
    from midstream.training.learner import LocalLearner


@dataclass
class Policy:
    """The trained weights of a build."""

    build: Build

    @cached_property
    def learner(self) -> LocalLearner:
        """The learner over the weights that are trained."""
        from midstream.training.learner import LocalLearner

        model = self.student().model
        if isinstance(self.build.source, TrainableWorld):
            self.build.source.attach(model)
        return LocalLearner(model, self.build.recipe.learner)

    def engine(self) -> Engine:
        """The engine of planner or policy.

        Raises:
            UnsupportedError: it is a program.
        """
        recipe = self.build.recipe
        module = recipe.modules[recipe.trained]
        if module.engine is None:
            types = registered(recipe.trained)
            asking = [f'"{name}"' for name in types if config_class(recipe.trained, name).asks != "never"]
            raise UnsupportedError(
                f"agent.{recipe.trained} of type {module.type!r} cannot be trained: it is a program",
                code="not-trainable",
                fix=f"choose type = {' or '.join(asking)} and give it an engine",
            )
        return self.build.engine(module.engine, counted=False)

    def student(self) -> Any:
        """The in-process engine that holds the trained weights: the planner's, or that of `training.weights`."""
        training = self.build.recipe.training
        named = training.weights if training else None
        engine = self.build.engine(named, counted=False) if named else self.engine()
        if not hasattr(engine, "model"):
            raise UnsupportedError(
                f"engine {engine.name!r} holds no weights that can be trained here: it is a remote server",
                code="not-trainable",
                fix="set training.weights to an engine of type tiny or transformers_local with the same weights",
            )
        return engine

    async def publish(self, version: int) -> None:
        """Make the planner's engine sample from the newest weights; a server receives them as a LoRA adapter."""
        engine = self.engine()
        if engine is self.student():
            engine.policy_version = version  # type: ignore[attr-defined]
            return
        assert isinstance(engine, OpenAICompatibleEngine)
        engine.codec = self.student().codec  # token ids in and out: nothing depends on the server's chat template
        await adapters.hand_over(engine, self.learner.export_weights, self.build.adapters.absolute(), version)
