"""Let a training survive: save it every so often, go on from the newest checkpoint, and start its ranks again."""
