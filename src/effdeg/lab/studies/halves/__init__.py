"""Networks that can look at either half of an image: which one they rely on, and what makes them look at the other."""
