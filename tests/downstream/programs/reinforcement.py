"""Reinforcement learning: a policy gradient on a small pole-balancing world that tf.py_function steps inside a loop."""

import json

import numpy as np
import tensorflow as tf

STEPS = 40


class Pole:
    """A pole on a cart, Euler steps of 20 ms."""

    def reset(self):
        self.state = np.array([0.0, 0.0, 0.02, 0.0], np.float32)
        return self.state

    def step(self, action):
        _, speed, angle, turning = self.state
        force = 10.0 if action else -10.0
        pull = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        bend = (9.8 * np.sin(angle) - np.cos(angle) * pull) / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1))
        push = pull - 0.05 * bend * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.array([speed, push, turning, bend], np.float32)
        return self.state.astype(np.float32), np.float32(1.0 - abs(self.state[2])), np.int32(abs(self.state[2]) > 0.21)


world = Pole()
generator = np.random.default_rng(1)


def weights(*shape):
    return tf.Variable((generator.standard_normal(shape) / np.sqrt(shape[0])).astype("float32"))


first, second, third = weights(4, 64), weights(64, 64), weights(64, 2)
variables = [first, second, third]


def policy(states):
    return tf.matmul(tf.tanh(tf.matmul(tf.tanh(tf.matmul(states, first)), second)), third)


@tf.function
def episode(start):
    states, actions, rewards = (tf.TensorArray(kind, STEPS) for kind in (tf.float32, tf.int32, tf.float32))
    state = start
    for index in tf.range(STEPS):
        # The action alternates, so that both runs walk the same path and only the products can differ.
        action = index % 2
        states, actions = states.write(index, state), actions.write(index, action)
        state, reward, _ = tf.py_function(world.step, [action], [tf.float32, tf.float32, tf.int32])
        state = tf.ensure_shape(state, [4])
        rewards = rewards.write(index, tf.ensure_shape(reward, []))
    return states.stack(), actions.stack(), rewards.stack()


@tf.function
def learn(states, actions, rewards):
    with tf.GradientTape() as tape:
        chosen = tf.nn.sparse_softmax_cross_entropy_with_logits(actions, policy(states))
        returns = tf.cumsum(rewards, reverse=True)
        loss = tf.reduce_mean(chosen * (returns - tf.reduce_mean(returns)) / 10.0) + 0.1 * tf.reduce_mean(chosen)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.05 * gradient)
    return loss


losses, totals = [], []
for _ in range(12):
    states, actions, rewards = episode(tf.constant(world.reset()))
    losses.append(float(learn(states, actions, rewards)))
    totals.append(float(tf.reduce_sum(rewards)))
print(json.dumps({"losses": losses, "totals": totals}))
