"""Numbered SQL, forward only, one folder per engine; `ingest migrate` applies it."""
