"""What is to be done again and again: when it is due, and what becomes of the times at which it was not done."""
