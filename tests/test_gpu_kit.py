"""The GPU kit runs on a CPU: every part, a stand-in for vLLM included, and what it records of parts that fail."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu_kit
from gpu_kit import Kit, Skipped

# peft asks transformers by a name that is being retired.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
KIT = Kit("cpu", tiny=True)
# What starts as `vllm serve MODEL --port PORT ...`: the test server, with the model's own tokens.
STAND_IN = f"""#!{sys.executable}
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from support import llm_server
from support.served_model import ServedModel

class Any(ServedModel):
    def __call__(self, body):
        with self._lock:
            return self._plan(body)

llm_server._Handler.do_GET = lambda self: self._send(200, b"{{}}")
model = Any(sys.argv[2])
with llm_server.LLMServer(model, port=int(sys.argv[sys.argv.index("--port") + 1])) as server:
    model.adapters = server.adapters
    while True:
        time.sleep(1)
"""


def soon():
    return time.monotonic() + 300


def a_part(result):
    def part(kit, deadline):
        if isinstance(result, BaseException):
            raise result
        return result

    return part, 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_back_ends_are_compared_with_padded_rows(dtype, monkeypatch):
    """In half precision the bound is that of rounding, as on a GPU."""
    monkeypatch.setattr(Kit, "dtype", dtype)
    found, bad = gpu_kit.exactness(KIT, soon())
    assert not bad
    assert found["chosen"] == "cascade"
    bounds = found["bounds of log-probabilities and gradient"]
    assert all(0 < bound < 0.05 for bound in bounds)
    for name in ("dense", "gather", "cascade"):
        assert all(0 < one < bound for one, bound in zip(found[name], bounds, strict=True))


@pytest.mark.slow
def test_a_wrong_gradient_is_found(monkeypatch):
    computed = gpu_kit.computed

    def wrong(learner, rows):
        logprobs, gradient = computed(learner, rows)
        factor = 1.01 if learner.attention.backend == "gather" else 1.0
        return logprobs, {name: factor * one for name, one in gradient.items()}

    monkeypatch.setattr(gpu_kit, "computed", wrong)
    bad = gpu_kit.exactness(KIT, soon())[1]
    assert [line.partition(":")[0] for line in bad] == ["gather"]


def test_a_back_end_without_time_is_no_pass():
    _, bad = gpu_kit.exactness(KIT, 0.0)
    assert bad == ["dense: no time was left"]


@pytest.mark.slow
def test_distances_that_are_no_numbers_are_no_pass(monkeypatch):
    monkeypatch.setattr(gpu_kit, "distances", lambda one, other: [float("nan"), 0.0])
    assert len(gpu_kit.exactness(KIT, soon())[1]) == 3


def test_lora_learns_in_process_within_the_estimate():
    found, bad = gpu_kit.lora_in_process(KIT, soon())
    assert not bad
    assert found["losses"][-1] < found["losses"][0]
    assert found["peak, GB"] < found["estimate, GB"]
    assert gpu_kit.unusable([1.0, float("nan")], [0.0, 1.0]) == ["the loss is nan", "the gradient's norm is 0.0"]


def test_both_ways_of_sampling_are_measured():
    found, bad = gpu_kit.sampling(KIT, 0.0)
    assert not bad
    assert (found["requests"], found["tokens"], found["repeats"]) == (16, 2 * 32 + 14 * 4, 1)
    assert all(found[f"{way}, tokens / s"] > 0 for way in ("waves", "continuous"))


@pytest.mark.slow
def test_peers_of_the_update_are_measured(monkeypatch):
    found, bad = gpu_kit.update_speed(KIT, soon())
    assert not bad
    monkeypatch.setattr(gpu_kit, "PEERS_BOUND", 1e-9)
    assert len(gpu_kit.update_speed(KIT, soon())[1]) >= 2
    assert found["7B, LoRA, toy"]["padding-free / midstream"] > 0
    assert gpu_kit.update_speed(KIT, 0.0)[0]["1.5B, full, base"] == "no time was left"


@pytest.mark.slow
@pytest.mark.parametrize("stale", [False, True])
def test_adapters_are_handed_to_a_server_that_the_run_starts(stale, tmp_path, monkeypatch):
    """A stand-in that samples as vLLM does, from the adapter that a request names, or always from the base model."""
    (tmp_path / "vllm").write_text(STAND_IN.replace("model.adapters =", "nothing =") if stale else STAND_IN)
    (tmp_path / "vllm").chmod(0o755)
    monkeypatch.setenv("MIDSTREAM_VLLM_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # As in bfloat16: of the two bounds the relative one is to find it.
    monkeypatch.setitem(gpu_kit.GAP_BOUNDS, "float32", 1.0)
    found, bad = gpu_kit.served(KIT, soon())
    assert (found["versions"], found["adapters kept"]) == ([0, 1, 2], 2)
    assert [line.partition(" of ")[0] for line in bad] == (["a gap", "a gap"] if stale else [])
    assert (max(found["gaps"]) < 1e-4) is not stale


def test_without_vllm_it_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("MIDSTREAM_VLLM_PYTHON", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Skipped, match="no program vllm"):
        gpu_kit.served(KIT, soon())


def test_parts_run_after_one_that_fails_and_the_exit_code_is_1(tmp_path, monkeypatch, capsys):
    parts = {
        "broken": a_part(ValueError("no | such\nthing")), "ends": a_part(SystemExit("TRL is not there")),
        "wrong": a_part(({"value": float("inf")}, ["too large"])), "absent": a_part(Skipped("no server")),
        "right": a_part(({"speed": {"a / b": 1.23456, "list": [1, 2.0]}}, [])),
    }  # fmt: skip
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(gpu_kit, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["gpu_kit.py", "--device", "cpu", "--out", str(out)])
    assert gpu_kit.main() == 1
    results = json.loads(out.read_text())
    found = results["parts"]
    assert [one.get("passed") for one in found.values()] == [False, False, False, None, True]
    assert found["wrong"]["value"] == "Infinity"
    assert found["absent"]["skipped"] == "no server"
    assert all("seconds" in one for one in found.values())
    assert results["about"]["torch"] == torch.__version__
    assert results["about"]["command"] == f"gpu_kit.py --device cpu --out {out}"
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["gpu_kit.py", "--table", str(out)])
    assert gpu_kit.main() == 0
    table = capsys.readouterr().out
    assert "| right | speed: a / b | 1.235 |" in table
    assert "| broken | wrong | ValueError: no / such thing |" in table
    assert {line.count("|") for line in table.splitlines()} == {4}


def test_parts_without_a_failure_exit_with_0(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_kit, "PARTS", {"absent": a_part(Skipped("no server")), "right": a_part(({}, []))})
    monkeypatch.setattr(sys, "argv", ["gpu_kit.py", "--device", "cpu", "--out", str(tmp_path / "gpu.json")])
    assert gpu_kit.main() == 0


def test_a_part_that_begins_too_late_is_skipped():
    assert "had passed" in gpu_kit.run_part("sampling", KIT, 0.0)["skipped"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_kit.py"])
    with pytest.raises(SystemExit, match="2"):
        gpu_kit.main()
    assert "PyTorch sees no GPU here" in capsys.readouterr().err
