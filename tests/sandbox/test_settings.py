"""Limits that no worker could keep are refused before one is started."""

import pytest
from pydantic import ValidationError

from midstream.sandbox import code_runner
from midstream.sandbox.settings import CodeLimits

NUMBERS = ("workers", "timeout_s", "memory_mb", "disk_mb", "output_limit")
WRONG: list[dict[str, object]] = [
    *(
        {name: value}
        for name in ("workers", "timeout_s", "memory_mb", "disk_mb", "output_limit")
        for value in (0, 10**9)
    ),
    {"timeout_s": float("inf")},
    {"timeout_s": float("nan")},
    {"libraries": ("../x",)},
    {"libraries": ("os; x",)},
]


@pytest.mark.parametrize("limits", [CodeLimits, code_runner.CodeRunnerConfig])
@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_wrong_limits_are_refused(limits, settings):
    with pytest.raises(ValidationError, match=next(iter(settings))):
        limits(**settings)


def test_a_library_may_be_a_module_of_a_package():
    assert CodeLimits(libraries=("numpy.linalg",)).libraries == ("numpy.linalg",)
