"""Measure the hardware of a run: collectives, operators, and whether other work disturbs."""
