"""A recipe as verl's settings: what each becomes, what is refused and why, and how Hydra's words are written."""

import json
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.errors import UnsupportedError
from midstream.recipe.overrides import changed_recipe
from midstream.training.settings import TrainingConfig
from midstream_verl.verl_config import learning_rate, refuse, settings, words
from support.errors import coded


def recipe(*overrides, name="text-tiny"):
    return changed_recipe(name, learner="verl", overrides=["training.decay_steps=0", *overrides])


def verl(*overrides, model="/models/planner"):
    return settings(recipe(*overrides), Path("/runs/mine"), model)


def test_a_recipe_as_settings_of_verl():
    found = verl("learner.nodes=2", "learner.gpus_per_node=8", "learner.tensor_parallel=4", "learner.context=4096")
    expected = {
        "trainer.v1.trainer_mode": "midstream",
        "trainer.nnodes": 2,
        "trainer.n_gpus_per_node": 8,
        "trainer.total_training_steps": 60,
        "trainer.save_freq": 10,
        "data.train_batch_size": 16,
        "actor_rollout_ref.model.path": "/models/planner",
        "actor_rollout_ref.actor.optim.lr": 2.5e-4,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 5,
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.98],
        "actor_rollout_ref.actor.kl_loss_coef": 0.01,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 6000,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
        "actor_rollout_ref.rollout.max_model_len": 4096,
        "++ray_kwargs.ray_init.runtime_env.env_vars.MIDSTREAM_RUN": "/runs/mine",
    }
    assert {name: found[name] for name in expected} == expected


def test_without_a_kl_term_verl_needs_no_reference_policy():
    assert verl("training.loss.kl_coefficient=0")["actor_rollout_ref.actor.use_kl_loss"] is False


def test_a_row_always_fits_into_a_micro_batch():
    found = verl("learner.chunk_tokens=100", "learner.context=2048")
    assert found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == 2048


def test_offload_and_masters_are_those_of_verl():
    found = settings(
        changed_recipe(
            "agentflow-7b", learner="verl",
            overrides=["learner.offload=true", "engines.policy.dtype=bfloat16"],
        ),
        Path("/runs/mine"),
        "Qwen/Qwen2.5-7B-Instruct",
    )  # fmt: skip
    actor = "actor_rollout_ref.actor.fsdp_config."
    assert (found[actor + "model_dtype"], found[actor + "dtype"]) == ("fp32", "bfloat16")
    assert found[actor + "optimizer_offload"] is True
    assert found["actor_rollout_ref.ref.fsdp_config.param_offload"] is True


def test_settings_of_verl_win_and_may_be_nested():
    found = verl('learner.verl={"trainer.save_freq" = 3, actor_rollout_ref = {rollout = {name = "sglang"}}}')
    assert found["++trainer.save_freq"] == 3
    assert found["++actor_rollout_ref.rollout.name"] == "sglang"
    assert not {"trainer.save_freq", "actor_rollout_ref.rollout.name"} & found.keys()


@pytest.mark.parametrize(
    ("overrides", "name", "what"),
    [
        (["training.decay_steps=15"], "text-tiny", "training.decay_steps = 15"),
        (["training.resample_uniform=2"], "text-tiny", "resample_uniform"),
        (["training.loss.surrogate=gspo"], "text-tiny", "gspo"),
        (["training.loss.entropy_coefficient=0.01"], "text-tiny", "entropy_coefficient = 0.01"),
        (["learner.attention=dense"], "text-tiny", "learner.attention = 'dense'"),
        (["learner.lora={rank = 4}"], "text-tiny", "[learner.lora]"),
        (["training.algorithm=supervised"], "text-tiny", "supervised"),
        (["budget.rollouts=10"], "text-tiny", "[budget]"),
        ([], "flow-grpo-tiny", "[warm_start]"),
        (["training.weights=policy"], "text-tiny", "training.weights"),
        ([], "direct", "trains no weights"),
        ([], "lessons-simulated", "trains no weights"),
    ],
)
def test_what_verl_cannot_do_is_refused_with_the_reason(overrides, name, what):
    of_training = ("training.decay_steps=0",) if name.startswith(("text", "flow")) else ()
    chosen = changed_recipe(name, learner="verl", overrides=[*of_training, *overrides])
    with pytest.raises(UnsupportedError, check=coded("cluster-unsupported", what)) as refused:
        refuse(chosen)
    assert refused.value.cause
    assert refused.value.fix


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (None, "null"), (3, "3"), (2.5e-4, "0.00025"), ("a,b=c", '"a,b=c"'), ('"', '"\\""'),
        ([0.9, "x"], '[0.9,"x"]'), ({"a": {"b": [1]}}, "{a:{b:[1]}}"),
    ],
)  # fmt: skip
def test_words_as_hydra_reads_them(value, text):
    assert words({"key": value}) == [f"key={text}"]


def test_the_learning_rate_is_that_of_verls_schedule():
    config = TrainingConfig(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(config, step) for step in range(1, 7)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert learning_rate(TrainingConfig(learning_rate=1.0, warmup_steps=1), 1) == 1.0


def test_a_dry_run_prints_verls_settings(capsys):
    from midstream.cli.main import main

    assert main(["train", "text-tiny", "--learner", "verl", "--dry-run", "--set", "training.decay_steps=0"]) == 0
    shown = capsys.readouterr().out
    assert "actor_rollout_ref.rollout.n=1" in shown


def test_train_without_verl_says_how_to_install_it(tmp_path, capsys):
    from midstream.cli.main import main

    arguments = ["train", "text-tiny", "--learner", "verl", "--set", "training.decay_steps=0"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert "pip install" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_table_is_written_and_read_back():
    chosen = recipe('learner.verl={"trainer.save_freq" = 3}')
    assert json.loads(json.dumps(chosen.table()))["learner"]["verl"] == {"trainer.save_freq": 3}


def test_a_dry_run_shows_no_memory_of_verls_devices(capsys):
    for more, here in ((["--nproc", "8"], True), (["--learner", "verl"], False)):
        assert main(["train", "agentflow-7b", "--dry-run", *more]) == 0
        printed = capsys.readouterr().out
        assert ("Memory of engine policy" in printed) is here
        assert ("that of one process" in printed) is here
