"""Tests of ``bcd.wire``."""
