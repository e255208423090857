"""Networks that are polynomials, trained to fit maps whose effective degree is known (appendix I)."""
