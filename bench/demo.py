"""Run the demo, and keep its table as a results file: ``python -m bench.demo``."""

import dataclasses
import sys

from bench import machine
from im3f_jax.demo import run_demo

__all__ = ["main"]


def main():
    """Run the command line."""
    started = machine.describe()
    table = [dataclasses.asdict(row) for row in run_demo()]
    machine.write_result("demo", {"rows": table}, started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
