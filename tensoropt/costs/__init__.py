"""Memory and time of operators and reshardings."""
