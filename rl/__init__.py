"""Turn curated records into a trained model; the only place that imports torch."""
