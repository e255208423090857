"""A model and its data seen from outside: examples, paths between them, layers, outputs, derivatives."""
