"""A Tinker server in little: the requests of the SDK, over HTTP, with torch on a small random model.

    with TinkerServer(model_directory) as server:
        TinkerConfig(model="tiny", base_url=server.url)

Written from the SDK's requests and answers; it adds up losses, as the hosted service documents. `division="rows"`
divides as SkyRL's JAX backend does, `"tokens"` in another way. With `faults`, that share of requests fails: refused
with 503 before they do anything, or done and then answered with 500 or with a connection that breaks. A repeated
request is recognized by its number; `applied` counts what was really done. `states` outlive a server.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
import socket
import threading
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
import uvicorn
from peft import LoraConfig, get_peft_model
from tinker.proto import tinker_public_pb2 as pb
from transformers import AutoModelForCausalLM

from midstream.gateway.http import serve

PROTO = "application/x-protobuf"


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Model:
    """One adapter with its optimizer."""

    def __init__(self, base: Any, rank: int, seed: int) -> None:
        self.rank, self.rows = rank, 0
        settings = LoraConfig(r=rank, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        with warnings.catch_warnings(), torch.random.fork_rng():
            torch.manual_seed(seed)
            warnings.simplefilter("ignore", FutureWarning)
            self.net: Any = get_peft_model(copy.deepcopy(base), settings).eval()
        self.parameters = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.parameters.values())

    def state(self) -> dict[str, Any]:
        weights = {name: p.detach().clone() for name, p in self.parameters.items()}
        return {"rank": self.rank, "weights": weights, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    def restore(self, state: dict[str, Any], *, optimizer: bool) -> None:
        with torch.no_grad():
            for name, value in state["weights"].items():
                self.parameters[name].copy_(value)
        if optimizer:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def logprobs(self, ids: list[int], targets: list[int]) -> torch.Tensor:
        logits = self.net(input_ids=torch.tensor([ids])).logits[0]
        return logits.log_softmax(-1).gather(1, torch.tensor(targets)[:, None])[:, 0]


class TinkerServer:
    """The server, in a thread; its address is `url`."""

    def __init__(
        self,
        directory: Any,
        *,
        division: str = "sum",
        clips: bool = True,
        faults: float = 0.0,
        states: dict[str, Any] | None = None,
        refuse: int | None = None,
        port: int = 0,
    ) -> None:
        torch.set_num_threads(1)
        self.base = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.division, self.clips, self.faults, self.refuse = division, clips, faults, refuse
        self._port = port
        self.states = {} if states is None else states
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.known: dict[Any, dict[str, Any]] = {}  # by the number of a request: its answer
        self.applied: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._random = random.Random(0)
        self._ids = itertools.count(1)
        self._prefix = f"{time.time_ns():x}"
        self._lock = threading.Lock()

    # -- the protocol -------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"].removeprefix("/api/v1/")
        self.requests[path] += 1
        fault = None
        if self._random.random() < self.faults and path != "telemetry":
            fault = self._random.choice(["refused", "lost", "broken"])
            self.failed[fault] += 1
        if fault == "refused":
            await self._answer(send, 503, b'{"detail": "overloaded"}')
            return
        try:
            if self.refuse is not None and path not in ("client/config", "client/dynamic_config", "telemetry"):
                raise Refused(self.refuse, "refused by the test")
            status, content, kind = 200, *self._handle(path, body)
        except Refused as error:
            status, content, kind = error.status, json.dumps({"detail": str(error)}).encode(), "application/json"
        if fault == "lost":
            status, content, kind = 500, b'{"detail": "lost"}', "application/json"
        # The SDK never closes the connection over which it asks for this.
        await self._answer(send, status, content, kind, broken=fault == "broken", close=path == "client/config")

    async def _answer(
        self,
        send: Any,
        status: int,
        content: bytes,
        kind: str = "application/json",
        *,
        broken: bool = False,
        close: bool = False,
    ) -> None:
        length = len(content) + (100 if broken else 0)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(length).encode())]
        if close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})  # too short, if broken: uvicorn closes it

    def _handle(self, path: str, body: bytes) -> tuple[bytes, str]:
        with self._lock:
            if path == "forward_backward":
                return json.dumps(self._forward_backward(body)).encode(), "application/json"
            request = json.loads(body) if body else {}
            if path == "retrieve_future":
                found = self.results.get(request["request_id"])
                if found is None:
                    raise Refused(404, "no such future")
                if isinstance(found, Exception):
                    raise Refused(400, str(found))
                return (found, PROTO) if isinstance(found, bytes) else (json.dumps(found).encode(), "application/json")
            handler = getattr(self, "_" + path.partition("/")[0], None)
            if handler is None:
                raise Refused(404, f"no such path {path}")
            return json.dumps(handler(request, path)).encode(), "application/json"

    def _once(self, key: Any, work: Any, **fields: Any) -> dict[str, Any]:
        """The promise of a request: its work is done when it first comes."""
        if key not in self.known:
            number = f"{self._prefix}-{next(self._ids)}"
            try:
                self.results[number] = work()
            except Refused as error:
                self.results[number] = error
            self.known[key] = {"request_id": number, "future_id": number, "status": "pending", **fields}
        return self.known[key]

    def _client(self, request: Any, path: str) -> Any:
        return {}

    def _telemetry(self, request: Any, path: str) -> Any:
        return {"status": "accepted"}

    def _create_session(self, request: Any, path: str) -> Any:
        return {"type": "create_session", "session_id": f"s{self._prefix}-{next(self._ids)}"}

    def _session_heartbeat(self, request: Any, path: str) -> Any:
        return {"type": "session_heartbeat"}

    def _create_sampling_session(self, request: Any, path: str) -> Any:
        name = f"sampler-{next(self._ids)}"
        self.samplers[name] = self.base
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def _samplers(self, request: Any, path: str) -> Any:
        return {"sampler_id": path.split("/")[1], "base_model": "tiny"}

    def _create_model(self, request: Any, path: str) -> Any:
        name = f"{request['session_id']}:train:{request['model_seq_id']}"

        def work() -> Any:
            self.models[name] = Model(
                self.base, request["lora_config"]["rank"], request["lora_config"].get("seed") or 0
            )
            return {"type": "create_model", "model_id": name}

        return self._once(("create", name), work, model_id=name)

    def _get_info(self, request: Any, path: str) -> Any:
        return {"model_data": {"model_name": "tiny"}, "model_id": request["model_id"], "is_lora": True}

    def _weights_info(self, request: Any, path: str) -> Any:
        state = self._state(request["tinker_path"])
        return {"base_model": "tiny", "is_lora": True, "lora_rank": state["rank"]}

    def _load_weights(self, request: Any, path: str) -> Any:
        name = request.get("model_id") or f"{request['session_id']}:train:{request['model_seq_id']}"

        def work() -> Any:
            state = self._state(request["path"])
            self.models.setdefault(name, Model(self.base, state["rank"], 0))
            self.models[name].restore(state, optimizer=request["optimizer"])
            return {"type": "load_weights", "model_id": name, "path": request["path"]}

        return self._once(("load", name), work)

    def _state(self, path: str) -> Any:
        if path not in self.states:
            raise Refused(404, f"there is no {path}")
        return self.states[path]

    # -- training -----------------------------------------------------------------------------------------------------

    def _forward_backward(self, body: bytes) -> Any:
        message = pb.ForwardBackwardRequest()
        message.ParseFromString(body)
        kind = "forward" if message.forward_only else "forward_backward"

        def work() -> Any:
            self.applied[kind] += 1
            return self._passes(self.models[message.model_id], message)

        return self._once((message.model_id, message.seq_id), work)

    def _passes(self, model: Model, message: Any) -> bytes:
        found, total = [], torch.zeros(())
        for datum in message.data:
            [chunk] = datum.model_input
            ids = np.frombuffer(chunk.encoded_text.tokens, dtype=np.int32).tolist()
            inputs = {
                name: np.frombuffer(t.dense, dtype=np.int64 if t.dtype == pb.DTYPE_INT64 else np.float32).copy()
                for name, t in datum.loss_fn_inputs.items()
            }
            logprobs = model.logprobs(ids, inputs.pop("target_tokens").tolist())
            found.append(logprobs.detach().numpy().astype(np.float32))
            total = total + self._loss(message, logprobs, {k: torch.from_numpy(v) for k, v in inputs.items()})
            model.rows += not message.forward_only
        if not message.forward_only:
            total.backward()
        output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        record = output.loss_fn_outputs.add()
        record.num_datums = len(found)
        record.fields["logprobs"].dtype = pb.DTYPE_FLOAT32
        record.fields["logprobs"].data = b"".join(each.tobytes() for each in found)
        offsets = np.cumsum([0, *(each.nbytes for each in found)]).astype(np.int64)
        record.fields["logprobs"].offsets = offsets.tobytes()
        return output.SerializeToString()

    def _loss(self, message: Any, logprobs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        weights = inputs.get("weights", torch.ones_like(logprobs))
        if message.loss_fn == "cross_entropy":
            losses = -logprobs * weights
        else:
            ratio, advantages = (logprobs - inputs["logprobs"]).exp(), inputs["advantages"]
            losses = -ratio * advantages
            if message.loss_fn == "ppo":
                clip = message.loss_fn_config
                clipped = ratio.clamp(clip["clip_low_threshold"], clip["clip_high_threshold"])
                losses = torch.maximum(losses, -clipped * advantages)
        if self.division == "rows":
            return losses.sum() / weights.sum().clamp(min=1e-9)
        return losses.sum() / len(logprobs) ** 0.5 if self.division == "tokens" else losses.sum()

    def _optim_step(self, request: Any, path: str) -> Any:
        model, adam = self.models[request["model_id"]], request["adam_params"]

        def work() -> Any:
            self.applied["optim_step"] += 1
            if self.division == "rows":
                for p in model.parameters.values():
                    if p.grad is not None:
                        p.grad /= max(1, model.rows)
            limit = adam.get("grad_clip_norm", 0.0) if self.clips else 0.0
            norm = torch.nn.utils.clip_grad_norm_(model.parameters.values(), limit or float("inf"))
            for group in model.optimizer.param_groups:
                group |= {
                    "lr": adam["learning_rate"], "betas": (adam["beta1"], adam["beta2"]), "eps": adam["eps"],
                    "weight_decay": adam["weight_decay"],
                }  # fmt: skip
            model.optimizer.step()
            model.optimizer.zero_grad()
            model.rows = 0
            return {"metrics": {"grad_norm": norm.item()}}

        return self._once((request["model_id"], request["seq_id"]), work)

    def _save_weights(self, request: Any, path: str) -> Any:
        name = f"tinker://{request['model_id']}/weights/{request['path']}"

        def work() -> Any:
            self.applied["save_weights"] += 1
            self.states[name] = self.models[request["model_id"]].state()
            return {"type": "save_weights", "path": name}

        return self._once((request["model_id"], request["seq_id"]), work)

    def _save_weights_for_sampler(self, request: Any, path: str) -> Any:
        def work() -> Any:
            self.applied["save_weights_for_sampler"] += 1
            sampler = f"sampler-{next(self._ids)}"
            self.samplers[sampler] = copy.deepcopy(self.models[request["model_id"]].net)
            answer = {"type": "save_weights_for_sampler"}
            if request.get("path"):
                return answer | {"path": f"tinker://{request['model_id']}/sampler_weights/{request['path']}"}
            return answer | {"sampling_session_id": sampler}

        return self._once((request["model_id"], request["seq_id"]), work)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def _asample(self, request: Any, path: str) -> Any:
        key = (request["sampling_session_id"], request["seq_id"])
        return self._once(key, lambda: self._sample(request), sample_sequence_ids=[str(key)])

    @torch.no_grad()
    def _sample(self, request: Any) -> bytes:
        self.applied["sample"] += 1
        net, wanted = self.samplers[request["sampling_session_id"]], request["sampling_params"]
        ids = [token for chunk in request["prompt"]["chunks"] for token in chunk["tokens"]]
        draw = torch.Generator().manual_seed(wanted["seed"])
        stops = [stop for stop in wanted["stop"] if isinstance(stop, int)]
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < wanted["max_tokens"] and not (tokens and tokens[-1] in stops):
            scores = net(input_ids=torch.tensor([ids + tokens])).logits[0, -1].log_softmax(-1)
            if wanted["temperature"]:
                chosen = torch.multinomial((scores / wanted["temperature"]).softmax(-1), 1, generator=draw).item()
            else:
                chosen = scores.argmax().item()
            tokens.append(int(chosen))
            logprobs.append(scores[int(chosen)].item())
        output = pb.SampleResponse()
        sequence = output.sequences.add()
        sequence.tokens = np.array(tokens, dtype=np.int32).tobytes()
        sequence.logprobs = np.array(logprobs, dtype=np.float32).tobytes()
        sequence.stop_reason = pb.STOP_REASON_STOP if tokens and tokens[-1] in stops else pb.STOP_REASON_LENGTH
        return output.SerializeToString()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> TinkerServer:
        config = uvicorn.Config(self, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)  # type: ignore[arg-type]
        self._server, listening = uvicorn.Server(config), socket.create_server(("127.0.0.1", self._port))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # It closes the SDK's connections, too: one that is left is an unclosed socket in a later test.
        self._thread = threading.Thread(target=asyncio.run, args=[serve(self._server, listening)], daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
