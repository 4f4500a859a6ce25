"""Fleet contract, placement, cost."""
