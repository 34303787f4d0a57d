from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest


@pytest.fixture
def file_size_limit() -> Callable[[int], AbstractContextManager[None]]:
    """A real write failure: no file of this process may grow past so many bytes inside the context."""
    resource = pytest.importorskip("resource")

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # Python ignores the signal that comes with it
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
