"""Evaluations that guard: requirements decided on intervals, JUnit files, summaries, a pytest fixture."""
