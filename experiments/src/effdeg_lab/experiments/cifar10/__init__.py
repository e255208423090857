"""CIFAR-10: the paper's table of methods, ablations, relatives of ED, few labels and noisy labels."""
