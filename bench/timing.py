"""Medians of compiled functions that are timed in alternation."""

import math
import statistics
import time

import jax

__all__ = ["race", "summary"]


def summary(seconds):
    """Summarise a list of seconds: median, least, largest and their number."""
    return {
        "median": statistics.median(seconds),
        "least": min(seconds),
        "largest": max(seconds),
        "number": len(seconds),
    }


def _seconds(function, arguments):
    begin = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - begin


def race(functions, arguments, rounds, slow=math.inf):
    """Compile functions of the same arguments, and time them in alternation.

    Parameters
    ----------
    functions : dict
        Name -> function of all arguments.
    arguments : tuple
        Arrays, on the device that is measured.
    rounds : int
        Calls of each that count; one more before them does not.
    slow : float
        A function whose first call takes this many times the fastest one's is not
        called again: that call is its measurement.

    Returns
    -------
    dict
        Name -> :func:`summary` of the seconds, with "compile" beside it.
    """
    compiled, found = {}, {}
    for name, function in functions.items():
        begin = time.perf_counter()
        compiled[name] = jax.jit(function).lower(*arguments).compile()
        found[name] = {"compile": time.perf_counter() - begin}
    first = {name: _seconds(call, arguments) for name, call in compiled.items()}
    limit = slow * min(first.values())
    seconds = {name: [] if t <= limit else [t] for name, t in first.items()}
    for _ in range(rounds):
        for name, call in compiled.items():
            if first[name] <= limit:
                seconds[name].append(_seconds(call, arguments))
    return {name: found[name] | summary(seconds[name]) for name in functions}
