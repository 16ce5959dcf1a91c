"""What is made of models: embeddings, transcripts, conversations, counts and benchmarks."""
