"""Settings of `[serve]`, which models answer under which name and where, and of agents of other programs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from midstream.components.agent_record import AgentSettings
from midstream.core.data import Settings
from midstream.core.trajectory import Sampling

# The name of the model that is trained, unless [serve.models] has others.
POLICY = "policy"


class ServedModel(Settings):
    """What answers under one name.

    Attributes:
        engine: one of `[engines]`
        train: its calls are those that training learns from, and that lessons are for
    """

    engine: str
    train: bool = False


class ServeConfig(Settings):
    """Settings of the gateway, the server that agents of other programs ask.

    Attributes:
        models: what answers under which name; "*" is any other name. By default `policy`, the agent's `engine`, trained
        parser: how the model writes tool calls: `hermes` (Qwen), `qwen3_coder`, `llama3_json`, `mistral` or `none`
        batching: of an engine in process: `continuous` answers each request as it comes; `lockstep` waits until all
            running trajectories ask, so that a run repeats bit for bit
        host: the address to listen on
        port: its port; 0 is any free one
    """

    models: dict[str, ServedModel] = {}
    parser: Literal["hermes", "qwen3_coder", "llama3_json", "mistral", "none"] = "hermes"
    batching: Literal["continuous", "lockstep"] = "continuous"
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)

    @field_validator("models")
    @classmethod
    def _one_policy(cls, models: dict[str, ServedModel]) -> dict[str, ServedModel]:
        if len({model.engine for model in models.values() if model.train}) > 1:
            raise ValueError("the names with train = true have different engines, and one set of weights is trained")
        return models


class SessionSettings(AgentSettings):
    """Settings of an agent of another program.

    Attributes:
        sampling: how the policy samples where its weights are trained, whatever the agent asks for
        max_calls: requests of one run; the next is refused, and the run is scored
        idle_s: seconds without a request after which the agent's run is an error
    """

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=2048)
    max_calls: int = Field(default=200, ge=1)
    idle_s: float = Field(default=600.0, gt=0)
