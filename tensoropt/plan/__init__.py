"""Plans, frontiers and scaling curves: values that are stored as files, read, drawn and explained."""
