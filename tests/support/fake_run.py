"""A made-up but plausible training run, and single records of every kind, for the tests of what people see."""

import math
import random

from midstream.core.metrics import EvaluationResult, FamilyResult, StepMetrics, StepTiming, ToolUse
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    Observation,
    Score,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)

FAMILIES = {
    "lookup": (0.62, 0.98),
    "lookup then add": (0.31, 0.9),
    "compare two": (0.4, 0.84),
    "chain of three": (0.08, 0.61),
    "count matching": (0.22, 0.2),
}
TOOLS = {
    "local_search": (0.34, 0.55),
    "python": (0.22, 0.38),
    "wikipedia": (0.2, 0.04),
    "base_generator": (0.12, 0.02),
    "malformed": (0.12, 0.01),
}


def grown(share: float, start: float, end: float) -> float:
    """Between `start` and `end`, fast at first."""
    return start + (end - start) * (1 - math.exp(-4 * share)) / (1 - math.exp(-4))


def shares(share: float) -> dict[str, float]:
    return {name: grown(share, *pair) for name, pair in TOOLS.items()}


def metrics(steps: int = 300, seed: int = 1) -> list[StepMetrics]:
    draw = random.Random(seed)
    made = []
    for step in range(1, steps + 1):
        share = step / steps
        made.append(
            StepMetrics(
                step=step,
                policy_version=step - 1,
                reward_mean=min(1.0, max(0.0, grown(share, 0.27, 0.72) + draw.gauss(0, 0.06))),
                trajectories=64,
                trajectories_error=2 if step % 97 == 0 else 0,
                groups=8,
                groups_uniform=draw.randint(0, 3),
                groups_broken=1 if step % 97 == 0 else 0,
                samples_left_out={"too_long": 1} if step % 40 == 0 else {},
                turns_mean=grown(share, 3.4, 2.3) + draw.gauss(0, 0.05),
                tool_use=ToolUse(
                    turns=200,
                    errors=30,
                    error_rate=max(0.0, grown(share, 0.26, 0.03) + draw.gauss(0, 0.01)),
                    share=shares(share),
                ),
                rows=150,
                prompt_tokens=12000,
                completion_tokens=2400,
                total_tokens=14400,
                unique_tokens=3200,
                loss=draw.gauss(0, 0.01),
                kl=share * 0.02 + abs(draw.gauss(0, 0.001)),
                clip_fraction=abs(draw.gauss(0.01, 0.004)),
                grad_norm=abs(draw.gauss(0.8, 0.2)),
                learning_rate=1e-4,
            )
        )
    return made


def timings(steps: int = 300) -> list[StepTiming]:
    return [
        StepTiming(step=step, duration_s=2.1, rollout_s=1.3, update_s=0.8, cpu_s=3.9, tokens_per_s=6857.1)
        for step in range(1, steps + 1)
    ]


def evaluation(
    share: float, step: int | None, sampling: str = "greedy", policy: str = "trained", errors: int = 0
) -> EvaluationResult:
    off = 0.0 if sampling == "greedy" else 0.07
    by_family = {
        name: FamilyResult(tasks=80, success=round(max(0.0, grown(share, *pair) - off), 4), turns_mean=2.4)
        for name, pair in FAMILIES.items()
    }
    success = sum(result.success for result in by_family.values()) / len(by_family)
    return EvaluationResult(
        policy=policy,
        set_name="worlds",
        split="test",
        sampling=sampling,
        seed=0,
        tasks=400,
        success=success,
        success_without_errors=min(1.0, success + errors / 400),
        interval=(success - 0.04, success + 0.04),
        interval_method="bootstrap over tasks",
        errors=errors,
        by_family=by_family,
        turns_mean=grown(share, 3.5, 2.4),
        tool_use=ToolUse(turns=1000, errors=50, error_rate=grown(share, 0.24, 0.02), share=shares(share)),
        stop_reasons={"verified": 320, "turn_limit": 80},
        step=step,
    )


def evaluations(steps: int = 300) -> list[EvaluationResult]:
    made = []
    for step in range(0, steps + 1, 25):
        made.append(evaluation(step / steps, step, policy="trained" if step else "warm start"))
        if step in (0, steps):
            made.append(evaluation(step / steps, step, "T=1", "trained" if step else "warm start"))
    return [*made, evaluation(0.0, None, policy="random", errors=3)]


def turn(
    index: int, tool: str, goal: str, arguments: dict, result: str, *, ok: bool = True, stop: bool = False
) -> Turn:
    return Turn(
        index=index,
        events=("action", "command", "observation", "verdict"),
        action=Action(sub_goal=goal, tool=tool, context=""),
        command=Command(tool=tool, arguments=arguments),
        observation=Observation(status="ok" if ok else "error", text=result, duration_s=0.01),
        verdict=Verdict(result_valid=ok, memory_sufficient=stop, analysis="the sum is there" if stop else ""),
    )


def malformed(index: int, sampled: str = "find height ; ;") -> Turn:
    return Turn(
        index=index,
        events=("action", "observation"),
        action=Action(error="no tool named in the action"),
        observation=Observation(status="error", text="malformed action: no tool named"),
        calls=(Call(role="planner", completion=sampled),),
    )


def solved(task_id: str = "t1") -> Trajectory:
    return Trajectory(
        id=f"{task_id}-after",
        task_id=task_id,
        family="lookup then add",
        question="How high is Amberbank plus 7 ?",
        turns=(
            turn(1, "local_search", "find height", {"query": "Amberbank height"}, "Amberbank height 105"),
            turn(2, "python", "add", {"code": "print(105 + 7)"}, "112", stop=True),
        ),
        answer="112",
        gold="112",
        reward=Score(value=1.0, parts={"exact_match": 1.0}),
        stop_reason="verified",
    )


def unsolved(task_id: str = "t1") -> Trajectory:
    return Trajectory(
        id=f"{task_id}-before",
        task_id=task_id,
        family="lookup then add",
        question="How high is Amberbank plus 7 ?",
        turns=(
            malformed(1),
            turn(2, "wikipedia", "find height", {"query": "Amberbank"}, "no page named Amberbank", ok=False),
            turn(
                3, "python", "add 7", {"code": "print(height + 7)"}, "NameError: name 'height' is not defined", ok=False
            ),
        ),
        answer="7",
        gold="112",
        reward=Score(value=0.0, parts={"exact_match": 0.0}),
    )


def lost(task_id: str = "t3") -> Trajectory:
    return Trajectory(
        id=f"{task_id}-after",
        task_id=task_id,
        family="chain of three",
        question="Who leads the town by the lake that Amberbank overlooks ?",
        turns=(
            turn(1, "local_search", "find lake", {"query": "Amberbank overlooks"}, "Amberbank overlooks Lake Orrin"),
        ),
        status="error",
        stop_reason="error",
        error=ErrorInfo(type="EngineError", message="the endpoint answered 503 three times"),
    )


def broken(task_id: str = "t4") -> Trajectory:
    """A run thrown away, then one whose second turn broke in the verifier, with everything that can go wrong."""
    error = ErrorInfo(type="EngineError", message="verifier failed 2 times\n  fix: look at its log", retryable=True)
    code = 'print(wikipedia(title="Oakfell"))'
    asked = ToolCall(tool="wikipedia", arguments={"title": "Oakfell"}, status="error", text="no such page")
    half = Turn(
        index=2,
        action=Action(sub_goal="find page", tool="wikipedia"),
        command=Command(tool="wikipedia", code=code),
        observation=Observation(status="ok", text="None", tool_calls=(asked,)),
        calls=(
            Call(role="planner", completion="{", repaired=True),
            Call(role="verifier", failures=("429: slow down", "503: overloaded"), error=error),
        ),
        error=error,
    )
    return Trajectory(
        id=f"{task_id}-after",
        task_id=task_id,
        question="Who leads Oakfell ?",
        turns=(turn(1, "wikipedia", "find page", {"title": "Oakfell"}, "no page", ok=False), half),
        closing_calls=(Call(role="generator", failures=("timed out",)),),
        status="error",
        stop_reason="error",
        error=error,
        attempts=2,
        earlier_errors=(ErrorInfo(type="ToolServerError", message="gone\n  fix: start it"),),
        request_failures=4,
    )
