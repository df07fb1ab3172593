"""Tests of ``bcd.model``."""
