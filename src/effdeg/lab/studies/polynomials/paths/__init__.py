"""Random polynomials of known degree, and the degree found along paths (Theorem 3.1)."""
