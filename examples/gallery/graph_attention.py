"""Train a graph attention network that classifies the nodes of one graph, a batch of nodes at a time.

    python examples/gallery/graph_attention.py
    tensoropt run -n 2 examples/gallery/graph_attention.py

The graph is a constant of the model: a matrix of features and a list of edges. Attention is normalized over the edges
of each node by sums over segments.
"""

import keras
import numpy as np
from keras import layers, ops

NODES, EDGES, FEATURES, CLASSES, WIDTH, HEADS, BATCH, STEPS = 60, 240, 12, 3, 8, 2, 16, 3


class GraphAttention(layers.Layer):
    def __init__(self, edges):
        super().__init__()
        self.sources, self.targets = edges

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], HEADS, WIDTH), name="kernel")
        self.attention = self.add_weight(shape=(HEADS, 2 * WIDTH), name="attention")

    def call(self, nodes):
        nodes = ops.einsum("nf,fhw->nhw", nodes, self.kernel)
        sent, received = ops.take(nodes, self.sources, axis=0), ops.take(nodes, self.targets, axis=0)
        scores = ops.sum(ops.concatenate([received, sent], axis=-1) * self.attention, axis=-1)
        scores = ops.exp(ops.clip(ops.leaky_relu(scores, 0.2), -2, 2))
        total = ops.segment_sum(scores, self.targets, num_segments=NODES)
        shares = scores / ops.take(total, self.targets, axis=0)
        together = ops.segment_sum(shares[..., None] * sent, self.targets, num_segments=NODES)
        return ops.reshape(ops.elu(together), (NODES, HEADS * WIDTH))


class NodeClassifier(keras.Model):
    def __init__(self, features, edges):
        super().__init__()
        self.features, self.prepare, self.answer = features, layers.Dense(HEADS * WIDTH, "relu"), layers.Dense(CLASSES)
        self.hops = [GraphAttention(edges), GraphAttention(edges)]

    def call(self, indices):
        x = self.prepare(ops.convert_to_tensor(self.features, keras.config.floatx()))
        for hop in self.hops:
            x = x + hop(x)
        return ops.take(self.answer(x), indices, axis=0)


def graph():
    """Features and classes of nodes, and edges, most of them between nodes of a class; each node has one to itself."""
    random = np.random.default_rng(0)
    classes = random.integers(0, CLASSES, NODES)
    sources, targets = random.integers(0, NODES, (2, 4 * EDGES))
    kept = np.flatnonzero((classes[sources] == classes[targets]) | (random.random(4 * EDGES) < 0.1))[:EDGES]
    edges = np.concatenate([np.stack([sources, targets])[:, kept], np.arange(NODES)[None].repeat(2, axis=0)], axis=1)
    return random.normal(size=(NODES, FEATURES)) + classes[:, None], classes, edges.astype("int32")


def main():
    keras.utils.set_random_seed(1)
    features, classes, edges = graph()
    learned = np.random.default_rng(1).permutation(NODES)[: BATCH * STEPS]
    model = NodeClassifier(features, edges)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(learned, classes[learned], batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
