"""Train weights: rows, losses, learner, Flow-GRPO, supervised learning, and the session that runs them.

`losses` and `settings` need no torch; the other modules do.
"""
