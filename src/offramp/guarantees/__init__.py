"""Statistics of a guarantee: bounds on a risk, and certificates. Nothing here knows exits."""
