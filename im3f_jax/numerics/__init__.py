"""Random draws, linear algebra and indexed sums: they know nothing of the model."""
