"""A taskset of verifiers 0.4 for tests: sums, and guesses in several turns, played by a loop in verifiers' process."""

import time

import httpx
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str
    guess: bool = False
    wrong: str = ""


class Config(vf.TasksetConfig):
    count: int = 20
    wrong: list[str] = []


class SumTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def correct(self, task, trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 10)

    @vf.reward
    async def third(self, task) -> float:
        if task.wrong == "raises":
            raise ValueError(f"a bug at {task.answer}")
        if task.wrong == "hangs":
            time.sleep(1000)
        return {"none": None, "nan": float("nan")}.get(task.wrong, 0.5)

    @vf.metric
    async def turns(self, trace) -> float:
        return trace.num_turns


class Sums(vf.Taskset[SumTask, Config]):
    def load(self):
        wrong = self.config.wrong or [""]
        for n in range(self.config.count):
            if n % 2:
                values = {"prompt": f"{n} + {n}?", "answer": str(2 * n), "system_prompt": "Be brief."}
            else:
                values = {"prompt": f"Guess a number up to {n}.", "answer": str(n), "guess": True}
            yield SumTask(Data(**values, wrong=wrong[n % len(wrong)]), self.config.task)


class Loop(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        asked = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, str):
            asked = [message.model_dump(exclude_none=True) for message in prompt]
        messages = [{"role": "system", "content": system}, *asked] if system else asked
        async with httpx.AsyncClient(timeout=None, verify=False) as client:
            reply = await client.post(
                f"{endpoint}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        return vf.ProgramResult(exit_code=0 if reply.is_success else 1, stdout="", stderr=reply.text)


class SumEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class SumEnv(vf.Env[SumEnvConfig]):
    async def run(self, task, agents):
        if not task.data.guess:
            await agents.player.run(task)
            return
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(3):
                said = segment.last_reply
                if segment.terminated or said == task.data.answer:
                    break
                more = not said.isdigit() or int(said) < int(task.data.answer)
                segment = await interaction.turn(f"More than {said}." if more else f"Less than {said}.")


__all__ = ["Loop", "SumEnv", "Sums"]
