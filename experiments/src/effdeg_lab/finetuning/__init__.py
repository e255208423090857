"""Fine-tuning pretrained image encoders: encoders, distribution shifts, interpolated weights and soups."""
