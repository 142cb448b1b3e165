"""Shipped run configs: one TOML per run; line 1 says what it is, line 2 the command that runs it."""
