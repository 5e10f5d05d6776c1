"""Equal arrays become one object, and what is computed once for them is what would be computed for each."""

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import Edge, Node, Problem, search
from tensoropt.ft.interning import Interned, interned
from tensoropt.ft.presolve.dead_end_elimination import without_replaceable
from tensoropt.ft.presolve.supported_states import supported_states
from tensoropt.ft.problem import INFEASIBLE, InfeasibleError, identity


def repeated(seed: int) -> Problem:
    """Return a chain of equal layers of three nodes, all of which read one shared node; no two arrays are one object."""
    rng = np.random.default_rng(seed)
    sizes, n_layers = rng.integers(2, 5, 3), int(rng.integers(2, 7))
    hub = int(rng.integers(1, 4))

    def costs(*shape):
        return np.where(rng.random(shape) < 0.1, INFEASIBLE, rng.integers(0, 12, shape))

    own = [(rng.integers(0, 12, n), rng.integers(0, 12, n)) for n in sizes]
    inner = {pair: [costs(sizes[pair[0]], sizes[pair[1]])] * 2 for pair in ((0, 1), (1, 2), (0, 2))}
    between, to_hub = (costs(sizes[2], sizes[0]), costs(sizes[2], sizes[0])), (costs(hub, sizes[1]), costs(hub, sizes[1]))
    nodes = [Node("hub", rng.integers(0, 9, hub), rng.integers(0, 9, hub))]
    edges = []
    for layer in range(n_layers):
        base = 1 + 3 * layer
        nodes += [Node(f"{layer}.{i}", mem.copy(), time.copy()) for i, (mem, time) in enumerate(own)]
        edges += [Edge(base + s, base + t, mem.copy(), time.copy()) for (s, t), (mem, time) in inner.items()]
        edges.append(Edge(0, base + 1, *(each.copy() for each in to_hub)))
        if layer:
            edges.append(Edge(base - 1, base, *(each.copy() for each in between)))
    return Problem(tuple(nodes), tuple(edges))


def arrays(problem: Problem):
    return [array for each in (*problem.nodes, *problem.edges) for array in (each.mem_bytes, each.time_ns)]


def test_equal_arrays_become_the_first_of_them_and_others_stay():
    one = np.array([[1, 2], [3, 4]])
    turned = one.T.copy()  # the same sums of all cells
    swapped = np.array([[2, 1], [3, 4]])  # the same sums of rows
    first_of = Interned()
    assert first_of(one) is one
    assert first_of(one.copy()) is one
    assert first_of(turned) is turned
    assert first_of(swapped) is swapped
    assert first_of(np.array([1, 2, 3, 4])).shape == (4,)


@pytest.mark.parametrize("seed", first(10, range(500)))
def test_interned_is_equal_and_has_each_content_once(seed):
    problem = repeated(seed)
    result = interned(problem)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(problem), arrays(result), strict=True))
    contents = {(a.shape, a.tobytes()) for a in arrays(result)}
    assert len({identity(a) for a in arrays(result)}) == len(contents)
    kept = [np.arange(min(node.n_states, 2)) for node in problem.nodes]
    restricted, plain = result.restricted(kept), problem.restricted(kept)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(restricted), arrays(plain), strict=True))
    assert len({identity(a) for a in arrays(restricted)}) <= len(contents)


@pytest.mark.parametrize("seed", first(10, range(500)))
def test_presolve_is_the_same_whether_equal_arrays_are_one_object(seed):
    problem = repeated(seed)
    one, other = without_replaceable(problem), without_replaceable(interned(problem))
    assert all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))
    try:
        expected = supported_states(one)
    except InfeasibleError as error:
        with pytest.raises(InfeasibleError, match=str(error).split(" of ")[0]):
            supported_states(other)
        return
    assert all(np.array_equal(a, b) for a, b in zip(expected, supported_states(other), strict=True))


@pytest.mark.parametrize("seed", first(10, range(1000)))
def test_repeated_parts_are_searched_as_others_are(seed):
    """The two algorithms agree, and with enumeration where there are few strategies."""
    problem = repeated(seed)
    try:
        found = search(problem)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            search(problem, "ft-elimination")
        return
    names = ["ft-elimination"]
    if np.prod([float(node.n_states) for node in problem.nodes]) <= 1 << 16:
        names.append("exhaustive")
    for name in names:
        other = search(problem, name)
        assert np.array_equal(found.mem_bytes, other.mem_bytes)
        assert np.array_equal(found.time_ns, other.time_ns)
    for mem, time_ns, strategy in zip(found.mem_bytes, found.time_ns, found.strategies, strict=True):
        assert problem.cost(strategy.tolist()) == (mem, time_ns)
