"""Tests of ``bcd.signing``."""
