"""AgentFlow behind the gateway is AgentFlow: the same requests, trajectories and trained weights, bit for bit.

The agent runs midstream's own AgentFlow, whose modules ask over HTTP and send the seeds and sampling that they would
have given an engine. The environment lets these pass; what is left to compare is the gateway.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from hashlib import sha256

import aiohttp
import pytest

from midstream.components.agent_record import Outcome
from midstream.core.agent import Generator, RunContext
from midstream.core.engine import Engine
from midstream.core.trajectory import Score
from midstream.engines.local.engine import TransformersLocal
from midstream.gateway.server import Gateway
from midstream.gateway.session_agent import SessionAgent
from midstream.gateway.settings import ServeConfig, ServedModel, SessionSettings
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.training.flow_grpo import FlowGRPO

SETTINGS = [
    "tasks.regions=2",
    "sandbox.tier=arithmetic",
    "agent.max_turns=2",
    "agent.planner.sampling.max_tokens=40",
    "agent.generator.sampling.temperature=1.0",  # or the answers of a group would be alike
    "agent.generator.sampling.max_tokens=12",
    "learner.threads=1",
    "training.steps=2",
    "training.tasks_per_step=2",
    "training.group_size=2",
    "training.minibatches=1",
    "training.warmup_steps=1",
]
SERVE = ServeConfig(
    models={"planner": ServedModel(engine="policy", train=True), "modules": ServedModel(engine="modules")},
    parser="none",  # a module's reply is text
    batching="lockstep",
)


@dataclass
class Posting(Engine):
    """A module's engine that asks a session's address."""

    client: aiohttp.ClientSession
    url: str
    model: str
    name = "posting"
    token_exact = False

    async def sample(self, request):
        body = {
            "model": self.model,
            "messages": [message.wire() for message in request.messages],
            "seed": request.seed,
            **request.sampling.model_dump(mode="json"),
        }
        if request.json_schema is not None:
            schema = {"name": "reply", "schema": dict(request.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        async with self.client.post(f"{self.url}/chat/completions", json=body) as response:
            response.raise_for_status()
            [choice] = (await response.json())["choices"]
        return request.answered(self.name, choice["message"]["content"], finish_reason=choice["finish_reason"])


class FlowOverHttp(SessionAgent):
    """AgentFlow as an agent of another program. A function gets no seed of its run, so this is a class."""

    def __init__(self, flow, gateway):
        super().__init__(flow.name, SessionSettings(), gateway)
        self.flow, self.played = flow, []

    async def drive(self, task, session, address):
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {address.api_key}"}) as client:
            models = {"planner": "planner", **dict.fromkeys(("executor", "verifier", "generator"), "modules")}
            engines = {role: Posting(client, address.base_url, model) for role, model in models.items()}
            context = session.context
            played = await self.flow.run(task, RunContext(tools=context.tools, engines=engines, seed=context.seed))
        self.played.append(played)
        return Outcome(answer=played.answer)


@dataclass
class Says(Generator):
    """A generator whose model has not learned to mark its answer: all that it wrote is the answer."""

    inner: Generator

    async def generate(self, question, memory, context):
        answer, calls = await self.inner.generate(question, memory, context)
        return answer or calls[-1].completion, calls


class OfItsText:
    """A reward that differs from answer to answer, so that an untrained policy has something to learn from."""

    name, judged = "of its text", False

    def check(self, task): ...

    async def score(self, task, trajectory):
        return Score(sha256(repr((task.id, trajectory.answer)).encode()).digest()[0] / 255)

    async def close(self): ...


@dataclass
class Trained:
    """Two steps: what the engine was asked, the trajectories, the weights before and after, and the agent."""

    requests: list
    trajectories: list
    before: str
    after: str
    agent: object


def train(directory, monkeypatch, gateway):
    requests = []
    sample = TransformersLocal.sample

    async def seen(self, request, *, reference=False):
        schema = None if request.json_schema is None else dict(request.json_schema)
        asked = (request.messages, request.prompt, request.tools, request.sampling, request.seed, schema)
        requests.append((request.order, reference, asked))
        return await sample(self, request, reference=reference)

    def digest(learner):
        learner.export_weights(directory)
        return sha256((directory / "model.safetensors").read_bytes()).hexdigest()

    async def run():
        async with Build(load_recipe("text-flow-grpo", SETTINGS)) as build:
            parts = parts_of(build)
            environment, role = parts.make_environment(), "planner"
            flow = replace(environment.agent, generator=Says(environment.agent.generator))
            environment = replace(environment, agent=flow, reward=OfItsText())
            if gateway is not None:
                engines = {"policy": environment.engines["planner"], "modules": environment.engines["executor"]}
                environment = replace(environment, agent=FlowOverHttp(flow, gateway), engines=engines, sampling=None)
                role = "policy"
            algorithm = FlowGRPO(
                config=parts.training,
                learner=parts.learner,
                environment=environment,
                source=parts.source,
                publish=parts.publish,
                seed=parts.seed,
                role=role,
            )
            before = digest(parts.learner)
            trajectories = [one for step in (1, 2) for one in (await algorithm.step(step)).trajectories]
            if gateway is not None:
                await gateway.close()
        return Trained(requests, trajectories, before, digest(parts.learner), environment.agent)

    with monkeypatch.context() as patched:
        patched.setattr(TransformersLocal, "sample", seen)
        return asyncio.run(run())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same training without and with the gateway."""
    with pytest.MonkeyPatch.context() as patched:
        return [train(tmp_path_factory.mktemp("run"), patched, gateway) for gateway in (None, Gateway(SERVE))]


@pytest.mark.slow
def test_the_engine_is_asked_the_same(both):
    """By trajectory: requests of different trajectories arrive in any order, and wait for one another."""
    bare, served = (sorted(run.requests, key=lambda request: request[0]) for run in both)
    assert served == bare
    assert {reference for _, reference, _ in bare} == {False, True}
    assert max(seed for *_, (*_, seed, _) in bare) > 2**53  # what a client with JavaScript's numbers could not send


@pytest.mark.slow
def test_trajectories_are_the_same(both):
    def outcome(trajectory):
        value = trajectory.reward.value
        return trajectory.id, trajectory.seed, trajectory.status, trajectory.attempts, trajectory.answer, value

    def calls(trajectory):
        names = ("messages", "prompt_ids", "completion_ids", "logprobs", "completion", "finish_reason", "sampling")
        kept = [[getattr(call, name) for name in (*names, "policy_version", "usage")] for call in trajectory.calls]
        return [[call.role in ("planner", "policy"), *rest] for call, rest in zip(trajectory.calls, kept, strict=True)]

    bare, served = both
    assert list(map(outcome, served.trajectories)) == list(map(outcome, bare.trajectories))
    assert list(map(calls, served.trajectories)) == list(map(calls, bare.trajectories))
    assert len({trajectory.reward.value for trajectory in bare.trajectories}) > len(bare.trajectories) // 2
    # What AgentFlow saw behind the gateway is what it saw without.
    played = {(one.task_id, one.seed): one for one in served.agent.played}
    for one in bare.trajectories:
        behind = played.pop((one.task_id, one.seed))
        assert behind.stop_reason == one.stop_reason
        assert [turn.action for turn in behind.turns] == [turn.action for turn in one.turns]
        assert [turn.observation.text for turn in behind.turns] == [turn.observation.text for turn in one.turns]
        assert [turn.verdict for turn in behind.turns] == [turn.verdict for turn in one.turns]
    assert not played


@pytest.mark.slow
def test_weights_are_the_same_to_the_bit(both):
    bare, served = both
    assert (served.before, served.after) == (bare.before, bare.after)
    assert bare.after != bare.before
