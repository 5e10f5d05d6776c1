"""Turn a user's model (recorded, traced, or of Keras) into IR."""
