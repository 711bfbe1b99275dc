"""The model family as frozen specs, its components and its log joint density."""
