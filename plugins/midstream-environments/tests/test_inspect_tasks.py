"""What midstream makes of a task of Inspect, without Inspect."""

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from midstream_environments.inspect_tasks import InspectCases, InspectConfig


def cases(splits, texts):
    """The source of such samples."""
    config = InspectConfig(task="a/b", splits=splits)
    rows = [{"case": str(n), "question": f"{text} [{n}]", "asked": text, "answer": "1"} for n, text in enumerate(texts)]
    return InspectCases(SimpleNamespace(config=config, key="inspect-1", call=lambda name: rows), config.splits)


def test_samples_are_a_test_set():
    source = cases({"test": 1.0}, [f"q{n}" for n in range(20)])
    assert [task.question for task in source.tasks("test")] == [f"q{n} [{n}]" for n in range(20)]


def test_with_shares_samples_that_ask_the_same_are_in_one_split():
    source = cases({"train": 0.5, "test": 0.5}, [f"q{n % 50}" for n in range(100)])
    found = {split: {task.question.split()[0] for task in source.tasks(split)} for split in source.splits}
    assert len(set.union(*found.values())) == 50
    assert sum(map(len, found.values())) == 50
    # A tenth of training is validation.
    assert 15 < len(found["test"]) < 35


def test_shares_add_up_to_one():
    with pytest.raises(ValidationError, match=r"add up to 0\.7, not to 1"):
        InspectConfig(task="a/b", splits={"train": 0.5, "test": 0.2})


def test_the_adapter_gets_its_own_settings():
    settings = InspectConfig(task="a/b", splits={"test": 1.0}).adapter_settings
    assert settings == {"task": "a/b", "arguments": {}, "roles": {}, "score": "", "sandbox": "none"}
