"""Processes are killed, frozen and stopped at the worst instants; what is left is checked against what the API served."""
