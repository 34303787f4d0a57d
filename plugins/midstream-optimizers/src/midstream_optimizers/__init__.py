"""Proposers of changed texts: GEPA, few-shot examples, evolution, textual gradients."""
