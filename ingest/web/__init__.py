"""What listens."""
