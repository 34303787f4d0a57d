"""The update benchmark compares like with like: peers leave one gradient, and FLOPs are those that PyTorch counts."""

import argparse
import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from midstream.training.learner import LocalLearner
from midstream.training.settings import LearnerConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import update_gpu
from update_measure import add_options, measure
from update_peers import Midstream, PaddingFree, Unshared, attention, recorded
from update_shapes import Shape, Work, flops, make_model, make_rows, rows_work, trie_work

SMALL = Shape(static=40, question=7, memory=9, completion=6, group=2, turns=2)


@pytest.fixture(scope="module")
def model():
    return make_model("tiny")


@pytest.mark.matrix(1)
@pytest.mark.parametrize("which", ["gradient", "update"])
@pytest.mark.parametrize("shared", [True, False])
def test_padding_free_rows_leave_the_same_gradient(model, which, shared):
    model = copy.deepcopy(model)
    learner = LocalLearner(model, LearnerConfig())
    rows = recorded(learner, make_rows(replace(SMALL, shared=shared), 2000))
    peers = {"rows": PaddingFree(model, rows), "trie": Midstream(learner, rows)}
    taken = measure({name: getattr(peer, which) for name, peer in peers.items()}, model, 1, compared=2)
    assert taken["trie"].difference < 1e-5
    assert taken["trie"].loss == pytest.approx(taken["rows"].loss, abs=1e-6)


def test_a_wrong_gradient_shows(model):
    model = copy.deepcopy(model)
    rows = make_rows(SMALL, 2000)
    turns = {"all": PaddingFree(model, rows).gradient, "all but one": PaddingFree(model, rows[1:]).gradient}
    assert measure(turns, model, 1, compared=2)["all but one"].difference > 1e-2


def test_flops_are_those_that_torch_counts(model):
    model = copy.deepcopy(model)
    dense = Unshared(model, length=64, count=3, predicted=5)
    with attention(model, "eager"), FlopCounterMode(display=False) as counter:
        dense.gradient()
    everything = Work(dense.work.tokens, 3 * 64 * 64, dense.work.predicted)  # eager attention computes what it masks
    assert flops(everything, model) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_trie_takes_each_shared_token_once():
    rows = make_rows(SMALL, 2000)
    prompt, memory, tail, completion = 40 + 7, 9, 8, 6
    first, second = completion - 1, memory + tail + completion - 1  # a last token predicts nothing
    assert trie_work(rows).tokens == prompt + tail + 2 * (first + second)  # both rollouts begin with one prompt
    assert trie_work(rows).predicted == 4 * completion - 1  # whose last token predicts for both
    assert rows_work(rows).tokens == 4 * (prompt + tail + completion - 1) + 2 * memory
    assert rows_work(rows).predicted == 4 * completion


@pytest.mark.parametrize("options", [["--rounds", "0"], ["--rounds", "-1"], ["--json", "/no/such/place/x.json"]])
def test_what_would_fail_after_hours_is_refused_at_once(options, capsys):
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(options)
    assert options[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("card", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 NVL", 835e12)]
)
def test_cards_of_one_family_have_their_own_peaks(card, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: card)
    assert update_gpu.peak("cuda") == peak


@pytest.mark.slow
def test_the_offload_benchmark_compares_with_the_dry_runs_formula(model):
    """Each setting steps, and its formula is that of the model it measures."""
    lines = update_gpu.offload_table(argparse.Namespace(device="cpu", tiny=True))
    assert [line.split(" | ")[1] for line in lines[2:]] == ["False", "True"]
    weights, *_ = update_gpu.memory_parts(model, LearnerConfig())
    assert weights.bytes == 2 * sum(parameter.numel() for parameter in model.parameters())
