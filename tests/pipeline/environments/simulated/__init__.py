"""Tools that only have a document, played by a chat."""
