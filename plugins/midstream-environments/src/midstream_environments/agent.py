"""The agent of an environment that has a loop of its own: it asks midstream's gateway for its model."""

from __future__ import annotations

from pydantic import Field

from midstream.components.agent_record import Outcome
from midstream.components.component import Context
from midstream.core.task import Task
from midstream.gateway.session import AgentSession
from midstream.gateway.session_agent import Address, SessionAgent, gateway_of
from midstream.gateway.settings import SessionSettings
from midstream_environments.cases import case_of
from midstream_environments.library import library_at
from midstream_environments.reward import score_of


class EnvironmentAgentConfig(SessionSettings):
    """The loop of the task's own environment, whose reward is that of the run.

    Attributes:
        range: the environment's lowest and highest reward, which become 0 and 1
    """

    asks = "always"

    range: tuple[float, float] = Field(default=(0.0, 1.0))

    def build(self, context: Context) -> EnvironmentAgent:
        """The agent."""
        return EnvironmentAgent(self, gateway_of(context))


class EnvironmentAgent(SessionAgent):
    """Has the environment of a task run it."""

    settings: EnvironmentAgentConfig

    def __init__(self, settings: EnvironmentAgentConfig, gateway: object) -> None:
        super().__init__("environment", settings, gateway)  # type: ignore[arg-type]

    async def drive(self, task: Task, session: AgentSession, address: Address) -> Outcome:
        """Run the environment's loop, which asks the session's model."""
        key, case = case_of(task)
        said = await library_at(key).ask(
            "run",
            limit_s=None,
            case=case,
            seed=session.context.seed % 2**31,
            base_url=address.base_url,
            api_key=address.api_key,
            model=address.model,
        )
        session.reward = score_of(said, self.settings.range)
        return Outcome(answer=str(said.get("answer") or ""))
