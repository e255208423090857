"""What is measured, each as a ratio within one run: these machines are noisy, ratios less so."""
