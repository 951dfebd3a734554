"""Events go out: consumer groups read the log independently and write what they read somewhere else."""
