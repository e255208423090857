"""The demonstration: real digits, few labels, two networks, one question."""
