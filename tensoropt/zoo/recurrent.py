"""Recurrent networks, unrolled: the RNN of TensorOpt's Table 1, and FlexFlow's RNNTC, RNNLM and NMT.

The products of a layer's inputs are one MatMul for all steps; only what depends on the step before is an operator per step.
A layer's inputs are unstacked after that product and its outputs are stacked again, so that each step's tensor has few
consumers, and the recurrent weights, one variable, have one consumer per step. Rows are batch-major, so that the batch can
be split through all of it.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from .layers import dense, mean_loss, model, v1, weights, words

State = tuple[tf.Tensor, ...]


@model
def rnn(batch: int = 256, steps: int = 20, layers: int = 4, hidden: int = 56320, vocabulary: int = 14400) -> tf.Tensor:
    """The RNN of TensorOpt's Table 1: plain recurrent layers in a language model, 108.0 GB of parameters.

    The paper gives the bytes and the batch alone. That its search takes 0.28 s, a thousandth of the Transformer's, means
    few operators: hence four layers, and h' = tanh(x W + b + h U), three operators per step, rather than an LSTM's
    thirteen. 20 steps are ToFu's, with whose models the paper compares. Hidden size and vocabulary give the bytes.
    """
    x = _embedded(words("words", batch, steps), vocabulary, hidden, "embedding")
    for number in range(layers):
        x = _plain(x, steps, hidden, f"layer_{number + 1}")
    return mean_loss(dense(x, vocabulary, "logits"), words("next_words", batch, steps))


@model
def rnntc(
    batch: int = 256, steps: int = 40, layers: int = 4, hidden: int = 1024, vocabulary: int = 20000, classes: int = 2
) -> tf.Tensor:
    """RNNTC of FlexFlow's Table 4, text classification: four LSTM layers of 1024, and classes from the last step.

    Vocabulary and classes are open: 20,000 words, about those of the cited movie reviews, and positive or negative.
    """
    x = _embedded(words("words", batch, steps), vocabulary, hidden, "embedding")
    for number in range(layers):
        x, state = _lstm(x, steps, hidden, f"layer_{number + 1}")
    return mean_loss(dense(state[0], classes, "logits"), v1.placeholder(tf.int32, [batch], name="labels"))


@model
def rnnlm(batch: int = 256, steps: int = 40, layers: int = 2, hidden: int = 2048, vocabulary: int = 10000) -> tf.Tensor:
    """RNNLM of FlexFlow's Table 4, a language model: two LSTM layers of 2048; the Penn Treebank's 10,000 words."""
    x = _embedded(words("words", batch, steps), vocabulary, hidden, "embedding")
    for number in range(layers):
        x, _ = _lstm(x, steps, hidden, f"layer_{number + 1}")
    return mean_loss(dense(x, vocabulary, "logits"), words("next_words", batch, steps))


@model
def nmt(batch: int = 256, steps: int = 40, layers: int = 2, hidden: int = 1024, vocabulary: int = 32000) -> tf.Tensor:
    """NMT of FlexFlow's Table 4, translation: LSTM layers of 1024, two for each side, and attention on top.

    Attention follows the last decoder layer, as in FlexFlow's Figure 13, and takes all of the decoder's steps at once. The
    vocabulary is open: 32,000 word pieces for each language, as in the cited GNMT.
    """
    x = _embedded(words("source_words", batch, steps), vocabulary, hidden, "source_embedding")
    states = []
    for number in range(layers):
        x, state = _lstm(x, steps, hidden, f"encoder_{number + 1}")
        states.append(state)
    y = _embedded(words("target_words", batch, steps), vocabulary, hidden, "target_embedding")
    for number, state in enumerate(states):
        y, _ = _lstm(y, steps, hidden, f"decoder_{number + 1}", state)
    outputs = _attention(y, x, steps)
    return mean_loss(dense(outputs, vocabulary, "logits"), words("next_words", batch, steps))


def _embedded(numbers: tf.Tensor, vocabulary: int, width: int, name: str) -> tf.Tensor:
    """Return rows of [batch * steps, width] from word numbers [batch, steps]."""
    with v1.variable_scope(name):
        rows = tf.gather(weights("weights", [vocabulary, width]), numbers)
        return tf.reshape(rows, [numbers.shape[0] * numbers.shape[1], width])


def _unrolled(
    x: tf.Tensor, steps: int, step: Callable[[tf.Tensor, State | None], State], state: State | None
) -> tuple[tf.Tensor, State]:
    """Run a step over the rows [batch * steps, width]; the first part of its state is its output."""
    batch, width = x.shape[0] // steps, x.shape[1]
    outputs = []
    for part in tf.unstack(tf.reshape(x, [batch, steps, width]), axis=1):
        state = step(part, state)
        outputs.append(state[0])
    assert state is not None
    stacked = tf.stack(outputs, axis=1)
    return tf.reshape(stacked, [batch * steps, stacked.shape[2]]), state


def _plain(x: tf.Tensor, steps: int, hidden: int, name: str) -> tf.Tensor:
    """Return a layer of h' = tanh(x W + b + h U); h is zero before the first step."""
    with v1.variable_scope(name):
        recurrent = weights("recurrent", [hidden, hidden])

        def step(part: tf.Tensor, state: State | None) -> State:
            return (tf.tanh(part if state is None else part + tf.matmul(state[0], recurrent)),)

        return _unrolled(dense(x, hidden, "input"), steps, step, None)[0]


def _lstm(x: tf.Tensor, steps: int, hidden: int, name: str, state: State | None = None) -> tuple[tf.Tensor, State]:
    """Return an LSTM layer and its last (output, cell). The gates of one unit lie together, so that units can be split."""
    with v1.variable_scope(name):
        recurrent = weights("recurrent", [hidden, 4 * hidden])

        def step(part: tf.Tensor, state: State | None) -> State:
            gates = part if state is None else part + tf.matmul(state[0], recurrent)
            input_gate, forget_gate, output_gate, new = tf.unstack(tf.reshape(gates, [gates.shape[0], hidden, 4]), axis=2)
            cell = tf.sigmoid(input_gate) * tf.tanh(new)
            if state is not None:
                cell += tf.sigmoid(forget_gate) * state[1]
            return tf.sigmoid(output_gate) * tf.tanh(cell), cell

        return _unrolled(dense(x, 4 * hidden, "input"), steps, step, state)


def _attention(outputs: tf.Tensor, sources: tf.Tensor, steps: int) -> tf.Tensor:
    """Return tanh(C + D): a context from the encoder's outputs for each of the decoder's, both projected."""
    width = outputs.shape[1]
    with v1.variable_scope("attention"):
        queries, keys = (tf.reshape(rows, [rows.shape[0] // steps, steps, width]) for rows in (outputs, sources))
        shares = tf.nn.softmax(tf.einsum("bth,bsh->bts", queries, keys))
        context = tf.reshape(tf.einsum("bts,bsh->bth", shares, keys), outputs.shape)
        return tf.tanh(dense(context, width, "context") + dense(outputs, width, "decoded", use_bias=False))
