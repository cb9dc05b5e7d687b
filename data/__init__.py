"""What a task, a trajectory and a verdict are, and how they are stored."""
