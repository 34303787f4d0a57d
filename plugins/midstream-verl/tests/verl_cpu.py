"""verl without a GPU, for tests: a platform "cpu", FSDP2 on it, and token servers with transformers.

verl 0.9 loads this module in each of its processes (VERL_USE_EXTERNAL_MODULES). `OVERRIDES` are verl's settings for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

torch.set_num_threads(1)

OVERRIDES: dict[str, Any] = {
    "trainer.device": "cpu",
    "actor_rollout_ref.model.use_remove_padding": False,  # needs flash-attention
    "actor_rollout_ref.model.override_config.attn_implementation": "eager",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.ref.use_torch_compile": False,
    "actor_rollout_ref.rollout.name": "transformers_cpu",
    "actor_rollout_ref.rollout.load_format": "auto",
    "actor_rollout_ref.rollout.free_cache_engine": False,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "reward.num_workers": 1,
    "ray_kwargs.ray_init.address": "local",
    "ray_kwargs.ray_init.num_cpus": 24,
    "ray_kwargs.ray_init.num_gpus": 2,  # places for workers
    "ray_kwargs.ray_init.include_dashboard": False,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}

if os.environ.get("VERL_PLATFORM") == "cpu":
    import ray
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import PlatformRegistry

    def _nothing(*_: Any, **__: Any) -> None:
        return None

    def _zero(*_: Any, **__: Any) -> int:
        return 0

    _device = SimpleNamespace(
        **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")}
    )
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(_device, name, _zero)
    for name in ("empty_cache", "reset_peak_memory_stats", "set_device", "synchronize", "ipc_collect"):
        setattr(_device, name, _nothing)
    _device.mem_get_info = lambda *_: (8 << 30, 16 << 30)
    _device.get_rng_state, _device.set_rng_state = torch.get_rng_state, torch.set_rng_state
    _device.manual_seed = _device.manual_seed_all = torch.manual_seed
    _device.is_available, _device.current_device, _device.device_count = (lambda: True), (lambda: 0), (lambda: 1)
    _device.get_device_name = lambda *_: "CPU"
    _device.memory = SimpleNamespace(_set_allocator_settings=_nothing)

    @PlatformRegistry.register(platform="cpu")
    class _CPU(PlatformBase):
        device_name = vendor_name = "cpu"
        device_module = _device

        is_available = staticmethod(lambda: True)
        current_device = staticmethod(lambda: torch.device("cpu"))
        device_count = staticmethod(lambda: 1)
        set_device = synchronize = set_allocator_settings = staticmethod(_nothing)
        empty_cache = profiler_start = profiler_stop = cudart = staticmethod(_nothing)
        manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
        get_device_capability = staticmethod(lambda device=0: (None, None))
        communication_backend_name = staticmethod(lambda: "gloo")
        visible_devices_envvar = staticmethod(lambda: "CPU_VISIBLE")
        ray_resource_name = staticmethod(lambda: "GPU")
        ray_resource_options = staticmethod(lambda count: {"num_gpus": count})
        ray_noset_envvars = staticmethod(lambda: [])
        is_ipc_supported = staticmethod(lambda: False)

        @contextlib.contextmanager
        def nvtx_range(self, message: str) -> Iterator[None]:
            yield

    _init_process_group = dist.init_process_group

    def _on_gloo(backend: str | None = None, *positional: Any, **named: Any) -> Any:
        named.pop("device_id", None)
        return _init_process_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *positional, **named)

    dist.init_process_group = _on_gloo

    import verl.workers.engine.fsdp.transformer_impl as fsdp
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

    _offload = fsdp.CPUOffloadPolicy
    fsdp.CPUOffloadPolicy = lambda pin_memory=True: _offload(pin_memory=False)

    @EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])
    class _FSDP(fsdp.FSDPEngineWithLMHead):
        pass

    class _Server:
        """A token server: one request at a time, sampled with transformers."""

        def __init__(self, path: str) -> None:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            torch.set_num_threads(1)
            self.model = AutoModelForCausalLM.from_pretrained(path).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(path)
            self.step = 0

        async def generate(
            self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
        ) -> TokenOutput:
            ids, logprobs, temperature = [], [], float(sampling_params["temperature"])
            stops, cache, given = sampling_params.get("stop", []), None, torch.tensor([prompt_ids])
            with torch.no_grad():
                while len(ids) < sampling_params["max_tokens"]:
                    output = self.model(given, past_key_values=cache, use_cache=True)
                    cache = output.past_key_values
                    scores = torch.log_softmax(output.logits[0, -1].float() / (temperature or 1.0), -1)
                    token = int(torch.multinomial(scores.exp(), 1) if temperature else scores.argmax())
                    ids.append(token)
                    logprobs.append(scores[token].item())
                    given = torch.tensor([[token]])
                    if token == self.model.config.eos_token_id:
                        break
                    if stops and any(stop in self.tokenizer.decode(ids[-20:]) for stop in stops):
                        break
            extra = {"global_steps": self.step}
            return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields=extra)

        async def load(self, weights: dict[str, torch.Tensor], step: int) -> None:
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            assert not unexpected, unexpected
            assert set(missing) <= {"lm_head.weight"}, missing  # tied
            self.step = step

        async def nothing(self, *_: Any, **__: Any) -> None:
            return None

        wake_up = sleep = abort_all_requests = resume_generation = nothing
        clear_kv_cache = release_kv_cache = resume_kv_cache = nothing

    class _Replica(RolloutReplica):
        async def launch_servers(self) -> None:
            name = f"transformers_cpu_{self.replica_rank}"
            server = ray.remote(_Server).options(name=name, num_cpus=0).remote(self.model_config.path)
            await server.nothing.remote()
            self.servers, self._server_handle, self._server_address = [server], server, name

    RolloutReplicaRegistry.register("transformers_cpu", lambda: _Replica)

    class Adapter(BaseRollout):
        """Sends the weights of a worker to its server."""

        async def resume(self, tags: Any) -> None:
            return None

        async def release(self) -> None:
            return None

        async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
            state = {
                name: (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().cpu().clone()
                for name, weight in weights
            }
            server = ray.get_actor(f"transformers_cpu_{dist.get_rank()}")
            await server.load.remote(state, global_steps)

    _ROLLOUT_REGISTRY[("transformers_cpu", "async")] = "verl_cpu.Adapter"
