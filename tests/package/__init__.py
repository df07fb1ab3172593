"""The Debian packages, on a clean Debian: they install, run, upgrade and go as promised."""
