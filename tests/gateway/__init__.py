"""Tests of ``bcd.gateway``."""
