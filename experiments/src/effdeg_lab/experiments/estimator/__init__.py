"""Is the estimator right, on functions whose effective degree is known?"""
