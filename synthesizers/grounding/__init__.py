"""From "call this tool next" to a call that was really made, with the provenance of every argument."""
