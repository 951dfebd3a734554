"""The command as a user runs it, on real servers and real data."""
