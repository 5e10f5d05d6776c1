"""Batches on their way to the ranks: each rank's share, checks, and how far a fit has come."""
