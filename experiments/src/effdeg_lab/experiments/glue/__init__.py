"""Fine-tuning text encoders on GLUE."""
