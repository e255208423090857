"""What any room may use: trees of tensors, checks, batches, transfers, progress, files, optional imports."""
