"""What real units do wrong, as rules that a personality or a fault puts around a unit."""
