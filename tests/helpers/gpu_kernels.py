"""Hold operators against the kernels of TensorFlow's wheel for GPUs; run with that wheel, it writes their list."""

from __future__ import annotations

import json
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import kernels

FILE = Path(__file__).with_suffix(".json")
ON_HOST = {  # the operators that may run on the host of a GPU, and why
    **dict.fromkeys(("PyFunc", "PyFuncStateless"), "collectives by MPI, which are Python functions"),
    "CTCLoss": "only its newer form has a kernel, of float32 alone",
    "SparseCross": "texts and their numbers",
    "ResourceSparseApplyMomentum": "TensorFlow has none",
    "SparseSoftmaxCrossEntropyWithLogits": "none of float64",
    "ScatterNd": "none of bool, which Keras's updates by rows take",
}
KERNELS: dict[str, list[dict[str, list[str]]]] = json.loads(FILE.read_text())["kernels"]
"""The kernels of each operator: the types that a kernel takes, by the operator's attribute."""


def without_kernel(graph: tf.Graph) -> list[str]:
    """Return the operators of a graph that would run on the host of a GPU, though nobody meant them to."""
    definition, found = graph.as_graph_def(), []
    for node in [*definition.node, *(node for function in definition.library.function for node in function.node_def)]:
        types = {name: tf.as_dtype(value.type).name for name, value in node.attr.items() if value.type}
        is_known = any(all(types.get(name) in taken for name, taken in each.items()) for each in KERNELS.get(node.op, []))
        if not is_known and node.op not in ON_HOST and types.get("dtype") != "string":
            found.append(f"{node.op} of {types}")
    return found


if __name__ == "__main__":
    KERNELS.clear()
    for kernel in kernels.get_all_registered_kernels().kernel:
        known = KERNELS.setdefault(kernel.op, []) if kernel.device_type in ("GPU", "DEFAULT") else []
        taken = {each.name: [tf.as_dtype(t).name for t in each.allowed_values.list.type] for each in kernel.constraint}
        of_types = {name: types for name, types in taken.items() if types}  # others are of the operator's way
        if of_types not in known:
            known.append(of_types)
    FILE.write_text(json.dumps({"tensorflow": tf.__version__, "kernels": KERNELS}, sort_keys=True, separators=(",", ":")))
