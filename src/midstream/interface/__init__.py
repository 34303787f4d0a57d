"""The Python interface: agents, tasks and runs as objects, and the functions that work on them.

Every function makes the table of a recipe from its arguments and calls `midstream.api`, as the command line does: runs,
numbers and errors are the same.
"""
