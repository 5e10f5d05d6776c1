"""The share of a collective that compute doesn't hide, measured on engines of which it is known."""

from dataclasses import dataclass, field

import pytest

from tensoropt.profiling import measure
from tensoropt.profiling.measure import FEWEST, LONGER, SIZES, exposed_share

BYTES_PER_S = 1e9
PRODUCT_S = 0.0005


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """An action gives the seconds that it takes."""
    monkeypatch.setattr(measure, "time_s", lambda action: action())


@dataclass
class Sharing:
    """A product takes :data:`PRODUCT_S`, a function ``launch_s`` more; of a call beside products a share is added."""

    share: float
    launch_s: float = 0.0
    asked: list = field(default_factory=list)

    def with_products(self, call, n_products):
        self.asked.append(n_products)
        compute_s, call_s = n_products * PRODUCT_S, 0.0 if call is None else call()
        return lambda: self.launch_s + max(call_s, compute_s + (self.share if n_products else 1) * call_s)


def measured(engine, budget_s):
    def all_reduce(n_bytes):
        sizes.append(n_bytes)
        return lambda: n_bytes / BYTES_PER_S

    sizes, barriers = [], []

    def largest(value):
        barriers.append(value)
        return value

    share = exposed_share(engine, all_reduce, lambda size: size / BYTES_PER_S, PRODUCT_S, largest, budget_s)
    return share, sizes, barriers


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("launch_s", [0.0, 0.01])
def test_the_share_is_found_whatever_a_function_takes_to_begin(share, launch_s):
    assert measured(Sharing(share, launch_s), 0.3)[0] == pytest.approx(share)


def test_a_collective_that_stops_compute_hides_nothing():
    assert measured(Sharing(1.0), 0.3)[0] == measured(Sharing(1.0, 0.01), 0.3)[0] == 1.0


def test_a_collective_that_takes_no_time_hides_nothing():
    class Instant(Sharing):
        def with_products(self, call, n_products):
            return super().with_products(None, n_products)

    assert measured(Instant(0.5), 0.3)[0] == 1.0


def test_the_budget_decides_the_size_and_the_rounds():
    engine = Sharing(0.5)
    _, sizes, barriers = measured(engine, 0.5)
    assert sizes == [SIZES[0]]
    assert engine.asked == [0, 0, (n := round(LONGER * SIZES[0] / BYTES_PER_S / PRODUCT_S)), n]
    assert len(barriers) > 2 * 3 * (1 + FEWEST)
    assert measured(engine, 1e-6)[1] == [SIZES[-1]]
