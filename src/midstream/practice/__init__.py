"""Context space: a frozen model whose agent becomes better by the lessons in its prompts.

Source: Training-Free GRPO, arXiv 2510.08191. `session.py` is the one path; docs/training-free.md tells it in words.
"""
