"""Training the Executor: scripted traces, SFT warm start, GRPO, FP8 export; the trainer the Planner shares."""
