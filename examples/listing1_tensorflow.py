"""``listing1.py`` in plain TensorFlow, on one device.

    python examples/listing1_tensorflow.py
"""

import tensorflow.compat.v1 as tf
from digits import digit_batches, parse_arguments, write_log

BATCH = 64


def create_model(input, labels):
    w = tf.get_variable("w", [64, 10], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(input, w) + b
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def training(loss):
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    train_op = optimizer.minimize(loss)
    return train_op


def main():
    arguments = parse_arguments(__doc__)
    tf.disable_eager_execution()
    input = tf.placeholder(tf.float32, [BATCH, 64])
    label = tf.placeholder(tf.float32, [BATCH, 10])
    loss = create_model(input, label)
    train_op = training(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    losses = []
    for images, classes in digit_batches(BATCH, arguments.steps):
        _, value = session.run([train_op, loss], feed_dict={input: images, label: classes})
        losses.append(float(value))
    write_log(arguments, losses)


if __name__ == "__main__":
    main()
