"""Inspect's own runner, for comparisons: the score of every sample, as JSON.

python inspect_own_runner.py TASK ARGUMENTS BASE_URL SANDBOX SCORE
"""

import json
import sys
import tempfile

from inspect_ai import eval
from inspect_ai.model import get_model
from inspect_ai.scorer import value_to_float

task, arguments, base_url, sandbox, chosen = sys.argv[1:]
model = get_model("openai-api/own/m", base_url=base_url, api_key="none")
[log] = eval(
    task,
    task_args=json.loads(arguments),
    model=model,
    epochs=1,
    display="none",
    log_dir=tempfile.mkdtemp(),
    sandbox=sandbox or None,
    max_connections=8,
)
assert log.status == "success", log.error
values = {}
for sample in log.samples or []:
    name, _, key = chosen.partition(".")
    score = (sample.scores or {})[name] if name else next(iter((sample.scores or {}).values()))
    values[str(sample.id)] = value_to_float()(score.value[key] if key else score.value)
sys.stdout.write("RESULT" + json.dumps(values))
