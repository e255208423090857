"""Fine-tuning text classifiers: sentences, tokens, and encoders in two halves, below and above the embeddings."""
