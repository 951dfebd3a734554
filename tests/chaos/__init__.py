"""Processes are killed, frozen and stopped at the worst instants; what is left is held against what was served."""
