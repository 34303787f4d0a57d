"""What the client sends, and what it gets."""

from typing import Any

from pydantic import Field, model_validator

from openenv.core.env_server.types import Action, Observation, State


class WorldAction(Action):
    """A call of a tool, or the answer, which ends the episode: the model's last reply, or "" for none."""

    tool: str = Field(default="", description="the name of a tool")
    arguments: dict[str, Any] = Field(default_factory=dict, description="of the tool, as its schema says")
    answer: str | None = Field(default=None, description="the last reply; it ends the episode")

    @model_validator(mode="after")
    def _one(self) -> "WorldAction":
        if bool(self.tool) == (self.answer is not None):
            raise ValueError("an action is either a tool with its arguments, or an answer")
        return self


class WorldObservation(Observation):
    """The question, or what a tool answered. `reward` is there once the episode is `done`."""

    text: str = Field(default="", description="the question, or a tool's result")
    ok: bool = Field(default=True, description="whether the tool found an answer")
    task: str = Field(default="", description="the task, as `reset` takes it")
    system: str = Field(default="", description="instructions for the model, with the question")
    tools: list[dict[str, Any]] = Field(default_factory=list, description="the tools, with the question")
    parts: dict[str, float] = Field(default_factory=dict, description="parts of the reward, if it has some")


class WorldState(State):
    """The episode, and its task."""

    task: str = ""
