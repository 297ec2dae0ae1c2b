"""Optimizers, averages of variables, and the state of training."""
