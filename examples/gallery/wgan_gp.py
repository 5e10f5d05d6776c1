"""Train a Wasserstein GAN with a gradient penalty: two networks, an optimizer each, and gradients of gradients.

    python examples/gallery/wgan_gp.py
    tensoropt run -n 2 examples/gallery/wgan_gp.py

In each step the critic learns twice, then the generator once.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE, NOISE, BATCH, STEPS, CRITIC_STEPS = 8, 8, 16, 3, 2


def create_critic():
    images = keras.Input((SIZE, SIZE, 1))
    x = layers.LeakyReLU(0.2)(layers.Conv2D(8, 5, 2, padding="same")(images))
    x = layers.LeakyReLU(0.2)(layers.Conv2D(16, 5, 2, padding="same")(x))
    return keras.Model(images, layers.Dense(1)(layers.Flatten()(x)))


def create_generator():
    noise = keras.Input((NOISE,))
    x = layers.Reshape((SIZE // 2, SIZE // 2, 8))(layers.Dense(2 * SIZE * SIZE, use_bias=False)(noise))
    x = layers.UpSampling2D()(layers.LeakyReLU(0.2)(layers.BatchNormalization()(x)))
    return keras.Model(noise, layers.Conv2D(1, 3, padding="same", activation="tanh")(x))


class Wgan(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic, self.generator = create_critic(), create_generator()
        self.seeds = keras.random.SeedGenerator(1)

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.critic_optimizer, self.generator_optimizer = critic_optimizer, generator_optimizer

    def generated(self, n):
        return self.generator(keras.random.normal((n, NOISE), seed=self.seeds), training=True)

    def penalty(self, real, fake):
        share = keras.random.uniform((tf.shape(real)[0], 1, 1, 1), seed=self.seeds)
        between = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.critic(between, training=True)
        slopes = tape.gradient(scores, between)
        return tf.reduce_mean((tf.sqrt(tf.reduce_sum(slopes**2, axis=[1, 2, 3])) - 1) ** 2)

    def train_step(self, real):
        n = tf.shape(real)[0]
        for _ in range(CRITIC_STEPS):
            with tf.GradientTape() as tape:
                fake = self.generated(n)
                scores = self.critic(fake, training=True) - self.critic(real, training=True)
                critic_loss = tf.reduce_mean(scores) + 10 * self.penalty(real, fake)
            gradients = tape.gradient(critic_loss, self.critic.trainable_variables)
            self.critic_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            generator_loss = -tf.reduce_mean(self.critic(self.generated(n), training=True))
        gradients = tape.gradient(generator_loss, self.generator.trainable_variables)
        self.generator_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables, strict=True))
        return {"critic_loss": critic_loss, "generator_loss": generator_loss}


def main():
    keras.utils.set_random_seed(1)
    images = np.tanh(np.random.default_rng(0).normal(size=(BATCH * STEPS, SIZE, SIZE, 1)).cumsum(axis=1))
    model = Wgan()
    model.compile(keras.optimizers.Adam(2e-4, beta_1=0.5), keras.optimizers.Adam(2e-4, beta_1=0.5))
    shown = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: print(step, logs))
    model.fit(images, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[shown])


if __name__ == "__main__":
    main()
