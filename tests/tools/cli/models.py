"""A file of model functions, good and bad, as a user might write one."""

import time

import tensoropt


def good(batch=64, width=100, classes=10):
    x = tensoropt.placeholder(tensoropt.float32, [batch, width])
    y = tensoropt.placeholder(tensoropt.int32, [batch])
    w = tensoropt.get_variable("w", [width, classes])
    return tensoropt.softmax_cross_entropy(y, tensoropt.matmul(x, w))


def trains():
    tensoropt.AdamOptimizer(0.1).minimize(good())


def without_rule():
    x = tensoropt.placeholder(tensoropt.float32, [8, 8])
    w = tensoropt.get_variable("w", [8, 8])
    return tensoropt.reduce_mean(tensoropt.linalg.qr(tensoropt.matmul(x, w))[0])


def nothing():
    pass


def no_loss():
    good()
    return 3


def fails():
    x = tensoropt.placeholder(tensoropt.float32, [64, 100])
    return tensoropt.matmul(x, x)


def begins_a_session():
    tensoropt.init()


def runs():
    return tensoropt.run(good())


def exits():
    raise SystemExit(3)


def vector():
    return tensoropt.get_variable("w", [100, 10]) * 1.0


def takes(argument):
    return argument


def untrainable():
    return tensoropt.reduce_mean(tensoropt.placeholder(tensoropt.float32, [64, 100]))


def slow():
    print("recording", flush=True)
    for _ in range(600):  # a signal just before a sleep is seen after it
        time.sleep(0.1)


def deep():
    hidden = tensoropt.placeholder(tensoropt.float32, [64, 128])
    y = tensoropt.placeholder(tensoropt.int32, [64])
    for layer in range(4):
        hidden = tensoropt.nn.relu(tensoropt.matmul(hidden, tensoropt.get_variable(f"w{layer}", [128, 128])))
    return tensoropt.softmax_cross_entropy(y, hidden)
