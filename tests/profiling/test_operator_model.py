"""Predicting operators: the laws of the fit, and what is predicted from where."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.profiling.hardware import Device, Hardware, LinkLevel, OperatorRate
from tensoropt.profiling.hardware.rates import class_of
from tensoropt.profiling.hardware_costs import MARGIN, OperatorCosts
from tensoropt.profiling.operator_model import FEWEST_TO_FIT, Sample, fit_all, fitted, scaled
from tensoropt.profiling.work import Measured, WorkItem

DEVICE = Device("d", 10**9, {"float32": 1e12}, 1e11, operator_overhead_us=2.0)
HARDWARE = Hardware("h", DEVICE, (LinkLevel("device", 1, 0.0, 1e9),))
SLOPES = st.floats(0, 1e3)


def samples(rate: OperatorRate, noise: float = 0.0, count: int = 40, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        flops, n_bytes = (float(10 ** rng.uniform(2, 10)) for _ in range(2))
        found.append(Sample(flops, n_bytes, rate.time_us(flops, n_bytes) * (1 + noise * rng.uniform(-1, 1))))
    return found


@given(st.floats(0.1, 1e3), SLOPES, SLOPES)
def test_the_fit_finds_the_model_that_made_the_times(overhead_us, us_per_gflop, us_per_gb):
    rate = OperatorRate(overhead_us, us_per_gflop, us_per_gb)
    found = fitted(samples(rate))
    for sample in samples(rate, seed=1):
        assert found.time_us(sample.flops, sample.n_bytes) == pytest.approx(sample.time_us, rel=1e-6)
    assert found.spread < 1e-6 and found.samples == 40


def test_noise_is_averaged_and_told():
    rate = OperatorRate(5.0, 30.0, 80.0)
    found = fitted(samples(rate, noise=0.2, count=400))
    errors = [found.time_us(s.flops, s.n_bytes) / s.time_us - 1 for s in samples(rate, count=200, seed=1)]
    assert np.max(np.abs(errors)) < 0.06
    assert 0.05 < found.spread < 0.15


@given(st.lists(st.tuples(*[st.integers(0, 10**12)] * 2, st.floats(1e-3, 1e6)), min_size=1, max_size=20))
def test_no_coefficient_is_below_zero_and_small_operators_count_as_large_ones(rows):
    found = fitted([Sample(*row) for row in rows])
    # Of relative errors: all times a thousandfold make the model a thousandfold.
    again = fitted([Sample(flops, n_bytes, 1e3 * time_us) for flops, n_bytes, time_us in rows])
    for flops, n_bytes, _ in rows:
        assert again.time_us(flops, n_bytes) == pytest.approx(1e3 * found.time_us(flops, n_bytes), rel=1e-6, abs=1e-9)
    errors = [found.time_us(flops, n_bytes) / time_us - 1 for flops, n_bytes, time_us in rows]
    assert np.mean(np.square(errors)) <= 1 + 1e-9  # as good as no model at all, which errs by 1 everywhere


def test_nothing_can_be_fitted_to_nothing():
    for wrong in ([], [Sample(1.0, 1.0, 0.0)]):
        with pytest.raises(ValueError, match="at least one sample, and to times above 0"):
            fitted(wrong)
    assert scaled([], []) == 1.0
    assert scaled([Sample(1, 1, 6.0), Sample(1, 1, 1.0), Sample(1, 1, 8.0)], [2.0, 2.0, 2.0]) == 3.0


def convolution(flops: int, key: str = "") -> WorkItem:
    return WorkItem("Conv2D", "float32", flops, 1000, 2, key)


def measured(work: WorkItem, scale: float = 3.0) -> Measured:
    plain = OperatorCosts(HARDWARE)
    return Measured(work, *(scale * plain.predicted_us(work, way) for way in ("forward", "backward")), 0.0)


def test_what_is_measured_is_taken_as_it_is():
    known = Measured(convolution(10**6, "this one"), 11.0, 7.5, 0.1)
    others = {str(i): measured(convolution(10**i, str(i))) for i in range(3)}
    costs = OperatorCosts(HARDWARE, {"this one": known, **others})
    assert costs.time_ns(known.work) == 18_500
    assert costs.time_ns(replace(known.work, key="")) != 18_500


def test_a_few_measurements_scale_what_is_known_without_them_and_many_make_a_model():
    works = [convolution(10**i, str(i)) for i in range(4, 4 + FEWEST_TO_FIT)]
    another = convolution(5 * 10**8)
    plain = OperatorCosts(HARDWARE).time_ns(another)
    for n in range(1, FEWEST_TO_FIT):
        costs = OperatorCosts(HARDWARE, {work.key: measured(work) for work in works[:n]})
        assert costs.time_ns(another) == pytest.approx(3 * plain, rel=1e-6)
        # neither another class nor another dtype is concerned
        for other in (replace(another, type="MatMul"), replace(another, dtype="float64")):
            assert costs.time_ns(other) == OperatorCosts(HARDWARE).time_ns(other)
    assert fit_all(measured(work) for work in works[1:]) == {}
    models = fit_all(measured(work) for work in works)
    assert set(models["convolution"]["float32"]) == {"forward", "backward"}
    costs = OperatorCosts(HARDWARE, {work.key: measured(work) for work in works})
    assert costs.time_ns(another) == pytest.approx(3 * plain, rel=0.2)


def test_caution_is_for_what_could_have_been_measured_and_as_large_as_nine_in_ten_of_its_class_ask_for():
    another, alone = convolution(5 * 10**8, "another"), convolution(5 * 10**8)
    of_few = OperatorCosts(HARDWARE, {}, True).time_ns(another)
    assert of_few == pytest.approx(MARGIN * OperatorCosts(HARDWARE).time_ns(another))
    works = [convolution((i + 1) * 10**8, str(i)) for i in range(20)]

    def cautious(slow: float) -> float:
        """Over what is predicted, where three of twenty take so many times as long as the others."""
        known = {work.key: measured(work, slow if i % 8 == 3 else 1.0) for i, work in enumerate(works)}
        plain, careful = OperatorCosts(HARDWARE, known), OperatorCosts(HARDWARE, known, True)
        assert all(careful.time_ns(work) == plain.time_ns(work) for work in works)
        assert careful.time_ns(alone) == plain.time_ns(alone)
        assert careful.backward_ns(another) > plain.backward_ns(another) or slow == 1
        return careful.time_ns(another) / plain.time_ns(another)

    assert cautious(1.0) == pytest.approx(1.0, abs=0.02)
    assert 1.2 < cautious(1.5) < 1.5


def test_a_hardware_s_own_rates_come_before_its_roofline():
    assert list(map(class_of, ("Conv2D", "Variable", "Whatever"))) == ["convolution", "update", "elementwise"]
    rates = {"convolution": {"float32": {"forward": OperatorRate(1, 1e3, 0), "backward": OperatorRate(2, 1e3, 0)}}}
    costs = OperatorCosts(replace(HARDWARE, operators=rates))
    assert costs.time_ns(convolution(10**6)) == 1_000 + 1_000 + 2_000 + 2_000
    assert costs.time_ns(replace(convolution(10**6), n_gradients=0)) == 1_000 + 1_000
    # a measurement twice as slow makes its class twice as slow
    known = Measured(convolution(10**6, "k"), 4.0, 8.0, 0.0)
    costs = OperatorCosts(replace(HARDWARE, operators=rates), {"k": known})
    assert costs.time_ns(convolution(10**9)) == pytest.approx(2 * (1e3 + 2e3) * 1e3 + 2 * 3e3, rel=1e-6)


def test_rates_of_an_operator_type_count_before_those_of_its_class():
    def rates(us: float) -> dict:
        return {"float32": {way: OperatorRate(us, 0.0, 0.0) for way in ("forward", "backward")}}

    of_relu = {"float32": {"forward": OperatorRate(5.0, 0, 0)}}
    rated = replace(HARDWARE, operators={"elementwise": rates(1.0), "Relu": of_relu})
    relu, square = (WorkItem(of_type, "float32", 8, 64, 1, key=of_type) for of_type in ("Relu", "Square"))
    costs = OperatorCosts(rated)
    assert [costs.predicted_us(relu, way) for way in ("forward", "backward")] == [5.0, 1.0]
    assert [costs.predicted_us(square, way) for way in ("forward", "backward")] == [1.0, 1.0]
    assert costs.predicted_us(replace(relu, dtype="float64"), "forward") == OperatorCosts(HARDWARE).predicted_us(
        replace(relu, dtype="float64"), "forward"
    )
    # What is measured of the type scales the type's rates; of the class it has no part.
    known = OperatorCosts(rated, {relu.key: Measured(relu, 10.0, 3.0, 0.0)})
    assert known.predicted_us(relu, "forward") == 10.0
    assert [known.predicted_us(square, way) for way in ("forward", "backward")] == [1.0, 3.0]
