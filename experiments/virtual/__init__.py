"""VIRTUAL against learning together, alone and by FedAvg."""
