"""The Manager: what to remember of past runs, how to rank it for a new question, and how not to lose it."""
