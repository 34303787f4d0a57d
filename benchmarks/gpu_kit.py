"""Check and measure midstream on one card, in about ten minutes at most: `make test-gpu`.

    python benchmarks/gpu_kit.py                              # all parts; writes gpu-results.json
    python benchmarks/gpu_kit.py --model PATH --only served   # some parts, with the weights of Qwen2.5-0.5B-Instruct
    python benchmarks/gpu_kit.py --device cpu --tiny          # no numbers worth reading: does the code run?
    python benchmarks/gpu_kit.py --table gpu-results.json     # what was recorded, as a Markdown table

It has not run on a GPU yet: only the third line has. Without --model, weights of the size of Qwen2.5-0.5B are drawn at
random, and `served` uses the small model that comes with midstream-worlds. Parts:

- exactness: each back end of tree attention against padded rows: the largest difference of log-probabilities, and the
  relative L2 distance of the gradient. In bfloat16 the bound is twice the distance of padded rows in bfloat16 from
  those in float32; in float32 it is 1e-4.
- lora_in_process: four steps of LoRA. On a GPU peak memory is at most 1.1 times the dry run's estimate; on a CPU it is
  only recorded, because the process holds more than tensors.
- served: `midstream train` starts a vLLM server and hands it an adapter after each step. The gap between its
  log-probabilities and the learner's is in the mean at most 0.05 in bfloat16, 1e-3 in float32. After the first step it
  is also at most a quarter of sqrt(2 KL), the change of the weights: a server with old weights has about a third.
- update_speed: the gradient pass of update_gpu.py's peers, which take turns. Gradients differ by at most 0.1.
- sampling: tokens a second in waves and in continuous batches; one reply in eight is long. No bound.

A part that cannot run here is "skipped", with the reason. After one that fails the others still run, and the exit code
is 1. Budgets are soft: no case begins after them; only the run behind a server is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import importlib.util
import json
import math
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from continuous import continuously, in_waves, made_up
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from update_gpu import SETUPS, TOY
from update_gpu import run as run_peers
from update_measure import TRL_MISSING, _peak_mb, _start_peak, _writable
from update_peers import recorded
from update_shapes import SHAPES, SIZES, make_model, make_rows

from midstream.core.trajectory import Sampling
from midstream.engines.local.engine import TransformersLocal
from midstream.engines.local.pretrained import load_model
from midstream.prefix_tree.support import choose
from midstream.recipe.memory import shape_of, update_bytes, weights_bytes
from midstream.runs import RunDirectory
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_worlds.tiny_text.model import make_model as make_text_model
from midstream_worlds.tiny_text.settings import TinyTextConfig
from midstream_worlds.tiny_text.tokenizer import load_tokenizer

SIZES["0.5b"] = (896, 24, 14, 2, 4864, 151_936)  # of Qwen2.5-0.5B
LIMIT_S = 600
FLOAT_BOUND, MEMORY_BOUND, PEERS_BOUND = 1e-4, 1.1, 0.1
GAP_BOUNDS = {"bfloat16": 0.05, "float32": 1e-3}
# Replies of any model differ in it, so that there is a gradient.
REWARD = "def varied(trajectory):\n    return sum(sum(call.completion_ids) for call in trajectory.calls) % 8 / 8\n"

Found = dict[str, Any]
Bad = list[str]  # what is not as it should be, a line each


class Skipped(Exception):
    """A part cannot run here; the message is the reason."""


@dataclass(frozen=True)
class Kit:
    """What all parts are given."""

    device: str
    tiny: bool = False
    model: str | None = None

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.device == "cuda" else "float32"

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model and a tokenizer."""
        if self.model:
            return load_model(self.model, self.dtype, self.device)
        size = "tiny" if self.tiny else "0.5b"
        return make_model(size, device=self.device, dtype=getattr(torch, self.dtype)), load_tokenizer()

    def rows(self, learner: LocalLearner, questions: int = 1) -> list[Row]:
        """A batch that the learner's policy has sampled, nearly."""
        shape = TOY if self.tiny else replace(SHAPES["base"], questions=questions)
        return recorded(learner, make_rows(shape, learner.model.config.vocab_size))


def exactness(kit: Kit, deadline: float) -> tuple[Found, Bad]:
    """Tree attention against padded rows."""
    model, _ = kit.load()
    padded = LearnerConfig(attention="rows")
    learner = LocalLearner(model, padded)
    rows = kit.rows(learner)
    plain, tokens = computed(learner, rows), sum(row.length for row in rows)
    bound = [FLOAT_BOUND, FLOAT_BOUND]
    if kit.dtype != "float32":
        precise = computed(LocalLearner(copy.deepcopy(model).float(), padded), rows)
        bound = [2 * one for one in distances(plain, precise)]
        del precise
    found: Found = {"dtype": kit.dtype, "tokens": tokens, "chosen": choose(model).backend}
    found["bounds of log-probabilities and gradient"] = bound
    bad: Bad = []
    for name in ("flex", "varlen") if kit.device == "cuda" else ("dense", "gather", "cascade"):
        if time.monotonic() > deadline:
            bad.append(f"{name}: no time was left")
            break
        # Small chunks, so that branches attend to what an earlier pass kept.
        config = LearnerConfig.model_validate({"attention": name, "chunk_tokens": tokens // 10})
        learner = LocalLearner(model, config)
        if learner.attention.backend != name:
            bad.append(f"{name}: {learner.attention.reason}")
            continue
        found[name] = got = distances(computed(learner, rows), plain)
        # The comparison is false for NaN, too.
        if not (got[0] <= bound[0] and got[1] <= bound[1]):
            bad.append(f"{name}: {got} exceeds {bound}")
    return found, bad


Computed = tuple[torch.Tensor, dict[str, torch.Tensor]]


def computed(learner: LocalLearner, rows: list[Row]) -> Computed:
    """Log-probabilities of all completion tokens, and the gradient of each parameter.

    The clip is too wide to matter: the side of it on which a token is depends on its last digit.
    """
    logprobs = torch.tensor(sum(learner.logprobs(rows), ()))
    learner.model.zero_grad(set_to_none=True)
    learner.forward_backward(rows, PolicyLoss(clip_low=0.99, clip_high=50.0, kl_coefficient=0))
    gradient = {name: one.grad.float() for name, one in learner.model.named_parameters() if one.grad is not None}
    learner.model.zero_grad(set_to_none=True)
    return logprobs, gradient


def distances(one: Computed, other: Computed) -> list[float]:
    """The largest difference of log-probabilities, and |gradient - other's| / |other's| of all parameters together."""
    if one[1].keys() != other[1].keys():
        raise ValueError(f"parameters with a gradient differ: {sorted(one[1].keys() ^ other[1].keys())[:3]}")
    apart = sum((gradient - other[1][name]).square().sum().item() for name, gradient in one[1].items())
    whole = sum(gradient.square().sum().item() for gradient in other[1].values())
    return [(one[0] - other[0]).abs().max().item(), math.sqrt(apart / whole)]


def lora_in_process(kit: Kit, deadline: float) -> tuple[Found, Bad]:
    """Steps of LoRA, and their peak memory against the dry run's estimate."""
    before_mb = _start_peak(torch.device(kit.device))
    model, _ = kit.load()
    config = LearnerConfig(lora=LoraConfig(), recompute_activations=True)
    learner = LocalLearner(model, config)
    rows = kit.rows(learner, questions=4)
    losses, norms, seconds = [], [], []
    for _ in range(4):
        began = time.perf_counter()
        losses.append(learner.forward_backward(rows, PolicyLoss()).loss)
        norms.append(learner.optimizer_step(1e-4))
        seconds.append(time.perf_counter() - began)
    peak_gb = (_peak_mb(torch.device(kit.device)) - before_mb) / 1e3
    found: Found = {"parameters": sum(one.numel() for one in model.parameters()), "dtype": kit.dtype}
    found |= {"tokens": sum(row.length for row in rows), "seconds of a step": statistics.median(seconds[1:])}
    found |= {"losses": losses, "gradient norms": norms, "peak, GB": peak_gb}
    bad = unusable(losses, norms)
    with tempfile.TemporaryDirectory() as directory:
        model.config.save_pretrained(directory)
        shape = shape_of(directory)
    if shape is not None:
        held = sum(weights_bytes(shape, kit.dtype, config).values())
        found["estimate, GB"] = (held + update_bytes(shape, kit.dtype, config)) / 1e9
        found["peak / estimate"] = peak_gb / found["estimate, GB"]
        if kit.device == "cuda" and found["peak / estimate"] > MEMORY_BOUND:
            bad.append(f"the peak is more than {MEMORY_BOUND} times the estimate")
    return found, bad


def unusable(losses: list[float], norms: list[float]) -> Bad:
    """The losses and norms of gradients that no training should have."""
    found = [f"the loss is {one}" for one in losses if not math.isfinite(one)]
    return found + [f"the gradient's norm is {one}" for one in norms if not 0 < one < math.inf]


def served(kit: Kit, deadline: float) -> tuple[Found, Bad]:
    """A run that starts vLLM and gives it an adapter after each step."""
    program = vllm_program()
    if program is None:
        raise Skipped("there is no program vllm next to this Python or that of MIDSTREAM_VLLM_PYTHON")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "kit_reward.py").write_text(REWARD, encoding="utf-8")
        model = kit.model or str(root / "model")
        if not kit.model:
            tokenizer = load_tokenizer()
            tokenizer.save_pretrained(model)
            make_text_model(TinyTextConfig(weights="atlas"), tokenizer, 0).save_pretrained(model)
        serve = f"--dtype {kit.dtype} --max-model-len 2048 --enforce-eager"
        serve += " --gpu-memory-utilization 0.4" if kit.device == "cuda" else ""
        policy = f'provider="vllm",base_url="{url}",model="{model}",token_ids=true,serve="{serve}"'
        settings = [
            f'engines.policy={{type="openai_compatible",{policy}}}',
            f'engines.weights={{type="transformers_local",model="{model}",dtype="{kit.dtype}",device="{kit.device}"}}',
            f'reward={{type="{root / "kit_reward.py"}:varied"}}',
            # Updates so large that old weights on the server would show.
            f"training.learning_rate={1e-2 if kit.model else 1e-1}",
            *("training.warmup_steps=1", "agent.policy.sampling.temperature=2.0", "agent.max_turns=2"),
            *("training.weights=weights", "learner.lora={rank=16}", "learner.threads=1", "tasks.regions=1"),
            *("training.steps=3", "training.tasks_per_step=4", "training.group_size=4", "training.minibatches=1"),
            *("evaluation.at=none", "evaluation.sets=[]"),
        ]
        words = [word for one in settings for word in ("--set", one)]
        done = subprocess.run(
            [sys.executable, "-m", "midstream", "train", "text-tiny", "--out", str(root / "run"), *words],
            env={**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
            timeout=max(1.0, deadline - time.monotonic()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"midstream train ended with {done.returncode}: {done.stdout[-2000:]}")
        run = RunDirectory.open(root / "run")
        steps, adapters = run.metrics.read(), len([*(run.root / "adapters").glob("version-*")])
    losses, norms, gaps, kls = ([getattr(one, f) for one in steps] for f in ("loss", "grad_norm", "logprob_gap", "kl"))
    found: Found = {"model": kit.model or "that of midstream-worlds", "dtype": kit.dtype, "adapters kept": adapters}
    found |= {"versions": [one.policy_version for one in steps], "rows": [one.rows for one in steps]}
    found |= {"losses": losses, "gradient norms": norms, "gaps": gaps, "KL": kls, "bound": GAP_BOUNDS[kit.dtype]}
    bad = unusable(losses, norms) + [f"the gap is {gap}" for gap in gaps if not gap <= found["bound"]]
    changes = zip(gaps[1:], kls[1:], strict=True)
    bad += [f"a gap of {gap} at a KL of {kl}" for gap, kl in changes if not gap <= math.sqrt(2 * kl) / 4]
    bad += [f"{one.trajectories_error} trajectories failed" for one in steps if one.trajectories_error]
    if found["versions"] != [0, 1, 2] or adapters < 2:
        bad.append("not every step had a hand-over")
    return found, bad


def vllm_program() -> Path | None:
    """The program `vllm` of this Python's environment or of MIDSTREAM_VLLM_PYTHON's."""
    places = [Path(one).parent / "vllm" for one in (os.environ.get("MIDSTREAM_VLLM_PYTHON"), sys.executable) if one]
    return next((one for one in places if one.is_file()), None)


def update_speed(kit: Kit, deadline: float) -> tuple[Found, Bad]:
    """Seconds of the peers over midstream's: above 1, midstream is faster."""
    large, small = SETUPS
    cases = [(small, "base"), (small, "static-2000"), (large, "base")]
    found: Found = {}
    bad: Bad = []
    for setup, shape in cases[::2] if kit.tiny else cases:
        if time.monotonic() > deadline:
            found[f"{setup.name}, {shape}"] = "no time was left"
            continue
        given = argparse.Namespace(device=kit.device, tiny=kit.tiny, shapes=[shape], rounds=2)
        [(named, taken)] = run_peers(setup, given)[0].items()
        seconds = {peer: one.wall_s if kit.device == "cuda" else one.cpu_s for peer, one in taken.items()}
        own = seconds.pop("midstream")
        case: Found = {"midstream, s": own} | {f"{peer} / midstream": one / own for peer, one in seconds.items()}
        case |= {f"{peer}, peak GB": one.process_mb / 1e3 for peer, one in taken.items()}
        apart = [one.difference for one in taken.values()]
        found[f"{setup.name}, {named}"] = case | {"gradients differ by": apart}
        bad += [f"a gradient differs by {one}" for one in apart if not one <= PEERS_BOUND]
        free()
    return found | ({} if importlib.util.find_spec("trl") else {"TRL": f"skipped: {TRL_MISSING}"}), bad


def sampling(kit: Kit, deadline: float) -> tuple[Found, Bad]:
    """Sampled tokens a second of the engine in process."""
    model, tokenizer = kit.load()
    engine = TransformersLocal(model, tokenizer)
    # Every reply has its whole length.
    engine.codec.end_ids = ()
    clients, rounds, short, long = (8, 2, 4, 32) if kit.tiny else (32, 3, 32, 256)
    waves = [
        [replace(one, sampling=Sampling(max_tokens=short if (i + n) % 8 else long)) for i, one in enumerate(wave)]
        for n, wave in enumerate(made_up(clients, rounds, 1, 1))
    ]
    tokens = sum(one.sampling.max_tokens for wave in waves for one in wave)
    # Whatever is made once.
    asyncio.run(continuously(engine, made_up(2, 1, 8, 8), 0.0))
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "waves": lambda: in_waves(engine, waves, 0.0),
        "continuous": lambda: asyncio.run(continuously(engine, waves, 0.0)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(3):
        if repeat and time.monotonic() > deadline:
            break
        for name in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
            taken[name].append(ways[name]()[0])
    found: Found = {"requests": clients * rounds, "tokens": tokens, "repeats": len(taken["waves"])}
    return found | {f"{name}, tokens / s": tokens / statistics.median(each) for name, each in taken.items()}, []


# With their budgets in seconds.
PARTS: Mapping[str, tuple[Callable[[Kit, float], tuple[Found, Bad]], int]] = {
    "exactness": (exactness, 90),
    "lora_in_process": (lora_in_process, 60),
    "served": (served, 200),
    "update_speed": (update_speed, 150),
    "sampling": (sampling, 90),
}


def run_part(name: str, kit: Kit, limit: float) -> Found:
    """What a part found, whether it passed, and its seconds; `limit` is when no more time is left for any part."""
    part, budget = PARTS[name]
    began = time.monotonic()
    if began > limit:
        return {"skipped": f"the {LIMIT_S} seconds of all parts had passed"}
    try:
        found, bad = part(kit, min(began + budget, limit))
        result: Found = {"passed": not bad, **({"wrong": bad} if bad else {}), **found}
    except Skipped as reason:
        result = {"skipped": str(reason)}
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - the other parts are to run
        result = {"passed": False, "wrong": [f"{type(failure).__name__}: {failure}"]}
    free()
    return result | {"seconds": time.monotonic() - began}


def free() -> None:
    """Give back the memory of what has ended."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def about(kit: Kit) -> Found:
    """The machine, the versions, the date and the command line."""
    cuda, program = kit.device == "cuda", vllm_program()
    code = "import importlib.metadata as m; print(m.version({!r}))"
    pythons: dict[str, str] = dict.fromkeys(("torch", "transformers", "peft", "trl", "vllm"), sys.executable)
    if program:
        pythons["vllm"] = str(program.parent / "python")
    return {
        "command": shlex.join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": torch.cuda.get_device_name() if cuda else "CPU",
        "driver": printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else None,
        "python": platform.python_version(),
        **{name: printed(python, "-c", code.format(name)) for name, python in pythons.items()},
    }


def printed(*command: str) -> str | None:
    """What a command prints; None if it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def table(results: Found) -> str:
    """A Markdown table of everything recorded."""
    lines = ["| part | what | value |", "|---|---|---|"]

    def add(part: str, what: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                add(part, f"{what}: {name}" if what else name, one)
            return
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        lines.append(f"| {part} | {what} | {' '.join(shown.split()).replace('|', '/')} |")

    for name, found in {"about": results["about"], **results["parts"]}.items():
        add(name, "", found)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy models and toy batches")
    parser.add_argument("--model", help="the directory of a model of about 0.5B parameters")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=_writable, default=Path("gpu-results.json"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the results in FILE, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text(encoding="utf-8"))))
        return 0
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; --device cpu --tiny runs the code without one")
    kit = Kit(arguments.device, arguments.tiny, arguments.model)
    results: Found = {"about": about(kit), "parts": {}}
    limit = time.monotonic() + LIMIT_S
    for name in arguments.only:
        print(f"{name} ...", flush=True)
        written = json.dumps(run_part(name, kit, limit))
        # Four digits of each number; an infinite one, which JSON lacks, is text.
        found = json.loads(written, parse_float=lambda text: float(f"{float(text):.4g}"), parse_constant=str)
        results["parts"][name] = found
        print(f"{name}: {'skipped' if 'skipped' in found else 'passed' if found['passed'] else 'FAILED'}", flush=True)
        # After each part, so that a killed run leaves what it has.
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\n{table(results)}\n\nwritten to {arguments.out}")
    return int(any(one.get("passed") is False for one in results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
