"""The format `verl` of `midstream export`: a row for each task, which verl reads."""

from __future__ import annotations

import pytest

from midstream import api, exports
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from midstream_verl.tasks import VERL
from support.spoken import ASKED, agent, spoken, spoken_run


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The format is there also where the package was installed without it."""
    monkeypatch.setattr(exports, "formats", lambda: {"verl": VERL})


def test_verl_has_a_row_for_each_task_with_the_mean_reward_of_its_runs(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run = RunDirectory.create(tmp_path / "run", collect_info("mine", 3, agent("mine")), "")
    dialogue = spoken("t9", 1.0).model_copy(update={"gold": None})
    run.trajectories.write(1, [spoken("t1", 1.0), spoken("t1", 0.0), spoken("t2", 0.5), dialogue])
    done = api.export(run, "verl", tmp_path / "tasks.parquet")
    assert (done.rows, done.left_out) == (2, {"without a row": 1})
    first, second = parquet.read_table(done.path).to_pylist()
    assert first["prompt"] == [{"role": "user", "content": ASKED[1].content}]
    assert (first["data_source"], first["ability"]) == ("midstream/mine", "add")
    assert first["reward_model"] == {"style": "rule", "ground_truth": "112"}
    assert (first["extra_info"]["attempts"], first["extra_info"]["reward_mean"]) == (2, 0.5)
    assert (second["extra_info"]["index"], second["extra_info"]["split"]) == (1, "train")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_verl_reads_its_tasks(tmp_path):
    reason = "verl is not installed\nfix: pip install verl (its package needs ray, tensordict and hydra)"
    rl_dataset = pytest.importorskip("verl.utils.dataset.rl_dataset", reason=reason, exc_type=ImportError)
    omegaconf = pytest.importorskip("omegaconf")
    from support.small_tokenizers import CHATML, byte_pairs

    path = tmp_path / "tasks.parquet"
    api.export(spoken_run(tmp_path / "run"), "verl", path)
    config = omegaconf.OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": 1})
    rows = rl_dataset.RLHFDataset(str(path), byte_pairs(CHATML), config)
    batch = rl_dataset.collate_fn([rows[0], rows[1]])
    assert [model["ground_truth"] for model in batch["reward_model"]] == ["112", "112"]
    assert list(batch["raw_prompt"][0]) == [{"role": "user", "content": ASKED[1].content}]
