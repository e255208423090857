"""Nothing of its own: it lets the tests in all folders import the helpers next to this file."""
