"""A user's model (recorded, traced, or of Keras) becomes IR."""
