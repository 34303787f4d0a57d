"""The client."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from .models import WorldAction, WorldObservation, WorldState


class WorldClient(EnvClient[WorldAction, WorldObservation, WorldState]):
    """Speaks with a server of the environment."""

    def _step_payload(self, action: WorldAction) -> dict[str, Any]:
        return action.model_dump(exclude={"metadata"})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[WorldObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = WorldObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> WorldState:
        return WorldState(**payload)
