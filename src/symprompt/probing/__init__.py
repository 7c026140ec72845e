"""Ask a language model for facts: methods, preparation, training, ranks."""
