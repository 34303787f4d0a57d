"""What verifiers' own runner gives for an environment: the reward of each question, as JSON.

python own_runner.py NAME ARGUMENTS BASE_URL DIRECTORY
"""

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path

name, arguments, base_url, directory = sys.argv[1:]
settings = json.loads(arguments)
if name.endswith(".py"):
    sys.path.insert(0, str(Path(name).parent))
    name = Path(name).stem


async def old():
    import openai
    import verifiers as vf

    environment = vf.load_environment(name, **settings)
    client = vf.OpenAIChatCompletionsClient(openai.AsyncOpenAI(base_url=base_url, api_key="key"))
    done = await environment.evaluate(client, "model", max_concurrent=16)
    return {question(said["prompt"]): [said["reward"], said["metrics"]] for said in done["outputs"]}


def question(prompt):
    """The text of a prompt, or of its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


async def new():
    import verifiers.v1 as vf
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    config = EvalConfig.model_validate(
        {
            "env": {"taskset": {"id": name, **settings}, "player": {"runtime": {"type": "subprocess"}}},
            "model": "model",
            "client": vf.EvalClientConfig(base_url=base_url),
            "push": False,
            "rich": None,
            "output_dir": directory,
            "max_concurrent": 16,
        }
    )
    found = {}
    for episode in await run_eval(config):
        (trace,) = episode.traces
        parts = {key: reward.score for key, reward in trace.rewards.items()} | trace.metrics
        found[episode.task.data.prompt] = [trace.reward, parts]
    return found


out = Path(directory) / "own.json"
out.write_text(json.dumps(asyncio.run(old() if version("verifiers").startswith("0.1.") else new())))
