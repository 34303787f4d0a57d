"""A language model small enough to learn from nothing on a laptop, in open text: tokenizer, chat template, weights."""
