"""FedAvg against FedCurv and personal models."""
