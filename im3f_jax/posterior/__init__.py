"""What a fit gives: predictions, scores, topics, saving."""
