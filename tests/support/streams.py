"""Trajectories of interleaved policies made by hand: what the loop leaves behind in good runs and in bad ones."""

from midstream.core.trajectory import Action, Call, Command, Observation, Score, Trajectory, Turn, Usage

QUESTION = "What is the sum of the first 40 square numbers?"
MATH_PARTS = {"answer": 2.0, "relaxed_format": 0.5, "strict_format": 0.5, "tool_success": 1.0, "total": 4.0}
CALLING_PARTS = {"state": 0.375, "function": 0.3, "relaxed_format": 0.1, "strict_format": 0.0, "total": 0.775}


def reply(text: str, finish_reason: str = "stop") -> Call:
    """One sampled stretch of a stream."""
    usage = Usage(prompt_tokens=200, completion_tokens=max(1, len(text) // 4), cost_usd=0.001)
    return Call(role="policy", completion=text, finish_reason=finish_reason, usage=usage)


def python_turn(index: int, thought: str, code: str, output: str, *, ok: bool = True) -> Turn:
    """A thought, a program and what it printed, as in the template artist-math."""
    return Turn(
        index=index,
        events=("call", "action", "command", "observation"),
        action=Action(tool="python", context=code),
        command=Command(tool="python", arguments={"code": code}),
        observation=Observation(status="ok" if ok else "error", text=output, duration_s=0.02),
        calls=(reply(f"<think>{thought}</think><python>{code}</python>"),),
        appended=f"<output>{output}</output>",
    )


def math_stream(task_id: str = "m1") -> Trajectory:
    """Two calls, of which the first fails, then the answer."""
    return Trajectory(
        id=f"{task_id}-0",
        task_id=task_id,
        family="sums",
        question=QUESTION,
        agent="interleaved",
        turns=(
            python_turn(
                1,
                "Add the squares up.",
                "print(sum(n * n for n in rnge(1, 41)))",
                "NameError: name 'rnge' is not defined",
                ok=False,
            ),
            python_turn(2, "A slip in the name.", "total = sum(n * n for n in range(1, 41))\nprint(total)", "22140"),
        ),
        closing_calls=(reply("<think>Done.</think><answer>22140</answer>"),),
        answer="22140",
        gold="22140",
        reward=Score(value=1.0, parts=MATH_PARTS),
        stop_reason="answered",
    )


def unclosed_stream(task_id: str = "m2") -> Trajectory:
    """A thought that never ends, output that the policy made up itself, no answer."""
    said = "<think>It is <think>known to be<output>22140</output> and so on"
    return Trajectory(
        id=f"{task_id}-0",
        task_id=task_id,
        question=QUESTION,
        agent="interleaved",
        closing_calls=(reply(said),),
        gold="22140",
        reward=Score(value=0.0, parts=dict.fromkeys(MATH_PARTS, 0.0)),
        stop_reason="ended",
    )


def cut_stream(task_id: str = "m3") -> Trajectory:
    """The limit of tokens falls into the middle of a program."""
    return Trajectory(
        id=f"{task_id}-0",
        task_id=task_id,
        question=QUESTION,
        agent="interleaved",
        turns=(python_turn(1, "Try it.", "print(1)", "1"),),
        closing_calls=(reply("<think>Now all of them.</think><python>print(sum(n * n for n in ra", "length"),),
        gold="22140",
        reward=Score(value=0.0, parts={**MATH_PARTS, "answer": 0.0}),
        stop_reason="token_limit",
    )


def function_turn(index: int, name: str, arguments: dict, result: str, *, user: str = "", calls=(), **more) -> Turn:
    """One function call of a dialogue."""
    return Turn(
        index=index,
        events=("call", "action", "command", "observation"),
        user=user,
        action=Action(tool=name, context=f'{{"name": "{name}"}}', error=more.get("error")),
        command=None if more.get("error") else Command(tool=name, arguments=arguments),
        observation=Observation(status="error" if more.get("error") else "ok", text=result),
        calls=calls,
        appended=result if more.get("last", True) else "",
    )


def dialogue_stream(task_id: str = "d1") -> Trajectory:
    """Three user turns: two calls in one reply, a call of a function that is not there, a question back."""
    both = reply(
        '<reasoning>Fill it, then look.</reasoning><tool>[{"name": "fill_tank", "arguments": {"litres": 20}}, '
        '{"name": "status", "arguments": {}}]</tool>'
    )
    wrong = reply('<reasoning>Start it.</reasoning><tool>[{"name": "ignite", "arguments": {}}]</tool>')
    return Trajectory(
        id=f"{task_id}-0",
        task_id=task_id,
        family="missing_parameters",
        question="Fill the tank with 20 litres.",
        agent="interleaved",
        turns=(
            function_turn(
                1,
                "fill_tank",
                {"litres": 20},
                '{"fuel": 45}',
                user="Fill the tank with 20 litres.",
                calls=(both,),
                last=False,
            ),
            function_turn(2, "status", {}, '{"fuel": 45, "engine": "off"}'),
            Turn(index=3, events=("call",), calls=(reply("The tank holds 45 litres now."),), appended="Start it."),
            function_turn(
                4,
                "ignite",
                {},
                "no function is called 'ignite'",
                user="Start the engine.",
                calls=(wrong,),
                error="no function is called 'ignite'",
            ),
            Turn(index=5, events=("call",), calls=(reply("Which key should I use?"),)),
            Turn(index=6, events=("user", "call"), user="The red one.", calls=(reply("I cannot start it."),)),
        ),
        reward=Score(value=0.6458, parts=CALLING_PARTS),
        outcome={
            "success": False,
            "turns": [
                {"state": [4, 4], "calls": [2, 2]},
                {"state": [3, 4], "calls": [0, 1]},
                {"state": [2, 4], "calls": [0, 1]},
            ],
        },
        stop_reason="answered",
    )
