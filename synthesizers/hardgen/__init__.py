"""HardGen: hard requests for the tools that two policies both fail at, solved by a chain nobody mentions."""
