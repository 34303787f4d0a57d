"""What the studies share: a job that ended is kept, whatever becomes of the study."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from studies.common import Job, results

from midstream.core.data import Frozen


class Seed(Frozen):
    """The result of a job."""

    seed: str


def seed_of(job: Job) -> Seed:
    """The first job fails once the second has ended."""
    other = job.root / "second"
    if job.overrides == ("seed=0",):
        while not other.exists():
            time.sleep(0.01)
        raise RuntimeError("the study is interrupted")
    other.touch()
    return Seed(seed=job.overrides[0])


def only_the_first(job: Job) -> Seed:
    """Makes what is missing."""
    assert job.overrides == ("seed=0",)
    return Seed(seed=job.overrides[0])


@pytest.mark.slow
def test_a_job_that_ended_is_kept_when_one_before_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    jobs = [Job(recipe="lessons-simulated", overrides=(f"seed={seed}",), root=tmp_path) for seed in range(2)]
    with pytest.raises(RuntimeError):
        results(jobs, seed_of, Seed, print, "jobs")
    assert [job.path.exists() for job in jobs] == [False, True]
    assert results(jobs, only_the_first, Seed, print, "jobs") == [Seed(seed="seed=0"), Seed(seed="seed=1")]
