"""Context space: a frozen model whose agent becomes better by the lessons in its prompts.

Source: Training-Free GRPO, arXiv 2510.08191. Start reading at `session.py`; docs/lessons.md explains it.
"""
