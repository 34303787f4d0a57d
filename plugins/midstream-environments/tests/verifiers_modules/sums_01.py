"""An environment of verifiers 0.1 for tests: sums, guesses in several turns, and doubles that a tool knows."""

import time

import verifiers as vf
from datasets import Dataset

FAMILIES = ("sum", "guess", "double")


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        said, hidden = messages[-1].content, int(state["answer"])
        more = not said.isdigit() or int(said) < hidden
        if said == state["answer"]:
            state["final_env_response"] = [vf.UserMessage(content="Right.")]
            return state["final_env_response"]
        return [vf.UserMessage(content=f"More than {said}." if more else f"Less than {said}.")]


class Doubles(vf.StatefulToolEnv):
    def __init__(self, **settings):
        super().__init__(max_turns=3, **settings)
        self.add_tool(self.double, args_to_skip=["state"])

    async def double(self, number: int, state) -> str:
        """Double a number."""
        state["used"] = True
        return str(2 * number)

    def update_tool_args(self, tool_name, tool_args, messages, state, **_):
        return {**tool_args, "state": state}


def correct(completion, answer):
    return float(text(completion) == answer)


async def short(completion):
    return float(len(text(completion)) < 10)


def used(state):
    return float(state.get("used", False))


def text(completion):
    said = [message["content"] for message in completion if message["role"] == "assistant"]
    return said[-1] or ""


def failing(wrong, number):
    if wrong == "raises":
        raise ValueError(f"a bug at {number}")
    if wrong == "hangs":
        time.sleep(1000)
    return {"none": None, "nan": float("nan")}.get(wrong, 0.5)


def rows(family, first, count):
    words = {"sum": "{n} + {n}?", "guess": "Guess a number up to {n}.", "double": "Double {n} with the tool."}[family]
    answers = {"sum": 2, "guess": 1, "double": 2}
    found = range(first, first + count)
    return Dataset.from_list(
        [{"question": words.format(n=n), "answer": str(answers[family] * n), "info": {"n": n}} for n in found]
    )


def environment(family, count, wrong):
    def third(info):
        return failing(wrong[info["n"] % len(wrong)] if wrong else "", info["n"])

    def fourth(info):
        return failing("raises" if wrong else "", info["n"])

    def best(states):
        return [1.0 for _ in states]

    kind = {"sum": vf.SingleTurnEnv, "guess": Guess, "double": Doubles}[family]
    parts = [correct, short, best if "group" in wrong else third, fourth]
    rubric = vf.Rubric(funcs=parts, weights=[1.0, 0.5, 1.0, 0.0])
    rubrics = vf.RubricGroup([rubric, vf.Rubric(funcs=[used])])
    settings = {} if family != "guess" else {"max_turns": 4}
    data = {"dataset": rows(family, 0, count), "eval_dataset": rows(family, 1000, count)}
    return kind(**data, system_prompt="Be brief.", rubric=rubrics, **settings)


def load_environment(families=FAMILIES, count=20, wrong=()):
    made = [environment(family, count, wrong) for family in families]
    return vf.EnvGroup(made, list(families)) if len(made) > 1 else made[0]
