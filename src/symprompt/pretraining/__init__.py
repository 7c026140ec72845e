"""Pretraining of masked language models: text in, a transformers model folder out."""
