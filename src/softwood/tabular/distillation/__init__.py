"""Small models taught by large ones: lesson -> teaching -> compress, and what a compression saves and costs."""
