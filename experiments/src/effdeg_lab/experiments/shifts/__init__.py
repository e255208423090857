"""Fine-tuning under distribution shifts."""
