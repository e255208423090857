"""Which of these networks is best, without labels?"""
