"""What training steps minimise with: one protocol (:mod:`.runtime`), and two kinds of optimizer.

:class:`.classic.Classic` is one of ``tf.compat.v1.train``; :class:`.keras_optimizer.KerasOptimizer` is any of Keras.
"""
