"""ASTRA (arXiv 2601.21558): environments made from questions (`environments`), tool chains (`chains*`)."""
