"""Mirrors ``bcd``: unit tests beside the modules' names, whole journeys apart.

Folders named after an option (``postgresql``, ``sqlite``, ``podman``, ``bench``) are collected
only when the option asks for them; nothing is skipped.
"""
