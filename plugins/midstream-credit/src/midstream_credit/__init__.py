"""Credit by turn and branching rollouts: GiGPO, returns of each call, forks at uncertain turns."""
