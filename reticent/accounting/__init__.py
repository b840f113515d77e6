"""The guarantee: rho, epsilon, delta; calibration; the plan."""
