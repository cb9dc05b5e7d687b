"""Search while a rollout is made: several candidates for the next step, the better of them goes on."""
