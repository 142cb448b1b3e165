"""Evaluation: a dataset answered by one method, in a folder that can be resumed, summed up and compared."""
