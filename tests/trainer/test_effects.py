"""Prints, files, Python functions and assertions in steps and layers have their effects as on one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.mpirun import run_ranks

import tensoropt
from tensoropt.common.errors import InputError

WORKER = Path(__file__).with_name("effects_worker.py")
EMULATED: Any = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}
text = tf.strings.as_string
Act = Callable[..., Any]


def inputs(k: int) -> np.ndarray:
    return np.random.default_rng(k).normal(size=(8, 4)) + (k == 2) * 9.0


def run(act: Act, plan: Any = None) -> None:
    """Take three steps, planned or not, that also call ``act`` with inputs, loss, gradients and the step's number."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(6, "tanh", dtype="float64"), keras.layers.Dense(2, dtype="float64")]
    model = keras.Sequential([keras.Input((4,), dtype="float64"), *layers])
    optimizer, count = keras.optimizers.SGD(0.1), tf.Variable(0)
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        given = act(x, loss, gradients, count)
        count.assign_add(1)
        return given if isinstance(given, tf.Tensor) else loss

    taken = tf.function(step)
    if plan is not None:
        taken = tensoropt.training_step(step, model=model, optimizer=optimizer, batch_size=8, **plan)
    for k in range(3):
        taken(inputs(k))


@pytest.mark.parametrize("more", [{}, {"micro_batches": 2}], ids=["whole", "micro-batches"])
def test_effects_are_one_devices(more: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def told(folder: Path, plan: Any = None) -> list[str]:
        folder.mkdir()
        writer, file = tf.summary.create_file_writer(str(folder / "logs")), f"file://{folder}/said"

        def act(x: tf.Tensor, loss: tf.Tensor, gradients: list[Any], count: tf.Variable) -> Any:
            def even() -> Any:
                tf.print("even", text(x[:2] + 1.0), count, output_stream=file)
                return tf.cond(count > 1, lambda: tf.print("two", text(x[7] * loss), output_stream=file), tf.no_op)

            tf.print("step", count, text(x), summarize=2, output_stream=file)
            tf.cond(count % 2 == 0, even, lambda: tf.print("odd", [text(loss + 1.0), text(loss)], output_stream=file))
            tf.switch_case(count.read_value(), [lambda k=k: tf.print("case", k, output_stream=file) for k in range(2)])
            tf.py_function(lambda value: print("python", round(float(value), 6)), [loss], [])
            tf.numpy_function(lambda values: print("numpy", values.round(6)), [x[:, 0]], [])
            tf.io.write_file(f"{folder}/written", text(loss))
            with writer.as_default():
                tf.summary.scalar("loss", loss, step=tf.cast(count, tf.int64))
            if more:
                return None
            tf.print("norm", text(gradients[3]), text(tf.linalg.global_norm(gradients)), output_stream=file)
            return gradients[1]

        run(act, plan)
        writer.close()
        (events,) = (folder / "logs").iterdir()
        values = [each.summary.value for each in tf.compat.v1.train.summary_iterator(str(events))]
        scalars = [f"{tf.make_ndarray(value.tensor):.5f}" for each in values for value in each]
        printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith(("python", "numpy"))]
        # TensorFlow doesn't keep the order of prints in branches and outside.
        return [*sorted((folder / "said").read_text().splitlines()), (folder / "written").read_text(), *printed, *scalars]

    expected = told(tmp_path / "plain")
    assert told(tmp_path / "ours", {**EMULATED, **more}) == expected and len(expected) > 20


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (lambda x, *_: tf.debugging.assert_less(x, tf.constant(7.0, x.dtype), "large"), r"\[large\] \[Condition x < y did"),
        (lambda x, loss, _, n: tf.debugging.assert_less(n, 2, "late"), r"\[late\] .* \[2\] \[y .*\] \[2\]"),
        (lambda x, *_: tf.debugging.assert_all_finite(1.0 / (2.0 - tf.cast(_[2], x.dtype)), "bad"), "bad : Tensor had"),
        (
            lambda x, loss, _, n: tf.cond(n > 0, lambda: tf.debugging.Assert(tf.reduce_max(x) < 7.0, [n, "!"]), tf.no_op),
            r"\[2\] \[!\]",
        ),
    ],
    ids=["values", "plain", "finite", "branch"],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_an_assertion_fails_with_its_line(check: Act, said: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(check)
    line = r"\(test_effects.py:\d+\)"
    with pytest.raises(InputError, match=f"{line} doesn't hold in this step {line}.*{said}"):
        run(check, EMULATED)


def looped(*_: Any) -> None:
    tf.while_loop(lambda k: k < 3, lambda k: [tf.print(k), k + 1][1:], [0])


def in_gradient(x: tf.Tensor, *_: Any) -> None:
    @tf.custom_gradient
    def shown(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda gradient: [tf.print(gradient), gradient][1]

    shown(x)


def of_text(x: tf.Tensor, *_: Any) -> None:
    tf.print(tf.py_function(str, [x], tf.string))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (looped, "in a loop"),
        (in_gradient, "in a custom gradient"),
        (of_text, "needs a string that isn't known"),
        (lambda x, *_: tf.cond(x[0, 0] > 0, lambda: tf.print(x[x > 0]), tf.no_op), r"of shape \(None,\)"),
    ],
)
def test_what_cant_be_done_as_often_as_on_one_device_is_refused(act: Act, said: str) -> None:
    with pytest.raises(InputError, match=rf"PrintV2 '.*' \(test_effects.py:\d+\) can't be recorded: .*{said}"):
        run(act, EMULATED)


def test_on_two_ranks_layers_print_once_and_an_assertion_fails_once() -> None:
    result = run_ranks(2, WORKER)
    said = [line for line in result.stderr.splitlines() if "doesn't hold" in line]
    assert result.returncode and len(said) == 1, result.stderr
    assert "(effects_worker.py:" in said[0] and "[too large]" in said[0]
    lines = [line for line in result.stderr.splitlines() if line.startswith("mean")]
    assert lines[:-1] == result.stdout.splitlines() and len(lines) == 15, result.stderr
