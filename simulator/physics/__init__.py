"""Where the energy goes: power over time, losses, the house and its meter. Pure; time is an argument."""
