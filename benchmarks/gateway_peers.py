"""A peer's proxy for benchmarks/gateway.py, run by the Python of an environment that has the peer.

    python benchmarks/gateway_peers.py agent-lightning UPSTREAM      # pip install agentlightning
    python benchmarks/gateway_peers.py litellm UPSTREAM              # pip install 'litellm[proxy]'

Prints the address for clients, then, for each line of its input, the CPU seconds that its process has taken.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

MODEL = "policy"


async def agent_lightning(models: list[dict], port: int) -> str:
    """Its LLM proxy in a thread, as `LLMProxy` is made by default, with a store in memory."""
    from agentlightning.llm_proxy import LLMProxy  # type: ignore[import-not-found]
    from agentlightning.store import InMemoryLightningStore  # type: ignore[import-not-found]

    store = InMemoryLightningStore(thread_safe=True)
    rollout = await store.start_rollout(input={})
    await LLMProxy(port=port, model_list=models, store=store, launch_mode="thread").start()
    return f"http://127.0.0.1:{port}/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1"


def litellm(models: list[dict], port: int) -> str:
    """LiteLLM's proxy in a thread, with no settings but the model."""
    import uvicorn
    import yaml
    from litellm.proxy.proxy_server import app, save_worker_config  # type: ignore[import-not-found]

    config = Path(tempfile.mkdtemp(), "config.yaml")
    config.write_text(yaml.safe_dump({"model_list": models}))
    save_worker_config(config=str(config))
    threading.Thread(target=uvicorn.run, args=(app,), kwargs={"port": port, "log_level": "error"}, daemon=True).start()
    return f"http://127.0.0.1:{port}/v1"


def main() -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is fetched
    os.environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # as in front of a training's own agents
    peer, upstream = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr  # peers print
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"}
    models = [{"model_name": MODEL, "litellm_params": served}]
    url = litellm(models, port) if peer == "litellm" else asyncio.run(agent_lightning(models, port))
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    else:
        raise SystemExit(f"{peer} does not answer")
    print(url, file=out, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), file=out, flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of the peer may never end
