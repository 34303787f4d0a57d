"""Flow-GRPO, all of it, in one file: read this first.

    python examples/flow_grpo_minimal.py --steps 20

A planner (a small transformer) works on questions about a made-up world. Every turn it writes an action, a tool runs
it, a verifier says whether to continue, and the result goes into memory for the next turn; at the end a generator reads
the answer off the memory. Flow-GRPO (AgentFlow, arXiv 2510.05592) trains the planner inside that running loop:

    1. play every question G times; reward: is the final answer right?     play, equation 4
    2. advantage: how much better than the others of its group?            advantages, equation 7
    3. every turn of a trajectory gets its advantage                       make_rows, the credit broadcast
    4. clipped policy gradient with a KL term, AdamW                       loss_of, equations 5, 6 and 10

Taken from midstream: the world, its tools, the fixed verifier and generator, the action language, an untrained model.
The reward printed is that of new training questions; `docs/flow-grpo.md` has held-out places, controls and long runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from statistics import fmean, stdev

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache

from midstream import Memory, ModuleContext, Observation, Task, Tool
from midstream.core.trajectory import MemoryRecord
from midstream.tools.local_search import Document, LocalSearch
from midstream.tools.python import PythonTool
from midstream_worlds.gazetteer.questions import question_words
from midstream_worlds.gazetteer.tasks import Gazetteer, GazetteerConfig
from midstream_worlds.planning.action_lines import BARE, WORDS, parse_action, render_prompt
from midstream_worlds.planning.programs import ConfidentGuess, FormVerifier, VerifiedResultGenerator
from midstream_worlds.planning.scripted import ScriptedConfig, ScriptedPlanner, action_words
from midstream_worlds.tiny_model import TinyModelConfig, make_model, make_tokenizer

TASKS, GROUP, MAX_TURNS, MAX_TOKENS = 16, 8, 3, 16
CLIP, BETA, LEARNING_RATE = 0.2, 0.001, 1e-3
VERIFIER, GENERATOR = FormVerifier(), VerifiedResultGenerator()


@dataclass
class Decision:
    """What the planner sampled in one turn: token ids, and the log-probability with which each token was drawn."""

    text: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


@dataclass
class Trajectory:
    """One question played once."""

    task: Task
    memory: Memory = Memory()
    decisions: list[Decision] = field(default_factory=list)
    done: bool = False
    reward: float = 0.0


Plan = Callable[[list[Trajectory]], Awaitable[list[Decision]]]


async def play(tasks: Sequence[Task], plan: Plan, tools: Sequence[Tool]) -> list[Trajectory]:
    """Run all tasks turn by turn until each is done, then score the answers."""
    trajectories = [Trajectory(task) for task in tasks]
    for _ in range(MAX_TURNS):
        live = [one for one in trajectories if not one.done]
        decisions = await plan(live) if live else []
        await asyncio.gather(*(take_turn(one, decided, tools) for one, decided in zip(live, decisions, strict=True)))
    for one in trajectories:
        answer, _ = await GENERATOR.generate(one.task.question, one.memory, ModuleContext())
        one.reward = float(answer == one.task.answer)
    return trajectories


async def take_turn(one: Trajectory, decision: Decision, tools: Sequence[Tool]) -> None:
    """Parse the action, run its tool, ask the verifier, remember. A malformed action is an error the planner sees."""
    one.decisions.append(decision)
    action = parse_action(decision.text, tools, one.memory)
    if action.error:
        seen = Observation(status="error", text=action.error)
    else:
        tool = next(tool for tool in tools if tool.name == action.tool)
        result = await tool.call({tool.parameters["required"][0]: action.context})
        seen = Observation(status="ok" if result.ok else "error", text=result.text)
    kept = {"result": seen.text} if seen.status == "ok" else {"error": seen.text}
    newest = MemoryRecord.model_validate({"turn": len(one.decisions), "action": action, **kept})
    verdict, _ = await VERIFIER.verify(one.task.question, tools, one.memory, newest, ModuleContext())
    one.memory = one.memory.append(newest.model_copy(update={"verdict": verdict}))
    one.done = verdict.memory_sufficient


@dataclass
class Policy:
    """The planner that is trained."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    async def plan(self, live: list[Trajectory]) -> list[Decision]:
        """Sample one action for every live trajectory, all in one batch."""
        prompts = [self.tokenizer.encode(render_prompt(one.task.question, one.memory)) for one in live]
        drawn = sample(self.model, prompts)
        texts = [str(self.tokenizer.decode(tokens, skip_special_tokens=True)) for tokens, _ in drawn]
        return [Decision(text, ids, *one) for text, ids, one in zip(texts, prompts, drawn, strict=True)]


@torch.inference_mode()
def sample(model: PreTrainedModel, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Draw a completion for every prompt at temperature 1, and record each token's log-probability as it is drawn."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    position = (mask.cumsum(1) - 1).clamp(min=0)
    cache, ended = DynamicCache(config=model.config), torch.zeros(len(prompts), dtype=torch.bool)
    out: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    for _ in range(MAX_TOKENS):
        logits = model(ids, mask, position, cache).logits[:, -1]
        logprobs = logits.log_softmax(-1)
        token = torch.multinomial(logprobs.exp(), 1)
        for row in (~ended).nonzero()[:, 0].tolist():
            out[row][0].append(int(token[row]))
            out[row][1].append(float(logprobs[row, token[row]]))
        ended |= token[:, 0] == model.config.eos_token_id
        if ended.all():
            break
        ids, mask, position = token, torch.cat([mask, torch.ones_like(token)], 1), position[:, -1:] + 1
    return out


def completion_logprobs(model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
    """Log-probabilities of all completion tokens under the model, one after the other, flat [_N]."""
    width = max(len(row.decision.prompt_ids) + len(row.decision.completion_ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)  # padded on the right, where causal attention never looks
    picked = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        whole = row.decision.prompt_ids + row.decision.completion_ids
        ids[i, : len(whole)] = torch.tensor(whole)
        picked[i, len(row.decision.prompt_ids) : len(whole)] = True
    logprobs = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)
    return logprobs.gather(-1, ids[:, 1:, None])[..., 0][picked[:, 1:]]


@dataclass
class Row:
    """One training sequence: one decision, its trajectory's advantage, and what each of its tokens weighs."""

    decision: Decision
    advantage: float
    weight: float


def advantages(rewards: list[float]) -> list[float]:
    """(R - mean) / std over the G trajectories of one question; where all are equal, 0: there is nothing to prefer."""
    mean, std = fmean(rewards), stdev(rewards)
    return [(reward - mean) / (std + 1e-6) for reward in rewards]


def make_rows(groups: list[list[Trajectory]]) -> list[Row]:
    """Give each outcome to every turn. A token weighs 1 / (trajectories x turns of its own x tokens of its turn)."""
    total = sum(map(len, groups))
    return [
        Row(decision, advantage, 1 / (total * len(one.decisions) * len(decision.completion_ids)))
        for group in groups
        for one, advantage in zip(group, advantages([one.reward for one in group]), strict=True)
        for decision in one.decisions
    ]


def loss_of(model: PreTrainedModel, reference: PreTrainedModel, rows: list[Row]) -> torch.Tensor:
    """Clipped surrogate and k3 estimate of KL(policy || reference), per token, weighted and summed."""
    lengths = torch.tensor([len(row.decision.completion_ids) for row in rows])
    advantage, weight = torch.tensor([[row.advantage, row.weight] for row in rows]).repeat_interleave(lengths, 0).T
    old = torch.tensor([value for row in rows for value in row.decision.logprobs])
    new = completion_logprobs(model, rows)
    anchor = completion_logprobs(reference, rows)
    ratio = (new - old).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    kl = (anchor - new).exp() - (anchor - new) - 1
    return (weight * (BETA * kl - surrogate)).sum()


async def train(steps: int, warm_steps: int, seed: int) -> None:
    """Warm start, then Flow-GRPO."""
    world = Gazetteer(GazetteerConfig(families=("lookup", "scale", "hop"), countries=20, seed=seed))
    documents = (Document(id=name, text=text) for name, text in world.documents())
    tools: list[Tool] = [LocalSearch.from_documents(documents), PythonTool(), ConfidentGuess()]
    names = [tool.name for tool in tools]
    words = {*question_words(), *WORDS, *action_words(), *names}
    tokenizer = make_tokenizer(words, world.names(), [*BARE, *names])
    policy = Policy(make_model(TinyModelConfig(hidden_size=64), tokenizer, len(world.names()), seed), tokenizer)
    await warm_start(policy, world, tools, warm_steps)
    reference = deepcopy(policy.model).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(1, steps + 1):
        tasks = [task for task in world.sample("train", TASKS, seed=step) for _ in range(GROUP)]
        played = await play(tasks, policy.plan, tools)
        groups = [played[i : i + GROUP] for i in range(0, len(played), GROUP)]
        for part in (groups[0::2], groups[1::2]):  # two mini-batches of whole groups: the second may be clipped
            loss_of(policy.model, reference, make_rows(part)).backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        reward = fmean(one.reward for one in played)
        print(f"step {step:3d}  reward {reward:.2f}  {'#' * round(40 * reward)}", flush=True)
    for tool in tools:
        await tool.close()


async def warm_start(policy: Policy, world: Gazetteer, tools: Sequence[Tool], steps: int) -> None:
    """Imitate a scripted program that is mostly wrong: without any action that parses there is nothing to reinforce."""
    planner, rng = ScriptedPlanner(ScriptedConfig(sense=0.5)), random.Random(0)
    encode, end = policy.tokenizer.encode, policy.model.config.eos_token_id

    async def scripted(live: list[Trajectory]) -> list[Decision]:
        contexts = [ModuleContext(seed=rng.getrandbits(63)) for _ in live]
        plans = [planner.plan(one.task.question, tools, one.memory, c) for one, c in zip(live, contexts, strict=True)]
        calls = [call for _, (call,) in await asyncio.gather(*plans)]
        return [Decision(c.completion, encode(c.prompt), [*encode(c.completion), end], []) for c in calls]

    played = await play(world.sample("train", 600, seed=0), scripted, tools)
    rows = [Row(decision, 0.0, 1.0) for one in played for decision in one.decisions]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0)
    for _ in range(steps):
        (-completion_logprobs(policy.model, rng.sample(rows, 64)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{steps} steps on a scripted program's actions; it answers {fmean(one.reward for one in played):.0%}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps of Flow-GRPO")
    parser.add_argument("--warm-steps", type=int, default=150, help="supervised steps before it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    asyncio.run(train(options.steps, options.warm_steps, options.seed))
