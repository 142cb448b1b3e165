"""Training of the Planner: it plans, a frozen Executor carries the plan out, it judges, it may plan once more."""
