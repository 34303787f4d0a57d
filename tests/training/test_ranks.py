"""The learner over several ranks: what it computes is what one process computes, and checkpoints fit any number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.tree import tree_of
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.training.learner import LocalLearner
from midstream.training.ranks import shares
from midstream.training.settings import LearnerConfig, LoraConfig
from support import ranked
from support.errors import raises
from support.exact import LOSS, model_of, ragged_rows
from support.shared import made_once

TESTS = Path(__file__).parents[1]
JOINED = "text-tiny"  # its model can be divided


def run_ranks(
    counts: Iterable[int], out: Path, one: Path, cases: Iterable[str] = ranked.CASES, recipe: str = ""
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}
    environment["MIDSTREAM_RANKED_RECIPE"] = recipe
    command = [sys.executable, ranked.__file__, out, one, ",".join(map(str, counts)), *cases]
    subprocess.run(command, check=True, env=environment, timeout=900)


FIRST = next(iter(ranked.CASES))
WHICH = {"one case on two ranks": ((1, 2), (FIRST,)), "all": ((1, 2, 3), tuple(ranked.CASES))}
ALL = pytest.mark.parametrize("results", [pytest.param("all", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """By number of ranks, the directory with what they computed."""
    counts, cases = WHICH[request.param]

    def compute(root: Path) -> None:
        run_ranks(counts, root, root / "1", cases, JOINED if request.param != "all" else "")

    root = made_once(tmp_path_factory, f"ranks of {request.param}", compute)
    return {count: root / str(count) for count in counts}


def read(results: dict[int, Path], ranks: int, case: str) -> dict[str, Any]:
    return torch.load(results[ranks] / case / "result.pt", weights_only=False)


def flat(rows: list[tuple[float, ...]]) -> list[float]:
    return [value for row in rows for value in row]


@pytest.mark.parametrize(
    ("results", "ranks", "case"),
    [
        ("one case on two ranks", 2, FIRST),
        *(pytest.param("all", *one, marks=pytest.mark.slow) for one in product((2, 3), ranked.CASES)),
    ],
    indirect=["results"],
)
class TestAsOneProcess:
    def test_gradients_from_the_same_weights(self, results, ranks, case):
        one, several = read(results, 1, case), read(results, ranks, case)
        assert one["gradients"].keys() == several["gradients"].keys()
        for name, gradient in one["gradients"].items():
            assert (gradient - several["gradients"][name]).abs().max() < 1e-6, name
        assert several["norm"] == pytest.approx(one["norm"], rel=1e-5)

    def test_losses_over_ten_steps(self, results, ranks, case):
        one, several = read(results, 1, case), read(results, ranks, case)
        assert len(several["steps"]) == ranked.STEPS
        for (loss, _), (expected, _) in zip(several["steps"], one["steps"], strict=True):
            assert abs(loss - expected) < 1e-5

    def test_sums_of_all_rows(self, results, ranks, case):
        for name in ("stats", "few", "none"):
            one, several = asdict(read(results, 1, case)[name]), asdict(read(results, ranks, case)[name])
            unique = several.pop("unique_tokens"), one.pop("unique_tokens")
            assert unique[0] >= unique[1]  # a prefix on two ranks counts on both
            assert several == pytest.approx(one, rel=1e-4, abs=1e-6)

    def test_log_probabilities_in_the_order_of_the_rows(self, results, ranks, case):
        one, several = read(results, 1, case), read(results, ranks, case)
        for name in ("logprobs", "reference", "rebased"):
            assert flat(several[name]) == pytest.approx(flat(one[name]), abs=2e-5)

    def test_supervised_steps(self, results, ranks, case):
        one, several = read(results, 1, case), read(results, ranks, case)
        assert several["supervised"] == pytest.approx(one["supervised"], rel=1e-5)

    def test_a_checkpoint_of_ranks_loads_in_one_process(self, results, ranks, case):
        several = read(results, ranks, case)
        learner = ranked.learner_of(case)
        learner.load(results[ranks] / case)
        rows = ragged_rows(99)
        assert learner.forward_backward(rows, LOSS).loss == pytest.approx(several["restored"].loss, abs=1e-6)
        moments = [state["step"].item() for state in learner.optimizer.state_dict()["state"].values()]
        assert set(moments) == {ranked.STEPS}

    def test_the_exported_weights_are_those_of_one_process(self, results, ranks, case):
        name = "adapter_model.safetensors" if "lora" in case else "model.safetensors"
        one, several = (load_file(results[count] / case / "exported" / name) for count in (1, ranks))
        assert one.keys() == several.keys()
        assert max((one[key] - several[key]).abs().max().item() for key in one) < 1e-4


@pytest.mark.parametrize("results", ["one case on two ranks"], indirect=True)
class TestJoined:
    """The ranks as torchrun starts them: each but rank 0 serves until that one ends, or until another is lost."""

    def read(self, results, name):
        return json.loads((results[1].parent / f"{name}.json").read_text())

    def test_the_other_rank_does_what_rank_0_announces(self, results):
        *losses, code = self.read(results, "whole")
        with Build(load_recipe(JOINED, ["learner.threads=1"])) as build:
            assert losses == pytest.approx([*ranked.losses(build.policy.learner)], abs=1e-5)
        assert code == "empty-prompt"
        assert self.read(results, "exits")["whole"] == [0, 0]

    def test_the_others_end_where_one_is_lost(self, results):
        first, code = self.read(results, "lost")
        assert first == pytest.approx(self.read(results, "whole")[0], abs=1e-5)
        assert code == "rank-lost"
        assert self.read(results, "exits")["lost"] == [0, 1, ranked.LOST]


@ALL
def test_a_checkpoint_of_two_ranks_resumes_on_three(results, tmp_path):
    run_ranks([3], tmp_path, results[2])
    for case in ranked.CASES:
        two, three = read(results, 2, case), torch.load(tmp_path / "3" / case / "result.pt", weights_only=False)
        assert three["stats"].loss == pytest.approx(two["restored"].loss, abs=1e-6)


@ALL
@pytest.mark.parametrize("ranks", [2, 3])
def test_float32_masters_of_a_bfloat16_model(results, ranks):
    one, several = (read(results, count, "masters")["steps"] for count in (1, ranks))
    assert [loss for loss, _ in several] == pytest.approx([loss for loss, _ in one], abs=0.01)
    weights, expected = (load_file(results[count] / "masters/exported/model.safetensors") for count in (ranks, 1))
    assert weights.keys() == expected.keys()
    start = model_of("llama", dtype=torch.bfloat16, double_norm=False).state_dict()
    for name, tensor in weights.items():
        assert tensor.dtype == torch.bfloat16
        moved, off = (start[name] - expected[name]).float(), (tensor - expected[name]).float()
        assert off.abs().mean() < 0.5 * moved.abs().mean()  # passes in bfloat16 are summed in another order


@pytest.mark.parametrize("results", ["one case on two ranks"], indirect=True)
class TestMastersOfAnotherNumberOfRanks:
    """All float32 bits of a bfloat16 model's training are kept."""

    def test_of_one_process_on_two(self, results):
        one, two = (read(results, count, "masters") for count in (1, 2))
        assert all(map(torch.equal, two["loaded"], one["saved"]))
        assert any((each != each.bfloat16()).any() for each in one["saved"])
        assert two["moments"] == {"step", "exp_avg", "exp_avg_sq"}
        assert two["next"] == pytest.approx(one["next"], abs=0.01)

    @pytest.mark.parametrize("offload", [False, True])
    def test_of_two_ranks_in_one_process(self, results, offload):
        two = read(results, 2, "masters")
        config = LearnerConfig(attention="dense", chunk_tokens=60, offload=offload)
        learner = ranked.learner_with(config, torch.bfloat16)
        learner.load(results[2] / "masters")
        assert all(map(torch.equal, ranked.trained(learner), two["saved"]))
        for weights, kept in zip(learner.parameters, two["saved"], strict=True):
            assert torch.equal(weights, kept.bfloat16())
        assert {state["step"].item() for state in learner.optimizer.state.values()} == {len(two["steps"])}
        learner.forward_backward(ragged_rows(4), LOSS)
        learner.optimizer_step(1e-3)


class TestShares:
    def cost(self) -> Cost:
        return Cost.of(model_of("llama", dtype=torch.float32, double_norm=False))

    @pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
    @pytest.mark.parametrize("shared", [True, False])
    def test_every_row_is_on_one_rank(self, ranks, shared):
        rows = ragged_rows()
        found = shares(rows, ranks, self.cost(), shared=shared)
        assert len(found) == ranks
        assert sorted(place for places in found for place in places) == list(range(len(rows)))

    def test_no_other_cut_of_the_trie_has_a_lesser_worst_share(self):
        rows, cost = ragged_rows(), self.cost()
        sequences = [row.prompt_ids + row.completion_ids for row in rows]
        order = sorted(range(len(rows)), key=lambda i: sequences[i])

        def work(places: list[int]) -> int:
            tree = tree_of([sequences[i] for i in places])
            return tree.unique * cost.token + tree.pairs * cost.pair

        # Where predicted tokens cost nothing, a share's work is that of its trie.
        free = Cost(token=cost.token, pair=cost.pair, predicted=0, call=0, vocabulary=cost.vocabulary)
        worst = max(work(places) for places in shares(rows, 2, free, shared=True) if places)
        assert worst == min(max(work(order[:cut]), work(order[cut:])) for cut in range(1, len(order)))

    def test_few_rows(self):
        assert shares([], 3, self.cost(), shared=True) == [[], [], []]
        assert sorted(map(len, shares(ragged_rows()[:1], 3, self.cost(), shared=True))) == [0, 0, 1]


@ALL
def test_other_adapters_do_not_fit(results):
    model = model_of("llama", dtype=torch.float32, double_norm=False)
    learner = LocalLearner(model, LearnerConfig(lora=LoraConfig(rank=2, alpha=8)))
    with raises("checkpoint-unfit"):
        learner.load(results[2] / "lora-dense")
