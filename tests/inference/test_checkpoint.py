"""Checkpoints: what goes on from one equals what was never broken off."""

import errno
import json
import os
import shutil
import subprocess
import sys
import warnings
from contextlib import contextmanager

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.inference import run
from im3f_jax.inference.checkpoint import Checkpoints, Folder
from tests import fits

pytestmark = pytest.mark.relaxed


class Killed(BaseException):
    """Stands for the death of the process: nothing catches it."""


def dies_after(sweep, chain=0):
    def callback(done, elapsed, metrics):
        if metrics["chain"] == chain and done >= sweep:
            raise Killed

    return callback


def break_off(model, folder, sweep, chain=0, **settings):
    """Fit until a chain has done so many sweeps, and lose what no checkpoint has."""
    with pytest.raises(Killed):
        fits.fit(
            model, checkpoint_dir=folder, callback=dies_after(sweep, chain), **settings
        )


def sweeps_of(seen):
    return lambda sweep, elapsed, metrics: seen.append((metrics["chain"], sweep))


def test_a_fit_goes_on_as_if_it_had_not_been_broken_off(tmp_path, caplog):
    caplog.set_level("INFO")
    expected = fits.posterior("IM3F")
    for store, every, at in (("all", 5, 12), ("all", 1, 7), ("summary", 4, 10)):
        folder, seen = tmp_path / f"{store} {every}", []
        settings = {"store": store, "checkpoint_every": every}
        break_off(fits.MODELS["IM3F"], folder, at, **settings)
        found = fits.fit(
            fits.MODELS["IM3F"],
            checkpoint_dir=folder,
            callback=sweeps_of(seen),
            **settings,
        )
        done = at // every * every
        assert f"{done} sweeps are done" in caplog.messages[-1] or any(
            f"{done} sweeps are done" in m for m in caplog.messages
        )
        assert seen[0][1] > done and seen[-1] == (0, 19)
        fits.same(expected, found)
        assert not found.partial
