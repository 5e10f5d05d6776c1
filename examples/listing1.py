"""The TensorOpt paper's Listing 1, filled in: softmax regression on handwritten digits.

Start it with ``mpirun -n 2 python examples/listing1.py``; ``examples/listing1_tensorflow.py`` is the same script in plain
TensorFlow, and the difference between the two is what TensorOpt asks of a user.
"""

from sklearn.datasets import load_digits

import tensoropt

BATCH = 64


def create_model(input, labels):
    w = tensoropt.get_variable("w", [64, 10])
    b = tensoropt.get_variable("b", [10], initializer=tensoropt.zeros_initializer())
    logits = tensoropt.matmul(input, w) + b
    return tensoropt.softmax_cross_entropy(labels, logits)


def training(loss):
    optimizer = tensoropt.GradientDescentOptimizer()
    return optimizer.minimize(loss)


def main():
    tensoropt.init(seed=1)
    input = tensoropt.placeholder(tensoropt.float32, [BATCH, 64])
    label = tensoropt.placeholder(tensoropt.int64, [BATCH])
    loss = create_model(input, label)
    train_op = training(loss)
    plan = tensoropt.find_strategy(option="mini_time")
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan)
    digits, classes = load_digits(return_X_y=True)
    for step in range(20):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        _, value = tensoropt.run([train_op, loss], feed_dict={input: digits[rows] / 16, label: classes[rows]})
        if tensoropt.current_session().processes.rank == 0:
            print(f"step {step}: loss {value:.6f}")


if __name__ == "__main__":
    main()
