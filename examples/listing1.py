"""The TensorOpt paper's Listing 1, filled in: softmax regression on handwritten digits.

    mpirun -n 2 python examples/listing1.py

``listing1_tensorflow.py`` is the same script in plain TensorFlow; ``diff`` shows what changes for TensorOpt.
"""

from digits import digit_batches, parse_arguments, write_log

import tensoropt

BATCH = 64


def create_model(input, labels):
    w = tensoropt.get_variable("w", [64, 10], initializer=tensoropt.zeros_initializer())
    b = tensoropt.get_variable("b", [10], initializer=tensoropt.zeros_initializer())
    logits = tensoropt.matmul(input, w) + b
    return tensoropt.softmax_cross_entropy(labels, logits)


def training(loss):
    optimizer = tensoropt.GradientDescentOptimizer()
    train_op = optimizer.minimize(loss)
    return train_op


def main():
    arguments = parse_arguments(__doc__)
    session = tensoropt.init()
    input = tensoropt.placeholder(tensoropt.float32, [BATCH, 64])
    label = tensoropt.placeholder(tensoropt.float32, [BATCH, 10])
    loss = create_model(input, label)
    train_op = training(loss)
    plan = tensoropt.find_strategy(option="mini_time", memory=arguments.memory)
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)
    losses = []
    for images, classes in digit_batches(BATCH, arguments.steps):
        _, value = tensoropt.run([train_op, loss], feed_dict={input: images, label: classes})
        losses.append(float(value))
    write_log(arguments, losses, session.statistics() | {"plan": plan.summary()}, session.processes.rank)


if __name__ == "__main__":
    main()
