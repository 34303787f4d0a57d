"""Replies to the prompts of `real.py` by vLLM, in the Python of its own environment: JSON on standard input and output.

Input: `directory`, `prompts`, `group`, `max_tokens`, `positions`. The engine runs in this process: its CPU time counts.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def main() -> None:
    """Load, answer once so that nothing is compiled later, then measure."""
    from vllm import LLM, SamplingParams

    asked = json.loads(sys.stdin.read())
    positions = max(1024, asked["positions"])
    llm = LLM(asked["directory"], dtype="float32", max_model_len=positions, enable_prefix_caching=True)
    llm.generate(["warm"] * asked["group"], SamplingParams(max_tokens=4), use_tqdm=False)
    params = SamplingParams(n=asked["group"], temperature=1.0, max_tokens=asked["max_tokens"], seed=0)
    started = time.process_time()
    answers = llm.generate(asked["prompts"], params, use_tqdm=False)
    spent = time.process_time() - started
    sampled = sum(len(reply.token_ids) for answer in answers for reply in answer.outputs)
    lengths = [len(answer.prompt_token_ids or ()) for answer in answers]
    print(json.dumps({"sampled": sampled, "rollout_cpu_s": spent, "lengths": lengths}))


if __name__ == "__main__":
    main()
