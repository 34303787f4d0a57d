"""The agent of an environment that has a loop of its own: it asks midstream's gateway for its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream.components.agent_record import Outcome, RunRecord
from midstream.components.component import Context
from midstream.core.agent import RunContext
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.gateway.server import Gateway
from midstream.gateway.session import AgentSession
from midstream.gateway.session_agent import Address, SessionAgent, gateway_of
from midstream.gateway.settings import SessionSettings
from midstream_environments.cases import case_of
from midstream_environments.library import library_at
from midstream_environments.process import EnvironmentFailure
from midstream_environments.reward import environments_of, score_of


class EnvironmentAgentConfig(SessionSettings):
    """The loop of the task's own environment, which gives the run its reward."""

    asks = "always"

    def check_recipe(self, where: str, recipe: Any) -> None:
        """The tasks are those of a library with loops of its own."""
        for place, config in environments_of(recipe):
            if config.scores != "own loop":
                raise RecipeError(
                    f"{where}.type = 'environment', and {place} of {config.library} have no loop of their own",
                    code="setting-conflict",
                    fix='set agent.type, such as "direct" or "interleaved"',
                )

    def build(self, context: Context) -> EnvironmentAgent:
        """The agent."""
        return EnvironmentAgent(self, gateway_of(context))


class EnvironmentAgent(SessionAgent):
    """Has the environment of a task run it."""

    def __init__(self, settings: EnvironmentAgentConfig, gateway: Gateway) -> None:
        super().__init__("environment", settings, gateway)
        # What the environment said, or why it gave no score, by the identity of the run's context.
        self._said: dict[int, Mapping[str, Any] | EnvironmentFailure] = {}

    async def work(self, record: RunRecord, task: Task, context: RunContext) -> None:
        """Run the environment's loop, and score what it says.

        A failure after a limit of the run counts as the policy's doing. A failure to score does not: it is raised here.
        """
        try:
            await super().work(record, task, context)
            said = self._said.get(id(context))
            if isinstance(said, EnvironmentFailure):
                raise said
            if said is not None:
                record.reward = score_of(said, library_at(case_of(task)[0]).config.range)
        finally:
            self._said.pop(id(context), None)

    async def drive(self, task: Task, session: AgentSession, address: Address) -> Outcome:
        """Run the environment's loop, which asks the session's model."""
        key, case = case_of(task)
        try:
            said = await library_at(key).run(
                case=case, base_url=address.base_url, api_key=address.api_key, model=address.model
            )
        except EnvironmentFailure as failure:
            if failure.code != "environment-not-scored":
                raise
            self._said[id(session.context)] = failure
            return Outcome(answer="")
        self._said[id(session.context)] = said
        return Outcome(answer=str(said.get("answer") or ""))
