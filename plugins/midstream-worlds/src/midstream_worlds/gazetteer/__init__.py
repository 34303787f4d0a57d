"""An offline world of places and facts, and the programs that plan, act and verify in it."""
