"""In place of verl's `main_ppo`: ends as FAKE_VERL says, before or after it leaves weights."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["MIDSTREAM_RUN"])
SETTINGS = dict(word.split("=", 1) for word in sys.argv[1:])


def main() -> None:
    """Do it."""
    sys.stdout.write("verl was here\n")
    match os.environ["FAKE_VERL"]:
        case "fails":
            sys.exit(3)
        case "refuses":
            record = {"kind": "TrainingError", "what": "nothing finished", "code": "all-rollouts-failed"}
            (ROOT / "verl" / "error.json").write_text(json.dumps({**record, "cause": "the tool", "fix": "fix it"}))
            sys.exit(1)
        case "waits":
            (ROOT / "waiting").touch()
            time.sleep(600)
        case "trains":
            step = SETTINGS["trainer.total_training_steps"]
            to = ROOT / "verl" / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
            shutil.copytree(json.loads(SETTINGS["actor_rollout_ref.model.path"]), to)


main()
