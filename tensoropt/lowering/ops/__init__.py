"""Special lowerings, for operators that aren't lowered to the same TensorFlow operator on local operands."""
