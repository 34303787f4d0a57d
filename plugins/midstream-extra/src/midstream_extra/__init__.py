"""What not every user of midstream runs: plans for GPUs, transcripts for a search simulator, traces of trajectories."""
