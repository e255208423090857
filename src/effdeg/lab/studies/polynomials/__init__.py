"""Polynomials: networks that fit them (appendix I), and their degree along paths (Theorem 3.1)."""
