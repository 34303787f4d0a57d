"""The papers' analyses as scripts on `midstream.api`: `python -m studies.NAME`, see studies/README.md."""
