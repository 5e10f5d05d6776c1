"""What a person asks without training: record a model by name, calibrate, check a plan, draw a timeline."""
