"""What all work shares: its event loop or thread, what stops it, its build and budget, its status when it ends."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, get_args, get_type_hints

from midstream.components import own
from midstream.components.component import wrapper_config
from midstream.components.own import refuse_while_importing
from midstream.core.errors import BudgetError, MidstreamError, RecipeError, RefusedError, RunError
from midstream.core.events import AgentBuilt, Listener, Note, Work
from midstream.core.threads import in_event_loop, start_thread
from midstream.engines.local.settings import require_torch
from midstream.recipe.build import Build, sampling_notes, unset_keys
from midstream.recipe.check import wrappers_of
from midstream.recipe.inputs import check_inputs
from midstream.recipe.lessons import unproven
from midstream.recipe.schema import Recipe
from midstream.recipe.serving import served
from midstream.runs import EvaluationInfo, RunDirectory
from midstream.runs.budget import Budget, BudgetConfig
from midstream.trackers import Track

P = ParamSpec("P")
T = TypeVar("T")
Running: TypeAlias = Coroutine[Any, Any, T]
Place = str | os.PathLike[str]


class RunCoroutine(Protocol):
    """Runs a coroutine in the event loop of `event_loop`, and returns its result."""

    def __call__(self, coroutine: Running[T]) -> T:
        """Run it."""
        ...


class WorkOptions(TypedDict, total=False):
    """Arguments of all work; see `midstream.api`."""

    record: Place | None
    replay: Place | None
    cache: Place | None
    listener: Listener | None


class RunOptions(WorkOptions, total=False):
    """Arguments of work that leaves a run directory."""

    track: Track
    quiet: bool


class Stop:
    """Stops work as Ctrl-C stops that of the main thread; call it from any thread, at any time."""

    def __init__(self) -> None:
        self._asked = ""  # by what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None

    def __call__(self, by: str = "Ctrl-C") -> None:
        """Stop the work, or refuse it if it has not begun."""
        self._asked = by
        if self._loop is not None and self._task is not None:
            # The loop may have ended meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)

    @contextmanager
    def at_sigterm(self) -> Iterator[None]:
        """Have SIGTERM stop the work in the block, unless the program around it handles that signal.

        Outside of a coroutine, and at the second one, the work ends at once.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return

        def handle(*_: object) -> None:
            if self._asked or self._task is None:
                raise KeyboardInterrupt("stopped by SIGTERM")
            self("SIGTERM")

        signal.signal(signal.SIGTERM, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    async def around(self, coroutine: Running[T]) -> T:
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


# What ends the work of this thread, besides Ctrl-C.
STOP: ContextVar[Stop | None] = ContextVar("stop", default=None)


def allow_event_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Let the function be called where an event loop runs, as in a notebook: it then runs in a new thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        _check_call(function, function.__name__, kwargs)
        if not in_event_loop():
            return function(*args, **kwargs)
        done, stop = _start(partial(function, *args, **kwargs))
        try:
            return done.result()
        except KeyboardInterrupt:
            stop()
            # It raises KeyboardInterrupt again, once the run is left in order.
            return done.result()

    return call


def make_async(function: Callable[P, T]) -> Callable[P, Running[T]]:
    """Return the form to await of a function with `allow_event_loop`."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        _check_call(function, call.__name__, kwargs)
        done, stop = _start(partial(function.__wrapped__, *args, **kwargs))  # type: ignore[attr-defined]
        result = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            stop()
            await asyncio.wait([result])
            # It is KeyboardInterrupt, or the run ended at this moment.
            result.exception()
            raise

    call.__name__ = call.__qualname__ = f"a{function.__name__}"
    call.__doc__ = f"`{function.__name__}`, awaited; cancelling it interrupts the run."
    return call


def _check_call(function: Callable[..., object], name: str, kwargs: Mapping[str, object]) -> None:
    """Raise `TypeError` for an argument that the function does not have."""
    refuse_while_importing(name)
    # Python itself takes any: what a TypedDict in a signature lists is for type checkers only.
    unknown = kwargs.keys() - signature(function).parameters
    if unknown and (options := get_type_hints(function).get("options")):
        unknown -= get_args(options)[0].__annotations__.keys()
    if unknown:
        raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")


def _start(function: Callable[[], T]) -> tuple[Future[T], Stop]:
    """Start the function in a thread; return its future, and the `Stop` that interrupts it."""
    stop = Stop()

    def work() -> T:
        # The thread has a context of its own.
        STOP.set(stop)
        return function()

    return start_thread(work, "midstream"), stop


@contextmanager
def event_loop(build: Build) -> Iterator[RunCoroutine]:
    """Yield a function that runs coroutines in one event loop, which also closes `build` at the end.

    Slow work that does not await (loading a model, reading a data set) belongs outside these coroutines: there Ctrl-C
    and SIGTERM take effect at once, inside only at the next await.
    """

    async def wait_for(tasks: Collection[asyncio.Task[object]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    use_threads(build.recipe, learns=False)
    stop = STOP.get() or Stop()
    with asyncio.Runner() as runner, stop.at_sigterm():

        def run(coroutine: Running[T]) -> T:
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
    except MidstreamError as error:
        spent = isinstance(error, BudgetError)
        run.set_status("interrupted" if spent else "failed", error.what if spent else str(error))
        root, fix = shlex.quote(str(run.root)), error.fix
        if spent:
            fix = f"midstream resume {root} {fix}; what is done: midstream show {root}"
        elif isinstance(error, RefusedError):
            fix += f"; where no setting changes, then: midstream resume {root}"
        elif error.code in ("all-rollouts-failed", "no-results"):
            own = ", or the same command with another --out if a component of your own changes" * bool(run.info().own)
            fix += f"; then: midstream resume {root}{own}"
        if fix == error.fix:
            raise
        raise type(error)(error.what, code=error.code, cause=error.cause, fix=fix) from error


# --- a run ------------------------------------------------------------------------------------------------------------


def build_for(recipe: Recipe, options: WorkOptions, **more: Any) -> Build:
    """The build of a run, with its budget; `more` are other arguments of `Build`."""
    places = {name: Path(place) if (place := options.get(name)) else None for name in ("record", "replay", "cache")}
    limits = recipe.budget or BudgetConfig()
    # Without limits requests are not counted; but what a lesson run used is on record, also without a limit.
    budget = Budget(limits) if limits.limits or recipe.lessons is not None else None
    return Build(recipe, **{"budget": budget, **places, **more})


@contextmanager
def running(work: Work, build: Build, listener: Listener) -> Iterator[RunCoroutine]:
    """The event loop of a build that needs no run's life: its keys are checked, and its servers run."""
    with event_loop(build) as run_coroutine:
        # Before servers start and weights are loaded, which takes time.
        announce(work, build, listener)
        require_keys(build)
        with served(build.recipe, listener):
            yield run_coroutine


@contextmanager
def open_budget(run: RunDirectory, budget: Budget | None) -> Iterator[None]:
    """Have `budget` count on from what the run has used before."""
    if budget is None:
        yield
        return
    budget.open(run.ledger_dir / "spent.jsonl")
    with closing(budget):
        yield


def begin_work(run: RunDirectory, build: Build, listener: Listener, asked: EvaluationInfo | None) -> None:
    """Check that a run's inputs are those that it began with, as `check_inputs`, and emit its first events.

    `asked` has the tasks and weights of an evaluation as they are now.
    """
    now = asked or EvaluationInfo()
    check_inputs(run, build, now.tasks, now.checkpoint)
    for path in dict.fromkeys(map(own.file_of, own.references(build.resolved))):
        if path is not None and path.is_relative_to(run.own_dir.resolve()):
            listener(Note(f"{path.name} is gone from its place; the run's copy is used: {path}"))
    announce(run.info().kind, build, listener)
    # Step 0 has the weights that the recipe begins with, which lessons may be proven for.
    check_proven(build, (now.checkpoint if now.step else None) or "", listener)


def load_weights(build: Build, run: RunDirectory, run_coroutine: RunCoroutine, *, step: int | None = None) -> int:
    """Have the planner of `build` sample from the run's checkpoint of `step`, or from its newest good one.

    `run_coroutine` is that of `event_loop(build)`. Returns the step of the checkpoint.
    """
    use_threads(build.recipe, learns=True)
    from midstream.training.session import load_policy

    found = None
    if step is None or step in run.checkpoints.steps():
        found = load_policy(build.policy.learner, run, max_step=step)
    # A damaged checkpoint is passed over for the one before: another step than the one that was asked for.
    if found is None or step not in (None, found):
        there = ", ".join(f"{run.root}@{saved}" for saved in run.checkpoints.steps())
        raise RunError(
            f"{run.root} has no checkpoint of step {step}",
            code="no-checkpoint",
            cause="a run keeps its newest checkpoints only",
            fix=f"evaluate one that is there, with another --out: {there or 'none'}",
        )
    run_coroutine(build.policy.publish(found))
    return found


def check_proven(build: Build, weights: str, listener: Listener) -> None:
    """Warn if no test has accepted the agent's lesson set; `weights` is the digest of its checkpoint, or ""."""
    lesson_set = build.resolved["agent"].get("lessons")
    if lesson_set is not None and (warning := unproven(lesson_set, build.resolved, weights)):
        listener(Note(warning))


def require_keys(build: Build) -> None:
    """Raise `RecipeError` if a hosted server that is asked wants a key that is not set."""
    for engine, variable in unset_keys(build).items():
        raise RecipeError(
            f"{variable} is not set: engines.{engine} asks {build.recipe.engines[engine].table()['base_url']}",
            code="key-not-set",
            fix=f"export {variable}=<your key>; or a model on this machine: --provider ollama --model NAME",
        )


def announce(work: Work, build: Build, listener: Listener) -> None:
    """Emit that the agent is built, and what to know about its prompt files."""
    replay = str(build.replay) if build.replay else ""
    listener(AgentBuilt(work=work, sandbox=build.sandbox_line, replay=replay, resolved=build.resolved))
    for where, wrapper in wrappers_of(build.recipe):
        if wrapper_config(wrapper).everywhere:
            listener(Note(f"{where} changes the tool in evaluations, too, and may know the gold answers"))
    for note in sampling_notes(build.recipe):
        listener(Note(note))
