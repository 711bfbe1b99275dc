"""Benchmarks: how fast and how accurate the library is, beside what else one may use.

Run from the root of the project as modules, ``python -m bench.peers``. Results are
written as JSON into ``bench/results``. Data sets are read from the folder that the
environment variable ``IM3F_DATA_DIR`` names; nothing of them is in the project.
"""
