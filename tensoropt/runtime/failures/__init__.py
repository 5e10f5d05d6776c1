"""End all ranks together: errors, signals, waits without an end, and memory limits, each in one sentence."""
