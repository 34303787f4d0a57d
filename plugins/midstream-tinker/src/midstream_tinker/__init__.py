"""Training on a Tinker server: it holds the model, samples from it, computes passes and updates a LoRA adapter.

settings.py  the engine's and the learner's settings, and what `--learner tinker` makes of a recipe
engine.py    samples on the server
learner.py   midstream's loss through the server's passes
"""
