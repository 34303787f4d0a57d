"""An environment for Gymnasium whose observations and actions are texts, and that does what its agent says."""

import os
import subprocess
import sys
import time

import gymnasium
from gymnasium.spaces import Text


class Words(gymnasium.Env):
    """Words.

    ## Description
    Say a word.

    ## Internals
    Nothing for players.
    """

    observation_space = Text(100)
    action_space = Text(10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"Say a word ({self.np_random.integers(1000)}).", {}

    def step(self, action):
        sys.stdout.write("noise\n")
        match action:
            case "raise":
                raise ValueError("no such word")
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(1000)
            case "nan":
                return action, float("nan"), True, False, {}
            case "read":
                return sys.stdin.read() or "nothing", 0.0, False, False, {}
            case "child":
                child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                return str(child.pid), 0.0, False, False, {}
        return action, 0.5, action == "stop", False, {}


gymnasium.register("Words-v0", Words, max_episode_steps=3)
