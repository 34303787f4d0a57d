"""What not every user of midstream runs: traces of trajectories."""
