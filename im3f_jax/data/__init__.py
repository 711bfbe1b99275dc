"""Ratings and their ids, readers, splits and synthetic data; no JAX in here."""
