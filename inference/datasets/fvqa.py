"""FVQA as MMSearch-R1 made it (not the FVQA of 2016): questions on pictures that need search, or do not.

A row of `fvqa_test.parquet` is one of the original's Parquet rows (see `original`), with `category` `search_free` or
`search_required` in the train file:

    data_id "fvqa_train_6", prompt, images [{"bytes": …}], category, data_source "mmsearch_r1/fvqa_train",
    reward_model {"ground_truth": "Rubjerg Knude", "candidate_answers": "[\\"Rubjerg Knude\\"]", "style": "rule"}

`image_urls` are all empty in the released files and are not read.

Wu et al. 2025, arXiv 2506.20670; https://huggingface.co/datasets/lmms-lab/FVQA (train 4,856, test 1,800); Apache 2.0.
"""

from __future__ import annotations

from inference.datasets.original import VERSION, examples

__all__ = ["VERSION", "examples"]
