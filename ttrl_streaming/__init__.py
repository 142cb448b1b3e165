"""Test-time learning as a service: answers at once, and learns from feedback that comes whenever it comes."""
