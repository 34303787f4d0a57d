"""Runs of a chat model that calls a tool and answers, made without a model: what is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    Message,
    Observation,
    Score,
    Trajectory,
    Turn,
    Usage,
    Verdict,
)
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info

ASKED = (Message(role="system", content="Use tools."), Message(role="user", content="How high is Amberbank plus 7 ?"))


def chat(*messages: Message, reply: str, role: str = "policy", **fields: Any) -> Call:
    """A call of a chat model behind an address."""
    usage = Usage(prompt_tokens=20, completion_tokens=5, cost_usd=0.25)
    sent = {"model": "m-1", "base_url": "http://models.example:8000/v1"}
    return Call(role=role, messages=messages, completion=reply, usage=usage, sent=sent, finish_reason="stop", **fields)


def spoken(name: str, reward: float, **fields: Any) -> Trajectory:
    """A chat model that calls a tool and answers: its second request continues the first."""
    called = Message(role="assistant", content='<tool_call>{"name": "search"}</tool_call>')
    found = Message(role="tool", content="105")
    turn = Turn(
        index=1,
        events=("call", "action", "command", "observation"),
        action=Action(sub_goal="look it up", tool="search"),
        command=Command(tool="search", arguments={"query": "Amberbank"}),
        observation=Observation(status="ok", text="105", duration_s=0.5),
        verdict=Verdict(result_valid=True, memory_sufficient=True),
        calls=(chat(*ASKED, reply=called.content),),
    )
    return Trajectory(
        id=f"{name}#0",
        task_id=name,
        family="add",
        question=ASKED[1].content,
        agent="interleaved",
        turns=(turn,),
        closing_calls=(chat(*ASKED, called, found, reply="It is 112."),),
        answer="112",
        final="It is 112.",
        gold="112",
        reward=Score(value=reward, parts={"answer": reward}),
        stop_reason="answered",
        started_at=1_700_000_000.0,
        duration_s=2.5,
        **fields,
    )


def agent(name: str, kind: str = "interleaved") -> dict[str, Any]:
    """A recipe of that name, as a run records it."""
    return {"name": name, "agent": {"type": kind}}


def spoken_run(root: Path) -> RunDirectory:
    """A training run: a step with a success, a failure and a lost run, and an evaluation."""
    run = RunDirectory.create(root, collect_info("mine", 3, agent("mine")), "")
    lost = spoken("t3", 0.0, status="error", error=ErrorInfo(type="EngineError", message="gone"))
    run.trajectories.write(1, [spoken("t1", 1.0), spoken("t2", 0.5), lost])
    run.trajectories.write("test-greedy-1", [spoken("held-out", 1.0)])
    return run
