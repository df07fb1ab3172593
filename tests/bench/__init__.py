"""Measurements: ratios against a floor of the same run, and CPU per operation.

Wall times on shared machines are noise; nothing here asserts one. Run with
``pytest --bench -s tests/bench``.
"""
