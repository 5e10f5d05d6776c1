"""Start ranks: hosts and slots, mpirun and its options, and starts whose processes don't see each other."""
