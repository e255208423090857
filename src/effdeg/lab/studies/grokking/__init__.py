"""Grokking: a network memorizes a part of modular arithmetic and, much later, understands it (section 4.2)."""
