"""OpenEnv: environments behind a server, whose sessions are episodes.

tasks = { type = "openenv", url = "http://127.0.0.1:8000" }
tasks = { type = "openenv", command = ["uvicorn", "my_env.server.app:app", "--port", "{port}"] }
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import JsonValue, model_validator

from midstream_environments.games import EpisodesConfig


class OpenEnvConfig(EpisodesConfig):
    """An environment of OpenEnv.

    Attributes:
        url: its server
        command: a command that starts its server instead, with "{port}" in it; each process has a server of its own
        arguments: more arguments of `reset`
        observation: the fields of an observation that the agent sees; by default all
        reward: the sum of the steps' rewards, or the last; a step without one adds 0
    """

    adapter: ClassVar[str] = "openenv"
    module: ClassVar[str] = "openenv"
    library: ClassVar[str] = "openenv"
    tested: ClassVar[tuple[str, ...]] = ("0.3.0", "0.10.0")

    url: str = "http://127.0.0.1:8000"
    command: tuple[str, ...] = ()
    arguments: dict[str, JsonValue] = {}
    observation: tuple[str, ...] = ()
    reward: Literal["sum", "last"] = "sum"

    @model_validator(mode="after")
    def _has_port(self) -> Self:
        if self.command and not any("{port}" in word for word in self.command):
            raise ValueError('command: put "{port}" where the server takes its port')
        return self
