"""What the worlds of a tiny planner share: its language, the programs around it, the lessons that it can be taught."""
