"""This process and those beside it: imports, output, progress, locks, workers, and what watches over it."""
