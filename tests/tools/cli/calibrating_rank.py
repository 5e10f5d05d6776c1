"""One rank of a script that lets init() find its hardware; rank 0 prints where that came from.

Usage: calibrating_rank.py
"""

import tensoropt

session = tensoropt.init(seed=1)
if session.processes.rank == 0:
    origin = session.hardware.measured
    print("rates of", ", ".join(session.hardware.operators) or "nothing", "complete", origin.is_complete)
