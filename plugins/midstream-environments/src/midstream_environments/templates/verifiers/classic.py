"""The environment for verifiers 0.1."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from midstream.core.errors import MidstreamError
from midstream_environments.exported import World, loads_object

from . import world


class WorldEnv(vf.MultiTurnEnv):
    """A conversation with midstream's tools, whose last reply midstream's reward scores."""

    def __init__(self, world: World, **settings: Any) -> None:
        super().__init__(tool_defs=[vf.Tool(**schema) for schema in world.schemas] or None, **settings)
        self.world = world

    async def setup_state(self, state: vf.State) -> None:
        """Open the task."""
        state["world_run"] = self.world.open(state["info"]["case"])

    @vf.stop
    async def no_tools_called(self, state: vf.State) -> bool:
        """The first reply without a call ends the conversation."""
        return bool(state["trajectory"]) and not _calls(state)

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """Answer the calls of the latest reply."""
        found = []
        for call in _calls(state):
            try:
                result = await state["world_run"].call(call.name, loads_object(call.arguments))
            except MidstreamError as error:
                raise vf.InfraError(str(error)) from error
            found.append(vf.ToolMessage(role="tool", content=result.text, tool_call_id=call.id))
        return found

    @vf.cleanup
    async def score_reply(self, state: vf.State) -> None:
        """Score the last reply here: what a reward function raises, verifiers counts as 0."""
        run, calls = state.pop("world_run", None), _calls(state)
        if state.get("error") is None and run is not None:
            said = state["trajectory"][-1]["completion"][-1].content if state["trajectory"] else ""
            try:
                state["world_score"] = (await run.score(None if calls else _text(said))).value
            except MidstreamError as error:
                state["error"] = vf.InfraError(str(error))


def _calls(state: vf.State) -> list:
    """The calls of the latest reply."""
    if not state["trajectory"]:
        return []
    return list(getattr(state["trajectory"][-1]["completion"][-1], "tool_calls", None) or ())


def _text(content: object) -> str:
    """A message's text, which may be in parts."""
    if isinstance(content, list):
        return "".join(getattr(part, "text", "") or "" for part in content)
    return str(content or "")


async def reward(state: vf.State) -> float:
    """The score of the last reply; a rollout with an error has none, and counts as 0 in verifiers' mean."""
    return state.get("world_score", 0.0)


def load(*, split: str, eval_split: str, max_turns: int) -> vf.Environment:
    """The environment, by default with the training split to train on and the test split to evaluate on."""
    found = world()
    train = split or found.splits[0]
    test = eval_split or split or found.splits[-1]
    return WorldEnv(
        found,
        dataset=_rows(train),
        eval_dataset=_rows(test),
        system_prompt=found.system,
        rubric=vf.Rubric(funcs=[reward]),
        max_turns=max_turns or found.max_replies,
    )


def _rows(split: str) -> Dataset:
    """The rows of a split, as verifiers names their columns."""
    found = world()
    tasks = [(case, found.tasks[case]) for case in found.cases(split)]
    rows = [{"question": task.question, "answer": task.answer, "info": {"case": case}} for case, task in tasks]
    return Dataset.from_list(rows)
