"""The process that a run is in: its event loop, what stops it, its threads, its status when it ends."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any

from midstream.core.errors import BudgetError, MidstreamError, RefusedError, UsageError
from midstream.core.threads import in_event_loop
from midstream.engines.local.settings import require_torch
from midstream.recipe.build import Build
from midstream.recipe.schema import Recipe
from midstream.runs import RunDirectory

RunCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]


class Stop:
    """Stops work as Ctrl-C stops that of the main thread; call it from any thread, at any time."""

    def __init__(self) -> None:
        self._asked = ""  # by what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __call__(self, by: str = "Ctrl-C") -> None:
        """Stop the work, or refuse it if it has not begun."""
        self._asked = by
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def on_signal(self, *_: Any) -> None:
        """Handle SIGTERM: outside of a coroutine, and at the second one, the work ends at once."""
        if self._asked or self._task is None:
            raise KeyboardInterrupt("stopped by SIGTERM")
        self("SIGTERM")

    async def around(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of `coroutine`. Raises `KeyboardInterrupt` if it is stopped."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if self._asked:
                coroutine.close()
                raise KeyboardInterrupt(f"stopped by {self._asked}")
            return await coroutine
        except asyncio.CancelledError:
            if self._asked:
                raise KeyboardInterrupt(f"stopped by {self._asked}") from None
            raise
        finally:
            self._task = None


_stop: ContextVar[Stop | None] = ContextVar("stop", default=None)


@contextmanager
def stopped_by(stop: Stop) -> Iterator[None]:
    """Have `stop` end the work in this block."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


@contextmanager
def _stopped_by_sigterm(stop: Stop) -> Iterator[None]:
    """Have SIGTERM stop the work, unless the program around it handles that signal."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop.on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def event_loop(build: Build) -> Iterator[RunCoroutine]:
    """Yield a function that runs coroutines in one event loop, which also closes `build` at the end.

    Slow work that does not await (loading a model, reading a data set) belongs outside these coroutines: there Ctrl-C
    and SIGTERM take effect at once, inside only at the next await. Raises `UsageError` if this thread runs a loop.
    """
    if in_event_loop():
        raise UsageError(
            "this thread already runs an event loop, as a notebook does",
            code="event-loop-running",
            fix='call the function in a thread, e.g. await asyncio.to_thread(api.train, "mine.toml", "runs/mine")',
        )

    async def wait_for(tasks: Collection[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    use_threads(build.recipe, learns=False)
    stop = _stop.get() or Stop()
    with asyncio.Runner() as runner, _stopped_by_sigterm(stop):

        def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
            try:
                return runner.run(stop.around(coroutine))
            except BaseException:
                # Ctrl-C may leave tasks behind, which must not use what the caller closes next.
                left = asyncio.all_tasks(runner.get_loop())
                for task in left:
                    task.cancel()
                runner.run(wait_for(left))
                raise

        try:
            yield run
        finally:
            runner.run(build.close())


def use_threads(recipe: Recipe, *, learns: bool) -> None:
    """Set PyTorch's CPU threads where results depend on them: for a learner, and for newly made weights.

    A later run of this process gets its own number. The processes of `--nproc` share the cores.
    """
    tiny = any(getattr(engine.config, "tiny", False) for engine in recipe.engines.values())
    if learns or tiny:
        require_torch()
        import torch

        own = 1 if tiny else max(1, _all_threads() // int(os.environ.get("WORLD_SIZE", "1")))
        torch.set_num_threads(recipe.learner.threads or own)


@cache
def _all_threads() -> int:
    """Return PyTorch's own number of CPU threads, as it was before any run changed it."""
    import torch

    return torch.get_num_threads()


@contextmanager
def status_on_failure(run: RunDirectory) -> Iterator[None]:
    """Set the status of a run that starts, and of one that is interrupted or fails."""
    run.set_status("running")
    try:
        yield
    except KeyboardInterrupt as error:
        run.set_status("interrupted", str(error) or "stopped by Ctrl-C")
        error.add_note(f"stopped; resume with: midstream resume {shlex.quote(str(run.root))}")
        raise
    except BudgetError as error:
        run.set_status("interrupted", error.what)
        root = shlex.quote(str(run.root))
        fix = f"midstream resume {root} {error.fix}; what is done: midstream show {root}"
        raise BudgetError(error.what, code=error.code, cause=error.cause, fix=fix) from error
    except MidstreamError as error:
        run.set_status("failed", str(error))
        if isinstance(error, RefusedError):
            fix = f"{error.fix}; where no setting changes, then: midstream resume {shlex.quote(str(run.root))}"
            raise RefusedError(error.what, code=error.code, cause=error.cause, fix=fix) from error
        if error.code in ("all-rollouts-failed", "no-results"):
            own = ", or the same command with another --out if a component of your own changes" * bool(run.info().own)
            fix = f"{error.fix}; then: midstream resume {shlex.quote(str(run.root))}{own}"
            raise type(error)(error.what, code=error.code, cause=error.cause, fix=fix) from error
        raise
