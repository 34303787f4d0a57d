"""Weight space: rollouts become gradient steps (needs the extra `train`)."""
