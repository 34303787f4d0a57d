"""The forms in which other programs' agents speak to midstream: three APIs, and models' own texts of tool calls."""
