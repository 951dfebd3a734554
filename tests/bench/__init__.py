"""How fast it is: `make bench` runs the product beside what else does its work. No test suite runs this."""
