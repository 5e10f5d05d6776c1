"""A model that the tests of ``tensoropt check`` search and run."""

import tensoropt


def model():
    x = tensoropt.placeholder(tensoropt.float32, [16, 32, 32, 3], name="x")
    y = tensoropt.placeholder(tensoropt.int64, [16], name="y")
    kernel = tensoropt.get_variable("kernel", [3, 3, 3, 16])
    bias = tensoropt.get_variable("bias", [16])
    weights = tensoropt.get_variable("weights", [4096, 6])
    hidden = tensoropt.nn.relu(tensoropt.nn.bias_add(tensoropt.nn.conv2d(x, kernel, 1, "SAME"), bias))
    hidden = tensoropt.reshape(tensoropt.nn.max_pool2d(hidden, 2, 2, "VALID"), [16, 4096])
    return tensoropt.softmax_cross_entropy(y, tensoropt.matmul(hidden, weights))
