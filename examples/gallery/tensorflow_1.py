"""Train by a script of TensorFlow 1: placeholders, a session, gradients that are clipped before they are applied.

    python examples/gallery/tensorflow_1.py
    mpirun -n 2 python examples/gallery/tensorflow_1.py
"""

import numpy as np

import tensoropt as tf  # was: import tensorflow.compat.v1 as tf

FEATURES, HIDDEN, CLASSES, BATCH, STEPS = 20, 32, 4, 16, 3


def dense(x, n, name):
    with tf.variable_scope(name):
        first = tf.glorot_uniform_initializer(seed=1)
        kernel = tf.get_variable("kernel", [x.shape[1], n], initializer=first, use_resource=True)
        bias = tf.get_variable("bias", [n], initializer=tf.zeros_initializer(), use_resource=True)
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def main():
    tf.init(batch_size=BATCH)  # was: tf.disable_eager_execution()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [None, FEATURES])
    y = tf.placeholder(tf.int32, [None])
    logits = dense(tf.nn.relu(dense(x, HIDDEN, "hidden")), CLASSES, "logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    is_right = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y)
    accuracy = tf.reduce_mean(tf.cast(is_right, tf.float32))
    optimizer = tf.train.AdamOptimizer(0.01)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
    train_op = optimizer.apply_gradients(zip(gradients, variables, strict=True))
    initializer = tf.global_variables_initializer()

    session = tf.build_execution_graph(plan=tf.find_strategy())  # was: session = tf.Session()
    session.run(initializer)
    random = np.random.default_rng(0)
    for step in range(STEPS):
        batch = {x: random.normal(size=(BATCH, FEATURES)), y: random.integers(0, CLASSES, BATCH)}
        _, *values = session.run([train_op, loss, norm, accuracy], feed_dict=batch)
        print(step, dict(zip(("loss", "norm", "accuracy"), map(float, values), strict=True)))


if __name__ == "__main__":
    main()
