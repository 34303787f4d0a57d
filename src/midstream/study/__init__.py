"""Studies: runs over several seeds, compared with intervals.

Runs already finished in the study's directory are read, not repeated; one that was interrupted goes on.
"""

from __future__ import annotations

import argparse

from midstream.study.agents import study_agents
from midstream.study.controls import study_controls
from midstream.study.gate import study_gate
from midstream.study.library import study_library
from midstream.study.planner import study_planner

STUDIES = {
    "controls": (study_controls, "flow-grpo-tiny"),
    "planner": (study_planner, "flow-grpo-tiny"),
    "agents": (study_agents, "flow-grpo-tiny"),
    "library": (study_library, "training-free-domains"),
    "gate": (study_gate, "training-free-simulated"),
}


def run_study(options: argparse.Namespace) -> int:
    """`midstream study controls|planner|agents|library|gate`."""
    study, recipe = STUDIES[options.name]
    options.out = options.out or f"runs/study-{options.name}"
    options.recipe = options.recipe or recipe
    return study(options)
