"""Offline search: corpora, BM25, dense vectors, hybrid ranking, the index builder and its HTTP service."""
