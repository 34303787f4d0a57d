"""Measure one GRPO step of a real language model on a CPU: midstream next to TRL's GRPOTrainer.

    python benchmarks/real.py local/qwen05b-coder                  # 4 questions x 8 replies of at most 48 tokens
    python benchmarks/real.py local/DIR --rounds 3 --group-size 16
    python benchmarks/real.py local/DIR --vllm .venv-vllm/bin/python     # and the rollouts of vLLM

Model, prompts (to the token), temperature 1, LoRA 16 on all linear layers, float32, clip 0.2, no KL term and one
thread are the same; each peer samples its own replies and makes one optimizer step on all of them. TRL comes with
`pip install -e '.[train,bench]'` and samples by Transformers' `generate`. It recomputes activations by default; another
peer is TRL without that. vLLM samples its own replies to the same prompts, without an adapter, and updates nothing;
`make test-vllm` installs it. The peers take turns, each in a process of its own (A B C, then C B A). Of each group half
the replies have reward 1, so that every reply is trained on.

The update's milliseconds are divided by the tokens of the replies. TRL's update is all that `train` does besides
rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from update_measure import TRL_MISSING, _start_peak, _status_mb, add_options

PEERS = ("midstream", "TRL", "TRL, keeping activations")


@dataclass(frozen=True)
class Step:
    """What one step of a peer took, and the prompts that it sampled from."""

    sampled: int
    rollout_cpu_s: float
    update_cpu_s: float | None  # None: not measured
    loaded_mb: float | None
    peak_mb: float | None
    prompts: list[str]
    lengths: list[int]  # of the prompts, in tokens


class Alternating:
    """A reward that is 1 for half the replies of each group."""

    name, judged = "alternating", False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def check(self, task: Any) -> None:
        """Every task can be scored."""

    async def score(self, task: Any, trajectory: Any) -> Any:
        """1 and 0 in turns."""
        from midstream.core.trajectory import Score

        self.counts[task.id] += 1
        return Score(value=float(self.counts[task.id] % 2))


def midstream_step(arguments: argparse.Namespace) -> Step:
    """The step of a recipe whose agent answers a question with one reply."""
    from midstream.recipe.build import Build
    from midstream.recipe.overrides import changed_recipe
    from midstream.recipe.sessions import parts_of

    policy = f'type="model", engine="policy", sampling={{temperature=1.0, max_tokens={arguments.max_tokens}}}'
    overrides = [
        f'agent={{type="direct", max_tokens=400, policy={{{policy}}}}}',
        f"training.tasks_per_step={arguments.tasks}",
        f"training.group_size={arguments.group_size}",
        'engines.policy.dtype="float32"',
        "learner.threads=1",
    ]
    recipe = changed_recipe("tool-use-small", overrides=overrides, model=arguments.model, tools="none")
    assert recipe.training is not None
    with Build(recipe) as build:
        parts = parts_of(build)
        algorithm = parts.flow_grpo(recipe.training)
        algorithm.environment = replace(algorithm.environment, reward=Alternating())
        loaded, started = _start_peak(torch.device("cpu")), time.process_time()
        rollout_cpu_s = 0.0
        update = algorithm._update

        def timed(*given: Any) -> Any:
            nonlocal rollout_cpu_s
            rollout_cpu_s = time.process_time() - started
            return update(*given)

        algorithm._update = timed  # type: ignore[method-assign]
        outcome = asyncio.run(algorithm.step(1))
        calls = [call for trajectory in outcome.trajectories for call in trajectory.calls]
        asked = [call.prompt_ids for call in calls[:: arguments.group_size]]
        if outcome.metrics.rows != len(calls):
            raise SystemExit(f"midstream trained on {outcome.metrics.rows} of {len(calls)} replies")
        return Step(
            sampled=sum(len(call.completion_ids) for call in calls),
            rollout_cpu_s=rollout_cpu_s,
            update_cpu_s=time.process_time() - started - rollout_cpu_s,
            loaded_mb=loaded,
            peak_mb=_status_mb("VmHWM"),
            prompts=[parts.student.tokenizer.decode(ids) for ids in asked],
            lengths=[len(ids) for ids in asked],
        )


def trl_step(arguments: argparse.Namespace, prompts: list[str], *, recompute: bool) -> Step:
    """The step of a GRPOTrainer on these prompts."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(1)
    group, replies = arguments.group_size, arguments.group_size * len(prompts)
    path = arguments.directory
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=group,
            gradient_accumulation_steps=replies // group,
            num_generations=group,
            max_completion_length=arguments.max_tokens,
            temperature=1.0,
            beta=0.0,
            loss_type="grpo",
            learning_rate=3e-4,
            max_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=recompute,
            save_strategy="no",
            report_to=[],
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            reward_funcs=lambda completions, **columns: [float(i % 2) for i in range(len(completions))],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(path),
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        )
        taken: dict[str, float] = {}
        sample = trainer._generate_and_score_completions

        def timed(batch: Any) -> Any:
            before = time.process_time()
            found = sample(batch)
            taken["rollout"] = time.process_time() - before
            taken["sampled"] = int(found["completion_mask"].sum())
            lengths = sorted(found["prompt_mask"].sum(1).tolist())
            if lengths != sorted(one for one in arguments.lengths for _ in range(group)):
                raise SystemExit(f"TRL's prompts have other lengths than midstream's: {lengths}")
            return found

        trainer._generate_and_score_completions = timed
        loaded, started = _start_peak(torch.device("cpu")), time.process_time()
        trainer.train()
        spent = time.process_time() - started
    return Step(
        sampled=int(taken["sampled"]),
        rollout_cpu_s=taken["rollout"],
        update_cpu_s=spent - taken["rollout"],
        loaded_mb=loaded,
        peak_mb=_status_mb("VmHWM"),
        prompts=prompts,
        lengths=arguments.lengths,
    )


def vllm_step(arguments: argparse.Namespace, prompts: list[str], lengths: list[int]) -> Step:
    """Replies to the same prompts by vLLM, which updates nothing."""
    asked = {
        "directory": str(arguments.directory),
        "prompts": prompts,
        "group": arguments.group_size,
        "max_tokens": arguments.max_tokens,
        "positions": max(lengths) + arguments.max_tokens,
    }
    command = [arguments.vllm, Path(__file__).with_name("real_vllm.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    given = json.dumps(asked)
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    if found.pop("lengths") != lengths:
        raise SystemExit("vLLM's prompts have other lengths than midstream's")
    return Step(**found, update_cpu_s=None, loaded_mb=None, peak_mb=None, prompts=prompts, lengths=lengths)


def one(arguments: argparse.Namespace) -> None:
    """The child process: a peer's step, as JSON in the file `--json`."""
    if arguments.one == "midstream":
        step = midstream_step(arguments)
    else:
        prompts, arguments.lengths = json.loads(os.environ["PROMPTS"])
        step = trl_step(arguments, prompts, recompute=arguments.one == "TRL")
    arguments.json.write_text(json.dumps(asdict(step)))


def measured(arguments: argparse.Namespace) -> dict[str, list[Step]]:
    """Every peer once a round, each in a process of its own."""
    steps: dict[str, list[Step]] = {name: [] for name in arguments.peers}
    asked: tuple[list[str], list[int]] = ([], [])
    for number in range(arguments.rounds):
        for name in arguments.peers if number % 2 == 0 else arguments.peers[::-1]:
            step = vllm_step(arguments, *asked) if name == "vLLM" else child_step(arguments, name, asked)
            asked = asked if asked[0] else (step.prompts, step.lengths)
            steps[name].append(step)
            print(f"  {name:26} {json.dumps({**asdict(step), 'prompts': len(step.prompts)})}", flush=True)
    return steps


def child_step(arguments: argparse.Namespace, name: str, asked: tuple[list[str], list[int]]) -> Step:
    """A peer's step in a process of its own, on the prompts of the first one."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "step.json"
        command = [sys.executable, __file__, *sys.argv[1:], "--one", name, "--json", str(file)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PROMPTS": json.dumps(asked)}
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
        return Step(**json.loads(file.read_text()))


def table(steps: dict[str, list[Step]]) -> str:
    """In Markdown: medians, and the ratio of each to midstream's. vLLM makes no update."""
    values = {
        "sampled tokens": lambda step: step.sampled,
        "rollouts, CPU-ms a sampled token": lambda step: 1000 * step.rollout_cpu_s / step.sampled,
        "update, CPU-ms a sampled token": lambda step: 1000 * step.update_cpu_s / step.sampled,
        "step, CPU-s": lambda step: step.rollout_cpu_s + step.update_cpu_s,
        "peak over the loaded model, MB": lambda step: step.peak_mb - step.loaded_mb,
    }
    lines = ["| | " + " | ".join(steps) + " |", "|---" * (len(steps) + 1) + "|"]
    for title, value in values.items():
        of_rollouts = title in ("sampled tokens", "rollouts, CPU-ms a sampled token")
        medians = {
            name: statistics.median(map(value, own))
            for name, own in steps.items()
            if of_rollouts or own[0].update_cpu_s is not None
        }
        ratio = {name: f" (x {each / medians['midstream']:.2f})" for name, each in medians.items()} | {"midstream": ""}
        cells = [f"{medians[name]:.1f}{ratio[name]}" if name in medians else "" for name in steps]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="as --model of the commands: local/NAME, local/DIR, local/FILE.gguf")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--peers", nargs="*", choices=PEERS[1:], default=PEERS[1:], help="next to midstream")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM: adds its rollouts")
    parser.add_argument("--one", choices=PEERS, help=argparse.SUPPRESS)
    add_options(parser)
    arguments = parser.parse_args()
    from midstream.engines.local.catalog import place_of
    from midstream.engines.local.gguf import convert

    place = place_of(arguments.model.removeprefix("local/"))
    arguments.directory = convert(Path(place)) if place.endswith(".gguf") else place
    if arguments.one:
        return one(arguments)
    arguments.peers = ["midstream", *arguments.peers, *(["vLLM"] if arguments.vllm else [])]
    if arguments.peers != ["midstream", "vLLM"] and importlib.util.find_spec("trl") is None:
        raise SystemExit(TRL_MISSING)
    steps = measured(arguments)
    print(table(steps))
    if arguments.json:
        arguments.json.write_text(json.dumps({name: [asdict(step) for step in own] for name, own in steps.items()}))


if __name__ == "__main__":
    main()
