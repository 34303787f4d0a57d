"""Make atlas.safetensors of the engine `tiny_text`, the weights that come with midstream-worlds:

    midstream train text-start --out runs/text-start
    python scripts/text_weights.py runs/text-start [--check]

They are the run's policy in float16. The same machine gives the same bytes. With `--check` the file is compared, and a
difference exits with 1.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import safetensors.torch
from transformers import AutoModelForCausalLM

from midstream.runs import RunDirectory
from midstream_worlds.tiny_text.model import ATLAS_WEIGHTS


def main() -> int:
    """Write the file or, with `--check`, compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a finished run of text-start")
    parser.add_argument("--check", action="store_true", help="compare alone; exit with 1 if the file differs")
    options = parser.parse_args()
    policy = AutoModelForCausalLM.from_pretrained(RunDirectory.open(options.run).policy_dir)
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / ATLAS_WEIGHTS.name
        safetensors.torch.save_model(policy.half(), str(made))
        if not options.check:
            shutil.copyfile(made, ATLAS_WEIGHTS)
        elif made.read_bytes() != ATLAS_WEIGHTS.read_bytes():
            print(f"{ATLAS_WEIGHTS}: {options.run} has other weights ({made.stat().st_size:,} bytes)")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
