"""The penalty in other frameworks' trainers, one module each, and what the library knows about their models."""
