"""A training run over several processes: `--nproc` starts them with torchrun, and each joins the others.

Rank 0 has the session, the run directory and the screen. The other ranks have a learner, which does what rank 0's
announces (`training/ranks.py`). On several nodes, start torchrun yourself: `torchrun --nnodes 2 --nproc-per-node 8 ...
-m midstream train RECIPE`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from midstream.core.errors import MidstreamError, TrainingError, UnsupportedError
from midstream.engines.local.settings import require_torch

if TYPE_CHECKING:
    from midstream.recipe.build import Build


_RANK_0_FIRST_S = 30.0  # how long rank 0 may take longer than another rank to find the same error
_PARENT_S = 0.5  # between two looks at the parent


def is_rank() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """This process among those of the run; 0 leads."""
    return int(os.environ["RANK"]) if is_rank() else 0


def leave_to_rank_0() -> None:
    """End this process if it is another rank: what follows is rank 0's alone."""
    if rank():
        sys.exit(0)


def end_with_parent() -> None:
    """End this process soon after torchrun, which cannot end it where it was killed itself.

    Rank 0 ends first: if another rank did, rank 0 would report it as lost, and the run as failed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_S)
        if rank():
            time.sleep(3 * _PARENT_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def report_after_rank_0() -> None:
    """In another rank, wait before an error is printed: where rank 0 ends with the same, torchrun ends this process."""
    if rank():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        time.sleep(_RANK_0_FIRST_S)


def launch(processes: int, words: Sequence[str]) -> int:
    """Run `midstream WORDS` in so many processes; returns the exit code of rank 0.

    Raises `TrainingError` if a process ended without a message of its own: by a signal, or in another rank.
    """
    require_torch()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The message here says what they log.
    for part in ("", ".agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic{part}").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "midstream", *words)
    except SignalException:
        return 130
    except ChildFailedError as error:
        failed, first = error.get_first_failure()
        # It has said why.
        if failed == 0 and first.exitcode > 0:
            return first.exitcode
        how = f"with exit code {first.exitcode}" if first.exitcode > 0 else f"by {first.signal_name()}"
        raise TrainingError(
            f"rank {failed} of {processes} ended {how}, and the others were stopped",
            code="rank-lost",
            cause="what it wrote above, or a kill: the kernel ends a process where memory runs out",
            fix=f"midstream resume RUN --nproc {processes}, from the last checkpoint",
        ) from None
    return 0


@contextmanager
def joined(build: Build) -> Iterator[None]:
    """Where torchrun started this process, join the other ranks and train with them.

    Rank 0 runs the block. No other does: its process serves rank 0, then exits.
    """
    if not is_rank():
        yield
        return
    recipe = build.recipe
    if recipe.training is None or recipe.learner.elsewhere:
        leave_to_rank_0()
        raise UnsupportedError(
            f"recipe {recipe.name!r} cannot use several processes",
            code="option-without-effect",
            cause="it trains no weights" if recipe.training is None else f"learner.type = {recipe.learner.type!r}",
            fix="leave out --nproc",
        )
    require_torch()
    import torch
    import torch.distributed as dist

    on_gpus = any(str(getattr(each.config, "device", "cpu")).startswith("cuda") for each in recipe.engines.values())
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    if rank():
        # Ctrl-C is rank 0's, which ends the others. Outside the main thread there are no signals to ignore.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        learner: Any = build.policy.learner
        try:
            learner.serve()
        except MidstreamError:
            # Another rank is lost; rank 0 and torchrun report it, torchrun the one that ended first.
            time.sleep(1)
            sys.exit(1)
        dist.destroy_process_group()
        sys.exit(0)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt("stopped together with the other processes of the run")

    with suppress(ValueError):
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except MidstreamError as error:
        if "learner" in vars(build.policy) and error.code != "rank-lost":
            build.policy.learner.announce("")  # type: ignore[attr-defined]
        raise
    finally:
        # Or it interrupts what cleans up as Python exits.
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    build.policy.learner.announce("")  # type: ignore[attr-defined]
    dist.destroy_process_group()
