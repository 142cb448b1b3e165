"""Test-time learning over a stream: predict, then learn. Weights and memory change between batches, never within."""
