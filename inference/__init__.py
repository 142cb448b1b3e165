"""The agent: Planner and Executor episodes, the driver that runs them, judges and the `mia ask` command."""
