"""Conversations with tools of BFCL and tau-bench: task sources whose state a run changes, from data of the user."""
