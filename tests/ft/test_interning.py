"""Equal arrays become one object, and what is computed once for them is what would be computed for each."""

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import Problem, search
from tensoropt.ft.interning import Interned, interned
from tensoropt.ft.presolve.dead_end_elimination import without_replaceable
from tensoropt.ft.presolve.supported_states import supported_states
from tensoropt.ft.problem import InfeasibleError, identity

from .problems import real_points
from .test_folding import parts


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
    problem = parts(seed)
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
    problem = parts(seed)
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
    problem = parts(seed)
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
        assert real_points(problem, search(problem, name)) == real_points(problem, found)
