"""Time single operators on a GPU with PyTorch alone: ``python3 tests/benchmarks/device_kernels.py CASES.json TIMES.json``.

The cases are those of ``device_operators.py list``; nothing of this package is imported, so the file can be carried to a
machine without TensorFlow. What is timed is what TensorFlow's operator and its gradient launch: the same calls of cuBLAS
and cuDNN, and else kernels of PyTorch that read and write as much. Einsum transposes its operands and its result, and the
gradients of softmax, erf and the like are put together of as many operators, as TensorFlow does both.

Each way (forward, backward) is captured as a CUDA graph that runs the case on several sets of operands, one after the other,
so that those larger than a fraction of the last cache come from memory, and that the host's part isn't in the time. A
time is the median of at least 10 replays, over the sets. Products and convolutions run in float32 (without and with TF32)
and bfloat16, all else in float32. Without a GPU a small dimension replaces each large one, which only tests the script.

Also timed: square products by size, the copy bandwidth on the device and from and to pinned memory of the host, and what a
kernel that does nothing takes in a graph and launched one by one.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
EVICTING_BYTES = 150e6
"""Three times the H100's last cache: the operands of so many sets follow each other."""
MOST_SETS = 40
LEAST_REPEATS, MOST_REPEATS, REPEATS_S = 10, 40, 0.06
PRECISE = ("Conv2D", "Einsum", "MatMul")
"""The operators that run in other precisions too."""
PRECISIONS = {"float32": (torch.float32, False), "tfloat32": (torch.float32, True), "bfloat16": (torch.bfloat16, True)}
DTYPES = {"float32": torch.float32, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool}
SIDES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
Run = Callable[[], Any]
Ways = tuple[Run, Run | None]
"""The forward pass, and the gradients of all operands that get one; None without any."""


def matmul(x: list[Tensor], case: dict[str, Any]) -> Ways:
    a, b = x
    flips = case["options"].get("transpose_a", False), case["options"].get("transpose_b", False)
    left, right = (each.mT if flip else each for each, flip in zip((a, b), flips, strict=True))
    g = torch.randn_like(left @ right)
    grads: list[Run] = [lambda: right @ g.mT if flips[0] else g @ right.mT, lambda: g.mT @ left if flips[1] else left.mT @ g]
    return lambda: left @ right, together(grads, case)


def einsum(x: list[Tensor], case: dict[str, Any]) -> Ways:
    operands, of_result = case["options"]["equation"].split("->")
    of_a, of_b = operands.split(",")
    a, b = x
    g = torch.randn_like(product(a, of_a, b, of_b, of_result))
    grads: list[Run] = [lambda: product(g, of_result, b, of_b, of_a), lambda: product(g, of_result, a, of_a, of_b)]
    return lambda: product(a, of_a, b, of_b, of_result), together(grads, case)


def product(a: Tensor, of_a: str, b: Tensor, of_b: str, of_result: str) -> Tensor:
    """Multiply as TensorFlow's Einsum: operands brought to batch, rows, columns, one batched product, the result back."""
    batch = "".join(d for d in of_a if d in of_b and d in of_result)
    summed = "".join(d for d in of_a if d in of_b and d not in of_result)
    rows, columns = ("".join(d for d in names if d not in batch + summed) for names in (of_a, of_b))
    size = dict(zip(of_a + of_b, (*a.shape, *b.shape), strict=True))

    def brought(each: Tensor, names: str, free: str) -> Tensor:
        swapped = names == batch + summed + free  # the product takes a transposed operand as it is
        order = names if swapped else batch + free + summed
        moved = each.permute([names.index(d) for d in order]).contiguous()
        parts = (batch, summed, free) if swapped else (batch, free, summed)
        extents = [math.prod(size[d] for d in part) for part in parts]
        return moved.reshape(extents).mT if swapped else moved.reshape(extents)

    out = torch.bmm(brought(a, of_a, rows), brought(b, of_b, columns).mT)
    made = batch + rows + columns
    return out.reshape([size[d] for d in made]).permute([made.index(d) for d in of_result]).contiguous()


def conv(x: list[Tensor], case: dict[str, Any]) -> Ways:
    outermost = x[0].permute(0, 3, 1, 2), x[1].permute(3, 2, 0, 1)
    image, kernel = (each.contiguous(memory_format=torch.channels_last) for each in outermost)
    strides = case["options"]["strides"][1:3]
    pads = [0, 0]
    if case["options"]["padding"] == "SAME":
        for i in (0, 1):
            extent, window = image.shape[2 + i], kernel.shape[2 + i]
            total = max((-(-extent // strides[i]) - 1) * strides[i] + window - extent, 0)
            pads[i] = -(-total // 2)
    args = (strides, pads, [1, 1], False, [0, 0], 1)

    def forward() -> Tensor:
        return aten.convolution(image, kernel, None, *args)

    g = torch.randn_like(forward())
    mask = [0 in case["gradients"], 1 in case["gradients"], False]
    return forward, (lambda: aten.convolution_backward(g, image, kernel, None, *args, mask)) if any(mask) else None


def max_pool(x: list[Tensor], case: dict[str, Any]) -> Ways:
    image = x[0].permute(0, 3, 1, 2)
    window, strides = case["options"]["ksize"][1:3], case["options"]["strides"][1:3]
    args = (window, strides, [0, 0], [1, 1], False)
    out, indices = aten.max_pool2d_with_indices(image, *args)
    g = torch.randn_like(out)
    return (
        lambda: aten.max_pool2d_with_indices(image, *args),
        lambda: aten.max_pool2d_with_indices_backward(g, image, *args, indices),
    )


def batch_norm(x: list[Tensor], case: dict[str, Any]) -> Ways:
    image, scale, offset = x[0].permute(0, 3, 1, 2), *x[1:3]

    if ON_GPU:  # cuDNN's, as TensorFlow's

        def forward() -> Any:
            return aten.cudnn_batch_norm(image, scale, offset, None, None, True, 0.1, 1e-3)

        out, mean, inverse, kept = forward()
        g = torch.randn_like(out)
        return forward, lambda: aten.cudnn_batch_norm_backward(image, g, scale, None, None, mean, inverse, 1e-3, kept)
    out = F.batch_norm(image, None, None, scale, offset, True)
    return lambda: F.batch_norm(image, None, None, scale, offset, True), lambda: torch.zeros_like(out)


def softmax(x: list[Tensor], case: dict[str, Any]) -> Ways:
    y = torch.softmax(x[0], -1)
    g = torch.randn_like(y)
    return lambda: torch.softmax(x[0], -1), together([lambda: (g - (g * y).sum(-1, keepdim=True)) * y], case)


def cross_entropy(x: list[Tensor], case: dict[str, Any]) -> Ways:
    logits, labels = x[0], x[1].long()
    g = torch.randn(logits.shape[0], 1, device=DEVICE)
    y = torch.softmax(logits, -1)
    return lambda: aten.nll_loss_forward(aten._log_softmax(logits, 1, False), labels, None, 0, -100), lambda: g * y


def mean(x: list[Tensor], case: dict[str, Any]) -> Ways:
    axis, keep = case["options"]["axis"], case["options"].get("keep_dims", False)
    g = torch.randn_like(x[0].mean(axis, keepdim=True))
    count = x[0].numel() / g.numel()
    return lambda: x[0].mean(axis, keepdim=keep), together([lambda: g.expand_as(x[0]).contiguous() / count], case)


def gather(x: list[Tensor], case: dict[str, Any]) -> Ways:
    rows = x[1].reshape(-1)
    return lambda: torch.index_select(x[0], 0, rows), None  # its gradient is the rows as they are


def concat(x: list[Tensor], case: dict[str, Any]) -> Ways:
    axis = case["options"]["axis"]
    g = torch.randn_like(torch.cat(x, axis))
    sizes = [each.shape[axis] for each in x]
    return lambda: torch.cat(x, axis), lambda: [part.contiguous() for part in g.split(sizes, axis)]


def split(x: list[Tensor], case: dict[str, Any]) -> Ways:
    axis, count = case["options"]["axis"], case["options"]["num_split"]
    parts = [part.contiguous() for part in x[0].chunk(count, axis)]
    return lambda: [part.contiguous() for part in x[0].chunk(count, axis)], lambda: torch.cat(parts, axis)


ADAM = """template <typename T>
void adam(T value, T gradient, T mean, T square, T& new_value, T& new_mean, T& new_square) {
  new_mean = mean + T(0.1) * (gradient - mean);
  new_square = square + T(0.001) * (gradient * gradient - square);
  new_value = value - T(0.001) * new_mean / (sqrt(new_square) + T(1e-7));
}"""


def update(x: list[Tensor], case: dict[str, Any]) -> Ways:
    """Return Adam's update in one kernel, as TensorFlow's; PyTorch's fused one is slow on small variables."""
    numbers = [x[0], *(torch.rand_like(x[0]) for _ in range(3))]
    if not ON_GPU:
        return lambda: [2 * each for each in numbers], None
    adam = torch.cuda.jiterator._create_multi_output_jit_fn(ADAM, num_outputs=3)
    return lambda: adam(*numbers), None


def elementwise(x: list[Tensor], case: dict[str, Any]) -> Ways:
    """Return operators of which every number of the result depends on one number of each operand."""
    of_type, a = case["type"], x[0]
    b = x[1] if len(x) > 1 else a
    forward: Run = {
        "AddV2": lambda: a + b, "BiasAdd": lambda: a + b, "Mul": lambda: a * b, "Sub": lambda: a - b, "Neg": lambda: -a,
        "Relu": lambda: torch.relu(a), "Square": lambda: torch.square(a), "Erf": lambda: torch.erf(a),
        "Rsqrt": lambda: torch.rsqrt(a), "Sigmoid": lambda: torch.sigmoid(a), "Tanh": lambda: torch.tanh(a),
        "SelectV2": lambda: torch.where(a, b, x[2]),
    }[of_type]
    y = forward()
    g = torch.randn_like(y)
    grads: list[Run] = {
        "AddV2": [lambda: passed(g, a), lambda: passed(g, b)], "BiasAdd": [lambda: None, lambda: passed(g, b)],
        "Mul": [lambda: summed(g * b, a), lambda: summed(g * a, b)],
        "Sub": [lambda: passed(g, a), lambda: summed(-g, b)], "Neg": [lambda: -g],
        "Relu": [lambda: aten.threshold_backward(g, y, 0)], "Square": [lambda: g * (2.0 * a)],
        "Erf": [lambda: g * (1.128 * torch.exp(-torch.square(a)))], "Rsqrt": [lambda: -0.5 * g * y * y * y],
        "Sigmoid": [lambda: aten.sigmoid_backward(g, y)], "Tanh": [lambda: aten.tanh_backward(g, y)],
        "SelectV2": [lambda: None, lambda: torch.where(a, g, x[2]), lambda: torch.where(a, x[2], g)],
    }[of_type]
    return forward, together(grads, case)


def passed(g: Tensor, operand: Tensor) -> Tensor | None:
    """Return the gradient of an operand that is only added: summed where the operand was repeated, else None, no kernel."""
    return None if g.shape == operand.shape else summed(g, operand)


def summed(g: Tensor, operand: Tensor) -> Tensor:
    """Return a gradient summed over the dimensions along which its operand was repeated."""
    return g if g.shape == operand.shape else g.sum_to_size(operand.shape)


def together(grads: Sequence[Run], case: dict[str, Any]) -> Run | None:
    """Return the gradients that a case wants, without those that are what they are made of; None if no others are left."""
    wanted = [grads[i] for i in case["gradients"] if i < len(grads) and grads[i]() is not None]
    return (lambda: [each() for each in wanted]) if wanted else None


MAKERS: dict[str, Callable[[list[Tensor], dict[str, Any]], Ways]] = {
    "MatMul": matmul, "Einsum": einsum, "Conv2D": conv, "MaxPool": max_pool, "FusedBatchNormV3": batch_norm,
    "Softmax": softmax, "SparseSoftmaxCrossEntropyWithLogits": cross_entropy, "Mean": mean, "GatherV2": gather,
    "ConcatV2": concat, "Split": split, "Variable": update,
}


def operands(case: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """Return random operands of a case: normally distributed, above 0 for rsqrt; indices of rows or labels there are."""
    made = []
    for name, shape in case["operands"]:
        if DTYPES[name] == torch.bool:
            made.append(torch.rand(shape, device=DEVICE) < 0.5)
        elif not DTYPES[name].is_floating_point:
            table = case["operands"][0][1]
            most = table[0] if case["type"] == "GatherV2" else table[-1]
            made.append(torch.randint(most, shape, device=DEVICE, dtype=DTYPES[name]))
        else:
            made.append(torch.randn(shape, device=DEVICE).to(dtype))
    if case["type"] == "Rsqrt":
        made[0].abs_().add_(0.1)
    return made


def timed(runs: Sequence[Run]) -> float:
    """Return the microseconds of one of several functions that do the same with other operands; median of replays."""
    if not ON_GPU:
        start = time.perf_counter()
        for run in runs:
            run()
        return (time.perf_counter() - start) / len(runs) * 1e6
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for run in runs[:2]:
                run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for run in runs:
            run()
    graph.replay()
    once_ms = replays_ms(graph, 1)[0]
    repeats = max(LEAST_REPEATS, min(MOST_REPEATS, int(REPEATS_S * 1e3 / max(once_ms, 1e-3))))
    us = statistics.median(replays_ms(graph, repeats)) * 1e3 / len(runs)
    graph.reset()
    return us


def replays_ms(graph: Any, repeats: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in pairwise(events)]


def measured(case: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the microseconds of a case by precision and way."""
    found = {}
    for name, (dtype, allows) in PRECISIONS.items():
        if name != "float32" and case["type"] not in PRECISE:
            continue
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allows
        count = max(1, min(MOST_SETS, math.ceil(EVICTING_BYTES / max(1, case["n_bytes"])))) if ON_GPU else 1
        sets = [MAKERS.get(case["type"], elementwise)(operands(case, dtype), case) for _ in range(count)]
        found[name] = {"forward": timed([each[0] for each in sets])}
        if sets[0][1] is not None and case["gradients"]:
            found[name]["backward"] = timed([each[1] for each in sets])
        del sets
        if ON_GPU:
            torch.cuda.empty_cache()
    return {name: {way: round(us, 3) for way, us in ways.items()} for name, ways in found.items()}


def machine() -> dict[str, Any]:
    """Return the rates of the machine: square products by size, copies, and launches."""
    products: dict[str, dict[int, float]] = {}
    for name, (dtype, allows) in PRECISIONS.items():
        torch.backends.cuda.matmul.allow_tf32 = allows
        products[name] = {}
        for side in SIDES if ON_GPU else SIDES[:2]:
            count = min(20, max(1, 10**8 // side**2))
            squares = [torch.randn(2, side, side, device=DEVICE, dtype=dtype) for _ in range(count)]
            products[name][side] = round(2 * side**3 / timed([lambda s=s: s[0] @ s[1] for s in squares]) / 1e6, 3)
    n = 1 << 28 if ON_GPU else 1 << 20
    here = torch.empty(n, dtype=torch.float32, device=DEVICE)
    there, small = torch.empty_like(here), torch.zeros(1, device=DEVICE)
    result: dict[str, Any] = {"products_tflops": products}
    result["copied_bytes_per_s"] = 4e6 * n / timed([lambda: there.copy_(here)])
    result["kernel_in_graph_us"] = timed([lambda: small.add_(1)] * 200)
    if ON_GPU:
        host = torch.empty(1 << 27, dtype=torch.float32, pin_memory=True)
        part = here[: 1 << 27]
        scaled = 4e6 * host.numel()
        result["host_to_device_bytes_per_s"] = scaled / by_events(lambda: part.copy_(host, non_blocking=True), 10)
        result["device_to_host_bytes_per_s"] = scaled / by_events(lambda: host.copy_(part, non_blocking=True), 10)
        result["kernel_launched_us"] = by_events(lambda: small.add_(1), 2000)
        result["device"] = torch.cuda.get_device_name()
    return {**result, "torch": torch.__version__}


def by_events(run: Run, repeats: int) -> float:
    run()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e3 / repeats


def shrunk(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case with small dimensions, for a machine without a GPU."""
    return {**case, "operands": [[dtype, [min(extent, 16) for extent in shape]] for dtype, shape in case["operands"]]}


def main(cases_path: str, times_path: str, limit_s: str = "300") -> None:
    torch.backends.cudnn.benchmark = True  # as TensorFlow, which times algorithms of cuDNN and keeps the fastest
    started = time.perf_counter()
    with open(cases_path) as file:
        cases = json.load(file)
    result: dict[str, Any] = {"machine": machine(), "cases": []}
    print(json.dumps(result["machine"]), f"{time.perf_counter() - started:.1f} s", flush=True)
    for case in cases:
        if time.perf_counter() - started > float(limit_s):
            print("time is up", flush=True)
            break
        began = time.perf_counter()
        try:
            us = measured(case if ON_GPU else shrunk(case))
        except Exception as error:
            print("failed", case["type"], case["operands"], repr(error)[:300], flush=True)
            continue
        result["cases"].append({**case, "us": us})
        if time.perf_counter() - began > 3:
            print(f"{time.perf_counter() - began:.1f} s", case["type"], case["operands"], us, flush=True)
    with open(times_path, "w") as file:
        file.write('{"machine": ' + json.dumps(result["machine"]) + ', "cases": [\n')
        file.write(",\n".join(json.dumps(each) for each in result["cases"]) + "\n]}\n")
    print(f"{len(result['cases'])} of {len(cases)} cases in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
