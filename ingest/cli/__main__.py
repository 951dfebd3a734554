"""`python -m ingest.cli` is `ingest`."""

from ingest.cli import main

main()
