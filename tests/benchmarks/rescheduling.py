"""Time tables of reschedule costs against SciPy's Dijkstra on the same graph.

    python tests/benchmarks/rescheduling.py [--devices 16,64] [--scipy-seconds 20]

The layouts are those that configs lead to. A unit is a mesh axis, or several that are only used together; it splits one
dimension, is partial, or is idle. Up to four units are combined freely; of more, units that do the same are neighbours. At
most 700 layouts are drawn. ``first`` also builds the graph of layouts, which all tensors of equal rank share; compiled code
is loaded before. SciPy's columns are empty where it would take longer than ``--scipy-seconds``. ``path`` is the time of a
single search after the table is there.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles.layouts import all_pairs

from tensoropt.profiling.hardware import resolve
from tensoropt.profiling.hardware_costs import CollectiveCosts
from tensoropt.reschedule.bulk import Weighted
from tensoropt.reschedule.dijkstra import StepTimes
from tensoropt.reschedule.layout import Layout, Shape
from tensoropt.reschedule.layout_graph import layout_graph
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.orders import orders, runs_on_paths
from tensoropt.reschedule.units import UnitMesh

ITEM_BYTES = 4
MOST_LAYOUTS = 700
CASES: dict[int, list[Shape]] = {
    8: [(3712, 14848), (256, 64, 3712), (256, 64, 16, 232)],
    16: [(3712,), (3712, 14848), (256, 64, 3712), (256, 64, 16, 232), (3, 3, 1136, 1136)],
    32: [(4096, 14336), (64, 512, 4096), (64, 32, 512, 128)],
    64: [(4096, 14336), (64, 512, 4096), (64, 64, 512, 128)],
    512: [(12288,), (12288, 49152), (512, 1024, 4096), (512, 64, 512, 128)],
}
HEADERS = ("devices", "shape", "units", "layouts", "runs", "between", "edges")
HEADERS += ("first ms", "ms", "MB", "SciPy ms", "times", "path ms")


def assignments(names: tuple[str, ...], n_units: int) -> Iterator[tuple[str, ...]]:
    for each in product(names, repeat=n_units):
        groups = [name for name, _ in groupby(each)]
        if n_units <= 4 or len(groups) == len(set(groups)):
            yield each


def layouts_of(mesh: Mesh, shape: Shape) -> list[Layout]:
    names = (*map(str, range(len(shape))), "+", "")
    found = []
    of_units = UnitMesh.of(mesh)
    numbers = range(len(of_units.units))
    for each in assignments(names, len(numbers)):
        axes = [of_units.axes(tuple(unit for unit in numbers if each[unit] == name)) for name in names]
        layout = Layout(mesh, tuple(axes[: len(shape)]), axes[len(shape)])
        if layout.fits(shape):
            found.append(layout)
    chosen = np.random.default_rng(0).permutation(len(found))[:MOST_LAYOUTS]
    return [found[i] for i in chosen]


def by_scipy(mesh: Mesh, shape: Shape, costs: CollectiveCosts, layouts: list[Layout]) -> np.ndarray:
    """Return the table of costs by SciPy's Dijkstra from each layout, in floating point."""

    of_units = UnitMesh.of(mesh)

    def ask(kind: str, moved: tuple[int, ...], elements: int) -> int:
        return costs.time_ns(kind, mesh, of_units.axes(moved), elements * ITEM_BYTES)

    n_units, rank, tables = len(of_units.units), len(shape), []
    for partial in (False, True):
        graph = layout_graph(n_units, rank, partial, runs_on_paths(n_units, rank))
        weighted = Weighted.of(graph, StepTimes(of_units.sizes, shape, ask))
        target = np.repeat(np.arange(len(graph.key)), np.diff(graph.start))
        usable = weighted.fits[graph.source] & weighted.fits[target]
        # SciPy takes a weight of zero for no edge, so each is scaled by 1024 and one is added; no path has 1024 steps.
        weight = weighted.weight[usable] * 1024.0 + 1
        ends = (graph.source[usable], target[usable])
        matrix = csr_array((weight, ends), shape=(len(graph.key), len(graph.key)))
        states = [of_units.state(layout if partial else layout.with_partial(())) for layout in layouts]
        numbers = graph.number_of([state for state in states if state is not None])
        tables.append(dijkstra(matrix, indices=numbers)[:, numbers] // 1024)
    is_partial = np.array([bool(layout.partial) for layout in layouts])
    return np.where(is_partial[:, None] | is_partial[None, :], tables[1], tables[0])


def measure(devices: int, shape: Shape, scipy_seconds: float) -> list[object]:
    hardware = resolve(f"v100-{max(1, devices // 8)}x8")
    mesh = hardware.mesh(devices)
    costs = CollectiveCosts(hardware, mesh)
    n_units, rank = len(UnitMesh.of(mesh).units), len(shape)
    runs = runs_on_paths(n_units, rank)
    layouts = layouts_of(mesh, shape)
    layout_graph.cache_clear()
    orders.cache_clear()
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        pairs = all_pairs(mesh, shape, ITEM_BYTES, costs, layouts)
        seconds.append(time.perf_counter() - started)
    of_paths = []
    for i, j in np.random.default_rng(0).integers(0, len(layouts), (21, 2)).tolist():
        started = time.perf_counter()
        path = pairs.path(i, j)
        of_paths.append(time.perf_counter() - started)
        assert path.time_ns(costs, ITEM_BYTES) == pairs.time_ns[i, j], "the path and the table differ"
    tracemalloc.start()
    all_pairs(mesh, shape, ITEM_BYTES, costs, layouts)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    graph = layout_graph(n_units, rank, True, runs)
    scipy_ms = ratio = ""
    # SciPy takes about 15 ns for each edge from each layout.
    if 15e-9 * len(graph.source) * len(layouts) < scipy_seconds:
        started = time.perf_counter()
        expected = by_scipy(mesh, shape, costs, layouts)
        elapsed = time.perf_counter() - started
        assert np.array_equal(pairs.time_ns, expected), "the two searches differ"
        scipy_ms, ratio = f"{elapsed * 1e3:.0f}", f"{elapsed / min(seconds[1:]):.0f}"
    return [
        devices,
        "x".join(map(str, shape)),
        n_units,
        len(layouts),
        "all" if runs is None else runs,
        len(graph.key),
        len(graph.source),
        f"{seconds[0] * 1e3:.0f}",
        f"{np.median(seconds[1:]) * 1e3:.1f}",
        f"{peak_bytes / 1e6:.0f}",
        scipy_ms,
        ratio,
        f"{np.median(of_paths) * 1e3:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default=",".join(map(str, CASES)))
    parser.add_argument("--scipy-seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    measure(16, (256, 64, 3712), 0)  # loads the compiled code
    rows = [
        measure(devices, shape, arguments.scipy_seconds)
        for devices in map(int, arguments.devices.split(","))
        for shape in CASES[devices]
    ]
    print(tabulate(rows, HEADERS, disable_numparse=True, stralign="right"))


if __name__ == "__main__":
    main()
