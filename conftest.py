"""Fixtures of several packages' tests: a ten-step recipe that trains in two seconds, and one finished run of it.

A case whose call takes over 2 CPU-seconds fails unless it is marked `slow`. At the end of a session this file prints
the dearest cases, and what was skipped, why, and the command that runs it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.shared import made_once

# Tests of pytest fixtures (plugins/midstream-ci); pytest wants it in the root's file.
pytest_plugins = ["pytester"]

# The same examples every time: what passes here passes there. `make test-all` sets HYPOTHESIS_PROFILE=thorough.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Hundreds of cases start a Python, which would compile midstream again where the environment forbids to write bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: results are compared bit for bit
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the network for a model
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A piece of the reason for a skip, and the command after which these tests run. Reasons that are not here concern other
# operating systems, or hold their command themselves.
ENABLED_BY = {
    "bubblewrap": "apt-get install bubblewrap",
    "chromium": "apt-get install chromium",
    "openssl": "apt-get install openssl",
    "linux-libc-dev": "apt-get install linux-libc-dev",
    "setpriv": "run as root, with setpriv (util-linux) and a Python of this version in /usr/bin or /usr/local/bin",
    "run as an ordinary user already": "run as root",
    "an ordinary user cannot read": "put the clone and its .venv where every user may read, e.g. under /opt",
    "make test-node": "make test-node",
    "npm": "apt-get install npm",
    "vLLM": "make test-vllm",
    "needs verl": "make test-verl",
    "library of environments": "make test-environments",
    "make test-tinker": "make test-tinker",
    "agent frameworks": "make test-agents",
    "MIDSTREAM_DOCKER_IMAGE": "MIDSTREAM_DOCKER_IMAGE=python:3.12-slim make test",
    "MIDSTREAM_TAU_BENCH": "git clone https://github.com/sierra-research/tau-bench, "
    "then MIDSTREAM_TAU_BENCH=<the clone> make test",
    "bfcl_eval": "make test",
    "BFCL's data": "make test",
    "the training extra": "pip install -e '.[train]'",
    "could not import": "pip install -e '.[train,dev]'",
    "transformers[serving]": "pip install -e '.[train,dev]'",
}

# CPU-seconds of a case's call, in this process and in children that have ended. Wall time varies with what else runs.
BUDGET_S = 2.0
LOOP_S = 0.09  # what `_loop_s` takes on the machine on which the budget was chosen, with nothing else on it
DEAREST = 20
LIBRARY = 100  # modules
BEGAN = pytest.StashKey[float]()


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _loop_s() -> float:
    """The CPU-seconds of a fixed loop, on this machine as busy as it is now."""
    start = _cpu_s()
    sum(number * number for number in range(1_000_000))
    return _cpu_s() - start


@pytest.hookimpl(optionalhook=True)  # three environments have no xdist
def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers again as there are CPUs: a third of a run's time is spent waiting."""
    return 3 * len(os.sched_getaffinity(0)) // 2 if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a case that is over the budget and not marked `slow`. Fixtures, shared by many, don't count."""
    start, modules = _cpu_s(), len(sys.modules)
    outcome = yield
    spent = _cpu_s() - start
    measured = item.config.option.markexpr == "not slow"
    # Nor does the first import of a library such as PyTorch.
    if (
        measured
        and len(sys.modules) - modules < LIBRARY
        and spent > BUDGET_S
        and spent > (limit := BUDGET_S * max(1.0, _loop_s() / LOOP_S))
    ):
        pytest.fail(f"{spent:.1f} CPU-seconds, over {limit:.1f}: make the case smaller, or mark it slow", pytrace=False)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep when a case began, for its reports."""
    item.stash[BEGAN] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Give each report the CPU-seconds of its phase; xdist carries them to the process that prints."""
    report = yield
    report.cpu_s, item.stash[BEGAN] = (now := _cpu_s()) - item.stash[BEGAN], now
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a matrix slow, except as many as its mark says, evenly spaced."""
    matrices: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("matrix"):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in matrices.values():
        [count] = cases[0].get_closest_marker("matrix").args  # type: ignore[union-attr]
        kept = {place * len(cases) // count for place in range(count)}
        for place, item in enumerate(cases):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and cases out of garbage collections, which would walk through them thousands of times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the dearest cases, and the skipped ones by reason: how many, why, and the command after which they run."""
    reports = [one for some in terminalreporter.stats.values() for one in some if hasattr(one, "cpu_s")]
    terminalreporter.section(f"{DEAREST} dearest of {sum(one.cpu_s for one in reports):.0f} CPU-seconds", sep="-")
    for report in sorted(reports, key=lambda one: -one.cpu_s)[:DEAREST]:
        terminalreporter.write_line(f"{report.cpu_s:7.2f} {report.when:8} {report.nodeid}")
    # With xdist each worker reports a file that is skipped as a whole, so reports count once by their id.
    reasons = {
        report.nodeid: str(report.longrepr[-1]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple | list)
    }
    slow_left_out = config.option.markexpr == "not slow"
    if reasons or slow_left_out:
        terminalreporter.section("not run", sep="-")
    for reason, count in Counter(reasons.values()).most_common():
        first, *more = reason.splitlines() or [""]
        fixes = [line.partition("fix: ")[2] for line in more if "fix: " in line]
        commands = fixes + [command for piece, command in ENABLED_BY.items() if piece in reason]
        terminalreporter.write_line(f"{count:5}  {first}")
        terminalreporter.write_line(f"       to run them: {commands[0] if commands else 'a machine that has this'}")
    if slow_left_out:
        terminalreporter.write_line(" slow  whole matrices, real time-outs, long trainings")
        terminalreporter.write_line("       to run them: make test-all")


# Small, and yet some questions are answered and some are not: a run without any gradient would compare equal to all.
TEN_STEPS = """
extends = "flow-grpo-tiny"
name = "ten-steps"
seed = 3

[tasks]
type = "gazetteer"
families = ["arith", "lookup"]
countries = 40

[engines.policy]
type = "tiny"
hidden_size = 32
layers = 1
max_positions = 128

[warm_start]
transcripts = 200
steps = 120
batch_size = 32
learning_rate = 2e-2
min_copy_rate = 0.0
policy = { sense = 1.0, malformed = 0.0 }

[training]
steps = 10
tasks_per_step = 4
group_size = 4
checkpoint_every = 2
validate_every = 5
uniform_kl_fraction = 0.5
decay_steps = 4

[evaluation]
temperatures = [1.0, 0.0]
validation = { name = "validation", split = "validation", per_family = 3, seed = 7 }

[[evaluation.sets]]
name = "test"
split = "test"
per_family = 3
seed = 99
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Undo what a run in this process does: it sets the threads of its recipe, on which bits depend."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ten_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ten-step recipe's file."""

    def write(directory: Path) -> None:
        (directory / "ten-steps.toml").write_text(TEN_STEPS, encoding="utf-8")

    return made_once(tmp_path_factory, "recipes", write) / "ten-steps.toml"


@pytest.fixture(scope="session")
def finished_run(ten_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of the ten-step recipe, trained without an interruption. Read it; don't change it."""
    from midstream.cli.main import main

    def train(directory: Path) -> None:
        assert main(["train", str(ten_steps), "--out", str(directory / "whole"), "--quiet"]) == 0

    return made_once(tmp_path_factory, "runs", train) / "whole"


@pytest.fixture
def make_build(ten_steps: Path) -> Callable[..., Any]:
    """`make_build("a.b=c", ...)` wires the ten-step recipe with overrides, without a warm start."""
    from midstream.recipe.build import Build
    from midstream.recipe.schema import load_recipe

    def make(*overrides: str) -> Build:
        return Build(load_recipe(str(ten_steps), overrides))

    return make


@pytest.fixture
def tiny_model() -> Callable[..., tuple[Any, Any]]:
    """`tiny_model()` gives (model, tokenizer) of a small random planner; equal arguments give equal weights."""

    def make(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
        from midstream_worlds.tiny_model import TinyModelConfig, make_model, make_tokenizer

        names = ["Amberbank", "Oakfell", "Mistdale"]
        tokenizer = make_tokenizer(["How", "high", "is", "?", "goal", "find", "height", "plus", "+"], names)
        settings = {"hidden_size": 32, "layers": 2, "heads": 4, "max_positions": 64, **sizes}
        return make_model(TinyModelConfig(**settings), tokenizer, len(names), seed), tokenizer

    return make
