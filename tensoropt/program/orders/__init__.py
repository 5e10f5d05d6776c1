"""Orders of the passes of a step in stages and micro-batches, and how long they take."""
