"""An offline world of made-up graphs: questions whose plans take one to eight turns, and tools that compete."""
