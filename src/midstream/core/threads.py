"""Run a function in a new thread; find out whether a thread runs an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_event_loop() -> bool:
    """Return whether this thread runs an event loop, as a notebook does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, called in a daemon thread with this context.

    asyncio's pool has few threads, in which calls would queue, and the program could not end before they do.
    """
    return await asyncio.wrap_future(start_thread(work, "own"))


def start_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work` in a daemon thread with this context; return its future."""
    done: Future[T] = Future()
    # A caller that stops waiting cannot cancel it then, so the thread can set it.
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except StopIteration as error:
            # No future can hold this exception.
            done.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001 - the caller gets every exception, SystemExit too
            done.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=[run], name=name, daemon=True).start()
    return done
